"""Which benchmarks there are, what each does unless told otherwise, and what of a load it heeds."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast

from .figures import Report
from .loads import Load
from .options import Options, Steps

QUICK_MESSAGES = 20_000  # of a quick run: enough to see that it works
LOAD = ("messages", "size", "batch", "queues", "producers", "consumers", "in_flight")  # what most heed
EXTRA = ("connections", "tags", "keys")


class Measure(Protocol):
    """The function ``measure`` of a benchmark; it may take more by name."""

    def __call__(self, load: Load, options: Options, steps: Steps, /, **more: Any) -> Report:
        """Take all samples of all figures; what was found."""


@dataclass(frozen=True)
class Benchmark:
    """One of them; ``rmq.bench.NAME`` has its ``measure``."""

    name: str  # as it is typed: "end-to-end"
    heeds: tuple[str, ...] = LOAD  # the fields of a load that make a difference to it
    load: Load = dataclasses.field(default_factory=Load)
    flush: str | None = "async"  # of the broker that it starts; None: not to be chosen
    takes_broker: bool = True  # whether a broker that runs will do
    rounds: int = 5

    def measure(self, load: Load, options: Options, steps: Steps, **more: Any) -> Report:
        """Run it."""
        module = importlib.import_module(f"rmq.bench.{self.name.replace('-', '_')}")
        return cast(Measure, module.measure)(load, options, steps, **more)


CATALOG = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("produce", (*LOAD, *EXTRA)),
        Benchmark("consume"),
        Benchmark("end-to-end"),
        Benchmark("latency"),
        Benchmark("failover", ("queues", "consumers"), Load(consumers=3), "sync"),
        Benchmark("scale", takes_broker=False),
        Benchmark("recovery", takes_broker=False),
        Benchmark("limit", takes_broker=False),
    )
}


def quickly(load: Load) -> Load:
    """The same load with few messages."""
    return dataclasses.replace(load, messages=min(load.messages, QUICK_MESSAGES))
