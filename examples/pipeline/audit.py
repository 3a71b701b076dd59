"""
The order audit: what is wrong with the queues, with the orders, and with what groups made of them.

Pure: it judges what a job has gathered. Spark looks at every row and hands over what is not plain, which is little;
here it gets its name. So the rules can be read, and tested, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

REPEAT: Final = "repeat"
OUT_OF_ORDER: Final = "out of order"
IMPOSSIBLE: Final = "impossible"
SCATTERED: Final = "scattered"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message lies."""

    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} offset {self.queue_offset}"


@dataclass(frozen=True, slots=True)
class QueueAudit:
    """
    A queue: how many messages were found of ``[start, end)``, which offsets are missing, which came more than once.

    ``gaps`` are ranges whose end is not missing any more; ``repeats`` has each offset as often as it came too many.
    """

    queue_id: int
    start: int
    end: int
    messages: int
    gaps: tuple[tuple[int, int], ...] = ()
    repeats: tuple[int, ...] = ()
    event_repeats: int = 0

    @property
    def missing(self) -> int:
        """How many offsets are missing."""
        return sum(end - start for start, end in self.gaps)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with an order; ``text`` says it in words."""

    kind: str
    order_id: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """
    What a group made of the topic.

    ``passed``: messages below its committed offsets, including those of tags it does not want. ``consumed``: messages
    it finished; ``repeated``: how often it finished one again. ``retried``: messages that were delivered more than
    once because they failed. ``disordered``: messages that came for the first time when one of a higher offset of
    their queue had come before. ``unaccounted``: wanted ones that it passed, and that are nowhere.
    """

    group: str
    passed: int
    lag: int
    wanted: int
    consumed: int
    repeated: int
    retried: int
    dead_lettered: int
    disordered: int

    @property
    def unaccounted(self) -> int:
        """Wanted messages that it passed, and that are nowhere."""
        return self.wanted - self.consumed - self.dead_lettered


def audit_queue(
    queue_id: int,
    held: tuple[int, int],
    messages: int,
    steps: Iterable[tuple[int | None, int | None]],
    event_repeats: int = 0,
) -> QueueAudit:
    """
    Judge the offsets of a queue, of which ``held`` says what it should have.

    ``steps`` are pairs of neighbours among the offsets that were found, sorted, where the second is not the first and
    one; the first of all has None before it, the last None behind it.
    """
    start, end = held
    gaps: list[tuple[int, int]] = []
    repeats: list[int] = []
    found = sorted(
        steps, key=lambda step: (step[0] is not None, step[0] if step[0] is not None else 0, step[1] is None)
    )
    for before, after in found:
        if before is not None and before == after:
            repeats.append(before)
            continue
        missing = (start if before is None else before + 1, end if after is None else after)
        if missing[0] < missing[1]:
            gaps.append(missing)
    if not found and start < end:
        gaps.append((start, end))
    return QueueAudit(queue_id, start, end, messages, tuple(gaps), tuple(repeats), event_repeats)


def legal_paths(next_states: Mapping[str, Sequence[str]], first: str) -> list[tuple[str, ...]]:
    """Every sequence of states that an order may have been through so far."""
    paths: list[tuple[str, ...]] = []
    open_paths: list[tuple[str, ...]] = [(first,)]
    while open_paths:
        path = open_paths.pop(0)
        paths.append(path)
        open_paths += [(*path, state) for state in next_states[path[-1]]]
    return paths


def audit_order(order_id: str, states: Sequence[tuple[str, Place]], paths: Iterable[tuple[str, ...]]) -> list[Fault]:
    """
    Judge the states of an order as they came, each with its place; repeats are counted once, where they came first.

    An order whose states make a legal path in another sequence came out of order; one whose states do not at all
    lacks some, or has some that exclude each other.
    """
    faults = []
    seen: dict[str, Place] = {}
    for state, place in states:
        if state in seen:
            faults.append(Fault(REPEAT, order_id, f"{state} came again: first at {seen[state]}, again at {place}"))
        else:
            seen[state] = place
    if len({place.queue_id for place in seen.values()}) > 1:
        places = ", ".join(f"{state} at {place}" for state, place in seen.items())
        faults.append(Fault(SCATTERED, order_id, f"the events of one order lie in several queues: {places}"))
    came = tuple(seen)
    known = list(paths)
    if came in known:
        return faults
    right = next((path for path in known if sorted(path) == sorted(came)), None)
    if right is None:
        faults.append(Fault(IMPOSSIBLE, order_id, f"no order can go through {' -> '.join(came)}"))
        return faults
    early = [
        f"{state} ({seen[state]}) came before {other} ({seen[other]})"
        for at, state in enumerate(came)
        for other in came[at + 1 :]
        if right.index(other) < right.index(state)
    ]
    faults.append(Fault(OUT_OF_ORDER, order_id, f"{'; '.join(early)}: came as {' -> '.join(came)}"))
    return faults
