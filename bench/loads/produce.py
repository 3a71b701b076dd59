"""
Measures how fast producers are: the ways to send next to each other and to the machine's limits, in one run.

What a run compares, and which targets it judges, follows from its load:

- ``async``: messages made before the clock, messages made inside it, and bodies, next to the floor; large bodies also
  next to a bare loop from a socket into a file;
- ``sync``: the same next to bodies with ``async``; single sends next to what ``fdatasync`` allows;
- with tags or keys: messages with them next to messages without, and how soon the last key is found.

Each sample has a broker of its own, and counts only if everything was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..crew import OVERHEAD, check_stored, durability, new_ground, no_room, send, senders
from ..figures import Figure, Report, Side, Verdict, interleave, ratio
from ..floor import floor
from ..options import Load, Options, Steps
from ..rivals import NO_RIVALS, Rival, Tried

OWN_BROKERS = "it takes brokers of both durabilities: leave --broker out"


def measure(load: Load, options: Options, steps: Steps) -> Report:
    """Take all samples."""
    flush = durability(options)
    report = Report("produce", {"load": load.as_object(), "flush": flush, "rounds": options.rounds})
    wanted = targets(load, flush)
    if why_not := no_room(load):
        report.verdicts += [verdict(target, {}, {}, flush, why_not) for target in wanted]
        return report
    run = _Run(load, options, flush)
    run.add_ours()
    run.add_limits()
    if any(target.other == "redis_benchmark" for target in wanted):
        run.add_redis(options.rivals(flush))
    steps.expect(len(run.sides) * options.rounds)
    interleave(run.sides, options.rounds, steps)
    run.derive()
    report.figures += run.figures.values()
    report.verdicts += [verdict(target, run.figures, run.missing, flush) for target in wanted]
    return report


def verdict(
    target: Target, figures: Mapping[str, Figure], missing: Mapping[str, str], flush: str, why_not: str = ""
) -> Verdict:
    """Judge a target by the figures of a run, which are named by the ends of their keys."""
    lacking = [name for name in (target.ours, target.other) if name is not None and name not in figures]
    if lacking:
        return replace(target.verdict, flush=flush, why_not=why_not or missing[lacking[0]])
    ours = figures[target.ours]
    found = list(ours.samples) if target.other is None else ratio(ours, figures[target.other])
    return replace(target.verdict, flush=flush, samples=found)


def allowed(messages_async: Figure, fdatasync: Figure, connections: int) -> list[float]:
    """Return the single sends a second that sync allows: at most those of async, and one a sync and connection."""
    rounds = zip(messages_async.samples, fdatasync.samples, strict=True)
    return [min(rate, connections / (sync_ms / 1000)) for rate, sync_ms in rounds]


class _Run:
    """The sides of one run, and the figures by the ends of their keys."""

    def __init__(self, load: Load, options: Options, flush: str) -> None:
        self.sides: list[Side] = []
        self.figures: dict[str, Figure] = {}
        self.missing: dict[str, str] = {}  # why a figure is missing, by its name
        self._load = load
        self._options = options
        self._flush = flush
        self._prefix = prefix(load, flush)
        self._redis: Tried | None = None

    def add_ours(self) -> None:
        """Add the ways to send."""
        for way in ways(self._load, self._flush):
            if self._options.broker is not None and way.flush != self._flush:
                self.missing[way.name] = self.missing["allowed"] = OWN_BROKERS
                continue
            self._add(way.name, way.meaning, "msg/s", way.flush, self._taken(way))
            if way.load.keys:
                self._figure("caught_up", "from the last receipt until the last key is found", "s", way.flush)

    def add_limits(self) -> None:
        """Add what the machine could do."""
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

    def add_redis(self, rivals: Sequence[Rival]) -> None:
        """Add the benchmark that Redis brings along."""
        redis = next((rival for rival in rivals if rival.name == "redis"), None)
        if redis is None or redis.native_why_not:
            self.missing["redis_benchmark"] = NO_RIVALS if redis is None else redis.native_why_not
            return
        self._redis = Tried(lambda: redis.native_produce(self._load))
        self._add("redis_benchmark", "redis-benchmark XADD -P 100", "msg/s", redis.durability, self._redis)

    def derive(self) -> None:
        """Compute what follows from the samples, and drop what failed."""
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


LARGE = 1000  # bytes of a body from which on the socket and the file are what counts
STYLES = {
    "messages": "Message objects made before the clock",
    "messages_inside": "Message objects made inside the clock",
    "bodies": "bodies, by send_bodies",
}


@dataclass(frozen=True)
class Way:
    """One thing of ours that is measured."""

    name: str  # the end of its key
    meaning: str
    style: str
    load: Load
    flush: str


@dataclass(frozen=True)
class Target:
    """A target of the figure of this name; ``other`` is the name of what it is a ratio of."""

    ours: str
    other: str | None
    verdict: Verdict  # without samples


def _share(key: str, ours: str, other: str, meaning: str, at_least: float) -> Target:
    return Target(ours, other, Verdict(key, meaning, at_least=at_least))


FLOOR = (
    _share("P1.floor", "bodies", "floor", "send_bodies, of the floor", 0.6),
    _share("P1.floor.messages", "messages", "floor", "messages made before the clock, of the floor", 0.6),
    _share("P1.floor.messages_inside", "messages_inside", "floor", "messages made inside it, of the floor", 0.6),
    _share("P1.redis-benchmark", "bodies", "redis_benchmark", "send_bodies, of redis-benchmark XADD -P 100", 4.0),
)
LARGE_BODIES = (
    _share("P2.socket-to-file", "bodies", "socket_to_file", "send_bodies, of a bare socket-to-file loop", 0.8),
    _share("P2.socket-to-file.messages", "messages", "socket_to_file", "messages made before the clock, of it", 0.8),
    _share(
        "P2.socket-to-file.messages_inside", "messages_inside", "socket_to_file", "messages made inside, of it", 0.8
    ),
)
SINGLE = (_share("P5.floor", "messages", "floor", "awaited sends of one message, 64 in flight, of the floor", 0.6),)
SYNC_BATCHES = (_share("P6.batches", "bodies", "bodies_async", "send_bodies with sync, of async", 0.7),)
SYNC_SINGLE = (
    _share("P6.single", "messages", "allowed", "single sends with sync, of min(async, 64 / fdatasync)", 0.8),
)
TAGS = (_share("P10.tags", "tags", "plain", "messages with 8 tags mixed, of those without", 0.7),)
KEYS = (
    _share("P10.keys", "keys", "plain", "messages with a key each, of those without", 0.7),
    Target(
        "caught_up",
        None,
        Verdict("P10.caught-up", "from the last receipt until the last key is found", unit="s", at_most=2.0),
    ),
)


def targets(load: Load, flush: str) -> tuple[Target, ...]:
    """Return the targets that a run with this load is about; all of them are about 8 queues."""
    if load.queues != Load.queues:
        return ()
    if load.tags or load.keys:
        return (TAGS if load.tags == 8 else ()) + (KEYS if load.keys else ())
    if load.producers != 1 or load.in_flight != 64:
        return ()
    if flush == "sync":
        return SYNC_BATCHES if load.batch > 1 else SYNC_SINGLE if load.connections == load.in_flight else ()
    if load.connections != 1:
        return ()
    if load.batch == 1:
        return SINGLE if load.size == 100 else ()
    if load.size == 100 and load.batch == 500:
        return FLOOR
    return LARGE_BODIES if load.size == 1024 else ()


def prefix(load: Load, flush: str) -> str:
    """Return the prefix of all keys of a run, different for other kinds of loads."""
    parts = [
        "produce",
        f"{load.size}B" if load.size != Load.size else "",
        "single" if load.batch == 1 else "",
        "sync" if flush == "sync" else "",
    ]
    return ".".join(part for part in parts if part)


def ways(load: Load, flush: str) -> list[Way]:
    """Return what of ours is measured."""
    if load.tags or load.keys:
        return list(_kinds(load, replace(load, tags=0, keys=False), flush))
    if flush == "sync" and load.batch == 1:
        over = f"single sends over {load.connections} connections, {load.in_flight} in flight"
        over_one = f"single sends over one connection, {load.in_flight} in flight"
        return [
            Way("messages", over, "messages", load, flush),
            Way("messages_async", over_one, "messages", replace(load, connections=1), "async"),
        ]
    found = [Way(style, meaning, style, load, flush) for style, meaning in STYLES.items()]
    if flush == "sync":
        found.append(Way("bodies_async", STYLES["bodies"], "bodies", load, "async"))
    return found


def _kinds(load: Load, plain: Load, flush: str) -> Iterator[Way]:
    yield Way("plain", "messages without tags and keys", "messages", plain, flush)
    if load.tags:
        yield Way("tags", f"messages with {load.tags} tags mixed", "messages", replace(plain, tags=load.tags), flush)
    if load.keys:
        yield Way("keys", "messages with a key each", "messages", replace(plain, keys=True), flush)


def limits(load: Load, flush: str) -> list[str]:
    """Return what of the machine is measured in the same run."""
    if load.tags or load.keys:
        return []
    if flush == "sync":
        return ["fdatasync"] if load.batch == 1 else []
    return ["floor", "socket_to_file"] if load.size >= LARGE else ["floor"]
