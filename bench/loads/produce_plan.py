"""What a run of ``produce`` compares, and which targets it is about: both follow from its load. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..figures import Verdict
from ..load import Load

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
    """The targets that a run with this load is about; all of them are about 8 queues."""
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
    """How all keys of a run begin: runs of other kinds of loads have others."""
    parts = [
        "produce",
        f"{load.size}B" if load.size != Load.size else "",
        "single" if load.batch == 1 else "",
        "sync" if flush == "sync" else "",
    ]
    return ".".join(part for part in parts if part)


def ways(load: Load, flush: str) -> list[Way]:
    """What of ours is measured."""
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
    """What of the machine is measured in the same run."""
    if load.tags or load.keys:
        return []
    if flush == "sync":
        return ["fdatasync"] if load.batch == 1 else []
    return ["floor", "socket_to_file"] if load.size >= LARGE else ["floor"]
