"""
How fast producers are: the ways to send beside each other, and beside what the machine could do, in one run.

What a run compares follows from its load (see :mod:`rmq.bench.loads.produce_plan`):

- ``async``: messages made before the clock, messages made inside it, and bodies, beside the floor, and for large bodies
  beside a bare loop from a socket into a file;
- ``sync``: the same beside bodies with ``async``; for single sends, beside what ``fdatasync`` allows;
- with tags or keys: messages with them beside messages without, and how soon the last key is found.

Each sample has a broker of its own, and counts only if all of it was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..crew import OVERHEAD, check_stored, durability, new_ground, no_room, send, senders
from ..figures import Figure, Report, Side, Verdict, interleave, ratio
from ..load import Load
from ..options import Options, Steps
from ..yardsticks import Floor, Peer, Tried, machine, native_rate, rivals
from .produce_plan import Target, Way, limits, prefix, targets, ways

OWN_BROKERS = "it takes brokers of both durabilities: leave --broker out"


def measure(
    load: Load, options: Options, steps: Steps, *, floor: Floor | None = None, peers: Sequence[Peer] | None = None
) -> Report:
    """Take all samples; ``floor`` and ``peers`` are those of this machine unless others are given."""
    flush = durability(options)
    report = Report("produce", {"load": load.as_object(), "flush": flush, "rounds": options.rounds})
    wanted = targets(load, flush)
    if why_not := no_room(load):
        report.verdicts += [verdict(target, {}, {}, flush, why_not) for target in wanted]
        return report
    run = _Run(load, options, flush)
    run.add_ours()
    run.add_limits(floor or machine())
    if any(target.other == "redis_benchmark" for target in wanted):
        run.add_redis(rivals(flush) if peers is None else peers)
    steps.expect(len(run.sides) * options.rounds)
    interleave(run.sides, options.rounds, steps)
    run.derive()
    report.figures += run.figures.values()
    report.verdicts += [verdict(target, run.figures, run.missing, flush) for target in wanted]
    return report


def verdict(
    target: Target, figures: Mapping[str, Figure], missing: Mapping[str, str], flush: str, why_not: str = ""
) -> Verdict:
    """What the figures of a run, by the ends of their keys, say about a target."""
    lacking = [name for name in (target.ours, target.other) if name is not None and name not in figures]
    if lacking:
        return replace(target.verdict, flush=flush, why_not=why_not or missing[lacking[0]])
    ours = figures[target.ours]
    found = list(ours.samples) if target.other is None else ratio(ours, figures[target.other])
    return replace(target.verdict, flush=flush, samples=found)


def allowed(messages_async: Figure, fdatasync: Figure, connections: int) -> list[float]:
    """Single sends a second that are possible with sync: no more than with async, nor one a sync and connection."""
    rounds = zip(messages_async.samples, fdatasync.samples, strict=True)
    return [min(rate, connections / (sync_ms / 1000)) for rate, sync_ms in rounds]


class _Run:
    """The sides of one run, and the figures by the ends of their keys."""

    def __init__(self, load: Load, options: Options, flush: str) -> None:
        self.sides: list[Side] = []
        self.figures: dict[str, Figure] = {}
        self.missing: dict[str, str] = {}  # why there is no figure of a name
        self._load = load
        self._options = options
        self._flush = flush
        self._prefix = prefix(load, flush)
        self._redis: Tried | None = None

    def add_ours(self) -> None:
        """The ways to send."""
        for way in ways(self._load, self._flush):
            if self._options.broker is not None and way.flush != self._flush:
                self.missing[way.name] = self.missing["allowed"] = OWN_BROKERS
                continue
            self._add(way.name, way.meaning, "msg/s", way.flush, self._taken(way))
            if way.load.keys:
                self._figure("caught_up", "from the last receipt until the last key is found", "s", way.flush)

    def add_limits(self, floor: Floor) -> None:
        """What the machine could do."""
        load = self._load
        at_once = load.in_flight * (load.size + OVERHEAD)
        bare, bytes_only = "a bare loop that packs, sends and appends", "the same bytes from a socket into a file"
        synced = "an append of as many messages with fdatasync"
        known: dict[str, tuple[str, str, str, Callable[[], float]]] = {
            "floor": (bare, "msg/s", "async", lambda: floor.produce(load)),
            "socket_to_file": (bytes_only, "msg/s", "async", lambda: floor.socket_to_file(load)),
            "fdatasync": (synced, "ms", "sync", lambda: floor.fdatasync_ms(at_once)),
        }
        for name in limits(load, self._flush):
            self._add(name, *known[name])

    def add_redis(self, peers: Sequence[Peer]) -> None:
        """The benchmark that redis brings along."""
        redis = next(peer for peer in peers if peer.name == "redis")
        if redis.native_why_not:
            self.missing["redis_benchmark"] = redis.native_why_not
            return
        self._redis = Tried(lambda: native_rate(redis, self._load))
        self._add("redis_benchmark", "redis-benchmark XADD -P 100", "msg/s", redis.durability, self._redis)

    def derive(self) -> None:
        """What follows from what was measured, and what cannot be believed."""
        if self._redis is not None and self._redis.why_not:
            del self.figures["redis_benchmark"]
            self.missing["redis_benchmark"] = self._redis.why_not
        if {"messages_async", "fdatasync"} <= self.figures.keys():
            of = f"min(async, {self._load.connections} / fdatasync)"
            found = allowed(self.figures["messages_async"], self.figures["fdatasync"], self._load.connections)
            self._figure("allowed", of, "msg/s", "sync").samples.extend(found)

    def _taken(self, way: Way) -> Callable[[], float]:
        def take() -> float:
            with new_ground(self._options, way.load, way.flush) as ground:
                with senders(ground, way.load, way.style) as children:
                    sent = send(children)
                check_stored(ground, way.load)
            if way.load.keys:
                self.figures["caught_up"].samples.append(sent.indexed - sent.ended)
            return way.load.messages / (sent.ended - sent.began)

        return take

    def _add(self, name: str, meaning: str, unit: str, flush: str, take: Callable[[], float]) -> None:
        self.sides.append((self._figure(name, meaning, unit, flush), take))

    def _figure(self, name: str, meaning: str, unit: str, flush: str) -> Figure:
        figure = self.figures[name] = Figure(f"{self._prefix}.{name}", meaning, unit, flush)
        return figure
