"""
The catalog of benchmarks, and ``rmq-bench all``: every benchmark with the loads that the targets name.

One list maps command lines to targets. A benchmark that fails does not end the others: its targets are not shown, for
the reason it gave.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import platform
import shlex
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rmq.wire.batch import checksum, native
from rmq.wire.errors import RmqError

from .figures import Report, Verdict
from .options import Load, Options, Show, Steps, Whole
from .processes import BenchError, scratch
from .table import COLUMNS, as_text, verdicts_text

QUICK_MESSAGES = 10_000  # of a quick run: enough to see that it works
QUICK_PROCESSES = 2
TOO_SMALL = "a quick run is too small to judge by"
LOAD = ("messages", "size", "batch", "queues", "producers", "consumers", "in_flight")  # what every command takes
EXTRA = ("connections", "tags", "keys")  # what only some take


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, its defaults, and the module whose ``measure`` takes its samples."""

    name: str  # as it is typed: "end-to-end"
    heeds: tuple[str, ...] = LOAD  # the fields of a load that make a difference
    load: Load = dataclasses.field(default_factory=Load)
    flush: str | None = "async"  # of the broker that it starts; None: not to be chosen
    takes_broker: bool = True  # whether a broker that runs will do
    rounds: int = 5
    place: str = ""  # the module, unless it is rmq.bench.loads.NAME

    @property
    def module(self) -> str:
        """The module that implements it."""
        return self.place or f"rmq.bench.loads.{self.name.replace('-', '_')}"

    def measure(self, load: Load, options: Options, steps: Steps, **more: Any) -> Report:
        """Run it. The report names what it heeds of the load; a quick run shows no target as met or missed."""
        report: Report = importlib.import_module(self.module).measure(load, options, steps, **more)
        load_used = report.about.get("load", {})
        report.about["load"] = {name: value for name, value in load_used.items() if name in self.heeds}
        if options.quick:
            report.verdicts = [unjudged(verdict) for verdict in report.verdicts]
        return report


CATALOG = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("produce", tuple(name for name in (*LOAD, *EXTRA) if name != "consumers")),
        Benchmark("consume"),
        Benchmark("end-to-end"),
        Benchmark("latency", ("size", "batch", "queues", "in_flight")),
        Benchmark("failover", ("queues", "consumers"), Load(consumers=3), "sync"),
        Benchmark("scale", ("messages", "size", "batch", "queues", "in_flight"), takes_broker=False),
        Benchmark("recovery", ("size", "batch", "queues", "in_flight"), takes_broker=False),
        Benchmark("limit", ("messages", "size", "batch", "queues", "in_flight"), flush=None, takes_broker=False),
    )
}


def quickly(load: Load) -> Load:
    """Return the same load with few messages and processes."""
    return dataclasses.replace(
        load,
        messages=min(load.messages, QUICK_MESSAGES),
        producers=min(load.producers, QUICK_PROCESSES),
        consumers=min(load.consumers, QUICK_PROCESSES),
    )


def unjudged(verdict: Verdict) -> Verdict:
    """Return the same target after a run too small to judge it."""
    return dataclasses.replace(verdict, samples=[], why_not=verdict.why_not or TOO_SMALL)


ROUNDS = 5  # that the times below are for
AT_ONCE = 3  # quick runs
WITHIN_S = 1_140.0  # 20 minutes, less one that a part may take longer than it seemed
TARGETS = tuple(f"P{number}" for number in range(1, 11))


@dataclass(frozen=True)
class PlannedRun:
    """A benchmark with a load, the targets it is for, and how many seconds 5 rounds take about, on two cores."""

    benchmark: Benchmark
    targets: tuple[str, ...]
    about_s: float
    load: Load
    flush: str | None = None  # None: the benchmark's own
    shares_log: bool = False  # the long log of one is there for the next

    def options(self, options: Options) -> Options:
        """Return how it is run; the targets name the durability."""
        return replace(options, flush=self.flush or self.benchmark.flush or options.flush)

    def loaded(self, options: Options) -> Load:
        """Return its load, small for a quick run."""
        return quickly(self.load) if options.quick else self.load

    def command_line(self, options: Options) -> str:
        """Return the command line that repeats it alone."""
        usual, load = self.benchmark.load, self.loaded(options)
        usual = quickly(usual) if options.quick else usual
        words = ["rmq-bench", self.benchmark.name]
        for each in fields(load):
            value = getattr(load, each.name)
            if value != getattr(usual, each.name):
                name = f"--{each.name.replace('_', '-')}"
                words += [name] if value is True else [name, str(value)]
        words += ["--flush", self.flush] if self.flush else []
        words += ["--quick"] if options.quick else []
        if options.rounds != (1 if options.quick else self.benchmark.rounds):
            words += ["--rounds", str(options.rounds)]
        return shlex.join(words)


def _entry(
    name: str, targets: str, about_s: float, *, flush: str | None = None, shares_log: bool = False, **load: Any
) -> PlannedRun:
    benchmark = CATALOG[name]
    asked = replace(benchmark.load, **load)
    return PlannedRun(benchmark, tuple(targets.split()), about_s, asked, flush, shares_log)


# Samples are long enough that it is not the beginning of a connection that is measured, and short enough to find room
# in the memory that takes writes before the disk does.
ENTRIES = (
    _entry("limit", "", 25),
    _entry("produce", "P1", 65, messages=2_000_000),
    _entry("produce", "P2", 35, messages=400_000, size=1024),
    _entry("produce", "P5", 40, messages=200_000, batch=1),
    _entry("produce", "P6", 50, messages=2_000_000, flush="sync"),
    _entry("produce", "P6", 25, messages=50_000, batch=1, connections=64, flush="sync"),
    _entry("produce", "P10", 55, tags=8, keys=True),
    _entry("consume", "P4", 70),
    _entry("end-to-end", "P3", 200, messages=2_000_000),
    _entry("latency", "P5 P7", 125),
    _entry("scale", "P8", 170, shares_log=True),
    _entry("recovery", "P9", 75, shares_log=True),
    _entry("failover", "", 75),
)


