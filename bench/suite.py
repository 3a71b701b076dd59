"""
``rmq-bench all``: every benchmark with the loads that the targets name, and a table of the targets in the end.

One list says which targets come from which command line. A benchmark that cannot go on does not end the others: its
targets are not shown, for the reason it gave.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .catalog import CATALOG, Benchmark, quickly
from .figures import Report, Verdict
from .loads import Load
from .options import Options
from .processes import BenchError, scratch
from .progress import Counted, Show
from .table import COLUMNS, as_text, verdicts_text

TARGETS = tuple(f"P{number}" for number in range(1, 11))


@dataclass(frozen=True)
class Entry:
    """A benchmark with a load, the targets it is for, and about how many seconds it takes on two cores."""

    benchmark: Benchmark
    targets: tuple[str, ...]
    about_s: float
    load: Load
    quick_s: float = 5.0
    shares_log: bool = False  # the long log of one is there for the next

    def options(self, options: Options) -> Options:
        """How it is run: durability is the benchmark's own, since targets name it."""
        return replace(options, flush=self.benchmark.flush or options.flush)

    def loaded(self, options: Options) -> Load:
        """Its load, small where it is to be quick."""
        return quickly(self.load) if options.quick else self.load

    def command_line(self, options: Options) -> str:
        """What is to be typed to repeat it alone."""
        usual, load = self.benchmark.load, self.loaded(options)
        usual = quickly(usual) if options.quick else usual
        words = ["rmq-bench", self.benchmark.name]
        for each in fields(load):
            value = getattr(load, each.name)
            if value != getattr(usual, each.name):
                name = f"--{each.name.replace('_', '-')}"
                words += [name] if value is True else [name, str(value)]
        if options.quick:
            words.append("--quick")
        if options.rounds != (1 if options.quick else self.benchmark.rounds):
            words += ["--rounds", str(options.rounds)]
        return shlex.join(words)


def _entry(name: str, targets: str, about_s: float, *, shares_log: bool = False, **load: Any) -> Entry:
    benchmark = CATALOG[name]
    return Entry(benchmark, tuple(targets.split()), about_s, replace(benchmark.load, **load), shares_log=shares_log)


ENTRIES = (
    _entry("limit", "", 60),
    _entry("produce", "P1 P10", 120),
    _entry("produce", "P2", 60, size=1024, messages=200_000),
    _entry("produce", "P5 P6", 60, batch=1, messages=100_000),
    _entry("consume", "P4", 90),
    _entry("end-to-end", "P3", 150),
    _entry("latency", "P5 P7", 120),
    _entry("scale", "P8", 240, shares_log=True),
    _entry("recovery", "P9", 120, shares_log=True),
    _entry("failover", "", 100),
)


def about_machine() -> dict[str, Any]:
    """What numbers depend on, and how long the disk takes to sync an append."""
    from . import floor

    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "fdatasync_ms": round(floor.fdatasync_ms(), 3),
    }


@dataclass
class Part:
    """What came of an entry: a report, or why there is none."""

    entry: Entry
    line: str
    report: Report
    why_not: str = ""

    def as_text(self) -> str:
        """For people: the command line, and what it found."""
        found = f"not shown: {self.why_not}\n" if self.why_not else as_text(self.report)
        return f"$ {self.line}\n{found}"

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        why_not = {"why_not": self.why_not} if self.why_not else {}
        return {"command": self.line, "targets": list(self.entry.targets), **why_not, **self.report.as_object()}


@dataclass
class Suite:
    """All of them, one after the other."""

    options: Options
    entries: Sequence[Entry] = ENTRIES
    done: list[Part] = field(default_factory=list)
    machine: Callable[[], dict[str, Any]] = about_machine
    about: dict[str, Any] = field(default_factory=dict)  # the machine

    def parts(self, show: Show) -> Iterator[Part]:
        """Run each, and tell what came of it; ``show`` is told how far all of them are."""
        whole_s = sum(entry.about_s for entry in self.entries)
        begun_s = 0.0
        with ExitStack() as stack:
            folder = stack.enter_context(scratch())
            show(0.0, "machine")
            self.about = self.machine()
            for entry in self.entries:
                steps = Counted(show, begun_s / whole_s, entry.about_s / whole_s)
                part = self._part(entry, steps, folder)
                begun_s += entry.about_s
                self.done.append(part)
                yield part

    def _part(self, entry: Entry, steps: Counted, folder: Path) -> Part:
        options = entry.options(self.options)
        line = entry.command_line(options)
        more = {"folder": folder} if entry.shares_log else {}
        try:
            return Part(entry, line, entry.benchmark.measure(entry.loaded(options), options, steps, **more))
        except BenchError as error:
            unseen = [Verdict(target, f"by {line}", why_not=str(error)) for target in entry.targets]
            return Part(entry, line, Report(entry.benchmark.name, verdicts=unseen), str(error))

    def verdicts(self) -> list[Verdict]:
        """What was found about every target, in their order; one that nothing was found about is not shown."""
        found = [verdict for part in self.done for verdict in part.report.verdicts]
        judged = {_target(verdict) for verdict in found}
        missing = [
            Verdict(target, "-", why_not="no benchmark was run for it") for target in TARGETS if target not in judged
        ]
        # Sorting keeps the order of equals; what is no target of the list comes last.
        order = {target: number for number, target in enumerate(TARGETS)}
        return sorted([*found, *missing], key=lambda verdict: order.get(_target(verdict), len(order)))

    def as_text(self) -> str:
        """The summary, for people."""
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
