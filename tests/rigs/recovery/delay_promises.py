"""
What must hold of delayed messages after a crash: each is delivered once, whole, and not before it was sent.

A broker that recovered is asked twice: as it is, and when nothing waits any more. By then everything that was
acknowledged is there, unless its topic is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from rmq.wire.batch import batch as batches

from rigs.recovery.workload import Batch


class Sent(Protocol):
    """A delayed batch of the run."""

    @property
    def batch(self) -> Batch:
        """What was sent."""

    @property
    def position(self) -> int:
        """Where it was parked."""

    @property
    def asked_at(self) -> int:
        """The step at which it was sent."""


class Deliveries(NamedTuple):
    """Which offsets of a queue hold delayed messages, which batches are there, and what is wrong with that."""

    offsets: set[int]
    there: list[Sent]
    broken: list[str]


def deliveries(sent: Sequence[Sent], messages: dict[int, bytes], prefix: int) -> Deliveries:
    """Find the delayed batches in a queue. Bodies are unique, so each shows where its batch lies."""
    found = Deliveries(set(), [], [])
    places: dict[bytes, list[int]] = {}
    for offset, body in messages.items():
        places.setdefault(body, []).append(offset)
    for one in sent:
        bodies = one.batch.bodies
        begins = places.get(bodies[0], [])
        for begin in begins:
            offsets = range(begin, begin + len(bodies))
            found.offsets.update(offsets)
            if [messages.get(offset) for offset in offsets] != list(bodies):
                found.broken.append(f"the delayed batch {bodies[0][:12]!r} is not whole at {begin}")
        if begins:
            found.there.append(one)
        if len(begins) > 1:
            found.broken.append(f"the delayed batch {bodies[0][:12]!r} was delivered twice, at {begins}")
        if begins and one.asked_at >= prefix:
            found.broken.append(f"the delayed batch {bodies[0][:12]!r} was delivered before it was sent")
    return found


def copies(log: Sequence[tuple[int, int]], parked_at: int) -> Iterator[int]:
    """Where a run delivered a parked batch; ``log`` are positions and origins."""
    origin = batches.handle(parked_at, 0)
    yield from (position for position, of in log if of == origin)
