"""
The tags of batches whose index entries are in no file yet: as few bytes a message as an entry has, or less.

A long batch with few tags keeps the column it came with. Elsewhere that would be some hundred bytes a message, in
objects that the garbage collector walks over, and there may be many queues: of those the hashes are made at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from rmq.wire.batch.columns import TagColumn

MESSAGES_A_TAG: Final = 32  # from here on a column takes less than its hashes


class WaitingTags:
    """Tags by queue offset, those of the oldest batch first. What :meth:`part` returns is for any thread."""

    __slots__ = ("_columns", "_hashes", "_offsets")

    def __init__(self) -> None:
        self._columns: dict[int, TagColumn] = {}  # by the offset of the first message
        self._offsets = array("Q")  # of the messages of other batches, and beside them the hashes of their tags
        self._hashes = array("q")

    def __bool__(self) -> bool:
        return bool(self._columns or self._offsets)

    def add(self, base: int, tags: TagColumn) -> None:
        """The batch at ``base``, behind all others, has these."""
        count = len(tags.codes)
        if count >= MESSAGES_A_TAG * max(len(tags.names), 1):
            self._columns[base] = tags
        else:
            self._offsets.extend(range(base, base + count))
            self._hashes.extend(map(tags.hashes().__getitem__, tags.codes))

    def of(self, base: int, end: int) -> TagColumn | array[int] | None:
        """The tags of a batch, or their hashes, one a message; None if it has none."""
        if (column := self._columns.get(base)) is not None:
            return column
        first = bisect_left(self._offsets, base)
        return self._hashes[first : bisect_left(self._offsets, end, first)] or None

    def part(self, start: int, end: int) -> WaitingTags:
        """Those of the batches from one offset to before another, which begin there."""
        part = WaitingTags()
        part._columns = {base: tags for base, tags in self._columns.items() if start <= base < end}
        first, last = bisect_left(self._offsets, start), bisect_left(self._offsets, end)
        part._offsets, part._hashes = self._offsets[first:last], self._hashes[first:last]
        return part
