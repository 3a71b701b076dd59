"""
When a queue may be pulled: never above its limits, drained if that is wished, and never while it is paused.

Pause and resume: nothing starts, everything is kept, and the wish outlives the queues it is about.

The limits of a topic are divided over its queues here; those of the consumer over all.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer import Consumer, ConsumeStatus
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.flow_control import Pauses, Thresholds, cause_of, divided, of_queue
from rmq.consumer.group.assignment import Assignment
from rmq.wire.errors import ConfigError, Internal
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Make, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

LIMITS = Thresholds(1000, 64)


def asked(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


def held(consumer: Consumer, queue: MessageQueue = QUEUE) -> Assignment:
    assert consumer._runtime is not None
    return consumer._runtime.assignments[queue]


@pytest.mark.parametrize(
    ("messages", "size", "when_drained", "cause"),
    [
        (999, 63, False, None),
        (1000, 63, False, None),
        (1001, 63, False, "1001 messages are held, more than 1000"),
        (1, 64, False, "64 bytes are held, and the share of the queue is 64"),
        (1, 65, False, "65 bytes are held, and the share of the queue is 64"),
        (0, 0, True, None),
        (1, 1, True, "pull_when_drained: 1 messages are not finished"),
        (1001, 99, True, "pull_when_drained: 1001 messages are not finished"),
    ],
)
def test_the_limits_are_strict_and_each_has_its_words(
    messages: int, size: int, when_drained: bool, cause: str | None
) -> None:
    """RocketMQ: a queue is not pulled above 1000 messages; ours shares the bytes out."""
    assert cause_of(messages, size, LIMITS, when_drained=when_drained) == cause


@pytest.mark.parametrize(("span", "cause"), [(2000, None), (2001, "messages that are not finished are 2001 offsets")])
def test_what_is_not_finished_may_be_2000_offsets_apart(span: int, cause: str | None) -> None:
    found = cause_of(2, 2, LIMITS, when_drained=False, span=span, max_span=2000)

    assert (found and found[: len(cause or "")]) == cause


@pytest.mark.parametrize(
    ("orderly", "last", "pulls"), [(False, 2000, True), (False, 2001, False), (True, 2001, True), (True, 9000, True)]
)
async def test_a_span_above_2000_stops_the_pulls_only_where_messages_are_finished_in_any_order(
    broker: FakeBroker, make: Make, orderly: bool, last: int, pulls: bool
) -> None:
    """RocketMQ: consumeConcurrentlyMaxSpan. One message stays, all behind it are done but the last."""
    broker.create("t")
    for at in range(0, last, 500):
        broker.send("t", 0, *[b"x"] * min(500, last - at))
    go_on = asyncio.Event()

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        if not orderly and messages[0].queue_offset in (0, last):
            await go_on.wait()
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}, orderly=orderly, batch=1) as consumer:
        await asyncio.sleep(2)
        broker.send("t", 0, b"last")
        await asyncio.sleep(2)
        before = len(broker.sent(Op.PULL))
        broker.send("t", 0, b"one more")
        await asyncio.sleep(2)

        assert (broker.sent(Op.PULL)[-1].payload.queues[0].queue_offset == last + 2) is pulls
        assert (len(broker.sent(Op.PULL)) > before) is pulls
        assert (held(consumer).flow_control is None) is pulls
        go_on.set()
        await asyncio.sleep(2)
        assert broker.offsets["g", QUEUE] == last + 2


async def test_what_waits_to_be_tried_again_counts_as_held(broker: FakeBroker, make: Make) -> None:
    """Else a broker that takes nothing back would have a consumer fetch without end."""
    broker.create("t")
    for _ in range(10):
        broker.send("t", 0, b"a", b"b")
    broker.refuse[Op.SEND_BACK] = [Internal("disk")] * 100

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        return ConsumeStatus.RETRY

    async with make(listener, topics={"t": "*"}, orderly=False, cache_messages=5, pull_bytes=1):
        await asyncio.sleep(4)
        assert asked(broker) == [0, 2, 4]


def test_a_queue_that_holds_nothing_may_be_pulled_however_small_its_share() -> None:
    assert cause_of(0, 0, Thresholds(0, 0), when_drained=False) is None


async def test_above_a_thousand_messages_no_pull_is_asked_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 1010)
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(9.5)
        assert len(broker.sent(Op.PULL)) == 1
        await asyncio.sleep(1)
        # Ten are done at 10 s: a thousand are left.
        assert broker.times(Op.PULL) == [0.0, 10.0]


async def test_bytes_are_shared_out_to_the_queues_and_one_batch_is_always_let_in(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        for _ in range(4):
            broker.send("t", queue_id, b"x" * 600)
    listener = Recorder(takes_s=10.0)

    async with make(listener, topics={"t": "*"}, cache_bytes=3000):
        await asyncio.sleep(5)
        pulls = broker.sent(Op.PULL)
        # 1500 a queue: one batch of 760, then one more; a third would be asked for above the share.
        assert [pull.payload.max_bytes for pull in pulls if pull.payload.queues[0].queue_id == 0] == [1500, 740]
        await asyncio.sleep(60)
    assert len(listener.calls) == 8


@pytest.mark.parametrize("commit_every", [100, 4, 12])
@pytest.mark.parametrize("limit", [{"cache_messages": 3}, {"cache_bytes": 300}])
async def test_a_listener_gets_as_many_uncommitted_messages_as_it_needs(
    broker: FakeBroker, make: Make, commit_every: int, limit: dict[str, int]
) -> None:
    broker.create("t")
    for _ in range(6):
        broker.send("t", 0, *[b"x"] * 2)
    calls = 0

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        context.auto_commit = False
        return ConsumeStatus.SUCCESS if calls % commit_every else ConsumeStatus.COMMIT

    async with make(listener, topics={"t": "*"}, pull_bytes=1, **limit):
        await asyncio.sleep(1)
        assert calls == 12
        assert broker.offsets["g", QUEUE] == (0 if commit_every == 100 else 12)


async def test_above_the_limit_uncommitted_messages_are_followed_one_pull_at_a_time_with_a_warning(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    for _ in range(20):
        broker.send("t", 0, b"x")

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        context.auto_commit = False
        await asyncio.sleep(1)
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}, cache_messages=3, pull_bytes=1):
        await asyncio.sleep(8.5)
        # Four were let in; from then on one is asked for when the last has been done.
        assert asked(broker) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert caplog.text.count("pull.uncommitted") == 1


async def test_a_listener_that_leaves_what_follows_to_others_is_not_told_to_commit(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """As ``rmq-consume --count`` does until it has stopped."""
    broker.create("t")
    for _ in range(20):
        broker.send("t", 0, b"x")
    calls = 0

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        context.leave()
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}, cache_messages=3, pull_bytes=1):
        await asyncio.sleep(8.5)
    assert calls > 3
    assert "pull.uncommitted" not in caplog.text


@pytest.mark.parametrize(("messages", "pulls"), [(1000, 2), (1001, 1)])
async def test_with_1000_messages_the_next_pull_is_asked_for_and_with_1001_not(
    broker: FakeBroker, make: Make, messages: int, pulls: int
) -> None:
    broker.create("t", bodies=[b"x"] * messages)

    async with make(Recorder(takes_s=100.0), topics={"t": "*"}, drain_s=0.0):
        await asyncio.sleep(5)
        assert len(broker.sent(Op.PULL)) == pulls


@pytest.mark.parametrize(("held_bytes", "asks"), [(-1, False), (0, False), (1, True)])
async def test_bytes_are_held_below_the_share_and_not_at_it(
    broker: FakeBroker, make: Make, held_bytes: int, asks: bool
) -> None:
    broker.create("t", bodies=[b"x"])
    size = len(broker.logs[QUEUE][0].data)

    async with make(Recorder(takes_s=100.0), topics={"t": "*"}, cache_bytes=size + held_bytes, drain_s=0.0):
        await asyncio.sleep(5)
        assert (asked(broker) == [0, 1]) is asks


@pytest.mark.parametrize(("limit", "queues", "pulls"), [(10, 2, 1), (10, 1, 2), (9, 2, 1), (0, 2, 2)])
async def test_the_limit_of_a_topic_is_divided_over_its_queues(
    broker: FakeBroker, make: Make, limit: int, queues: int, pulls: int
) -> None:
    broker.create("t", queues)
    broker.send("t", 0, *[b"x"] * 6)

    async with make(Recorder(takes_s=100.0), topics={"t": "*"}, topic_cache_messages=limit, drain_s=0.0):
        await asyncio.sleep(5)
        assert len([r for r in broker.sent(Op.PULL) if r.payload.queues[0].queue_id == 0]) == pulls


async def test_the_cause_is_shown_while_it_waits_and_warned_of_once_a_minute(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 5)
    consumer = make(Recorder(takes_s=50.0), topics={"t": "*"}, cache_messages=3, drain_s=0.0)

    async with consumer:
        await asyncio.sleep(0.9)
        assert held(consumer).flow_control == "5 messages are held, more than 3"
        assert "pull.flow_control" not in caplog.text  # so short a wait is how a backlog is worked off
        await asyncio.sleep(0.2)
        assert caplog.text.count("pull.flow_control") == 1
        assert "queues_waiting=2" in caplog.text
        await asyncio.sleep(59.7)
        assert caplog.text.count("pull.flow_control") == 1
        await asyncio.sleep(60)
        assert held(consumer).flow_control is None
        assert caplog.text.count("pull.flow_control") == 2


# Drained
async def test_a_queue_is_pulled_when_all_that_is_held_of_it_is_done_and_others_go_on(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    for _ in range(3):
        broker.send("t", 0, b"x", b"x")
        broker.send("t", 1, b"x", b"x")

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        await asyncio.sleep(5.0 if context.queue.queue_id == 0 else 1.0)
        return ConsumeStatus.SUCCESS

    await run_for(22, make(listener, topics={"t": "*"}, pull_when_drained=True, pull_bytes=1))

    pulls = [(round(r.at, 3), *r.payload.queues[0][1:3]) for r in broker.sent(Op.PULL)]
    assert [(at, offset) for at, queue_id, offset in pulls if queue_id == 0] == [(0.0, 0), (10.0, 2), (20.0, 4)]
    assert [(at, offset) for at, queue_id, offset in pulls if queue_id == 1][:4] == [
        (0.0, 0), (2.0, 2), (4.0, 4), (6.0, 6),
    ]  # fmt: skip


async def test_a_drained_queue_is_pulled_for_a_listener_that_waits_for_more_before_it_commits(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    for _ in range(4):
        broker.send("t", 0, b"x")
    calls = 0

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        context.auto_commit = False
        return ConsumeStatus.COMMIT if calls == 4 else ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}, pull_when_drained=True, pull_bytes=1):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 4
    assert "pull.uncommitted" not in caplog.text


# How it shows that the queue is alive
async def test_a_queue_that_waits_for_room_or_is_paused_was_looked_at_lately(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2, bodies=[b"x"] * 5)
    consumer = make(Recorder(takes_s=1000.0), topics={"t": "*"}, cache_messages=3, drain_s=0.0, pull_expiry_s=120.0)
    consumer.pause(MessageQueue("t", 1))

    async with consumer:
        for _ in range(20):
            await asyncio.sleep(30)
            now = asyncio.get_running_loop().time()
            for queue_id in (0, 1):
                assert now - held(consumer, MessageQueue("t", queue_id)).pulled_at <= 30

    # So neither was taken for one whose pulls have died, and taken anew.
    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_a_pull_is_noted_when_it_is_asked_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(44)
        assert held(consumer).pulled_at == 30.0


async def test_a_queue_that_stopped_in_a_crash_loop_is_not_pulled_any_more(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        held(consumer).crash_loop = "CRASH_LOOP"
        await asyncio.sleep(100)
        assert broker.times(Op.PULL) == [0.0]
        assert consumer.assignment == [QUEUE]


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
    broker.create("t", bodies=[b"x"] * 10)
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
    broker.create("t", bodies=[b"x"] * 10)
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
    broker.create("t", bodies=[b"x"] * 5)
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
    broker.create("t", bodies=[b"a"])
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
    broker.create("t", bodies=[b"a", b"b"])
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
    broker.create("t", bodies=[b"x"] * 3)
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


def held_thresholds(**topics: int) -> list[MessageQueue]:
    return [MessageQueue(topic, queue_id) for topic, count in topics.items() for queue_id in range(count)]


@pytest.mark.parametrize(("queues", "each"), [(1, 1024), (2, 512), (3, 341), (2000, 1)])
def test_a_topics_threshold_is_divided_over_its_queues(queues: int, each: int) -> None:
    """RocketMQ's RebalancePushImplTest: 1024 over 2 is 512, over 3 is 341."""
    config = ConsumerConfig(cache_messages=5000, topic_cache_messages=1024, topic_cache_bytes=1024)

    assert of_queue(config, "t", held_thresholds(t=queues, other=7)) == (each, each)


def test_a_topics_threshold_that_is_off_changes_nothing() -> None:
    config = ConsumerConfig(cache_messages=1000, cache_bytes=1 << 20)

    assert of_queue(config, "t", held_thresholds(t=2)) == (1000, 1 << 19)
    assert of_queue(config, "t", held_thresholds(t=2, other=2)) == (1000, 1 << 18)


def test_the_smaller_of_both_limits_counts() -> None:
    config = ConsumerConfig(
        cache_messages=100, topic_cache_messages=1000, cache_bytes=1 << 20, topic_cache_bytes=1 << 30
    )

    assert of_queue(config, "t", held_thresholds(t=2)) == (100, 1 << 19)


def test_a_share_is_never_nothing() -> None:
    assert divided(3, 4) == 1
    assert divided(3, 0) == 3
