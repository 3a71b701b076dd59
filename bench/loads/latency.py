"""
Measures latencies: of single sends, to a parked consumer, under a steady load, and of pings during a flood.

*round trip*: ``producer.send`` one after the other, next to an empty echo over the same kind of loop, and with ``sync``
next to ``fdatasync`` alone. *wake*: 1,000 pulls of 50 ordered consumers are parked, and every 50 ms one message goes to
a random queue. *rate*: 20,000 messages a second to the listener of an ordered consumer. *ping*: one every 10 ms while
another client floods the broker.

Under a schedule time counts from when something was due, not from when it could be sent, so a stall counts for all that
it delays. A sample is a percentile of one round; ``percentiles`` are those of all rounds together.
"""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..crew import crew, new_topics
from ..figures import Figure, Report, Side, Verdict, interleave, percentiles, ratio
from ..floor import floor
from ..options import Load, Options, Steps
from ..processes import Child, free_bytes

FLOOD_BYTES = 4 << 30  # that a flood may need on the disk
WORKER = "rmq.bench.workers.latency"
ECHOES = 3.0  # as long as so many round trips of nothing may one of a message be


def measure(load: Load, options: Options, steps: Steps, *, sizes: Sizes | None = None) -> Report:
    """Measure all parts. They use size and queues of the load; the flood also its batches and calls in flight."""
    sizes = sizes or (QUICK if options.quick else Sizes())
    runs = Runs(load, options, sizes)
    singles = {flush: _single(flush) for flush in flushes(options)}
    echo = Figure("latency.echo", "one empty frame at a time", "ms")
    fdatasync = Figure("latency.fdatasync", "fdatasync alone", "ms")
    wake = LatencyPart("latency.wake", "due to parked consumer", options.flush, ("p50", "p99", "max"))
    rate = LatencyPart("latency.rate", f"due to listener, {sizes.rate // 1000} k msg/s", options.flush)
    late_sends = LatencyPart("latency.rate.behind", "sender behind schedule", None, ("p99",))
    ping = LatencyPart("latency.ping", "ping during a flood", options.flush, why_not=_no_room(options))
    late_pings = LatencyPart("latency.ping.behind", "sender behind schedule", None, ("p99",))
    flood = Figure("latency.ping.flood", "the flood during the pings", "msg/s", options.flush)

    def take_rate() -> list[float]:
        found = runs.rate()
        late_sends.add(found.late_us)
        return found.took_us

    def take_ping() -> list[float]:
        found = runs.ping()
        late_pings.add(found.late_us)
        flood.samples.append(found.flood_rate)
        return found.took_us

    sides: list[Side] = [part.side(partial(runs.single, flush)) for flush, part in singles.items()]
    sides += [(echo, lambda: floor.echo_ms(sizes.echoes)), (fdatasync, lambda: floor.fdatasync_ms(times=sizes.syncs))]
    sides.append(rate.side(take_rate))
    if not ping.why_not:
        sides.append(ping.side(take_ping))
    steps.expect((len(sides) + 1) * options.rounds)
    interleave(sides, options.rounds, steps)
    with closing(runs.wake(options.rounds)) as waking:  # ends the processes also after an interrupt
        for _ in range(options.rounds):
            steps(wake.key)
            wake.add(next(waking))
    parts = [*singles.values(), wake, rate, late_sends, ping, late_pings]
    figures = [figure for part in parts for figure in part.figures.values()]
    return Report(
        "latency",
        about={
            "load": load.as_object(),
            "flush": options.flush,
            "rounds": options.rounds,
            "parked_pulls": sizes.connections * sizes.queues,
            "pull_connections": sizes.connections,
            "sizes": dataclasses.asdict(sizes),
            "percentiles": {part.key.removeprefix("latency."): part.distribution() for part in parts if part.values},
        },
        figures=[figure for figure in [*figures, echo, fdatasync, flood] if figure.samples],
        verdicts=[
            against_echo(singles.get("async"), echo),
            wake.at_most("P7.wake.p50", "p50", 1.0),
            wake.at_most("P7.wake.p99", "p99", 3.0),
            rate.at_most("P7.rate.p99", "p99", 10.0),
            ping.at_most("P7.ping.p99", "p99", 5.0),
        ],
    )


