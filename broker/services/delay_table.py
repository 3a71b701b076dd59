"""
Which parked batches wait for their time, and how far delivery has come.

Batches are delivered strictly in the order of ``(due_at, position)``, so one such pair, the *watermark*, says which
of them are delivered: all up to it. A batch that waits takes 24 bytes, big-endian, so that the order of the bytes is
the order of delivery. They lie in buckets by the second of their time, each sorted when somebody asks for it.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

ENTRY: Final = struct.Struct(">QQII")
_SIZE: Final = ENTRY.size
_KEY: Final = struct.Struct(">QQ")
_SECOND: Final = 1_000_000


class Parked(NamedTuple):
    """A batch that waits: when it is due (us), where it lies, how many bytes and messages it has."""

    due_at: int
    position: int
    size: int
    messages: int


class Mark(NamedTuple):
    """A place in the order of delivery."""

    due_at: int = 0
    position: int = 0


class _Records(Sequence[bytes]):
    """The keys of a sorted bucket, for a binary search."""

    def __init__(self, bucket: bytearray) -> None:
        self._bucket = bucket

    def __len__(self) -> int:
        return len(self._bucket) // _SIZE

    def __getitem__(self, i: int) -> bytes:  # type: ignore[override]  # nobody asks for slices
        return bytes(self._bucket[i * _SIZE : i * _SIZE + _KEY.size])


class DelayTable:
    """
    All that waits. ``grain_bytes``: how finely it is known from where on the log is needed; a segment is fine enough.

    Nothing may be added at or below the watermark: see :meth:`earliest`.
    """

    def __init__(self, grain_bytes: int = 1 << 30) -> None:
        self._grain = max(grain_bytes, 1)
        self._buckets: dict[int, bytearray] = {}  # by second
        self._seconds: list[int] = []  # of the buckets, a heap
        self._unsorted: set[int] = set()
        self._grains: dict[int, int] = {}  # how many wait in each part of the log
        self.reached = Mark()
        self.batches = 0
        self.messages = 0

    def __len__(self) -> int:
        return self.batches

    def earliest(self, due_at: int) -> int:
        """The earliest time, not before ``due_at``, that a batch at the end of the log may be given."""
        return max(due_at, self.reached.due_at, 1)

    def add(self, entry: Parked) -> None:
        """A batch waits from now on."""
        second = entry.due_at // _SECOND
        bucket = self._buckets.get(second)
        packed = ENTRY.pack(*entry)
        if bucket is None:
            bucket = self._buckets[second] = bytearray()
            heapq.heappush(self._seconds, second)
        elif packed < bucket[-_SIZE:]:
            self._unsorted.add(second)
        bucket += packed
        grain = entry.position // self._grain
        self._grains[grain] = self._grains.get(grain, 0) + 1
        self.batches += 1
        self.messages += entry.messages

    @property
    def next_due(self) -> int:
        """When the next batch is due; 0 if none waits."""
        if not self._seconds:
            return 0
        return int.from_bytes(self._sorted(self._seconds[0])[:8], "big")

    @property
    def oldest(self) -> int | None:
        """A position of the log before which nothing waits, None if nothing waits at all."""
        return min(self._grains) * self._grain if self._grains else None

    def due(self, now_us: int, *, max_batches: int, max_bytes: int) -> list[Parked]:
        """The next batches whose time has come, in order, at least one if there is any."""
        found: list[Parked] = []
        size = 0
        for entry in self._entries(_smallest(self._seconds), b"", max_batches):
            size += entry.size
            if entry.due_at > now_us or (found and size > max_bytes):
                break
            found.append(entry)
        return found

    def page(self, after: Mark, limit: int) -> list[Parked]:
        """The batches behind a place of the order, at most so many."""
        first = after.due_at // _SECOND
        seconds = heapq.nsmallest(limit + 1, (second for second in self._seconds if second >= first))
        return list(self._entries(iter(seconds), _KEY.pack(*after), limit))

    def _entries(self, seconds: Iterator[int], after: bytes, limit: int) -> Iterator[Parked]:
        while limit > 0 and (second := next(seconds, None)) is not None:
            bucket = self._sorted(second)
            at = bisect_right(_Records(bucket), after) * _SIZE
            part = bytes(bucket[at : at + limit * _SIZE])
            limit -= len(part) // _SIZE
            yield from map(Parked._make, ENTRY.iter_unpack(part))

    def reach(self, mark: Mark) -> None:
        """All up to a place of the order was delivered, or passed for good."""
        self.reached = max(self.reached, mark)
        key, last = _KEY.pack(*self.reached), self.reached.due_at // _SECOND
        while self._seconds and self._seconds[0] <= last:
            second = self._seconds[0]
            bucket = self._sorted(second)
            count = bisect_right(_Records(bucket), key)
            self._gone(bucket[: count * _SIZE])
            del bucket[: count * _SIZE]
            if bucket:
                return
            heapq.heappop(self._seconds)
            del self._buckets[second]

    def _gone(self, entries: bytearray) -> None:
        for _, position, _, messages in ENTRY.iter_unpack(entries):
            grain = position // self._grain
            self._grains[grain] -= 1
            if not self._grains[grain]:
                del self._grains[grain]
            self.batches -= 1
            self.messages -= messages

    def _sorted(self, second: int) -> bytearray:
        bucket = self._buckets[second]
        if second in self._unsorted:
            self._unsorted.remove(second)
            records = [bytes(bucket[i : i + _SIZE]) for i in range(0, len(bucket), _SIZE)]
            records.sort()
            bucket[:] = b"".join(records)
        return bucket

    def packed(self, piece_bytes: int) -> Iterator[bytes]:
        """All that waits, in no order, for a checkpoint: pieces of about that size."""
        part = bytearray()
        most = max(piece_bytes // _SIZE, 1) * _SIZE
        for bucket in self._buckets.values():
            part += bucket
            while len(part) >= most:
                yield bytes(part[:most])
                del part[:most]
        if part:
            yield bytes(part)


def _smallest(heap: list[int]) -> Iterator[int]:
    """What a heap holds, in order, at the cost of what is asked for."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        value, i = heapq.heappop(ahead)
        yield value
        for child in (2 * i + 1, 2 * i + 2):
            if child < len(heap):
                heapq.heappush(ahead, (heap[child], child))
