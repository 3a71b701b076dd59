"""Every target has a command line, a benchmark that fails does not end the others, and the catalog is complete."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq.bench.figures import Figure, Report, Verdict
from rmq.bench.options import Load, Options, Steps
from rmq.bench.processes import BenchError
from rmq.bench.suite import (
    CATALOG,
    ENTRIES,
    TARGETS,
    TOO_SMALL,
    Benchmark,
    PlannedRun,
    Suite,
    quickly,
    rounds_within,
    unjudged,
)
from rmq.wire.errors import ConnectionLost

MACHINE = {"cores": 2, "python": "3", "kernel": "6", "fdatasync_ms": 1.0}
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_the_page_has_the_command_line_of_every_target() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    listed = {(cells[1].strip(), cells[2].strip(" `")) for cells in rows}

    for entry in ENTRIES:
        for target in entry.targets:
            assert (target, entry.command_line(entry.options(Options()))) in listed


class Scripted(Benchmark):
    """A benchmark that does what the test says."""

    def measure(self, load: Load, options: Options, steps: Steps, **more: Any) -> Report:
        return SCRIPTS[self.name](load, options, steps)


def good(load: Load, options: Options, steps: Steps) -> Report:
    steps.expect(2)
    steps("one")
    steps("two")
    figure = Figure("good.rate", "words", "msg/s", options.flush, [1.0])
    return Report("good", {"load": load.as_object()}, [figure], [Verdict("P2.floor", "of the floor", samples=[1.0])])


def bad(load: Load, options: Options, steps: Steps) -> Report:
    raise BenchError("the disk is full")


def full(load: Load, options: Options, steps: Steps) -> Report:
    raise OSError(28, "No space left on device")


def unreachable(load: Load, options: Options, steps: Steps) -> Report:
    raise ConnectionLost("no broker answers")


SCRIPTS: dict[str, Callable[[Load, Options, Steps], Report]] = {
    "good": good,
    "bad": bad,
    "full": full,
    "unreachable": unreachable,
}


def suite(*names: str, quick: bool = False) -> Suite:
    entries = [PlannedRun(Scripted(name), ("P1",) if name == "bad" else ("P2",), 10.0, Load()) for name in names]
    return Suite(Options(rounds=1 if quick else 5, quick=quick), entries, machine=lambda: MACHINE)


def test_every_target_has_a_command_line() -> None:
    assert {target for entry in ENTRIES for target in entry.targets} == set(TARGETS)


def test_all_is_expected_to_fit_into_20_minutes() -> None:
    assert sum(entry.about_s for entry in ENTRIES) <= 20 * 60


def test_a_benchmark_that_fails_does_not_end_the_others_and_its_targets_are_not_shown() -> None:
    all_of_them = suite("bad", "good")

    parts = list(all_of_them.parts(lambda done, what: None))

    assert [part.why_not for part in parts] == ["the disk is full", ""]
    assert "not shown: the disk is full" in parts[0].as_text()
    first = all_of_them.verdicts()[0]
    assert (first.key, first.met, first.why_not) == ("P1", None, "the disk is full")


def test_errors_of_the_machine_do_not_end_the_others() -> None:
    parts = list(suite("full", "unreachable", "good").parts(lambda done, what: None))

    assert [part.why_not for part in parts] == ["[Errno 28] No space left on device", "no broker answers", ""]


def test_targets_come_in_their_order_and_one_without_a_verdict_is_not_shown() -> None:
    all_of_them = suite("good", "bad")
    list(all_of_them.parts(lambda done, what: None))

    assert [verdict.key.partition(".")[0] for verdict in all_of_them.verdicts()] == list(TARGETS)
    assert {verdict.why_not for verdict in all_of_them.verdicts()[2:]} == {"no benchmark was run for it"}


@pytest.mark.parametrize(
    ("left_s", "needed_s", "rounds"), [(100, 100, 5), (100, 101, 4), (100, 250, 2), (100, 900, 1), (-5, 10, 1)]
)
def test_rounds_are_limited_by_the_time_left(left_s: float, needed_s: float, rounds: int) -> None:
    assert rounds_within(left_s, needed_s, 5) == rounds


def test_a_slow_machine_has_fewer_rounds_towards_the_end_and_says_so() -> None:
    times = iter([0.0, 0.0, 600.0, 1100.0])
    slow = replace(suite("good", "good", "good"), clock=lambda: next(times))

    lines = [part.line for part in slow.parts(lambda done, what: None)]

    assert lines == ["rmq-bench good", "rmq-bench good --rounds 2", "rmq-bench good --rounds 1"]


def test_progress_goes_over_all_of_them() -> None:
    shown: list[tuple[float, str]] = []

    list(suite("good", "good").parts(lambda done, what: shown.append((done, what))))

    assert shown == [(0.0, "machine"), (0.0, "one"), (0.25, "two"), (0.5, "one"), (0.75, "two")]


def test_the_json_has_the_machine_and_every_report_with_its_command_line() -> None:
    all_of_them = suite("bad", "good")
    list(all_of_them.parts(lambda done, what: None))

    found = json.loads(json.dumps(all_of_them.as_object()))

    assert (found["benchmark"], found["machine"]) == ("all", MACHINE)
    assert [report["command"] for report in found["reports"]] == ["rmq-bench bad", "rmq-bench good"]
    assert [report["benchmark"] for report in found["reports"]] == ["bad", "good"]
    assert found["reports"][0]["why_not"] == "the disk is full"
    assert found["reports"][1]["figures"][0]["key"] == "good.rate"


@pytest.mark.parametrize(
    ("load", "options", "line"),
    [
        (Load(), Options(), "rmq-bench produce"),
        (Load(size=1024, in_flight=8), Options(), "rmq-bench produce --size 1024 --in-flight 8"),
        (Load(keys=True), Options(rounds=3), "rmq-bench produce --keys --rounds 3"),
        (Load(), Options(rounds=1, quick=True), "rmq-bench produce --quick"),
        (Load(10), Options(rounds=1, quick=True), "rmq-bench produce --messages 10 --quick"),
        (Load(), Options(rounds=2, quick=True), "rmq-bench produce --quick --rounds 2"),
    ],
)
def test_a_command_line_names_only_what_differs_from_the_defaults(load: Load, options: Options, line: str) -> None:
    assert PlannedRun(Benchmark("produce"), (), 1.0, load).command_line(options) == line


def test_a_command_line_names_the_durability_that_its_target_is_about() -> None:
    entry = PlannedRun(Benchmark("produce"), ("P6",), 1.0, Load(), "sync")

    assert entry.command_line(Options()) == "rmq-bench produce --flush sync"
    assert entry.options(Options("async")).flush == "sync"


def test_quick_runs_are_yielded_as_they_end_and_kept_in_order() -> None:
    all_of_them = suite("good", "bad", "full", quick=True)

    yielded = [part.line for part in all_of_them.parts(lambda done, what: None)]

    assert sorted(yielded) == sorted(part.line for part in all_of_them.done)
    assert [part.report.benchmark for part in all_of_them.done] == ["good", "bad", "full"]


def test_closing_early_leaves_nothing_running() -> None:
    before = threading.active_count()
    parts = suite("good", "bad", "full", "good", "good", quick=True).parts(lambda done, what: None)

    next(parts)
    parts.close()

    assert threading.active_count() == before


def test_quick_runs_are_small_and_say_that_they_mean_nothing() -> None:
    all_of_them = suite("good", quick=True)

    (part,) = all_of_them.parts(lambda done, what: None)

    assert part.report.about["load"]["messages"] == 10_000
    assert "the numbers mean nothing" in all_of_them.as_text()


def test_every_benchmark_of_the_command_is_there() -> None:
    assert list(CATALOG) == [
        "produce", "consume", "end-to-end", "latency", "failover", "scale", "recovery", "limit",
    ]  # fmt: skip


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_a_benchmark_heeds_fields_of_a_load(benchmark: Benchmark) -> None:
    assert set(benchmark.heeds) <= {field.name for field in dataclasses.fields(Load)}


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_a_benchmark_has_no_default_for_a_field_it_ignores(benchmark: Benchmark) -> None:
    usual = Load().as_object()
    own = {name for name, value in benchmark.load.as_object().items() if value != usual[name]}

    assert own <= set(benchmark.heeds)


def test_a_quick_load_is_the_same_with_few_messages_and_processes() -> None:
    assert quickly(Load(size=1024, tags=3)) == Load(10_000, size=1024, tags=3)
    assert quickly(Load(100)) == Load(100)
    assert quickly(Load(consumers=3, producers=9)) == Load(10_000, consumers=2, producers=2)


def test_a_quick_run_meets_no_target_and_keeps_a_better_reason() -> None:
    judged = unjudged(Verdict("P1.floor", "words", samples=[1.0], at_least=0.6))

    assert (judged.met, judged.why_not) == (None, TOO_SMALL)
    assert unjudged(Verdict("P1.redis", "words", why_not="no redis")).why_not == "no redis"


@pytest.mark.parametrize("benchmark", CATALOG.values(), ids=list(CATALOG))
def test_every_benchmark_can_be_measured(benchmark: Benchmark) -> None:
    module = importlib.import_module(benchmark.module)

    assert list(inspect.signature(module.measure).parameters)[:3] == ["load", "options", "steps"]


def test_a_report_names_only_the_fields_of_the_load_that_matter() -> None:
    benchmark = CATALOG["recovery"]

    report = benchmark.measure(Load(size=7), Options(broker="127.0.0.1:1"), Steps(lambda done, what: None))

    assert report.about["load"] == {"size": 7, "batch": 500, "queues": 8, "in_flight": 64}
    assert (report.about["flush"], report.about["rounds"]) == ("async", 5)
