"""
Measures what growth costs: queues, connections and the length of the log, with batches of constant size.

A small and a grown broker run at the same time, and their samples take turns. Each sample has a client process of its
own, which opens its connections and touches every queue before the clock runs.

Calls that a producer has in flight to one queue share a batch. So that batches are of constant size, queues are grown
with as many connections as there are calls in flight, and connections with at least as many queues.
"""

from __future__ import annotations

import asyncio
import dataclasses
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rmq.broker.process import RESERVED
from rmq.client import Admin
from rmq.wire.names import MAX_QUEUES

from ..crew import no_room
from ..figures import Figure, Report, Verdict, interleave, ratio
from ..options import Load, Options, Steps
from ..processes import BenchError, BrokerProcess, scratch, worker
from . import recovery

WORKER: Final = "rmq.bench.workers.scale"
QUEUES: Final = 10_000
CONNECTIONS: Final = 1_000
KEPT: Final = 0.8  # of the throughput
MOST_MB: Final = 200.0  # that a broker may need
QUICK: Final = 50  # times fewer queues and connections
SETTLED_GB: Final = 0.6  # of log, after which every queue that was touched has its index file
CLIENT_FILES: Final = 50  # that a client has open in addition to its connections


class SizedBroker(NamedTuple):
    """A broker, and what is sent to it."""

    broker: BrokerProcess
    load: Load

    def take(self) -> float:
        """Take one sample, messages a second, by a new process."""
        orders = {"topics": topics(self.load.queues), "load": self.load.as_object()}
        with worker(WORKER, role="produce", address=self.broker.address, **orders) as child:
            child.go()
            return float(child.reply()["per_s"])

    def consume(self) -> float:
        """Read what all samples sent by one member of a new group; return messages a second."""
        names = [name for name, _ in topics(self.load.queues)]
        orders = {"topics": names, "queues": self.load.queues, "group": "scale"}
        orders["messages"] = asyncio.run(stored(self.broker.address, names))
        with worker(WORKER, role="consume", address=self.broker.address, **orders) as child:
            child.go()
            return float(child.reply()["per_s"])


class Growth(NamedTuple):
    """One way to grow, from a size to another one; ``asked`` is the one that the target is about."""

    name: str
    meaning: str
    small: float
    grown: float
    asked: float
    make: Callable[[float], AbstractContextManager[SizedBroker]]
    why_not: str  # it cannot be measured here; empty if it can
    is_consumed: bool = False  # what was sent is read as well, once

    @property
    def missing(self) -> str:
        """Why the target cannot be judged, empty if it can."""
        if self.why_not or self.grown >= self.asked:
            return self.why_not
        return f"measured with {self.grown:g} {self.meaning}, and the target is about {self.asked:g}"


def measure(
    load: Load, options: Options, steps: Steps, *, queues: int = QUEUES, connections: int = CONNECTIONS,
    gb: float = recovery.FULL_GB, folder: Path | None = None,
) -> Report:  # fmt: skip
    """Measure all three; the data directory with the long log stays in a ``folder`` that is given."""
    if options.quick:
        queues, connections, gb = queues // QUICK, connections // QUICK, recovery.QUICK_GB
    load = dataclasses.replace(load, producers=1, connections=1)
    report = Report("scale", {"load": load.as_object(), "flush": options.flush, "rounds": options.rounds})
    not_ours = "it is about brokers of its own, and one that runs was given" if options.broker else ""
    not_ours = not_ours or no_room(load, 2 * (options.rounds + 1))
    no_queues = "" if options.quick else recovery.no_room(None, 2 * SETTLED_GB)

    @contextmanager
    def with_queues(size: float) -> Iterator[SizedBroker]:
        with side(options, dataclasses.replace(load, queues=int(size), connections=load.in_flight)) as made:
            if not options.quick:  # the first checkpoint makes a folder for each queue, which is not what growth costs
                made.take()
                recovery.fill(made.broker, SETTLED_GB)
            yield made

    def with_connections(size: float) -> AbstractContextManager[SizedBroker]:
        spread = max(load.queues, load.in_flight)
        return side(options, dataclasses.replace(load, connections=int(size), queues=spread))

    def with_log(size: float) -> AbstractContextManager[SizedBroker]:
        steps(f"filling {size:g} GB")
        return side(options, load, gb=size, data_dir=folder / recovery.NAME if folder and size == gb else None)

    growths = [
        Growth("queues", "queues", 1, queues, QUEUES, with_queues, not_ours or no_queues, is_consumed=True),
        Growth(
            "connections", "connections", 1, connections, CONNECTIONS, with_connections,
            not_ours or few_files(connections),
        ),
        Growth(
            "log", "GB of log", gb / 10, gb, recovery.FULL_GB, with_log, not_ours or recovery.no_room(folder, gb)
        ),
    ]  # fmt: skip
    for growth in growths:
        if not growth.why_not:
            steps.expect(2 * (options.rounds + (growth.make is with_log) + growth.is_consumed))
    for growth in growths:
        compare(report, growth, options, steps)
    return report


