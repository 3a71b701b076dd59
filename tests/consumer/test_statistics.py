"""Counting: totals for ever, rates over about a minute, and nothing by the clock of the machine."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.introspection import BUCKET_S, BUCKETS, Meter, Rate, Statistics, TopicMeter
from rmq.consumer.listener import ResultType

from .fake_broker import FakeBroker
from .recorder import SUSPEND, Make, Recorder


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


@pytest.mark.virtual_time
async def test_a_consumer_tells_what_it_did_by_topic_and_group(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    broker.send("t", 0, *[b"x"] * 6)
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
