"""The whole system in one process, on a virtual clock: real broker, real sockets, 60 s in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.core import Op

from rigs.fleet import Connections, Deliveries, member

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


async def send(broker: InMemoryBroker, numbers: range, *, queue_id: int | None = None) -> None:
    async with Producer(broker.address) as producer:
        for number in numbers:
            where = number % 4 if queue_id is None else queue_id
            await producer.send(Message("orders", str(number).encode()), queue_id=where)


async def test_a_topic_made_after_its_consumer_is_consumed_within_a_second(broker: InMemoryBroker) -> None:
    seen = Deliveries()
    async with member(broker, seen.listener("a")):
        await asyncio.sleep(40)
        made_at = asyncio.get_running_loop().time()
        await send(broker, range(8))
        await seen.count(8)

    assert seen.all[-1].at - made_at < 1.0
    assert all(offsets == [0, 1] for offsets in seen.offsets.values())


async def test_a_member_that_joins_gets_half_and_nothing_is_delivered_twice(broker: InMemoryBroker) -> None:
    await send(broker, range(400))
    seen = Deliveries()
    async with member(broker, seen.listener("a", takes_s=0.01)):
        await seen.count(20)
        async with member(broker, seen.listener("b", takes_s=0.01)):
            await seen.count(400)

    assert set(seen.shares) == {"a", "b"}
    assert all(offsets == list(range(100)) for offsets in seen.offsets.values())


async def test_a_crash_is_taken_over_after_the_grace_and_the_old_owner_has_stopped_by_then(
    broker: InMemoryBroker,
) -> None:
    await send(broker, range(200))
    seen, wire = Deliveries(), Connections()
    lost = member(broker, seen.listener("lost", takes_s=0.5), connect=wire)
    lost.start()
    await seen.count(10)
    async with member(broker, seen.listener("heir")):
        await asyncio.sleep(2)
        await wire.crash()  # its listener runs on: what an unreachable owner would do
        cut_at = asyncio.get_running_loop().time()
        await seen.count(200)
    await lost.stop()

    taken = {one.queue for one in seen.all if one.member == "lost" and one.at > cut_at}
    assert taken, "the cut came when nothing was left to take over"
    for queue in taken:
        before = [(one.at, one.offset) for one in seen.all if one.queue == queue and one.member == "lost"]
        after = [(one.at, one.offset) for one in seen.all if one.queue == queue and one.member == "heir"]
        assert before[-1][0] < cut_at + 4.0, "a batch was started although the lease could not be proven any more"
        assert cut_at + 4.0 < after[0][0] < cut_at + 5.5
        assert [offset for _, offset in before] == list(range(len(before)))
        assert [offset for _, offset in after] == list(range(after[0][1], 50)), "a re-delivered run is contiguous"
        assert after[0][1] <= len(before)


async def test_two_busy_queues_and_one_slot_the_second_starts_after_60_s_and_one_call(broker: InMemoryBroker) -> None:
    await send(broker, range(40), queue_id=0)
    await send(broker, range(40), queue_id=1)
    seen = Deliveries()
    async with member(broker, seen.listener("a", takes_s=7.0), slots=1, cache_messages=1000):
        await seen.count(11)

    began, busy = seen.all[0].at, seen.all[0].queue
    first = [one.at - began for one in seen.all if one.queue == busy]
    second = [one.at - began for one in seen.all if one.queue != busy]
    assert first[:9] == pytest.approx([7.0 * i for i in range(9)], abs=0.5)
    assert second[0] == pytest.approx(63.0, abs=0.5), "nine calls of 7 s: the first check past 60 s is at 63 s"


async def test_locks_are_renewed_at_1_21_and_41_s(broker: InMemoryBroker) -> None:
    await send(broker, range(4))
    seen, wire = Deliveries(), Connections()
    began = asyncio.get_running_loop().time()
    async with member(broker, seen.listener("a"), connect=wire):
        await asyncio.sleep(45)

    assert [at - began for at, op in wire.requests if op == Op.RENEW] == pytest.approx([1.0, 21.0, 41.0], abs=0.01)


async def test_a_broker_restart_interrupts_nothing_and_repeats_nothing(broker: InMemoryBroker) -> None:
    await send(broker, range(200))
    seen = Deliveries()
    async with member(broker, seen.listener("a", takes_s=0.02)):
        await seen.count(50)
        epochs = {one.epoch for one in seen.all}
        await broker.restart()
        await seen.count(200)

    assert all(offsets == list(range(50)) for offsets in seen.offsets.values())
    assert {one.epoch for one in seen.all} == epochs, "the leases were resumed, not granted again"


async def test_a_failing_message_is_given_again_with_growing_pauses_and_its_queue_waits(
    broker: InMemoryBroker,
) -> None:
    await send(broker, range(2), queue_id=0)
    attempts: list[tuple[float, bytes, int]] = []
    done = asyncio.Event()

    async def fails_four_times(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
        (message,) = messages
        attempts.append((asyncio.get_running_loop().time(), message.body, message.attempt))
        if message.body == b"0" and message.attempt < 5:
            raise RuntimeError("not yet")
        if message.body == b"1":
            done.set()
        return ConsumeStatus.SUCCESS

    async with member(broker, fails_four_times):
        await done.wait()

    assert [(body, attempt) for _, body, attempt in attempts] == [(b"0", n) for n in range(1, 6)] + [(b"1", 1)]
    pauses = [b[0] - a[0] for a, b in pairwise(attempts[:5])]
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0], abs=0.1)


async def test_attempts_survive_a_take_over_and_a_broker_restart(broker: InMemoryBroker) -> None:
    await send(broker, range(1), queue_id=0)
    attempts: list[int] = []
    failed = asyncio.Event()

    async def fails(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
        attempts.append(messages[0].attempt)
        if len(attempts) % 3 == 0:
            failed.set()
        return ConsumeStatus.SUSPEND

    for _ in range(2):
        async with member(broker, fails):
            await failed.wait()
            failed.clear()
        await broker.restart()

    assert attempts[:6] == [1, 2, 3, 4, 5, 6]


async def test_lock_status_tells_who_holds_what(broker: InMemoryBroker) -> None:
    await send(broker, range(4))
    seen = Deliveries()
    async with member(broker, seen.listener("a")), Admin(broker.address) as admin:
        await seen.count(4)
        await asyncio.sleep(10)
        rows = await admin.lock_status()

    assert [(row.group, row.topic, row.queue_id, row.state) for row in rows] == [
        ("g", "orders", queue_id, "held") for queue_id in range(4)
    ]
    assert all(9 < row.held_for_s < 11 for row in rows)