def against_echo(single: LatencyPart | None, echo: Figure) -> Verdict:
    """Divide the round trip of a message by that of an empty frame; the target is about ``async``."""
    meaning = "round trip of a send / of an empty frame, medians"
    if single is None:
        why_not = "the target is about async, and the broker flushes sync"
        return Verdict("P5.echo", meaning, flush="sync", at_most=ECHOES, why_not=why_not)
    return Verdict("P5.echo", meaning, flush="async", samples=ratio(single.first, echo), at_most=ECHOES)


def flushes(options: Options) -> tuple[str, ...]:
    """Return the durabilities to measure: a broker that already runs has one, our own brokers have both."""
    return ("async", "sync") if options.broker is None else (options.flush,)


def _single(flush: str) -> LatencyPart:
    key = "latency.round_trip" if flush == "async" else f"latency.round_trip.{flush}"
    return LatencyPart(key, "one send at a time", flush)


def _no_room(options: Options) -> str:
    """Return why there is no room for a flood, empty if there is."""
    if options.broker is not None or free_bytes(Path(tempfile.gettempdir())) >= FLOOD_BYTES:
        return ""
    return f"a flood may need {FLOOD_BYTES >> 30} GiB of disk, and there is less"


@dataclass
class LatencyPart:
    """
    The figures of one part: each gets a percentile of every round.

    ``values`` is everything measured, in milliseconds; ``why_not`` is the reason if it was not measured.
    """

    key: str
    meaning: str
    flush: str | None
    shown: tuple[str, ...] = ("p50", "p99")
    why_not: str = ""
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.figures = {
            name: Figure(f"{self.key}.{name}", f"{self.meaning}, {name}", "ms", self.flush) for name in self.shown
        }

    @property
    def first(self) -> Figure:
        """The figure that represents the part when samples are taken in turns."""
        return self.figures[self.shown[0]]

    def record(self, took_us: list[float]) -> float:
        """Add a round, in microseconds: a sample for each figure but the first, whose sample is returned."""
        took = [value / 1000 for value in took_us]
        self.values += took
        of_round = percentiles(took)
        for name in self.shown[1:]:
            self.figures[name].samples.append(of_round[name])
        return of_round[self.shown[0]]

    def add(self, took_us: list[float]) -> None:
        """Add a round, with a sample for the first figure, too."""
        self.first.samples.append(self.record(took_us))

    def side(self, take: Callable[[], list[float]]) -> Side:
        """Return this part as a side to be measured in turns; ``take`` measures one round."""
        return self.first, lambda: self.record(take())

    def distribution(self) -> dict[str, float]:
        """Return the percentiles of all rounds together, empty if there are none."""
        return {name: round(value, 4) for name, value in percentiles(self.values).items()} if self.values else {}

    def at_most(self, target: str, name: str, limit_ms: float) -> Verdict:
        """Judge a percentile by its limit; the target is about ``async``."""
        why_not = self.why_not
        if not why_not and self.flush != "async":
            why_not = f"the target is about async, and the broker flushed {self.flush}"
        figure = self.figures[name]
        samples = [] if why_not else figure.samples
        return Verdict(target, figure.meaning, "ms", self.flush, samples, at_most=limit_ms, why_not=why_not)


FLOOD = 50_000  # bodies that a flood sends again and again


@dataclass(frozen=True)
class Sizes:
    """The size of each part of a round."""

    single_s: float = 1.5
    connections: int = 50  # of the parked pulls
    queues: int = 20  # of each of these connections
    drips: int = 160  # messages to parked pulls
    drips_per_s: float = 20
    rate: int = 20_000  # messages a second
    rate_s: float = 4.0
    rate_warm_s: float = 1.0
    pings: int = 300
    pings_per_s: float = 100
    flood_warm_s: float = 0.3
    echoes: int = 5_000
    syncs: int = 200


