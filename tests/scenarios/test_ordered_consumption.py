"""The whole system in one process, on a virtual clock: real broker, real sockets, 60 s in milliseconds."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops.core import Op

pytestmark = pytest.mark.virtual_time

Listener = Callable[[list[StoredMessage], Any], Any]


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


class Seen:
    """A listener that notes what it was given, when, and by which consumer."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, MessageQueue, int, bytes, int]] = []
        self._grown = asyncio.Event()

    def listener(self, name: str, *, takes_s: float = 0.0) -> Listener:
        async def on_messages(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
            for message in messages:
                now = asyncio.get_running_loop().time()
                call = (now, name, context.queue, message.queue_offset, message.body, context.epoch)
                self.calls.append(call)
                self._grown.set()
                if takes_s:
                    await asyncio.sleep(takes_s)
            return ConsumeStatus.SUCCESS

        return on_messages

    async def count(self, wanted: int) -> None:
        while len(self.calls) < wanted:
            self._grown.clear()
            await self._grown.wait()

    def offsets(self) -> dict[MessageQueue, list[int]]:
        found: dict[MessageQueue, list[int]] = defaultdict(list)
        for _, _, queue, offset, _, _ in self.calls:
            found[queue].append(offset)
        return found


class Wire:
    """Makes connections that can be cut, and notes when leases were renewed."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.renewals: list[float] = []

    def __call__(self, *args: Any, **settings: Any) -> Connection:
        renewals = self.renewals

        class Watched(Connection):
            async def request(self, op: Op, payload: Any, **options: Any) -> Any:
                if op == Op.RENEW:
                    renewals.append(asyncio.get_running_loop().time())
                return await super().request(op, payload, **options)

        self.made.append(Watched(*args, **settings))
        return self.made[-1]

    async def cut(self) -> None:
        """What a crash looks like to the broker: the connection is gone and nobody comes back."""
        for connection in self.made:
            await connection.close()


def consumer(broker: InMemoryBroker, listener: Listener, **settings: Any) -> Consumer:
    settings.setdefault("topics", {"orders": "*"})
    now = asyncio.get_running_loop().time
    return Consumer(broker.address, group="g", listener=listener, now=now, **settings)


async def send(broker: InMemoryBroker, numbers: range, *, queue_id: int | None = None) -> None:
    async with Producer(broker.address) as producer:
        for number in numbers:
            where = number % 4 if queue_id is None else queue_id
            await producer.send(Message("orders", str(number).encode()), queue_id=where)


async def test_a_topic_made_after_its_consumer_is_consumed_within_a_second(broker: InMemoryBroker) -> None:
    seen = Seen()
    async with consumer(broker, seen.listener("a")):
        await asyncio.sleep(40)
        made_at = asyncio.get_running_loop().time()
        await send(broker, range(8))
        await seen.count(8)

    assert seen.calls[-1][0] - made_at < 1.0
    assert all(offsets == [0, 1] for offsets in seen.offsets().values())


async def test_a_member_that_joins_gets_half_and_nothing_is_delivered_twice(broker: InMemoryBroker) -> None:
    await send(broker, range(400))
    seen = Seen()
    async with consumer(broker, seen.listener("a", takes_s=0.01)):
        await seen.count(20)
        async with consumer(broker, seen.listener("b", takes_s=0.01)):
            await seen.count(400)

    assert {name for _, name, *_ in seen.calls} == {"a", "b"}
    assert all(offsets == list(range(100)) for offsets in seen.offsets().values())


async def test_a_crash_is_taken_over_after_the_grace_and_the_old_owner_has_stopped_by_then(
    broker: InMemoryBroker,
) -> None:
    await send(broker, range(200))
    seen, wire = Seen(), Wire()
    lost = consumer(broker, seen.listener("lost", takes_s=0.5), connect=wire)
    lost.start()
    await seen.count(10)
    async with consumer(broker, seen.listener("heir")):
        await asyncio.sleep(2)
        await wire.cut()  # its listener runs on: what an unreachable owner would do
        cut_at = asyncio.get_running_loop().time()
        while len({(call[2], call[3]) for call in seen.calls}) < 200:
            await seen.count(len(seen.calls) + 1)
    await lost.stop()

    taken = {call[2] for call in seen.calls if call[1] == "lost" and call[0] > cut_at}
    assert taken, "the cut came when nothing was left to take over"
    for queue in taken:
        before = [(at, offset) for at, name, q, offset, *_ in seen.calls if q == queue and name == "lost"]
        after = [(at, offset) for at, name, q, offset, *_ in seen.calls if q == queue and name == "heir"]
        assert before[-1][0] < cut_at + 4.0, "a batch was started although the lease could not be proven any more"
        assert cut_at + 4.0 < after[0][0] < cut_at + 5.5
        assert [offset for _, offset in before] == list(range(len(before)))
        assert [offset for _, offset in after] == list(range(after[0][1], 50)), "a re-delivered run is contiguous"
        assert after[0][1] <= len(before)


async def test_two_busy_queues_and_one_slot_the_second_starts_after_60_s_and_one_call(broker: InMemoryBroker) -> None:
    await send(broker, range(40), queue_id=0)
    await send(broker, range(40), queue_id=1)
    seen = Seen()
    async with consumer(broker, seen.listener("a", takes_s=7.0), slots=1, cache_messages=1000):
        await seen.count(11)

    began = seen.calls[0][0]
    first = [at - began for at, _, queue, *_ in seen.calls if queue == seen.calls[0][2]]
    second = [at - began for at, _, queue, *_ in seen.calls if queue != seen.calls[0][2]]
    assert first[:9] == pytest.approx([7.0 * i for i in range(9)], abs=0.5)
    assert second[0] == pytest.approx(63.0, abs=0.5), "nine calls of 7 s: the first check past 60 s is at 63 s"


async def test_locks_are_renewed_at_1_21_and_41_s(broker: InMemoryBroker) -> None:
    await send(broker, range(4))
    seen, wire = Seen(), Wire()
    began = asyncio.get_running_loop().time()
    async with consumer(broker, seen.listener("a"), connect=wire):
        await asyncio.sleep(45)

    assert [at - began for at in wire.renewals] == pytest.approx([1.0, 21.0, 41.0], abs=0.01)


async def test_a_broker_restart_interrupts_nothing_and_repeats_nothing(broker: InMemoryBroker) -> None:
    await send(broker, range(200))
    seen = Seen()
    async with consumer(broker, seen.listener("a", takes_s=0.02)):
        await seen.count(50)
        epochs = {call[5] for call in seen.calls}
        await broker.restart()
        await seen.count(200)

    assert all(offsets == list(range(50)) for offsets in seen.offsets().values())
    assert {call[5] for call in seen.calls} == epochs, "the leases were resumed, not granted anew"


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

    async with consumer(broker, fails_four_times):
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
        async with consumer(broker, fails):
            await failed.wait()
            failed.clear()
        await broker.restart()

    assert attempts[:6] == [1, 2, 3, 4, 5, 6]


async def test_lock_status_tells_who_holds_what(broker: InMemoryBroker) -> None:
    await send(broker, range(4))
    seen = Seen()
    async with consumer(broker, seen.listener("a")), Admin(broker.address) as admin:
        await seen.count(4)
        await asyncio.sleep(10)
        rows = await admin.lock_status()

    assert [(row.group, row.topic, row.queue_id, row.state) for row in rows] == [
        ("g", "orders", queue_id, "held") for queue_id in range(4)
    ]
    assert all(9 < row.held_for_s < 11 for row in rows)