def about_machine() -> dict[str, Any]:
    """Return what numbers depend on, and how long the disk takes to sync an append."""
    from .floor import floor

    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "checksums": checksum.MADE_BY,
        "loops": native.MADE_BY,
        "fdatasync_ms": round(floor.fdatasync_ms(), 3),
    }


@dataclass
class FinishedRun:
    """The result of a planned run: a report, or why there is none."""

    entry: PlannedRun
    line: str
    rounds: int
    report: Report
    why_not: str = ""

    def as_text(self) -> str:
        """Format the command line and what it found."""
        found = f"not shown: {self.why_not}\n" if self.why_not else as_text(self.report)
        return f"$ {self.line}\n{found}"

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        why_not = {"why_not": self.why_not} if self.why_not else {}
        return {"command": self.line, "targets": list(self.entry.targets), **why_not, **self.report.as_object()}


@dataclass
class Suite:
    """Runs all benchmarks, one after the other."""

    options: Options
    entries: Sequence[PlannedRun] = ENTRIES
    done: list[FinishedRun] = field(default_factory=list)
    machine: Callable[[], dict[str, Any]] = about_machine
    clock: Callable[[], float] = time.monotonic
    about: dict[str, Any] = field(default_factory=dict)  # the machine

    def parts(self, show: Show) -> Generator[FinishedRun, None, None]:
        """
        Run each in turn and yield its result; ``show`` gets the progress of all of them.

        On a machine that is too slow for all of it the later ones have fewer rounds, as their command lines say. Quick
        runs measure nothing, so some run at once, the longest first, and are yielded as they end.
        """
        began = self.clock()
        show(0.0, "machine")
        self.about = self.machine()
        whole = Whole(show, [entry.about_s for entry in self.entries])
        with scratch() as folder:
            run = partial(self._part, whole=whole, folder=folder, began=began)
            numbers = range(len(self.entries))
            longest_first = sorted(numbers, key=lambda number: -self.entries[number].about_s)
            running = _together(run, longest_first, whole) if self.options.quick else (run(each) for each in numbers)
            with closing(running) as parts:
                for part in parts:
                    self.done.append(part)
                    yield part
        self.done.sort(key=lambda part: self.entries.index(part.entry))

    def _part(self, number: int, whole: Whole, folder: Path, began: float) -> FinishedRun:
        entry = self.entries[number]
        options = replace(entry.options(self.options), rounds=self._rounds(number, self.clock() - began))
        line = entry.command_line(options)
        more = {"folder": folder} if entry.shares_log and not options.quick else {}
        try:
            report = entry.benchmark.measure(entry.loaded(options), options, whole.part(number), **more)
            return FinishedRun(entry, line, options.rounds, report)
        except (BenchError, RmqError, OSError) as error:  # what a machine can cause; all else is a defect
            why_not = " ".join(str(error).split()) or type(error).__name__
            unseen = [Verdict(target, f"by {line}", why_not=why_not) for target in entry.targets]
            return FinishedRun(entry, line, options.rounds, Report(entry.benchmark.name, verdicts=unseen), why_not)
        finally:
            whole.ended(number)

    def _rounds(self, number: int, elapsed_s: float) -> int:
        """Return how often samples are taken: less often if this machine is too slow for all of it."""
        expected_s = sum(part.entry.about_s * part.rounds for part in self.done)  # times 5
        pace = max(1.0, elapsed_s * ROUNDS / expected_s) if expected_s else 1.0
        needed_s = pace * sum(entry.about_s for entry in self.entries[number:]) * self.options.rounds / ROUNDS
        return rounds_within(WITHIN_S - elapsed_s, needed_s, self.options.rounds)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts in the order of the targets; a target without one is not shown."""
        found = [verdict for part in self.done for verdict in part.report.verdicts]
        judged = {_target(verdict) for verdict in found}
        missing = [
            Verdict(target, "-", why_not="no benchmark was run for it") for target in TARGETS if target not in judged
        ]
        # Sorting keeps the order of equals; verdicts about other targets come last.
        order = {target: number for number, target in enumerate(TARGETS)}
        return sorted([*found, *missing], key=lambda verdict: order.get(_target(verdict), len(order)))

    def as_text(self) -> str:
        """Format the summary."""
        about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.about.items())
        quick = "These were quick runs: the numbers mean nothing.\n" if self.options.quick else ""
        return f"{'-' * COLUMNS}\n{about}\n{quick}\n{verdicts_text(self.verdicts())}"

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {
            "benchmark": "all",
            "quick": self.options.quick,
            "rounds": self.options.rounds,
            "machine": self.about,
            "reports": [part.as_object() for part in self.done],
            "verdicts": [verdict.as_object() for verdict in self.verdicts()],
        }


def _target(verdict: Verdict) -> str:
    return verdict.key.partition(".")[0]


def rounds_within(left_s: float, needed_s: float, rounds: int) -> int:
    """Return as many rounds as there is time for, at least one."""
    return rounds if needed_s <= left_s else max(1, int(rounds * left_s / needed_s))


def _together(
    run: Callable[[int], FinishedRun], numbers: Iterable[int], whole: Whole
) -> Generator[FinishedRun, None, None]:
    """Run some at once and yield them as they end; closing early waits until running ones have cleaned up."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for done in as_completed([pool.submit(run, number) for number in numbers]):
            yield done.result()
    finally:
        whole.stop()
        pool.shutdown(wait=True, cancel_futures=True)
