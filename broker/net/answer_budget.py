"""
Memory for answers that peers have not read: one budget for all connections.

A transport keeps each write whole until its last byte is taken, and a batch keeps the frame that it came in, so both
count in full. Answers that the kernel takes at once cost nothing here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from rmq.runtime.logging import get_broker_logger

log = get_broker_logger(__name__)

FRACTION: Final = 8  # a connection may hold this part of what is free; as much is made free when nothing is
SMALLEST_SHARE: Final = 64 << 10
ENTRY_BYTES: Final = 64 << 10  # smaller writes are counted together
WRITE_OVERHEAD: Final = 400  # bytes of memory that a write which waits takes besides its buffers
BUFFER_OVERHEAD: Final = 100


class AnswerBudget:
    """
    Bounds the memory of unread answers, without harm to connections that read.

    A connection gets no further pulls while it holds more than its :attr:`share`, an eighth of what is free, so that a
    few that read nothing cannot take all of it. Where ``limit`` is passed nevertheless, the connections with the most
    bytes for the longest time without any progress are aborted, until an eighth is free. The only holder is left
    alone: an answer larger than the whole budget must be readable.
    """

    def __init__(self, limit: int, *, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._holders: set[Unread] = set()
        self.used = 0
        self.evicted = 0

    @property
    def share(self) -> int:
        """How many bytes of unread answers a connection may have before its pulls wait."""
        return max((self._limit - self.used) // FRACTION, SMALLEST_SHARE)

    def charge(self, holder: Unread, change: int) -> None:
        """Count what ``holder`` has got more or less than before."""
        self.used += change
        if not holder.held:
            self._holders.discard(holder)
            return
        self._holders.add(holder)
        if change > 0 and self.used > self._limit:
            self._make_room()

    def _make_room(self) -> None:
        now = self._now()
        for holder in tuple(self._holders):
            holder.settle(now)
        if self.used <= self._limit:
            return
        for holder in sorted(self._holders, key=lambda holder: holder.burden(now), reverse=True):
            spare = self._limit // FRACTION if holder.burden(now)[0] else 0  # never at the cost of one that reads
            if self.used <= self._limit - spare or len(self._holders) == 1:
                return
            self.evicted += 1
            holder.evict(now)


class Unread:
    """Tracks the answers of one connection that wait to be read. ``held`` is the memory they take."""

    __slots__ = (
        "_budget", "_high_water", "_kept", "_moved_at", "_peer", "_taken", "_transport", "_writes", "held", "written",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, budget: AnswerBudget, high_water: int, peer: str) -> None:
        self._transport = transport
        self._budget = budget
        self._high_water = high_water
        self._peer = peer
        self._writes: deque[tuple[int, int]] = deque()  # up to which byte of all that was written, and its memory
        self._kept = 0
        self._taken = 0
        self._moved_at = 0.0  # when the peer was last seen to have taken something, or had nothing to take
        self.held = 0
        self.written = 0
        self.resumed()

    @property
    def size(self) -> int:
        """Bytes that the peer has not taken."""
        return self._transport.get_write_buffer_size()

    def keeps(self, size: int) -> None:
        """Note memory besides their own bytes that the answers of the next write keep."""
        self._kept += size

    def wrote(self, size: int, buffers: int, now: float) -> None:
        """Count a write that the transport was just given."""
        self.written += size
        kept, self._kept = self._kept, 0
        if not self.size:
            self.forget()
            return
        if not self.held:
            self._moved_at = now
        self.settle(now)
        cost = size + kept + WRITE_OVERHEAD + BUFFER_OVERHEAD * buffers
        small = self._writes.pop()[1] if self._writes and self._writes[-1][1] < ENTRY_BYTES else 0
        self._writes.append((self.written, small + cost))
        self.held += cost
        self._budget.charge(self, cost)

    def settle(self, now: float) -> None:
        """Notice what the peer has taken."""
        taken = self.written - self.size
        if taken > self._taken:
            self._taken, self._moved_at = taken, now
        freed = 0
        while self._writes and self._writes[0][0] <= taken:
            freed += self._writes.popleft()[1]
        if freed:
            self.held -= freed
            self._budget.charge(self, -freed)

    def forget(self) -> None:
        """Release everything: all was taken, or the connection is gone."""
        if self.held:
            freed, self.held = self.held, 0
            self._writes.clear()
            self._budget.charge(self, -freed)

    @property
    def is_flooding(self) -> bool:
        """Whether so much is held that no more requests are to be read."""
        return self._exceeds(4)

    def pause_if_much(self) -> None:
        """Pause writing until most was taken, if more is held than the connection's share."""
        if self._exceeds(1):
            self._transport.set_write_buffer_limits(high=min(self._high_water, self.size // 2))

    def _exceeds(self, times: int) -> bool:
        share = self._budget.share
        return self.held > times * share or self.size > times * min(self._high_water, share)

    def resumed(self) -> None:
        """Pause writing at the mark that holds while there is room."""
        self._transport.set_write_buffer_limits(high=self._high_water)

    def burden(self, now: float) -> tuple[float, int]:
        """Return what the answers cost the others: bytes times seconds without progress, then bytes."""
        return self.held * (now - self._moved_at), self.held

    def evict(self, now: float) -> None:
        """Abort the connection: it reads nothing, so it cannot be given a reason."""
        log.warning("connection.evicted", peer=self._peer, held=self.held, waited_s=round(now - self._moved_at, 3))
        self.forget()
        self._transport.abort()