def compare(report: Report, growth: Growth, options: Options, steps: Steps) -> None:
    """Measure and judge one way to grow."""
    figures = [
        Figure(f"scale.{growth.name}.{size:g}", f"produce, {size:g} {growth.meaning}", "msg/s", options.flush)
        for size in (growth.small, growth.grown)
    ]
    of_memory = f"most memory of the broker, {growth.grown:g} {growth.meaning}"
    peak = Figure(f"scale.rss.{growth.name}", of_memory, "MB", options.flush)
    if not growth.why_not:
        with ExitStack() as stack:
            sides = [stack.enter_context(growth.make(size)) for size in (growth.small, growth.grown)]
            samplers = [(figure, side.take) for figure, side in zip(figures, sides, strict=True)]
            interleave(samplers, options.rounds, steps)
            read = consumed(report, growth, sides, options, steps) if growth.is_consumed else []
            peak.samples.append(sides[-1].broker.memory_mb("VmHWM"))
        report.figures += [*figures, *read, peak]
    kept, memory = ([], []) if growth.missing else (ratio(figures[1], figures[0]), peak.samples)
    from_to = f"produce, {growth.small:g} -> {growth.grown:g} {growth.meaning}"
    report.verdicts += [
        Verdict(f"P8.{growth.name}", from_to, "x", options.flush, kept, at_least=KEPT, why_not=growth.missing),
        Verdict(
            f"P8.rss.{growth.name}", of_memory, "MB", options.flush, memory, at_most=MOST_MB, why_not=growth.missing
        ),
    ]


def consumed(
    report: Report, growth: Growth, sides: Sequence[SizedBroker], options: Options, steps: Steps
) -> list[Figure]:
    """
    Measure how fast one member reads what was sent; not judged, since members usually share the queues.

    If it does not finish, the report says so and keeps the figures that are judged.
    """
    figures = []
    for side, size in zip(sides, (growth.small, growth.grown), strict=True):
        key, meaning = f"scale.consume.{growth.name}.{size:g}", f"one ordered consumer, {size:g} {growth.meaning}"
        steps(key)
        try:
            figures.append(Figure(key, meaning, "msg/s", options.flush, [side.consume()]))
        except BenchError as error:
            report.about[key] = f"not shown: {error}"
    return figures


async def stored(address: str, names: Sequence[str]) -> int:
    """Return how many messages these topics hold."""
    async with Admin(address, timeout_s=60) as admin:
        return sum([(await admin.describe_topic(name)).messages for name in names])


@contextmanager
def side(options: Options, load: Load, *, gb: float = 0.0, data_dir: Path | None = None) -> Iterator[SizedBroker]:
    """Start a broker with a log of at least this length."""
    with ExitStack() as stack:
        broker = BrokerProcess(data_dir or stack.enter_context(scratch()), options.flush)
        stack.callback(broker.close)
        if gb:
            recovery.fill(broker, gb)
        yield SizedBroker(broker, load)


def topics(queues: int) -> list[tuple[str, int]]:
    """Return names and sizes of as few topics as these queues need, all of about the same size."""
    count = -(-queues // MAX_QUEUES)
    return [(f"scale-{i}", queues // count + (i < queues % count)) for i in range(count)]


def few_files(connections: int) -> str:
    """Return why a process here cannot have so many connections, empty if it can."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + max(RESERVED, CLIENT_FILES)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return f"{connections} connections need {needed} open files, and the hard limit here is {hard}"
