"""Which benchmarks there are, what each does unless told otherwise, and what of a load it heeds."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast

from .figures import Report, Verdict
from .load import Load
from .options import Options, Steps

QUICK_MESSAGES = 10_000  # of a quick run: enough to see that it works
QUICK_PROCESSES = 2
TOO_SMALL = "a quick run is too small to judge by"
LOAD = ("messages", "size", "batch", "queues", "producers", "consumers", "in_flight")  # what every command takes
EXTRA = ("connections", "tags", "keys")  # what only some take


class Measure(Protocol):
    """The function ``measure`` of a benchmark; it may take more by name."""

    def __call__(self, load: Load, options: Options, steps: Steps, /, **more: Any) -> Report:
        """Take all samples of all figures; what was found."""


@dataclass(frozen=True)
class Benchmark:
    """One of them; ``rmq.bench.loads.NAME`` has its ``measure``."""

    name: str  # as it is typed: "end-to-end"
    heeds: tuple[str, ...] = LOAD  # the fields of a load that make a difference to it
    load: Load = dataclasses.field(default_factory=Load)
    flush: str | None = "async"  # of the broker that it starts; None: not to be chosen
    takes_broker: bool = True  # whether a broker that runs will do
    rounds: int = 5

    @property
    def module(self) -> str:
        """Where it is implemented."""
        return "rmq.bench.peers" if self.name == "peers" else f"rmq.bench.loads.{self.name.replace('-', '_')}"

    def measure(self, load: Load, options: Options, steps: Steps, **more: Any) -> Report:
        """Run it; of the load it tells what it heeds, and a quick run shows no target as met or not."""
        module = importlib.import_module(self.module)
        report = cast(Measure, module.measure)(load, options, steps, **more)
        load_told = report.about.get("load", {})
        report.about["load"] = {name: value for name, value in load_told.items() if name in self.heeds}
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
        Benchmark("peers", tuple(name for name in LOAD if name not in ("producers", "consumers"))),
    )
}


def quickly(load: Load) -> Load:
    """The same load with few messages and processes."""
    return dataclasses.replace(
        load,
        messages=min(load.messages, QUICK_MESSAGES),
        producers=min(load.producers, QUICK_PROCESSES),
        consumers=min(load.consumers, QUICK_PROCESSES),
    )


def unjudged(verdict: Verdict) -> Verdict:
    """The same target after a run that says nothing about it."""
    return dataclasses.replace(verdict, samples=[], why_not=verdict.why_not or TOO_SMALL)
