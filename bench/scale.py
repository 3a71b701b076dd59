"""
What growth costs: queues, connections and the length of the log, at a constant size of batches.

Two brokers run side by side, the small one and the grown one, and samples of them take turns. Each sample has a client
process of its own, which opens its connections and touches every queue before the clock runs.
"""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rmq.broker.descriptors import RESERVED
from rmq.wire.names import MAX_QUEUES

from . import big_log
from .figures import Figure, Report, Verdict, interleave, ratio
from .loads import Load
from .options import Options, Steps
from .processes import BrokerProcess, scratch, worker

QUEUES: Final = 10_000
CONNECTIONS: Final = 1_000
KEPT: Final = 0.8  # of the throughput
MOST_MB: Final = 200.0  # that a broker may need
QUICK: Final = 50  # times fewer queues and connections
CLIENT_FILES: Final = 50  # that a client has open besides its connections


class Side(NamedTuple):
    """A broker, and what is sent to it."""

    broker: BrokerProcess
    load: Load

    def take(self) -> float:
        """One sample, by a new process: messages a second."""
        orders = {"topics": topics(self.load.queues), "load": self.load.as_object()}
        with worker("rmq.bench.scale_worker", address=self.broker.address, **orders) as child:
            child.go()
            return float(child.told()["per_s"])


class Growth(NamedTuple):
    """One way to grow, from a size to another one; ``asked`` is the one that the target is about."""

    name: str
    meaning: str
    small: float
    grown: float
    asked: float
    make: Callable[[float], AbstractContextManager[Side]]
    why_not: str  # it cannot be measured here; empty if it can

    @property
    def missing(self) -> str:
        """Why the target cannot be judged; empty if it can."""
        if self.why_not or self.grown >= self.asked:
            return self.why_not
        return f"measured with {self.grown:g} {self.meaning}, and the target is about {self.asked:g}"


def measure(
    load: Load, options: Options, steps: Steps, *, queues: int = QUEUES, connections: int = CONNECTIONS,
    gb: float = big_log.FULL_GB, folder: Path | None = None,
) -> Report:  # fmt: skip
    """All three of them; where a ``folder`` is given, the data directory with the long log stays in it."""
    if options.quick:
        queues, connections, gb = queues // QUICK, connections // QUICK, big_log.QUICK_GB
    load = dataclasses.replace(load, producers=1, connections=1)
    report = Report("scale", {"load": load.as_object(), "rounds": options.rounds})
    not_ours = "it is about brokers of its own, and one that runs was given" if options.broker else ""

    def with_queues(size: float) -> AbstractContextManager[Side]:
        return side(options, dataclasses.replace(load, queues=int(size)))

    def with_connections(size: float) -> AbstractContextManager[Side]:
        return side(options, dataclasses.replace(load, connections=int(size)))

    def with_log(size: float) -> AbstractContextManager[Side]:
        steps(f"filling {size:g} GB")
        return side(options, load, gb=size, data_dir=folder / big_log.NAME if folder and size == gb else None)

    growths = [
        Growth("queues", "queues", 1, queues, QUEUES, with_queues, not_ours),
        Growth(
            "connections", "connections", 1, connections, CONNECTIONS, with_connections,
            not_ours or few_files(connections),
        ),
        Growth(
            "log", "GB of log", gb / 10, gb, big_log.FULL_GB, with_log, not_ours or big_log.no_room(folder, gb)
        ),
    ]  # fmt: skip
    steps.expect(sum(2 * options.rounds + 2 * (growth.make is with_log) for growth in growths if not growth.why_not))
    for growth in growths:
        compare(report, growth, options, steps)
    return report


def compare(report: Report, growth: Growth, options: Options, steps: Steps) -> None:
    """Measure one way to grow, and judge it."""
    figures = [
        Figure(f"scale.{growth.name}.{size:g}", f"produce, {size:g} {growth.meaning}", "msg/s", options.flush)
        for size in (growth.small, growth.grown)
    ]
    peak = Figure(
        f"scale.rss.{growth.name}", f"most memory of the broker, {growth.grown:g} {growth.meaning}", "MB", options.flush
    )
    if not growth.why_not:
        with growth.make(growth.small) as small, growth.make(growth.grown) as grown:
            interleave([(figures[0], small.take), (figures[1], grown.take)], options.rounds, steps)
            peak.samples.append(grown.broker.memory_mb("VmHWM"))
        report.figures += [*figures, peak]
    kept, memory = ([], []) if growth.missing else (ratio(figures[1], figures[0]), peak.samples)
    from_to = f"{growth.small:g} -> {growth.grown:g} {growth.meaning}"
    report.verdicts += [
        Verdict(
            f"P8.{growth.name}", f"produce, {from_to}", "x", options.flush, kept, at_least=KEPT, why_not=growth.missing
        ),
        Verdict(
            f"P8.rss.{growth.name}", f"most memory of the broker, {growth.grown:g} {growth.meaning}", "MB",
            options.flush, memory, at_most=MOST_MB, why_not=growth.missing,
        ),
    ]  # fmt: skip


@contextmanager
def side(options: Options, load: Load, *, gb: float = 0.0, data_dir: Path | None = None) -> Iterator[Side]:
    """A broker of its own, with a log of this length at least."""
    with ExitStack() as stack:
        broker = BrokerProcess(data_dir or stack.enter_context(scratch()), options.flush)
        stack.callback(broker.close)
        if gb:
            big_log.fill(broker, gb)
        yield Side(broker, load)


def topics(queues: int) -> list[tuple[str, int]]:
    """Names and sizes of as few topics as these queues need, all of about the same size."""
    count = -(-queues // MAX_QUEUES)
    return [(f"scale-{i}", queues // count + (i < queues % count)) for i in range(count)]


def few_files(connections: int) -> str:
    """Why a process here cannot have so many connections; empty if it can."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + max(RESERVED, CLIENT_FILES)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return f"{connections} connections need {needed} open files, and the hard limit here is {hard}"
