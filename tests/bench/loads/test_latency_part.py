"""Each round gives each figure a percentile; the distribution is that of all rounds together."""

from __future__ import annotations

from rmq.bench.figures import interleave
from rmq.bench.loads.latency import Part

ROUNDS = [[1000.0, 2000.0, 3000.0], [4000.0, 9000.0, 5000.0]]


def test_every_round_is_a_sample_of_every_figure() -> None:
    part = Part("latency.wake", "send to listener", "async", ("p50", "p99", "max"))

    for took_us in ROUNDS:
        part.add(took_us)

    assert {figure.key: figure.samples for figure in part.figures.values()} == {
        "latency.wake.p50": [2.0, 5.0],
        "latency.wake.p99": [3.0, 9.0],
        "latency.wake.max": [3.0, 9.0],
    }
    assert {figure.flush for figure in part.figures.values()} == {"async"}


def test_a_part_that_takes_turns_with_others_gets_the_same_samples() -> None:
    part, rounds = Part("latency.ping", "ping", "async"), iter(ROUNDS)
    steps: list[str] = []

    interleave([part.side(lambda: next(rounds))], 2, steps.append)

    assert [figure.samples for figure in part.figures.values()] == [[2.0, 5.0], [3.0, 9.0]]
    assert steps == ["latency.ping.p50"] * 2


def test_the_distribution_is_of_all_rounds_together() -> None:
    part = Part("latency.wake", "send to listener", "async")
    assert part.distribution() == {}

    for took_us in ROUNDS:
        part.add(took_us)

    assert part.distribution() == {"p50": 3.0, "p90": 9.0, "p99": 9.0, "p99.9": 9.0, "max": 9.0}


def test_the_median_of_a_percentile_is_held_against_the_target() -> None:
    part = Part("latency.wake", "send to listener", "async")
    for took_us in ROUNDS:
        part.add(took_us)

    assert part.at_most("P7.wake.p50", "p50", 3.5).met is True
    assert part.at_most("P7.wake.p99", "p99", 3.5).met is False


def test_a_target_about_async_is_not_shown_by_anything_else() -> None:
    part = Part("latency.wake", "send to listener", "sync")
    part.add([1.0])

    verdict = part.at_most("P7.wake.p50", "p50", 1.0)

    assert (verdict.met, verdict.samples) == (None, [])
    assert "about async" in verdict.why_not


def test_what_could_not_be_measured_says_why() -> None:
    verdict = Part("latency.ping", "ping", "async", why_not="no room").at_most("P7.ping.p99", "p99", 5.0)

    assert (verdict.met, verdict.why_not) == (None, "no room")
