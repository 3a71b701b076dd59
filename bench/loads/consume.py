"""
Measures how fast consumers read a backlog: in batches, one by one, concurrently and by polls, next to the floor.

The backlog is sent once, before any clock runs; every sample reads all of it, as a new group of new processes. The
clock runs from the start signal, when consumers hold their queues and have fetched nothing, to the last message that a
listener got. All other settings are the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..crew import Ground, begin, check_stored, durability, new_ground, no_room, receive, receivers, send, senders
from ..figures import Figure, Report, Side, Verdict, interleave, ratio
from ..floor import floor
from ..options import Load, Options, Steps
from ..workers.receiving import BATCH

STYLES = {
    "batches": f"in order, up to {BATCH} messages a call",
    "messages": "in order, one message a call",
    "concurrent": "not in order, one message a call",
    "pull": f"polls of up to {BATCH} messages",
}


def prefix(load: Load) -> str:
    """Return the prefix of all keys of a run."""
    return "consume" if load.size == Load.size else f"consume.{load.size}B"


def targets(load: Load) -> tuple[Verdict, ...]:
    """Return the targets that a run with this load is about."""
    if (load.size, load.batch, load.queues, load.consumers) != (100, 500, 8, 1):
        return ()
    meaning = f"a backlog in listener calls of {BATCH}, of the floor's message by message"
    return (Verdict("P4.floor", meaning, at_least=1.2),)


def measure(load: Load, options: Options, steps: Steps) -> Report:
    """Take all samples."""
    flush = durability(options)
    report = Report("consume", {"load": load.as_object(), "flush": flush, "rounds": options.rounds})
    wanted = [replace(target, flush=flush) for target in targets(load)]
    if why_not := no_room(load):
        report.verdicts += [replace(target, why_not=why_not) for target in wanted]
        return report
    start = prefix(load)
    bare = Figure(f"{start}.floor", "a bare loop that pulls, unpacks and listens", "msg/s", "async")
    steps.expect((len(STYLES) + 1) * options.rounds)
    with new_ground(options, load) as ground:
        ends, warm = _fill(ground, load)
        sides: list[Side] = [
            (Figure(f"{start}.{style}", meaning, "msg/s", flush), _taken(ground, load, style, ends, warm))
            for style, meaning in STYLES.items()
        ]
        sides.append((bare, lambda: floor.consume(load)))
        interleave(sides, options.rounds, steps)
    report.figures += [figure for figure, _ in sides]
    found = ratio(report.figures[0], bare)
    report.verdicts += [replace(target, samples=found) for target in wanted]
    return report


def _fill(ground: Ground, load: Load) -> tuple[list[int], int]:
    """Send the backlog; return the ends of its queues and the number of messages to warm up with."""
    with senders(ground, load, "bodies") as children:
        send(children)
    return check_stored(ground, load), ground.fill_warm_up(load)


def _taken(ground: Ground, load: Load, style: str, ends: list[int], warm: int) -> Callable[[], float]:
    def take() -> float:
        with receivers(ground, load, style, warm=warm, paused=True) as children:
            begin(children)
            got = receive(children, load, ends)
        return load.messages / (got.last_at - got.began)

    return take
