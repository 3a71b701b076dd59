"""Concurrent consumption from producer to dead letter, through the real broker on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rmq.client import Admin, Producer
from rmq.consumer import ConcurrentContext, Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import Message, MessageQueue, StoredMessage

from rigs.fleet import dead_letters, member
from rigs.wall_clock import WallClock

pytestmark = pytest.mark.virtual_time

SUCCESS, RETRY = ConsumeStatus.SUCCESS, ConsumeStatus.RETRY
# 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h: the levels 3 to 18.
PAUSES = [10, 30, *(60 * minutes for minutes in range(1, 11)), 1200, 1800, 3600, 7200]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("orders", 2)
        yield running


async def produce(broker: InMemoryBroker, *bodies: bytes, queue_id: int = 0, **given: Any) -> None:
    async with Producer(broker.address) as producer:
        for body in bodies:
            await producer.send(Message("orders", body, **given), queue_id=queue_id)


def consumer_of(broker: InMemoryBroker, listener: Any, **settings: Any) -> Consumer:
    return member(broker, listener, **{"orderly": False} | settings)


class Seen:
    """A listener that notes what it gets, and answers by a function."""

    def __init__(self, answer: Any = lambda message, context: SUCCESS) -> None:
        self.answer = answer
        self.calls: list[list[StoredMessage]] = []
        self.times: list[float] = []

    async def __call__(self, messages: list[StoredMessage], context: ConcurrentContext) -> Any:
        self.calls.append(list(messages))
        self.times.append(asyncio.get_running_loop().time())
        return self.answer(messages[0], context)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for call in self.calls for message in call]


async def committed(broker: InMemoryBroker, queue: MessageQueue, group: str = "g") -> int:
    async with Admin(broker.address) as admin:
        described = await admin.describe_group(group)
    return next(row.committed for row in described.queues if (row.topic, row.queue_id) == queue)


async def test_a_message_is_retried_16_times_after_growing_pauses_and_then_is_a_dead_letter() -> None:
    """
    RocketMQ: level 3 + attempts, from 10 s to 2 h; the 16th retry that fails goes to the dead letters.

    Before each retry the broker is down until a moment before it is due, and all members are others.
    """
    wall, listener, times = WallClock(1_800_000_000_000_000), Seen(lambda message, context: RETRY), []
    async with InMemoryBroker(min_free_bytes=0, wall_us=wall) as broker:
        await produce(broker, b"poison", tag="created", index_keys=("k1",), properties={"a": "b"})
        for attempt in range(1, 18):
            async with consumer_of(broker, listener):
                while len(listener.calls) < attempt:
                    await asyncio.sleep(0.01)
                times.append(wall.passed_s())
                await asyncio.sleep(0.1)
            if attempt < 17:
                wall.ahead_s += PAUSES[attempt - 1] - 1
                await broker.restart()
        (dead,) = await dead_letters(broker)

    messages = [call[0] for call in listener.calls]
    assert [message.attempt for message in messages] == list(range(1, 18))
    for sooner, later, pause in zip(times, times[1:], PAUSES, strict=False):
        assert pause - 0.011 <= later - sooner <= pause + 0.1
    assert {(message.topic, message.tag, message.index_keys) for message in messages} == {
        ("orders", "created", ("k1",))
    }
    assert (dead.body, dead.tag, dead.index_keys) == (b"poison", "created", ("k1",))
    kept = ("a", "RMQ_ORIGIN_TOPIC", "RMQ_ORIGIN_OFFSET", "RMQ_ORIGIN_ID")
    assert [dead.properties[name] for name in kept] == ["b", "orders", "0", messages[0].message_id]


async def test_the_limit_of_a_group_is_its_own(broker: InMemoryBroker) -> None:
    listener = Seen(lambda message, context: RETRY)
    await produce(broker, b"poison")

    async with consumer_of(broker, listener, max_attempts=3):
        await asyncio.sleep(200)

    assert [call[0].attempt for call in listener.calls] == [1, 2, 3]
    assert [message.body for message in await dead_letters(broker)] == [b"poison"]


async def test_a_negative_level_makes_a_dead_letter_at_once(broker: InMemoryBroker) -> None:
    def answer(message: StoredMessage, context: ConcurrentContext) -> ConsumeStatus:
        context.delay_level = -1
        return RETRY

    listener = Seen(answer)
    await produce(broker, b"poison")

    async with consumer_of(broker, listener):
        await asyncio.sleep(60)

    assert len(listener.calls) == 1
    assert [message.body for message in await dead_letters(broker)] == [b"poison"]


async def test_a_level_that_the_listener_asks_for_is_taken(broker: InMemoryBroker) -> None:
    def answer(message: StoredMessage, context: ConcurrentContext) -> ConsumeStatus:
        context.delay_level = 1
        return RETRY if message.attempt < 3 else SUCCESS

    listener = Seen(answer)
    await produce(broker, b"x")

    async with consumer_of(broker, listener):
        await asyncio.sleep(60)

    assert [call[0].attempt for call in listener.calls] == [1, 2, 3]
    assert listener.times[2] - listener.times[0] == pytest.approx(2.0, abs=0.2)
    assert await dead_letters(broker) == []


async def test_messages_behind_a_failed_one_are_done_and_the_progress_passes_it(broker: InMemoryBroker) -> None:
    listener = Seen(lambda message, context: RETRY if (message.body, message.attempt) == (b"1", 1) else SUCCESS)
    await produce(broker, b"0", b"1", b"2", b"3")

    async with consumer_of(broker, listener):
        await asyncio.sleep(1)
        assert await committed(broker, MessageQueue("orders", 0)) == 4
        await asyncio.sleep(15)

    assert listener.bodies == [b"0", b"1", b"2", b"3", b"1"]
    assert await committed(broker, MessageQueue("%RETRY%g", 0)) == 1


async def test_a_retried_message_shows_its_topic_without_the_namespace(broker: InMemoryBroker) -> None:
    async with Producer(broker.address, namespace="team") as producer:
        await producer.send(Message("bills", b"x"))
    listener = Seen(lambda message, context: RETRY if message.attempt == 1 else SUCCESS)

    async with consumer_of(broker, listener, topics={"bills": "*"}, namespace="team") as consumer:
        await asyncio.sleep(20)
        assert {queue.topic for queue in consumer.assignment} == {"bills"}

    assert [(call[0].topic, call[0].attempt) for call in listener.calls] == [("bills", 1), ("bills", 2)]


async def test_members_that_come_and_go_get_every_message_once(broker: InMemoryBroker) -> None:
    """Without a crash nothing is delivered twice, also not what runs while its queue is handed over."""
    bodies = [b"%d" % i for i in range(200)]
    seen: Counter[bytes] = Counter()

    async def listener(messages: list[StoredMessage], context: ConcurrentContext) -> ConsumeStatus:
        await asyncio.sleep(0.05 * (messages[0].queue_offset % 5))
        seen.update(message.body for message in messages)
        return SUCCESS

    async with consumer_of(broker, listener, batch=3):
        await produce(broker, *bodies[:100], queue_id=0)
        async with consumer_of(broker, listener, slots=2):
            await produce(broker, *bodies[100:], queue_id=1)
            await asyncio.sleep(1)
        await asyncio.sleep(5)

    assert seen == Counter(bodies)


async def test_a_restart_of_the_broker_between_two_retries_repeats_and_loses_nothing(broker: InMemoryBroker) -> None:
    listener = Seen(lambda message, context: RETRY if message.attempt < 4 else SUCCESS)
    await produce(broker, b"x")

    async with consumer_of(broker, listener):
        for _ in range(4):
            await asyncio.sleep(20)
            await broker.restart()
        await asyncio.sleep(60)

    assert [call[0].attempt for call in listener.calls] == [1, 2, 3, 4]
    assert await dead_letters(broker) == []


async def test_a_replayed_dead_letter_comes_to_a_concurrent_group_as_a_first_delivery(broker: InMemoryBroker) -> None:
    listener = Seen(lambda message, context: RETRY if len(listener.calls) == 1 else SUCCESS)
    await produce(broker, b"x")

    async with consumer_of(broker, listener, max_attempts=1) as consumer, Admin(broker.address) as admin:
        await asyncio.sleep(1)
        await admin.replay_dead_letters("g", [0])
        await asyncio.sleep(1)
        assert {queue.topic for queue in consumer.assignment} == {"orders"}

    assert [(call[0].topic, call[0].attempt) for call in listener.calls] == [("orders", 1), ("orders", 1)]


async def test_a_replayed_dead_letter_comes_to_an_ordered_group(broker: InMemoryBroker) -> None:
    """Every member of a clustering group subscribes to the retries of the group."""
    answers = [ConsumeStatus.SUSPEND]
    listener = Seen(lambda message, context: answers.pop() if answers else SUCCESS)
    await produce(broker, b"x", b"y")

    async with consumer_of(broker, listener, orderly=True, max_attempts=1), Admin(broker.address) as admin:
        await asyncio.sleep(1)
        assert (await admin.replay_dead_letters("g", [0]))[0].is_new
        await asyncio.sleep(1)

    assert listener.bodies == [b"x", b"y", b"x"]
    assert {call[0].topic for call in listener.calls} == {"orders"}


async def test_a_reset_of_offsets_takes_effect_when_running_calls_have_ended(broker: InMemoryBroker) -> None:
    """What they did counts for nothing: not their progress, and not what they would have given back."""
    queue, go_on, calls = MessageQueue("orders", 0), asyncio.Event(), list[tuple[int, int]]()

    async def listener(messages: list[StoredMessage], context: ConcurrentContext) -> ConsumeStatus:
        calls.append((messages[0].queue_offset, messages[0].attempt))
        await go_on.wait()
        return SUCCESS if context.lost or len(calls) > 6 else RETRY

    await produce(broker, b"0", b"1", b"2", b"3")
    async with consumer_of(broker, listener, slots=3), Admin(broker.address) as admin:
        await asyncio.sleep(1)
        reset = asyncio.create_task(admin.reset_offsets("g", {queue: 2}))
        await asyncio.sleep(1)
        go_on.set()
        await reset
        await asyncio.sleep(2)
        assert await committed(broker, queue) == 4

    assert sorted(calls) == [(0, 1), (1, 1), (2, 1), (2, 1), (3, 1)]
