"""
``LossLog``: leases that are lost together are told in one line.

A process that was stopped beyond its leases, or a broker that did not resume them, loses all its queues at once: the
operator should read one sentence, not one for each queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Final

from rmq.runtime.logging import get_logger

from .assignment import Generation

log = get_logger("rmq.consumer")

MOST_NAMED: Final = 100  # a member may have thousands of queues, and a line of the log has an end
GATHER_S = 0.1  # answers to requests of all queues, read after a stop of the process, come within this


class LossLog:
    """Gathers what is lost within :data:`GATHER_S` of the first, and logs it as one ``lease.lost``."""

    def __init__(self) -> None:
        self._lost: list[tuple[Generation, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, generation: Generation, reason: str) -> None:
        """A lease is lost; it is told soon."""
        self._lost.append((generation, reason))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.tell)

    def tell(self) -> None:
        """Tell now what was gathered; the reason is that of the first queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lost, self._lost = self._lost, []
        if lost:
            log.warning(
                "lease.lost",
                queues=listed(generation.queue for generation, _ in lost),
                epochs=listed(generation.epoch for generation, _ in lost),
                count=len(lost),
                reason=lost[0][1],
            )


def listed(things: Iterable[object]) -> str:
    """The first of them for a line of the log, and a sign if there are more."""
    rest = iter(things)
    named = ",".join(map(str, islice(rest, MOST_NAMED)))
    return named if next(rest, None) is None else f"{named},..."
