"""
What a consumer tells of itself: all that somebody needs to see why a queue does not go on, within bounds.

Counting: totals for ever, rates over about a minute, and nothing by the clock of the machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief, LogGap, Stopped, Suspicion
from rmq.consumer.introspection import (
    BUCKET_S,
    BUCKETS,
    MAX_QUEUES,
    MAX_TEXT,
    MAX_TOPICS,
    MAX_WAITS,
    Meter,
    Program,
    Rate,
    Statistics,
    TopicMeter,
    TopicStatistics,
    changed_settings,
    queue_info,
    running_info,
)
from rmq.consumer.listener import ResultType
from rmq.wire.errors import BadRequest, Damaged
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.protocol.ops.groups import MAX_INFO, MAX_LEVELS, RunningInfo

from .fake_broker import FakeBroker
from .fetch.test_process_queue import made_plain
from .recorder import SUCCESS, SUSPEND, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

PROGRAM = Program("1.2.3", "host@1#abcd1234", "g", 12.34567, 0.0004, 2)
CONFIG = ConsumerConfig(group="g")


def assignment(queue_id: int = 0, *, start: int = 0, topic: str = "t", runs: Any = ()) -> Assignment:
    lease = LeaseBelief(MessageQueue(topic, queue_id), 7, lock_sent_at=100.0)
    return Assignment(lease, ProcessQueue(start, runs=runs), on_lost=lambda *_: None)


# ---- one queue
def test_a_queue_at_rest() -> None:
    assert queue_info(assignment(3, start=5), now=104.5) == {
        "topic": "t", "queue_id": 3, "epoch": 7, "head_offset": 5, "attempt": 1, "retry_in_s": None,
        "called_for_s": None, "in_flight": 0, "cached_messages": 0, "cached_bytes": 0, "end_offset": 5,
        "commit_offset": 5, "reported_offset": -1, "lock_age_s": 4.5, "pulled_ago_s": None, "flow_control": None,
        "paused": False, "stopped": None, "stopped_code": None, "stopped_from": None, "stopped_to": None,
        "selected": 0, "left_out": 0, "last_error": None, "failed_offset": None, "abandoned": 0,
        "careful_until": None, "dropped": False, "lost": False, "tries_to_unlock": 0,
    }  # fmt: skip


def test_the_head_is_the_first_message_that_is_not_done() -> None:
    one = assignment()
    one.cache.put(made_plain(0, 4))
    before = queue_info(one, now=0.0)
    one.cache.take(2)
    taken = queue_info(one, now=0.0)
    one.cache.commit()
    done = queue_info(one, now=0.0)

    assert [(told["head_offset"], told["in_flight"], told["cached_messages"]) for told in (before, taken, done)] == [
        (0, 0, 4), (0, 2, 4), (2, 0, 2),
    ]  # fmt: skip
    assert before["cached_bytes"] > 0
    assert done["commit_offset"] == 2


def test_the_attempt_is_that_of_the_head_also_before_it_is_made() -> None:
    one = assignment(start=5, runs=[AttemptRun(5, 7, 3)])
    assert (queue_info(one, now=0.0)["head_offset"], queue_info(one, now=0.0)["attempt"]) == (5, 4)

    one.cache.put(made_plain(5, 4))
    one.cache.take(1)
    assert queue_info(one, now=0.0)["attempt"] == 4
    one.cache.commit()
    assert queue_info(one, now=0.0)["attempt"] == 4
    one.cache.take(1)
    one.cache.commit()
    assert (queue_info(one, now=0.0)["head_offset"], queue_info(one, now=0.0)["attempt"]) == (7, 1)


def test_times_are_told_from_now_and_never_negative() -> None:
    one = assignment()
    one.retry_at, one.guard.since, one.pulled_at = 103.0, 101.5, 100.5

    told = queue_info(one, now=102.0)
    late = queue_info(one, now=104.0)
    early = queue_info(one, now=99.0)

    assert (told["retry_in_s"], told["called_for_s"], told["pulled_ago_s"], told["lock_age_s"]) == (1.0, 0.5, 1.5, 2.0)
    assert late["retry_in_s"] == 0.0
    assert (early["called_for_s"], early["lock_age_s"]) == (0.0, 0.0)


def test_why_a_queue_does_not_go_on_is_told() -> None:
    one = assignment()
    one.paused, one.flow_control, one.tries_to_unlock = True, "1000 messages", 2
    one.stopped = Stopped(LogGap(Damaged.code, 3, 8))
    told = queue_info(one, now=0.0)
    assert (told["paused"], told["flow_control"], told["tries_to_unlock"]) == (True, "1000 messages", 2)
    assert told["stopped"] == "DAMAGED: offsets 3 to 7"
    assert (told["stopped_code"], told["stopped_from"], told["stopped_to"]) == ("DAMAGED", 3, 7)

    one.crash_loop, one.suspicion = "CRASH_LOOP: " + "x" * 500, Suspicion(5, 3, 9)
    told = queue_info(one, now=0.0)
    assert told["stopped"] == "CRASH_LOOP: " + "x" * (MAX_TEXT - 13) + "…"
    assert (told["stopped_code"], told["stopped_from"], told["stopped_to"]) == ("CRASH_LOOP", 3, 3)


def test_what_the_listener_failed_with_is_told_with_its_message_and_cut() -> None:
    one = assignment()
    one.last_failure = (4, "ValueError: " + "x" * 500)

    told = queue_info(one, now=0.0)

    assert told["failed_offset"] == 4
    assert told["last_error"] == "ValueError: " + "x" * (MAX_TEXT - 13) + "…"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x" * MAX_TEXT, "x" * MAX_TEXT),
        ("€" * 85, "€" * 85),
        ("€" * 86, "€" * 85 + "…"),
        ("E: \udc80", "E: \\udc80"),
        ("\udc80" * 200, "\\udc80" * 26 + "\\ud…"),
    ],
)
def test_a_text_is_told_as_far_as_it_can_be_sent(text: str, told: str) -> None:
    one = assignment()
    one.last_failure = (4, text)

    assert queue_info(one, now=0.0)["last_error"] == told
    assert msgpack.unpackb(msgpack.packb(told)) == told


def test_the_locks_that_were_refused_and_the_last_poll_are_told() -> None:
    refused = {MessageQueue("t", i): f"held by {'x' * 500}" for i in reversed(range(MAX_WAITS + 1))}

    told = running_info(PROGRAM._replace(waits_for=refused, polled_ago_s=1.23456), CONFIG, [], {}, now=0.0)

    assert [waits[:2] for waits in told["waits_for"]] == [["t", i] for i in range(MAX_WAITS)]
    assert {len(waits[2]) for waits in told["waits_for"]} == {MAX_TEXT}
    assert told["polled_ago_s"] == 1.235


def test_owners_that_were_lost_with_a_queue_are_told() -> None:
    one = assignment()
    one.suspicion = Suspicion(2, 5, 9)

    assert (queue_info(one, now=0.0)["abandoned"], queue_info(one, now=0.0)["careful_until"]) == (2, 9)


def test_a_queue_that_leaves_or_was_lost_says_so() -> None:
    one, two = assignment(), assignment()
    one.drop()
    two.lose("gone")

    told = [queue_info(each, now=0.0) for each in (one, two)]

    assert [(each["dropped"], each["lost"]) for each in told] == [(True, False), (True, True)]


# ---- the whole
def test_the_map_of_a_consumer() -> None:
    queues = [assignment(1), assignment(0)]
    queues[0].cache.put(made_plain(0, 3))
    queues[1].cache.put(made_plain(0, 1))
    config = ConsumerConfig(group="g", batch=32, slots=4, strategy="circle")

    told = running_info(PROGRAM, config, queues, {}, now=100.0)

    assert {name: value for name, value in told.items() if name != "queues"} == {
        "version": "1.2.3", "member": "host@1#abcd1234", "group": "g", "up_s": 12.346, "loop_lag_s": 0.0, "turns": 2,
        "slots": 4, "settings": {"batch": 32, "slots": 4, "strategy": "circle"}, "cached_messages": 4,
        "cached_bytes": queues[0].cache.size + queues[1].cache.size, "statistics": {}, "more_queues": 0,
        "waits_for": [], "polled_ago_s": None,
    }  # fmt: skip
    assert [queue["queue_id"] for queue in told["queues"]] == [0, 1]


def test_only_settings_that_differ_from_the_default_are_told_and_long_ones_cut() -> None:
    assert changed_settings(CONFIG) == {}

    told = changed_settings(ConsumerConfig(group="g", strategy="config:" + ",".join(["orders/1"] * 100), batch=1))

    assert list(told) == ["strategy"]
    assert len(told["strategy"]) == MAX_TEXT


def test_statistics_are_plain_numbers() -> None:
    statistics = Statistics("g")
    statistics.of("t").succeeded(100.0, 10, 2, 0.5)
    statistics.of("t").gave_in_vain(100.0, 3, 0.1, ResultType.EXCEPTION)

    told = running_info(PROGRAM, CONFIG, [], statistics.read(100.0), now=100.0)["statistics"]

    assert told["t@g"]["consumed_ok"] == {"total": 10, "calls": 2, "per_s": 10.0, "mean_s": 0.25}
    assert told["t@g"]["consumed_failed"]["total"] == 3
    assert told["t@g"]["results"] == {
        "success": 2, "time_out": 0, "exception": 1, "returned_null": 0, "failed": 0,
    }  # fmt: skip
    assert msgpack.unpackb(msgpack.packb(told)) == told


def test_of_too_many_queues_those_that_need_somebody_are_told() -> None:
    queues = [assignment(i) for i in range(MAX_QUEUES + 10)]
    queues[-1].retry_at, queues[-2].crash_loop, queues[-3].tries_to_unlock = 1.0, "CRASH_LOOP", 1
    queues[-4].paused, queues[-5].guard.since = True, 0.0
    queues[-6].cache.put(made_plain(0, 1))

    told = running_info(PROGRAM, CONFIG, reversed(queues), {}, now=0.0)

    assert (len(told["queues"]), told["more_queues"]) == (MAX_QUEUES, 10)
    ids = [queue["queue_id"] for queue in told["queues"]]
    assert ids == [*range(MAX_QUEUES - 6), *range(MAX_QUEUES + 4, MAX_QUEUES + 10)]


def test_of_many_queues_with_work_the_stopped_ones_are_told_before_those_that_wait_and_the_longest_calls() -> None:
    queues = [assignment(i) for i in range(3 * MAX_QUEUES)]
    for i, queue in enumerate(queues):
        queue.cache.put(made_plain(0, 1))
        queue.guard.since = 100.0 + i
    queues[-1].crash_loop, queues[-2].retry_at, queues[-3].guard.since = "CRASH_LOOP", 1.0, 3.0

    told = running_info(PROGRAM, CONFIG, queues, {}, now=1000.0)

    ids = [queue["queue_id"] for queue in told["queues"]]
    assert ids == [*range(MAX_QUEUES - 3), *range(3 * MAX_QUEUES - 3, 3 * MAX_QUEUES)]


def test_the_largest_map_is_within_what_the_broker_passes_on() -> None:
    """Also with names of 127 characters, numbers of 8 bytes, reasons of any length, and all settings changed."""
    huge, text = 1 << 62, "€" * 1000
    queues = []
    for i in range(MAX_QUEUES + 1):
        one = assignment(huge + i, start=huge, topic="t" * 127)
        one.lease.epoch = one.reported = one.tries_to_unlock = huge
        one.crash_loop = one.flow_control = text
        one.last_failure = (huge, text)
        one.suspicion = Suspicion(huge, huge, huge)
        one.retry_at = one.guard.since = one.pulled_at = 1.1
        queues.append(one)
    rate = Rate(huge, huge, 1.1, 1.1)
    topic = TopicStatistics(rate, rate, rate, dict.fromkeys(ResultType, huge))
    statistics = {f"{i:0127}@{'g' * 127}": topic for i in range(MAX_TOPICS + 1)}
    config = ConsumerConfig(group="g", strategy="config:" + ",".join(["orders/1"] * 10_000))
    refused = {MessageQueue("t" * 127, huge + i): text for i in range(MAX_WAITS)}
    program = PROGRAM._replace(member="€" * 137, group="g" * 127, waits_for=refused)

    told = running_info(program, config, queues, statistics, now=0.5)

    packed = msgpack.packb(told)
    assert len(packed) + 4096 < MAX_INFO, "room for settings of a later version"
    assert (told["more_queues"], len(told["statistics"])) == (1, MAX_TOPICS)
    assert depth(told) <= MAX_LEVELS


def depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0)


# ---- asked through the broker


def answers(broker: FakeBroker) -> list[RunningInfo]:
    return [decode(RunningInfo, request.payload) for request in broker.requests if request.op is Op.RUNNING_INFO]


async def test_a_push_is_answered_in_the_same_step_with_what_the_consumer_says_itself(
    broker: FakeBroker, make: Make, nothing_left_running: None
) -> None:
    broker.create("t", 2, bodies=[b"x"] * 5)
    async with make(Recorder(takes_s=10.0), topics={"t": "*"}, batch=2) as consumer:
        await asyncio.sleep(3)
        broker.connections[0].push(Push.RUNNING_INFO, (17, "g"))

        (told,) = answers(broker)

        assert told == RunningInfo(17, consumer.running_info())
        busy, idle = told.info["queues"]
        assert (busy["head_offset"], busy["in_flight"], busy["cached_messages"]) == (0, 2, 5)
        assert busy["called_for_s"] == pytest.approx(3.0, abs=0.1)
        assert (idle["queue_id"], idle["cached_messages"], idle["called_for_s"]) == (1, 0, None)
        assert told.info["turns"] == 1
        assert told.info["settings"] == {"broker": "fake:1", "batch": 2}
        assert told.info["up_s"] == pytest.approx(3.0, abs=0.1)


async def test_a_failing_message_and_its_next_delivery_are_told(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"bad"])
    async with make(Recorder(SUSPEND, SUSPEND, SUCCESS), topics={"t": "*"}, suspend_s=1.0) as consumer:
        await asyncio.sleep(0.25)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["attempt"], queue["retry_in_s"]) == (2, pytest.approx(0.75, abs=0.05))

        await asyncio.sleep(1)
        (queue,) = consumer.running_info()["queues"]
        assert queue["attempt"] == 3

        await asyncio.sleep(3)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["attempt"], queue["retry_in_s"], queue["head_offset"]) == (1, None, 1)


@pytest.mark.parametrize("payload", [(17, "another"), (17,), (), ("x", "g"), (None, "g")])
async def test_a_question_for_another_group_or_without_sense_is_not_answered(
    broker: FakeBroker, make: Make, payload: Any
) -> None:
    async with make(topics={"t": "*"}):
        await asyncio.sleep(0.1)
        broker.connections[0].push(Push.RUNNING_INFO, payload)
        await asyncio.sleep(0.1)

        assert answers(broker) == []


async def test_an_answer_that_is_refused_or_cannot_leave_changes_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    listener = Recorder()
    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(0.1)
        broker.refuse[Op.RUNNING_INFO].append(BadRequest("nobody waits for this answer"))
        broker.connections[0].push(Push.RUNNING_INFO, (1, "g"))
        broker.connections[0].cut()
        broker.connections[0]._on_push(Push.RUNNING_INFO, [2, "g"])  # read before the end was noticed
        broker.connections[0].dial()
        broker.send("t", 0, b"x")
        await asyncio.sleep(1)

    assert [told.token for told in answers(broker)] == [1]
    assert listener.offsets == [0]


async def test_a_consumer_that_was_not_started_has_nothing_to_tell(make: Make) -> None:
    assert make(topics={"t": "*"}).running_info() == {}


def test_nothing_is_counted_before_anything_was_added() -> None:
    assert Meter().rate(123.0) == Rate(0, 0, 0.0, 0.0)


def test_a_rate_is_items_by_the_time_since_the_first() -> None:
    meter = Meter()

    for second in range(1, 6):
        meter.add(100.0 + second, 20, calls=2, seconds=1.0)

    assert meter.rate(105.0) == Rate(total=100, calls=10, per_s=20.0, mean_s=0.5)


def test_a_rate_forgets_what_is_older_than_a_minute_and_the_total_does_not() -> None:
    meter = Meter()
    meter.add(0.0, 600, seconds=3.0)

    assert meter.rate(59.9).per_s == pytest.approx(10.0, rel=0.1)
    assert meter.rate(69.9).per_s > 0
    assert meter.rate(70.0) == Rate(600, 1, 0.0, 0.0)


def test_a_rate_over_a_moment_is_over_a_second() -> None:
    meter = Meter()

    meter.add(50.0, 7)

    assert meter.rate(50.0).per_s == 7.0


def test_steady_work_has_a_steady_rate_at_every_moment() -> None:
    meter = Meter()

    for tenth in range(3000):
        now = tenth / 10
        meter.add(now, 5, seconds=0.02)
        if now > 10:
            assert meter.rate(now).per_s == pytest.approx(50.0, rel=0.02)
            assert meter.rate(now).mean_s == pytest.approx(0.02)


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 100)), max_size=40))
def test_a_rate_counts_exactly_what_its_buckets_span(steps: list[tuple[float, int]]) -> None:
    meter, now, added = Meter(), 0.0, []

    for step, items in steps:
        now += step
        meter.add(now, items)
        added.append((now, items))

    first_bucket = int(now // BUCKET_S) - BUCKETS
    seen = sum(items for at, items in added if int(at // BUCKET_S) >= first_bucket)
    assert meter.rate(now).total == sum(items for _, items in added)
    if added:
        since = max(added[0][0], first_bucket * BUCKET_S, added[0][0] // BUCKET_S * BUCKET_S)
        assert meter.rate(now).per_s == pytest.approx(seen / max(now - since, 1.0))


def test_calls_are_counted_by_how_they_ended() -> None:
    meter = TopicMeter()

    meter.succeeded(1.0, 40, calls=4, seconds=0.4, timed_out=True)
    meter.succeeded(1.0, 0, calls=0, seconds=0.0, timed_out=True)
    meter.gave_in_vain(2.0, 10, 0.5, ResultType.EXCEPTION)
    meter.gave_in_vain(3.0, 10, 1.5, ResultType.RETURNED_NULL)
    read = meter.read(3.0)

    assert read.results == {
        ResultType.SUCCESS: 3,
        ResultType.TIME_OUT: 1,
        ResultType.EXCEPTION: 1,
        ResultType.RETURNED_NULL: 1,
        ResultType.FAILED: 0,
    }
    assert (read.consumed_ok.total, read.consumed_ok.mean_s) == (40, pytest.approx(0.1))
    assert (read.consumed_failed.total, read.consumed_failed.calls) == (20, 2)
    assert read.consumed_failed.mean_s == pytest.approx(1.0)
    assert read.pulled.total == 0


def test_topics_are_kept_apart_and_named_with_their_group() -> None:
    statistics = Statistics("g")

    statistics.of("b").succeeded(0.0, 1, 1, 0.0)
    statistics.of("a").pulled.add(0.0, 5, seconds=0.1)
    statistics.of("b").succeeded(0.0, 1, 1, 0.0)
    read = statistics.read(1.0)

    assert list(read) == ["a@g", "b@g"]
    assert read["b@g"].consumed_ok.total == 2
    assert read["a@g"].pulled.total == 5


async def test_a_consumer_tells_what_it_did_by_topic_and_group(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2, bodies=[b"x"] * 6)
    broker.send("t", 1, *[b"x"] * 6)
    consumer = make(Recorder(SUSPEND, None, takes_s=0.5), topics={"t": "*"}, batch=3)
    assert consumer.statistics() == {}

    async with consumer:
        await asyncio.sleep(10)
        (told,) = consumer.statistics().values()

    assert list(consumer.statistics()) == ["t@g"]
    assert (told.consumed_ok.total, told.consumed_ok.calls) == (12, 4)
    assert told.consumed_ok.mean_s == pytest.approx(0.5)
    assert (told.consumed_failed.total, told.consumed_failed.calls) == (6, 2)
    assert told.consumed_failed.mean_s == pytest.approx(0.5)
    assert {result: calls for result, calls in told.results.items() if calls} == {
        ResultType.SUCCESS: 4,
        ResultType.FAILED: 1,
        ResultType.RETURNED_NULL: 1,
    }
    assert told.consumed_ok.per_s == pytest.approx(12 / 10, rel=0.3)
