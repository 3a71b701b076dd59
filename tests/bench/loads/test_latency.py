"""Latencies: runs with real processes, and the percentiles and verdicts of their rounds."""

from __future__ import annotations

import asyncio

import pytest

from rmq.bench.figures import Figure, interleave
from rmq.bench.loads.latency import LatencyPart, Sizes, against_echo, flushes, measure
from rmq.bench.options import Load, Options
from rmq.client import Admin
from rmq.testing.broker import BrokerThread

TINY = Sizes(
    single_s=0.01, connections=2, queues=3, drips=3, drips_per_s=1000, rate_s=0.01, rate_warm_s=0.01, pings=3,
    pings_per_s=1000, flood_warm_s=0.01, echoes=50, syncs=3,
)  # fmt: skip


class Recorder:
    """Progress that is looked at afterwards."""

    def __init__(self) -> None:
        self.expected = 0
        self.steps: list[str] = []

    def expect(self, more: int) -> None:
        """So many more."""
        self.expected += more

    def __call__(self, what: str) -> None:
        """The next."""
        self.steps.append(what)


PARTS = ("round_trip", "wake", "rate", "ping")


@pytest.mark.slow
def test_every_part_is_measured_and_a_running_broker_keeps_no_topics() -> None:
    steps = Recorder()

    with BrokerThread(flush="async") as broker:
        report = measure(Load(queues=2), Options(rounds=1, broker=broker.address), steps, sizes=TINY)
        assert asyncio.run(topics(broker.address)) == []

    assert len(steps.steps) == steps.expected == 6
    assert {figure.key for figure in report.figures} == {
        *(f"latency.{part}.{name}" for part in PARTS for name in ("p50", "p99")),
        "latency.wake.max", "latency.rate.behind.p99", "latency.ping.behind.p99", "latency.ping.flood",
        "latency.echo", "latency.fdatasync",
    }  # fmt: skip
    assert all(len(figure.samples) == 1 and figure.middle > 0 for figure in report.figures)
    assert {verdict.key: verdict.at_most for verdict in report.verdicts} == {
        "P5.echo": 3.0, "P7.wake.p50": 1.0, "P7.wake.p99": 3.0, "P7.rate.p99": 10.0, "P7.ping.p99": 5.0,
    }  # fmt: skip
    assert all(verdict.met is not None for verdict in report.verdicts)
    assert set(report.about["percentiles"]) == {*PARTS, "rate.behind", "ping.behind"}
    assert list(report.about["percentiles"]["wake"]) == ["p50", "p90", "p99", "p99.9", "max"]


async def topics(address: str) -> list[str]:
    """That a broker has, but for those of groups."""
    async with Admin(address) as admin:
        return [info.topic for info in await admin.list_topics() if not info.topic.startswith("%")]


def test_our_own_broker_is_measured_with_both_durabilities_and_a_running_one_with_its_own() -> None:
    assert flushes(Options(flush="sync")) == ("async", "sync")
    assert flushes(Options(flush="sync", broker="127.0.0.1:1")) == ("sync",)


def test_a_round_trip_is_judged_by_the_echoes_of_its_own_rounds() -> None:
    single = LatencyPart("latency.round_trip", "round trip", "async")
    for took_us in ([40.0], [60.0], [200.0]):
        single.add(took_us)
    echo = Figure("latency.echo", "echo", "ms", samples=[0.02, 0.02, 0.1])

    verdict = against_echo(single, echo)

    assert verdict.samples == pytest.approx([2.0, 3.0, 2.0])
    assert verdict.met is True


def test_without_async_the_echo_is_not_judged() -> None:
    verdict = against_echo(None, Figure("latency.echo", "echo", "ms", samples=[0.02]))

    assert (verdict.met, verdict.flush) == (None, "sync")
    assert verdict.why_not


ROUNDS = [[1000.0, 2000.0, 3000.0], [4000.0, 9000.0, 5000.0]]


def test_every_round_is_a_sample_of_every_figure() -> None:
    part = LatencyPart("latency.wake", "send to listener", "async", ("p50", "p99", "max"))

    for took_us in ROUNDS:
        part.add(took_us)

    assert {figure.key: figure.samples for figure in part.figures.values()} == {
        "latency.wake.p50": [2.0, 5.0],
        "latency.wake.p99": [3.0, 9.0],
        "latency.wake.max": [3.0, 9.0],
    }
    assert {figure.flush for figure in part.figures.values()} == {"async"}


def test_a_part_that_takes_turns_with_others_gets_the_same_samples() -> None:
    part, rounds = LatencyPart("latency.ping", "ping", "async"), iter(ROUNDS)
    steps: list[str] = []

    interleave([part.side(lambda: next(rounds))], 2, steps.append)

    assert [figure.samples for figure in part.figures.values()] == [[2.0, 5.0], [3.0, 9.0]]
    assert steps == ["latency.ping.p50"] * 2


def test_the_distribution_is_of_all_rounds_together() -> None:
    part = LatencyPart("latency.wake", "send to listener", "async")
    assert part.distribution() == {}

    for took_us in ROUNDS:
        part.add(took_us)

    assert part.distribution() == {"p50": 3.0, "p90": 9.0, "p99": 9.0, "p99.9": 9.0, "max": 9.0}


def test_the_median_of_a_percentile_is_judged_by_the_target() -> None:
    part = LatencyPart("latency.wake", "send to listener", "async")
    for took_us in ROUNDS:
        part.add(took_us)

    assert part.at_most("P7.wake.p50", "p50", 3.5).met is True
    assert part.at_most("P7.wake.p99", "p99", 3.5).met is False


def test_a_target_about_async_is_judged_with_async_only() -> None:
    part = LatencyPart("latency.wake", "send to listener", "sync")
    part.add([1.0])

    verdict = part.at_most("P7.wake.p50", "p50", 1.0)

    assert (verdict.met, verdict.samples) == (None, [])
    assert "about async" in verdict.why_not


def test_a_part_that_was_not_measured_says_why() -> None:
    verdict = LatencyPart("latency.ping", "ping", "async", why_not="no room").at_most("P7.ping.p99", "p99", 5.0)

    assert (verdict.met, verdict.why_not) == (None, "no room")
