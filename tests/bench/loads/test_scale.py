"""Growth: what is compared, what is judged, and what is only shown."""

from __future__ import annotations

import resource
from contextlib import nullcontext
from pathlib import Path

import pytest

from rmq.bench.figures import Report
from rmq.bench.loads import scale
from rmq.bench.loads.recovery import NAME, log_bytes
from rmq.bench.loads.scale import Growth, few_files, measure, topics
from rmq.bench.options import Load, Options
from rmq.bench.processes import BenchError

from rigs.bench import Steps


@pytest.mark.parametrize(
    ("queues", "sizes"), [(1, [1]), (1024, [1024]), (1025, [513, 512]), (10_000, [1000] * 10), (200, [200])]
)
def test_as_few_topics_as_the_queues_need_all_of_about_one_size(queues: int, sizes: list[int]) -> None:
    made = topics(queues)

    assert [size for _, size in made] == sizes
    assert len({name for name, _ in made}) == len(made)


@pytest.mark.parametrize(
    ("hard", "is_enough"), [(1024, False), (1099, False), (1100, True), (resource.RLIM_INFINITY, True)]
)
def test_connections_that_the_limit_of_open_files_forbids_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, hard: int, is_enough: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda of: (256, hard))

    assert (few_files(1000) == "") is is_enough


def test_a_smaller_growth_than_the_target_is_shown_and_not_judged() -> None:
    rates, steps = iter([200.0, 100.0]), Steps()
    growth = Growth("log", "GB of log", 1, 2, 10, lambda size: nullcontext(_Side(rates)), "")

    report = _compared(growth, steps)

    assert [(figure.key, figure.samples) for figure in report.figures] == [
        ("scale.log.1", [200.0]), ("scale.log.2", [100.0]), ("scale.rss.log", [77.0]),
    ]  # fmt: skip
    assert {verdict.met for verdict in report.verdicts} == {None}
    assert {verdict.why_not for verdict in report.verdicts} == {"measured with 2 GB of log, and the target is about 10"}


@pytest.mark.parametrize(("grown", "is_met"), [(79.0, False), (80.0, True)])
def test_the_grown_one_must_keep_four_fifths(grown: float, is_met: bool) -> None:
    rates = iter([100.0, grown])
    growth = Growth("queues", "queues", 1, 10_000, 10_000, lambda size: nullcontext(_Side(rates)), "")

    kept, memory = _compared(growth, Steps()).verdicts

    assert (kept.key, kept.met) == ("P8.queues", is_met)
    assert (memory.key, memory.met) == ("P8.rss.queues", True)


def test_a_consumer_that_does_not_finish_leaves_the_other_figures() -> None:
    rates = iter([100.0, 90.0])
    growth = Growth("queues", "queues", 1, 10_000, 10_000, lambda size: nullcontext(_Side(rates)), "", is_consumed=True)

    report = _compared(growth, Steps())

    assert report.about == {f"scale.consume.queues.{size}": "not shown: no end" for size in (1, 10000)}
    assert [verdict.met for verdict in report.verdicts] == [True, True]


def test_with_a_running_broker_no_target_is_shown_and_the_reason_is() -> None:
    steps = Steps()

    report = measure(Load(), Options(broker="127.0.0.1:1"), steps)

    assert report.figures == []
    assert [verdict.key for verdict in report.verdicts] == [
        "P8.queues", "P8.rss.queues", "P8.connections", "P8.rss.connections",
        "P8.log", "P8.rss.log",
    ]  # fmt: skip
    assert all(verdict.met is None and "one that runs" in verdict.why_not for verdict in report.verdicts)
    assert (steps.expected, steps.taken) == (0, [])


@pytest.mark.slow
def test_a_side_has_a_broker_with_a_long_log_in_the_folder_that_is_kept(tmp_path: Path) -> None:
    load = Load(messages=2000, connections=3)

    with scale.side(Options(), load, gb=0.003, data_dir=tmp_path / NAME) as made:
        assert made.take() > 0
        assert made.consume() > 0
        assert made.broker.memory_mb("VmHWM") > 1

    assert log_bytes(tmp_path / NAME) > 3_000_000 + 2000 * load.size


class _Side(scale.SizedBroker):
    """A side without a broker, that takes samples from a list."""

    def __new__(cls, rates: object) -> _Side:
        return super().__new__(cls, _Broker(), Load())  # type: ignore[arg-type]

    def __init__(self, rates: object) -> None:
        self._rates = rates

    def take(self) -> float:
        return next(self._rates)  # type: ignore[call-overload, no-any-return]

    def consume(self) -> float:
        raise BenchError("no end")


class _Broker:
    """What is asked of a broker's process."""

    def memory_mb(self, what: str) -> float:
        assert what == "VmHWM"
        return 77.0


def _compared(growth: Growth, steps: Steps) -> Report:
    report = Report("scale")
    scale.compare(report, growth, Options(rounds=1), steps)
    return report
