"""Messages that fail for ever, or end the process that consumes them: the whole system, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq.client import Admin, Connection, ConnectionLost, Message, Producer
from rmq.consumer import ConsumeContext, ConsumeStatus, MessageQueue
from rmq.testing.broker import InMemoryBroker
from rmq.wire.address import parse_address
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.core import Op, ResetEntry, ResetOffsets

from rigs.fleet import dead_letters, member

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("orders", 0)
SUCCESS, SUSPEND = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("orders", 1)
        yield running


async def send(broker: InMemoryBroker, count: int) -> None:
    async with Producer(broker.address) as producer:
        messages = [
            Message("orders", b"%d" % i, tag="t", index_keys=(f"k{i}",), properties={"trace": str(i)})
            for i in range(count)
        ]
        await producer.send_many(messages, queue_id=0)


class Poisoned:
    """A listener that fails at some messages; notes the offsets and attempts of each call."""

    def __init__(self, *bad: bytes) -> None:
        self.bad = bad
        self.calls: list[list[tuple[int, int]]] = []

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.calls.append([(message.queue_offset, message.attempt) for message in messages])
        return SUSPEND if any(message.body in self.bad for message in messages) else SUCCESS


# Failing for ever


async def test_after_three_deliveries_a_message_lies_in_the_dead_letters_and_the_queue_goes_on(
    broker: InMemoryBroker,
) -> None:
    await send(broker, 3)
    listener = Poisoned(b"1")

    async with member(broker, listener, max_attempts=3):
        await asyncio.sleep(10)

    assert listener.calls == [[(0, 1)], [(1, 1)], [(1, 2)], [(1, 3)], [(2, 1)]]
    (dead,) = await dead_letters(broker)
    assert (dead.body, dead.tag, dead.index_keys) == (b"1", "t", ("k1",))
    assert dead.properties["trace"] == "1"
    assert dead.properties["RMQ_ORIGIN_TOPIC"] == "orders"
    assert dead.properties["RMQ_ORIGIN_OFFSET"] == "1"
    assert dead.properties["RMQ_GROUP"] == "g"
    assert dead.properties["RMQ_DEAD_REASON"].startswith("delivery 3 failed")

    again = Poisoned()
    async with member(broker, again):
        await asyncio.sleep(1)
    assert again.calls == []


async def test_of_a_batch_only_the_exhausted_message_goes_and_counts_survive_take_over_and_restart(
    broker: InMemoryBroker,
) -> None:
    await send(broker, 4)
    first, second, third = Poisoned(b"0"), Poisoned(b"1"), Poisoned()

    async with member(broker, first, batch=1):
        await asyncio.sleep(2)  # message 0 fails at 0 and 1 s
    await broker.restart()
    async with member(broker, second, batch=3, max_attempts=3):
        await asyncio.sleep(0.5)
    async with member(broker, third, batch=3, max_attempts=3):
        await asyncio.sleep(10)

    assert first.calls == [[(0, 1)], [(0, 2)]]
    assert second.calls == [[(0, 3), (1, 1), (2, 1)]]
    assert third.calls == [[(1, 2), (2, 2), (3, 1)]]
    assert [message.body for message in await dead_letters(broker)] == [b"0"]


async def test_a_dead_letter_that_is_sent_again_with_its_key_reaches_the_queue_it_was_in(
    broker: InMemoryBroker,
) -> None:
    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("keyed", 8)
        await producer.send_many(Message("keyed", b"x", key=f"o-{i}") for i in range(20))
        async with member(broker, Poisoned(b"x"), topics={"keyed": "*"}, max_attempts=1):
            await asyncio.sleep(10)

        dead = await dead_letters(broker)

        assert sorted(str(letter.key) for letter in dead) == sorted(f"o-{i}" for i in range(20))
        for letter in dead:
            again = await producer.send(Message("keyed", letter.body, key=letter.key))
            assert str(again.queue_id) == letter.properties["RMQ_ORIGIN_QUEUE"]


async def test_a_message_that_is_tried_again_has_the_key_that_leads_to_its_first_queue(broker: InMemoryBroker) -> None:
    first: dict[str | None, int] = {}
    retried: list[StoredMessage] = []

    async def listener(messages: list[StoredMessage], context: object) -> ConsumeStatus:
        for message in messages:
            if message.attempt == 1:
                first[message.key] = message.queue_id
            else:
                retried.append(message)
        return SUCCESS if messages[0].attempt > 1 else ConsumeStatus.RETRY

    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("keyed", 8)
        await producer.send_many(Message("keyed", b"x", key=f"o-{i}") for i in range(20))
        async with member(broker, listener, topics={"keyed": "*"}, orderly=False):
            await asyncio.sleep(30)

        assert sorted(str(message.key) for message in retried) == sorted(map(str, first)) and len(first) == 20
        for message in retried:
            again = await producer.send(Message(message.topic, message.body, key=message.key))
            assert (again.topic, again.queue_id) == ("keyed", first[message.key])


async def test_a_dead_letter_in_the_middle_is_not_delivered_again_after_a_take_over(broker: InMemoryBroker) -> None:
    await send(broker, 3)
    held = asyncio.Event()
    calls: list[list[int]] = []

    async def keeping(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        calls.append([message.queue_offset for message in messages])
        if messages[0].body == b"1":
            return SUSPEND
        if messages[0].body == b"2":
            held.set()
            return ConsumeStatus.COMMIT
        return SUCCESS

    async with member(broker, keeping, max_attempts=1):
        await held.wait()
        await asyncio.sleep(1)

    assert calls == [[0], [1], [2]]
    assert [message.body for message in await dead_letters(broker)] == [b"1"]
    again = Poisoned()
    async with member(broker, again):
        await asyncio.sleep(1)
    assert again.calls == []


# Ending the process


class Process:
    """A consumer in a process of its own, which ends, as far as the broker can see, while some message is in a call."""

    def __init__(self, broker: InMemoryBroker, deadly: bytes, **settings: Any) -> None:
        self.connections: list[Connection] = []
        self.calls: list[list[int]] = []
        self.died = False
        self._deadly = deadly
        self.consumer = member(broker, self._listener, connect=self._connect, drain_s=0.0, **settings)

    def _connect(self, *args: Any, **callbacks: Any) -> Connection:
        self.connections.append(Connection(*args, **callbacks))
        return self.connections[-1]

    async def _listener(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.calls.append([message.queue_offset for message in messages])
        if any(message.body == self._deadly for message in messages):
            self.died = True
            for connection in self.connections:
                connection.address = parse_address("127.0.0.1:1")
                connection.drop(ConnectionLost("the process has ended"))
            await asyncio.sleep(1e6)
        return SUCCESS

    async def live(self, seconds: float) -> bool:
        """Run for a while; says whether it survived."""
        async with self.consumer:
            await asyncio.sleep(seconds)
            self.stopped_queues = self.consumer.stopped_queues
        return not self.died


async def test_a_message_that_ends_every_process_stops_its_queue_after_five_of_them(broker: InMemoryBroker) -> None:
    await send(broker, 8)
    lives: list[Process] = []

    for _ in range(9):
        lives.append(Process(broker, b"3", batch=4))
        if await lives[-1].live(10):
            break

    # The first two die with a batch; then the message is found out, one call at a time.
    deaths = [life for life in lives if life.died]
    assert deaths[0].calls == [[0, 1, 2, 3]]
    assert deaths[1].calls == [[0, 1, 2, 3]]
    assert deaths[2].calls == [[0], [1], [2], [3]]
    assert all(life.calls == [[3]] for life in deaths[3:])
    last = lives[-1]
    assert last.calls == []
    assert last.stopped_queues == {QUEUE: "CRASH_LOOP: 5 owners in a row were lost while processing offset 3"}
    assert sum([3] in life.calls for life in lives) == 5


async def test_with_a_limit_of_attempts_the_fleet_gets_rid_of_it_and_goes_on(broker: InMemoryBroker) -> None:
    await send(broker, 8)
    lives: list[Process] = []

    for _ in range(9):
        lives.append(Process(broker, b"3", batch=4, max_attempts=16))
        if await lives[-1].live(10):
            break

    survivor = lives[-1]
    assert not survivor.died
    assert survivor.stopped_queues == {}
    assert [offset for call in survivor.calls for offset in call] == [4, 5, 6, 7]
    (dead,) = await dead_letters(broker)
    assert dead.body == b"3"
    assert dead.properties["RMQ_DEAD_REASON"].startswith("CRASH_LOOP")


async def test_a_stopped_queue_goes_on_after_a_reset(broker: InMemoryBroker) -> None:
    await send(broker, 3)
    for _ in range(9):
        life = Process(broker, b"0")
        if await life.live(10):
            break
    assert life.stopped_queues

    mended = Poisoned()
    link = Connection(broker.address)
    link.start()
    async with member(broker, mended) as one:
        await asyncio.sleep(5)
        assert list(one.stopped_queues) == [QUEUE]
        assert mended.calls == []
        await link.request(Op.RESET_OFFSETS, ResetOffsets("g", [ResetEntry("orders", 0, 0)]))
        await asyncio.sleep(25)
        assert one.stopped_queues == {}
    await link.close()

    assert mended.calls == [[(0, 1)], [(1, 1)], [(2, 1)]]


async def test_one_lost_process_convicts_nobody(broker: InMemoryBroker) -> None:
    await send(broker, 4)
    assert not await Process(broker, b"2", batch=4).live(10)
    fine = Poisoned()

    async with member(broker, fine, batch=4):
        await asyncio.sleep(1)

    assert fine.calls == [[(0, 1), (1, 1), (2, 1), (3, 1)]]
