"""How long queues are without a consumer: measured with real processes, and judged by the worst."""

from __future__ import annotations

import pytest

from rmq.bench.figures import Figure
from rmq.bench.loads.failover import measure, verdicts
from rmq.bench.options import Load, Options
from rmq.bench.processes import BenchError

from support.bench import Steps


@pytest.mark.parametrize(("samples", "met"), [([0.1, 0.1, 1.0], True), ([0.1, 0.1, 1.001], False)])
def test_the_worst_alone_decides_whether_a_limit_held(samples: list[float], met: bool) -> None:
    (verdict,) = verdicts([Figure("failover.stop", "words", "s", "sync", samples)])

    assert (verdict.met, verdict.at_most, verdict.flush) == (met, 1.0, "sync")


def test_what_loading_python_takes_is_told_without_a_limit() -> None:
    assert list(verdicts([Figure("failover.join_process", "words", "s", "sync", [9.0])])) == []


@pytest.mark.parametrize("load", [Load(queues=2, consumers=3), Load(queues=8, consumers=1)])
def test_no_consumer_is_left_without_a_queue_and_none_is_alone(load: Load) -> None:
    with pytest.raises(BenchError, match="two consumers or more, and a queue for each"):
        measure(load, Options(), Steps())


@pytest.mark.slow
def test_kills_stops_and_joins_are_measured() -> None:
    steps = Steps()

    report = measure(Load(queues=4, consumers=2), Options("sync", rounds=1, quick=True), steps, rate=200)

    figures = {figure.key: figure for figure in report.figures}
    assert {key: len(figure.samples) for key, figure in figures.items()} == {
        "failover.kill": 1, "failover.stop": 1, "failover.join": 2, "failover.join_process": 2,
    }  # fmt: skip
    assert steps.said == [
        "failover.begin", "failover.join", "failover.stop", "failover.join", "failover.kill",
    ]  # fmt: skip
    assert steps.expected == len(steps.said)
    assert figures["failover.kill"].middle > 4.0, "the lock of a killed consumer was given away within its grace"
    assert {figure.flush for figure in report.figures} == {"sync"}
