"""A broker that comes back with another store, or with an old backup of its own: nothing that was known is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUES = [MessageQueue("t", 0), MessageQueue("t", 1)]


class Bodies(Recorder):
    """A listener that notes the bodies, too."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(takes_s=takes_s)
        self.bodies: list[bytes] = []

    async def __call__(self, messages: Any, context: Any) -> Any:
        self.bodies += [message.body for message in messages]
        return await super().__call__(messages, context)


def go_down_for_another(broker: FakeBroker, *, store_id: int, log_epoch: int = 1) -> None:
    """The broker goes; what comes up has no topic, group, member or lease, and numbers everything from 1."""
    broker.go_down()
    broker.delete("t", tell=False)
    for table in (broker.members, broker.subscribed, broker.leases, broker.offsets):
        table.clear()
    broker.members_version = 0
    broker.store_id, broker.log_epoch = store_id, log_epoch


@pytest.mark.parametrize("put_back", [False, True], ids=["another store", "a backup of it"])
async def test_members_that_leave_in_the_new_store_are_noticed_and_their_queues_taken(
    broker: FakeBroker, make: Make, put_back: bool
) -> None:
    broker.log_epoch, broker.members_version = 9, 9 << 32
    broker.create("t", 2)
    recorder, other = Bodies(), make(topics={"t": "*"})

    async with make(recorder, topics={"t": "*"}) as consumer:
        other.start()
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=broker.store_id + (not put_back))
        broker.create("t", 2)
        broker.come_up()
        await asyncio.sleep(2)
        assert len(consumer.assignment) == 1
        await other.stop()
        await asyncio.sleep(1)
        assert consumer.assignment == QUEUES
        broker.send("t", 0, b"a")
        broker.send("t", 1, b"b")
        await asyncio.sleep(1)

    assert sorted(recorder.bodies) == [b"a", b"b"]


async def test_a_topic_of_the_new_store_is_consumed_whatever_generations_the_old_one_had(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.delete("t")
    broker.create("t")
    recorder = Bodies()

    async with make(recorder, topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        broker.delete("t")  # generation 2 is known to be dead
        broker.create("t")
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=77)
        broker.generations["t"] = 1
        broker.create("t")
        broker.send("t", 0, b"a")
        broker.come_up()
        await asyncio.sleep(2)
        assert consumer.assignment == QUEUES[:1]

    assert recorder.bodies == [b"a"]


async def test_a_group_that_begins_at_the_end_begins_at_the_end_of_the_new_store(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    recorder = Bodies()

    async with make(recorder, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=77)
        broker.create("t")
        broker.send("t", 0, b"before")
        broker.come_up()
        await asyncio.sleep(2)
        broker.send("t", 0, b"after")
        await asyncio.sleep(1)

    assert recorder.bodies == [b"after"]
    assert [request.payload.from_end for request in broker.sent(Op.JOIN)].count(["t"]) == 2


async def test_a_call_that_runs_while_the_store_changes_counts_for_nothing_in_the_new_one(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"old")
    recorder = Bodies(takes_s=3.0)

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)  # the listener has it
        go_down_for_another(broker, store_id=77)
        broker.create("t")
        broker.send("t", 0, b"new")
        broker.come_up()
        await asyncio.sleep(4)
        assert broker.offsets.get(("g", QUEUES[0]), 0) == 0
        await asyncio.sleep(4)

    assert recorder.bodies == [b"old", b"new"]
    assert broker.offsets["g", QUEUES[0]] == 1


async def test_the_change_is_told_once(broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        go_down_for_another(broker, store_id=77)
        broker.come_up()
        await asyncio.sleep(1)
        broker.go_down()
        broker.come_up()
        await asyncio.sleep(1)

    assert caplog.text.count("broker.other_store") == 1


@pytest.mark.parametrize("epochs", [(9, 5), (5, 9)])
async def test_after_several_stores_the_group_joins_with_the_lowest_epoch_that_it_had_in_common_with_one(
    broker: FakeBroker, make: Make, epochs: tuple[int, int]
) -> None:
    broker.create("t")
    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        assert consumer._runtime is not None
        rebalancer = consumer._runtime.rebalancer
        for log_epoch in epochs:
            rebalancer.another_store(log_epoch)
        rebalancer.connected()
        await asyncio.sleep(1)

    assert [join.payload.log_epoch for join in broker.sent(Op.JOIN) if join.payload.log_epoch] == [5]
