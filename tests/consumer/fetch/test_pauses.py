"""Pause and resume: nothing starts, everything is kept, and the wish outlives the queues it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer import Consumer, ConsumeStatus
from rmq.consumer.fetch.flow_control import Pauses
from rmq.wire.errors import ConfigError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUES = [MessageQueue(topic, queue_id) for topic in "tu" for queue_id in (0, 1)]


# The wish

WORDS = st.lists(
    st.tuples(st.booleans(), st.lists(st.one_of(st.sampled_from("tu"), st.sampled_from(QUEUES)), max_size=3))
)


@given(WORDS)
def test_the_newest_word_about_a_queue_counts(words: list[tuple[bool, list[Any]]]) -> None:
    pauses, expected = Pauses(), dict.fromkeys(QUEUES, False)

    for paused, targets in words:
        pauses.set(paused, *targets)
        for queue in QUEUES:
            if not targets or queue in targets or queue.topic in targets:
                expected[queue] = paused

    assert {queue: pauses.covers(queue) for queue in QUEUES} == expected


def test_a_queue_that_nobody_has_named_follows_its_topic_and_else_everything() -> None:
    pauses = Pauses()
    pauses.set(True)
    pauses.set(False, "u")

    assert pauses.covers(MessageQueue("t", 9))
    assert not pauses.covers(MessageQueue("u", 9))


def test_something_else_is_refused_and_changes_nothing() -> None:
    pauses = Pauses()

    with pytest.raises(ConfigError, match="not 7"):
        pauses.set(True, "t", 7)  # type: ignore[arg-type]
    assert not pauses.covers(QUEUE)


# What it does


async def test_no_batch_starts_and_the_running_call_ends_and_is_reported(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    listener = Recorder(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(2.5)
        consumer.pause()
        await asyncio.sleep(100)
        assert listener.times == [0.0, 1.0, 2.0]
        assert broker.offsets["g", QUEUE] == 3
        assert consumer.assignment == [QUEUE]
        consumer.resume()
        await asyncio.sleep(1.5)

    assert listener.times[3:] == [102.5, 103.5]
    assert listener.offsets == [0, 1, 2, 3, 4]


async def test_a_listener_that_pauses_its_own_queue_gets_no_further_batch(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    calls = 0

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        consumer.pause(context.queue)
        return ConsumeStatus.SUCCESS

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(10)
        assert calls == 1
        consumer.resume(QUEUE)
        await asyncio.sleep(10)
        assert calls == 2


async def test_nothing_is_pulled_and_the_lease_is_renewed(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1.5)
        consumer.pause("t")
        broker.send("t", 0, b"a")  # the pull that was parked brings it, and it waits here
        await asyncio.sleep(198.5)
        broker.send("t", 0, b"b")
        await asyncio.sleep(1)
        assert broker.times(Op.PULL) == [0.0]
        assert listener.calls == []
        assert broker.times(Op.RENEW) == [1.0 + 20 * beat for beat in range(11)]
        consumer.resume("t")
        await asyncio.sleep(0.5)

    assert listener.times == [201.0, 201.0]
    assert broker.times(Op.PULL)[:2] == [0.0, 201.0]
    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_a_pull_that_waited_for_room_is_not_asked_for_when_there_is_room_but_a_pause(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 5)
    consumer = make(Recorder(takes_s=2.0), topics={"t": "*"}, batch=5, cache_messages=3)

    async with consumer:
        await asyncio.sleep(1)
        consumer.pause()
        await asyncio.sleep(50)
        assert broker.times(Op.PULL) == [0.0]
        assert broker.offsets["g", QUEUE] == 5
        consumer.resume()
        await asyncio.sleep(1)
        assert broker.times(Op.PULL) == [0.0, 51.0]


async def test_a_queue_that_waits_to_retry_is_not_given_again_before_it_is_resumed(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    listener = Recorder(ConsumeStatus.SUSPEND)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.5)
        consumer.pause()
        await asyncio.sleep(9.5)
        consumer.resume()
        await asyncio.sleep(1)

    assert listener.times == [0.0, 10.0]
    assert listener.attempts == [1, 2]


async def test_other_queues_go_on(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 3)
    listener = Recorder(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"})
    consumer.pause(QUEUE)  # before it is started

    async with consumer:
        await asyncio.sleep(5)

    assert [queue_id for _, queue_id, _ in listener.calls] == [1, 1, 1]


async def test_the_pause_survives_a_rebalance_and_covers_queues_that_come_later(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 1)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})
    consumer.pause("t")

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a-other")  # it comes first in the list: the queue is theirs
        await asyncio.sleep(1)
        assert consumer.assignment == []
        broker.set_members("g")
        broker.create("t", 2)
        for queue_id in (0, 1):
            broker.send("t", queue_id, b"a")
        await asyncio.sleep(10)
        assert consumer.assignment == [QUEUE, MessageQueue("t", 1)]
        assert listener.calls == []
        resumed_at = now()
        consumer.resume()
        await asyncio.sleep(1)

    assert listener.times == [resumed_at] * 2


async def test_a_stop_while_paused_gives_everything_back_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    consumer = make(Recorder(takes_s=1.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.5)
        consumer.pause()
        await asyncio.sleep(5)
        await consumer.stop()

    assert now() == 5.5
    assert broker.holder("g", QUEUE) is None
    assert broker.offsets["g", QUEUE] == 1


async def test_progress_made_before_a_restart_of_the_broker_is_reported_although_paused(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 3)
    listener = Recorder(takes_s=2.0)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        consumer.pause()
        broker.crash(QUEUE, batches=1)
        broker.come_up()
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 1
        assert len(listener.calls) == 1
