"""Broadcasting against the real broker: all get all, in order, although members fail, crash or come late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import GroupMismatch
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops.core import Op

from rigs.fleet import Connections

pytestmark = pytest.mark.virtual_time

QUEUES = 3


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("quotes", QUEUES)
        yield running


class Seen:
    """A listener that notes what it was given, by queue, and fails at some bodies."""

    def __init__(self, *failing: bytes, status: ConsumeStatus = ConsumeStatus.SUSPEND) -> None:
        self.bodies: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
        self._failing = failing
        self._status = status

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        if any(message.body in self._failing for message in messages):
            return self._status
        self.bodies[context.queue.queue_id] += [message.body for message in messages]
        return ConsumeStatus.SUCCESS

    @property
    def all(self) -> list[bytes]:
        return [body for bodies in self.bodies.values() for body in bodies]


def member(broker: InMemoryBroker, listener: Any, directory: Path, **settings: Any) -> Consumer:
    settings = {"topics": {"quotes": "*"}, "group": "g", "now": asyncio.get_running_loop().time, **settings}
    place = {"instance": directory.name, "offsets_dir": str(directory)}
    return Consumer(broker.address, listener=listener, model="broadcasting", **place, **settings)


async def send(broker: InMemoryBroker, numbers: range, **fields: Any) -> None:
    async with Producer(broker.address) as producer:
        for number in numbers:
            await producer.send(Message("quotes", b"%d" % number, **fields), queue_id=number % QUEUES)


def expected(numbers: range) -> dict[int, list[bytes]]:
    return {queue_id: [b"%d" % n for n in numbers if n % QUEUES == queue_id] for queue_id in range(QUEUES)}


async def test_two_ordered_members_each_see_everything_in_order_without_a_lock(
    broker: InMemoryBroker, tmp_path: Path
) -> None:
    """OrderMsgBroadCastIT; features 39 and 77."""
    first, second, wire = Seen(), Seen(), Connections()
    a = member(broker, first, tmp_path / "a", connect=wire)
    b = member(broker, second, tmp_path / "b", connect=wire)

    async with a, b:
        await send(broker, range(60))
        await asyncio.sleep(100)
        await send(broker, range(60, 90))
        await asyncio.sleep(1)
        async with Admin(broker.address) as admin:
            locks = await admin.lock_status("g")

    assert first.bodies == second.bodies == expected(range(90))
    assert wire.kinds == {Op.JOIN, Op.RANGES, Op.PULL, Op.LEAVE}
    assert locks == []


async def test_members_that_do_not_consume_in_order_each_get_everything_once(
    broker: InMemoryBroker, tmp_path: Path
) -> None:
    seen, failing, wire = Seen(), Seen(b"4", status=ConsumeStatus.RETRY), Connections()
    a = member(broker, seen, tmp_path / "a", connect=wire, orderly=False)
    b = member(broker, failing, tmp_path / "b", connect=wire, orderly=False)

    async with a, b:
        await send(broker, range(60))
        await asyncio.sleep(100)

    assert sorted(seen.all) == sorted(b"%d" % number for number in range(60))
    assert sorted(failing.all) == sorted(b"%d" % number for number in range(60) if number != 4)
    assert wire.kinds == {Op.JOIN, Op.RANGES, Op.PULL, Op.LEAVE}


async def test_groups_do_not_notice_each_other(broker: InMemoryBroker, tmp_path: Path) -> None:
    one, other, clustering = Seen(), Seen(), Seen()
    sharing = Consumer(
        broker.address, group="h", listener=clustering, topics={"quotes": "*"}, now=asyncio.get_running_loop().time
    )

    async with member(broker, one, tmp_path / "a"), member(broker, other, tmp_path / "b", group="f"), sharing:
        await send(broker, range(30))
        await asyncio.sleep(1)

    assert one.bodies == other.bodies == clustering.bodies == expected(range(30))


async def test_one_that_fails_and_one_that_crashes_do_not_touch_the_others(
    broker: InMemoryBroker, tmp_path: Path
) -> None:
    failing, crashing, well, wire = Seen(b"4"), Seen(), Seen(), Connections()

    a, b = member(broker, failing, tmp_path / "a"), member(broker, well, tmp_path / "b")
    c = member(broker, crashing, tmp_path / "c", connect=wire, request_timeout_s=0.1)
    async with a, b, c:
        await send(broker, range(9))
        await asyncio.sleep(1)
        wire.cut()
        await send(broker, range(9, 18))
        await asyncio.sleep(10)

    assert crashing.bodies == expected(range(9))
    assert well.bodies == expected(range(18))
    assert failing.bodies == {**expected(range(18)), 1: [b"1"]}


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_late_starter_gets_only_what_is_new_and_the_one_that_comes_after_all_nothing(
    broker: InMemoryBroker, tmp_path: Path, orderly: bool
) -> None:
    early, late, last = Seen(), Seen(), Seen()

    async with member(broker, early, tmp_path / "a", orderly=orderly):
        await send(broker, range(30))
        await asyncio.sleep(1)
        async with member(broker, late, tmp_path / "b", start_from="last", orderly=orderly):
            await asyncio.sleep(1)
            await send(broker, range(30, 60))
            await asyncio.sleep(1)
        async with member(broker, last, tmp_path / "c", start_from="last", orderly=orderly):
            await asyncio.sleep(60)

    assert sorted(early.all) == sorted(b"%d" % number for number in range(60))
    assert sorted(late.all) == sorted(b"%d" % number for number in range(30, 60))
    assert last.all == []


async def test_only_wanted_tags_come_and_the_progress_passes_the_others(broker: InMemoryBroker, tmp_path: Path) -> None:
    seen = Seen()
    async with member(broker, seen, tmp_path / "a", topics={"quotes": "buy || sell"}):
        await send(broker, range(9), tag="buy")
        await send(broker, range(9, 18), tag="hold")
        await send(broker, range(18, 27))
        await asyncio.sleep(20)

    assert seen.bodies == expected(range(9))
    found = json.loads((tmp_path / "a" / "offsets.json").read_text())
    assert [queue["offset"] for queue in found["queues"]] == [9, 9, 9]


async def test_after_restarts_of_member_and_broker_each_message_came_once(
    broker: InMemoryBroker, tmp_path: Path
) -> None:
    seen = Seen()
    for start in range(0, 90, 30):
        async with member(broker, seen, tmp_path / "a"):
            await send(broker, range(start, start + 15))
            await asyncio.sleep(1)
            await broker.restart()
            await send(broker, range(start + 15, start + 30))
            await asyncio.sleep(2)
        await broker.restart()

    assert seen.bodies == expected(range(90))


async def test_a_group_is_either_shared_out_or_broadcast(broker: InMemoryBroker, tmp_path: Path) -> None:
    async with member(broker, Seen(), tmp_path / "a"):
        await asyncio.sleep(1)
        sharing = Consumer(
            broker.address, group="g", listener=Seen(), topics={"quotes": "*"}, now=asyncio.get_running_loop().time
        )
        with pytest.raises(GroupMismatch, match="group 'g' is ordered, broadcasting"):
            await sharing.run()


async def test_what_people_ask_the_broker_for_shows_members_and_their_own_progress(
    broker: InMemoryBroker, tmp_path: Path
) -> None:
    await send(broker, range(9))
    async with member(broker, Seen(), tmp_path / "a"), Admin(broker.address) as admin:
        await asyncio.sleep(6)
        described = await admin.describe_group("g")
        (report,) = await admin.members_info("g")

    assert (described.model, described.strategy, len(described.members)) == ("broadcasting", "all", 1)
    assert {queue.owner for queue in described.queues} == {None}
    queues = report.info["queues"]
    assert [(queue["commit_offset"], queue["reported_offset"]) for queue in queues] == [(3, 3)] * QUEUES


async def test_the_progress_of_a_broadcasting_group_cannot_be_reset_at_the_broker(
    broker: InMemoryBroker, tmp_path: Path
) -> None:
    async with member(broker, Seen(), tmp_path / "a"), Admin(broker.address) as admin:
        await asyncio.sleep(1)
        with pytest.raises(GroupMismatch, match="each member keeps its progress in a file of its own"):
            await admin.reset_offsets("g", {MessageQueue("quotes", 0): 0})