QUICK = Sizes(
    single_s=0.2, connections=5, drips=10, drips_per_s=50, rate_s=0.2, rate_warm_s=0.1, pings=20, echoes=500, syncs=20
)  # fmt: skip


class Scheduled(NamedTuple):
    """Latencies since each was due, and how late the client was, in microseconds; messages a second of the flood."""

    took_us: list[float]
    late_us: list[float]
    flood_rate: float = 0.0


class Runs:
    """Each call is a round with processes of its own; values are microseconds."""

    def __init__(self, load: Load, options: Options, sizes: Sizes) -> None:
        self._load = load
        self._options = options
        self._sizes = sizes

    def single(self, flush: str) -> list[float]:
        """Round trips of sends, one at a time."""
        with self._ground(1, self._load.queues, flush) as (address, (topic,)):
            orders = {"address": address, "topic": topic, "size": self._load.size, "seconds": self._sizes.single_s}
            with _clients(("single", orders)) as (sender,):
                sender.go()
                return list(sender.reply()["us"])

    def rate(self) -> Scheduled:
        """From when a message was due to the call of its listener, at a steady rate."""
        sizes, queues = self._sizes, self._load.queues
        warm, count = int(sizes.rate * sizes.rate_warm_s), int(sizes.rate * sizes.rate_s)
        with self._ground(1, queues) as (address, topics):
            common = {"address": address, "topics": topics, "queues": queues, "warm": warm, "count": count}
            receives = {**common, "rounds": 1, "ahead": False}
            sends = {**common, "manner": "stream", "size": self._load.size, "per_second": sizes.rate}
            with _clients(("receive", receives), ("send", sends)) as (receiver, sender):
                receiver.go()
                sender.go()
                late = sender.reply()["us"]
                return Scheduled(receiver.reply()["us"], late)

    def ping(self) -> Scheduled:
        """From when a ping was due to its answer, and how many messages a second the flood sent meanwhile."""
        sizes, load = self._sizes, replace(self._load, messages=FLOOD)
        with self._ground(1, load.queues) as (address, (topic,)):
            floods = {"address": address, "topic": topic, "load": load.as_object(), "warm_s": sizes.flood_warm_s}
            pings = {"address": address, "per_second": sizes.pings_per_s, "count": sizes.pings}
            with _clients(("ping", pings), ("flood", floods)) as (pinger, flood):
                pinger.go()
                pinged = pinger.reply()
                flood.go()
                return Scheduled(pinged["us"], pinged["late_us"], flood.reply()["rate"])

    def wake(self, rounds: int) -> Generator[list[float], None, None]:
        """
        From when a message was due to the call of its listener, round by round.

        All rounds use the same processes, so pulls time out and are parked again as usual between messages.
        """
        sizes = self._sizes
        with self._ground(sizes.connections, sizes.queues) as (address, topics):
            common = {"address": address, "topics": topics, "queues": sizes.queues}
            warm = sizes.connections * sizes.queues
            receives = {**common, "warm": warm, "count": sizes.drips, "rounds": rounds, "ahead": True}
            sends = {
                **common, "manner": "drip", "size": self._load.size, "per_second": sizes.drips_per_s,
                "count": rounds * sizes.drips,
            }  # fmt: skip
            with _clients(("send", sends), ("receive", receives)) as (sender, receiver):
                receiver.go()
                sender.go()
                for _ in range(rounds):
                    yield list(receiver.reply()["us"])

    @contextmanager
    def _ground(self, topics: int, queues: int, flush: str | None = None) -> Iterator[tuple[str, list[str]]]:
        """A broker with topics of this run."""
        run = secrets.token_hex(4)
        names = [f"bench-latency-{run}-{number}" for number in range(topics)]
        with new_topics(self._options, names, queues, flush) as address:
            yield address, names


def _clients(*orders: tuple[str, dict[str, Any]]) -> AbstractContextManager[list[Child]]:
    """Start clients (a role and its orders) that prepare at the same time; all are ready to begin."""
    return crew(WORKER, [{"role": role, **more} for role, more in orders])
