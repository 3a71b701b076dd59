"""
From the log back to what waits: which parked batches a start meets, and which of them were delivered.

The origin of a copy names the place of the parked batch it was made from. Places only rise along the log, so that a
binary search tells whether a copy was a delivery, and of what; its time then moves the watermark.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout

from ..store.changes import DelaysReached, DelaysWaiting
from .deferred import ENTRY, DelayTable, Mark, Parked

TIDY: Final = 100_000  # batches more than after the last time: what was delivered is forgotten


class ParkedLog:
    """Shown the log in order; :meth:`fill` tells the table what is left."""

    def __init__(self, tidy: int = TIDY) -> None:
        self._tidy = tidy
        self._limit = tidy
        self._in_order = True
        self._positions = array("Q")
        self._dues = array("Q")
        self._sizes = array("I")
        self._messages = array("I")
        self.reached = Mark()

    def apply(self, change: DelaysReached | DelaysWaiting) -> None:
        """Repeat a change."""
        if isinstance(change, DelaysReached):
            self._reach(Mark(change.due_at, change.position))
            return
        for entry in map(Parked._make, ENTRY.iter_unpack(change.entries)):
            self._append(*entry)
        self._in_order = False

    def parked(self, header: layout.Header) -> None:
        """A parked batch; whether it can still be read is seen when it is due."""
        if header.base_offset < self.reached.due_at:  # a start found that the clock had been ahead until then
            self._forget_delivered()
            self.reached = Mark(header.base_offset)
        self._append(header.base_offset, header.physical_offset, header.size, header.count)
        if len(self._positions) > self._limit:
            self._forget_delivered()
            self._limit = 2 * len(self._positions) + self._tidy

    def delivered(self, origin: int) -> bool:
        """A copy: whether it is a parked batch that became due."""
        if not self._in_order:  # a checkpoint tells them by their time
            self._keep(sorted(range(len(self._positions)), key=self._positions.__getitem__))
            self._in_order = True
        position, _ = batches.place_of(origin)
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] != position:
            return False
        self._reach(Mark(self._dues[at], position))
        return True

    def fill(self, table: DelayTable) -> None:
        """The log is read: this is how far delivery had come, and what waits."""
        table.reach(self.reached)
        table.load(entry for entry in self._entries() if entry[:2] > self.reached)
        self._keep([])

    def _forget_delivered(self) -> None:
        self._keep([i for i, entry in enumerate(self._entries()) if entry[:2] > self.reached])

    def _reach(self, mark: Mark) -> None:
        self.reached = max(self.reached, mark)

    def _append(self, due_at: int, position: int, size: int, messages: int) -> None:
        self._dues.append(due_at)
        self._positions.append(position)
        self._sizes.append(size)
        self._messages.append(messages)

    def _entries(self) -> Iterator[Parked]:
        return map(Parked, self._dues, self._positions, self._sizes, self._messages)

    def _keep(self, places: list[int]) -> None:
        """Keep the batches at these places, in this order; there may be a million, so nothing is made of each."""
        self._dues = array("Q", map(self._dues.__getitem__, places))
        self._positions = array("Q", map(self._positions.__getitem__, places))
        self._sizes = array("I", map(self._sizes.__getitem__, places))
        self._messages = array("I", map(self._messages.__getitem__, places))
