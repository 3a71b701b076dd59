"""
Pulls that found nothing and wait for a message to arrive.

A parked pull waits for several queues at once and is handed out exactly once: for an arrival, at its time, or because
its owner is gone. Every call costs as much as it returns, however many others wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass

from rmq.wire.model import MessageQueue

SLACK = 64  # entries of the heap that may be out of date before it is looked through


@dataclass(slots=True, eq=False)
class ParkedPull:
    """A pull that waits; ``token`` is whatever the caller answers it with."""

    owner: Hashable
    token: object
    queues: tuple[MessageQueue, ...]
    expires_at: float
    waits: bool = True  # written by the table only


class ParkedPullTable:
    """Parked pulls by queue, by owner and by time; of one queue in the order they came."""

    def __init__(self) -> None:
        self._of_queue: dict[MessageQueue, dict[ParkedPull, None]] = {}
        self._of_owner: dict[Hashable, dict[ParkedPull, None]] = {}
        self._heap: list[
            tuple[float, int, ParkedPull]
        ] = []  # keeps those that were handed out, until they are in the way
        self._parked = 0  # how many were ever parked: equal times end in the order they came
        self._waiting = 0

    def park(self, owner: Hashable, token: object, queues: tuple[MessageQueue, ...], expires_at: float) -> ParkedPull:
        """Let a pull wait for any of ``queues`` until ``expires_at``."""
        parked = ParkedPull(owner, token, queues, expires_at)
        for queue in queues:
            waiting = self._of_queue.get(queue)
            if waiting is None:
                waiting = self._of_queue[queue] = {}
            waiting[parked] = None
        self._of_owner.setdefault(owner, {})[parked] = None
        self._parked += 1
        self._waiting += 1
        heapq.heappush(self._heap, (expires_at, self._parked, parked))
        if len(self._heap) > 2 * self._waiting + SLACK:
            self._tidy()
        return parked

    def arrived(self, queue: MessageQueue) -> list[ParkedPull]:
        """Take out all that wait for this queue, since it has something new."""
        waiting = self._of_queue.get(queue)
        return [] if waiting is None else self._take(list(waiting))

    def expired(self, *, now: float) -> list[ParkedPull]:
        """Take out all whose time has come."""
        over = []
        while (parked := self._next()) is not None and parked.expires_at <= now:
            heapq.heappop(self._heap)
            self._remove(parked)
            over.append(parked)
        return over

    def cancel(self, parked: ParkedPull) -> bool:
        """Take out one; says whether it still waited."""
        if not parked.waits:
            return False
        self._remove(parked)
        return True

    def drop_owner(self, owner: Hashable) -> list[ParkedPull]:
        """Take out all of one owner, in the order they came."""
        return self._take(list(self._of_owner.get(owner, ())))

    def of_queue(self, queue: MessageQueue) -> list[ParkedPull]:
        """All that wait for this queue, in the order they came; they go on waiting."""
        return list(self._of_queue.get(queue, ()))

    def of_owner(self, owner: Hashable) -> list[ParkedPull]:
        """All of one owner, in the order they came; they go on waiting."""
        return list(self._of_owner.get(owner, ()))

    def all(self) -> list[ParkedPull]:
        """Everyone who waits."""
        return [parked for own in self._of_owner.values() for parked in own]

    def __len__(self) -> int:
        return self._waiting

    def _take(self, several: list[ParkedPull]) -> list[ParkedPull]:
        for parked in several:
            self._remove(parked)
        return several

    def _remove(self, parked: ParkedPull) -> None:
        parked.waits = False
        self._waiting -= 1
        for queue in parked.queues:
            waiting = self._of_queue.get(queue)
            if waiting is not None:  # a pull may name a queue twice
                waiting.pop(parked, None)
                if not waiting:
                    del self._of_queue[queue]
        own = self._of_owner[parked.owner]
        del own[parked]
        if not own:
            del self._of_owner[parked.owner]

    def _next(self) -> ParkedPull | None:
        while self._heap:
            parked = self._heap[0][2]
            if parked.waits:
                return parked
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        # Pulls that are woken at once would otherwise stay in the heap for their whole time. As this needs as many
        # calls of park as there are entries to look through, it costs each of them a constant.
        self._heap = [entry for entry in self._heap if entry[2].waits]
        heapq.heapify(self._heap)
