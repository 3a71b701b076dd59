"""The newest batches of the log, in memory: whoever reads at the end never touches a file."""

from __future__ import annotations

from collections import deque

from rmq.wire.batch.layout import Buffer

LIMIT = 32 << 20
OVERHEAD = 700  # bytes of memory that a batch takes beside its own, so that many small ones are bounded too


class Recent:
    """The newest batches that were written, in ``limit`` bytes of memory; what falls out lies in a file."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._batches: dict[int, tuple[Buffer, Buffer]] = {}
        self._order: deque[tuple[int, int]] = deque()  # (position, size), oldest first
        self._newest: object = None  # what the newest batch lies in: a buffer of its own, or the frame it came in
        self.size = 0

    def add(self, position: int, head: Buffer, rest: Buffer) -> None:
        """
        Keep a batch that the log now holds: its stamped part and the rest.

        A batch that is a part of its frame keeps all of the frame in memory, until the last one of it falls out: with
        that one it is counted.
        """
        held = rest.obj if isinstance(rest, memoryview) else rest
        kept: int = len(held)  # type: ignore[arg-type]  # bytes, or a bytearray
        if held is self._newest:
            before, counted = self._order[-1]
            self._order[-1] = (before, counted - kept)
            self.size -= kept
        self._newest = held
        size = len(head) + OVERHEAD + kept
        self._batches[position] = (head, rest)
        self._order.append((position, size))
        self.size += size
        while self.size > self._limit:
            oldest, length = self._order.popleft()
            del self._batches[oldest]
            self.size -= length
        if not self._order:
            self._newest = None

    def get(self, position: int) -> tuple[Buffer, Buffer] | None:
        """The batch at a physical offset, if it is here."""
        return self._batches.get(position)
