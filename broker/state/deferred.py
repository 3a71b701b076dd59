"""
Which parked batches wait for their time, and how far delivery has come.

Batches are delivered strictly in the order of ``(due_at, position)``, so one such pair, the *watermark*, says which
of them are delivered: all up to it. A batch that waits takes 24 bytes, big-endian, so that the order of the bytes is
the order of delivery. They lie in chunks of some hundred, in that order always: whatever is asked, and however many
wait, a chunk or two are touched, and nothing is ever sorted. Chunks are never changed but replaced, so that a
checkpoint takes them as they are.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

ENTRY: Final = struct.Struct(">QQII")
CHUNK: Final = 256  # batches
_SIZE: Final = ENTRY.size
_KEY: Final = struct.Struct(">QQ")
_BEHIND: Final = b"\xff" * (_SIZE - _KEY.size)


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


class DelayTable:
    """
    All that waits. ``grain_bytes``: how finely it is known from where on the log is needed; a segment is fine enough.

    Nothing may be added at or below the watermark: see :meth:`earliest`.
    """

    def __init__(self, grain_bytes: int = 1 << 30, *, chunk: int = CHUNK) -> None:
        self._grain = max(grain_bytes, 1)
        self._most = chunk * _SIZE
        self._chunks: list[bytes] = []  # none is empty
        self._firsts: list[bytes] = []  # the first batch of each
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
        packed = ENTRY.pack(*entry)
        i = max(bisect_right(self._firsts, packed) - 1, 0)
        at = _up_to(self._chunks[i], packed) if self._chunks else 0
        if at == self._most:  # as times rise mostly, a chunk that is full stays so
            i, at = i + 1, 0
        chunk = self._chunks[i] if i < len(self._chunks) else b""
        whole = chunk[:at] + packed + chunk[at:]
        if len(whole) <= self._most:
            self._put(i, i + 1, [whole])
        elif not at:
            self._put(i, i, [packed])
        else:
            half = len(whole) // _SIZE // 2 * _SIZE
            self._put(i, i + 1, [whole[:half], whole[half:]])
        self._count(entry.position, 1)
        self.batches += 1
        self.messages += entry.messages

    def load(self, entries: Iterable[Parked]) -> None:
        """Many batches wait from now on, in a table where none did."""
        assert not self._chunks
        records = sorted(ENTRY.pack(*entry) for entry in entries)
        chunk = self._most // _SIZE
        self._put(0, 0, [b"".join(records[i : i + chunk]) for i in range(0, len(records), chunk)])
        for _, position, _, messages in map(ENTRY.unpack, records):
            self._count(position, 1)
            self.messages += messages
        self.batches = len(records)

    def _put(self, first: int, end: int, chunks: list[bytes]) -> None:
        """Put chunks in the place of others."""
        self._chunks[first:end] = chunks
        self._firsts[first:end] = [chunk[:_SIZE] for chunk in chunks]

    def _count(self, position: int, by: int) -> None:
        grain = position // self._grain
        count = self._grains[grain] = self._grains.get(grain, 0) + by
        if not count:
            del self._grains[grain]

    @property
    def next_due(self) -> int:
        """When the next batch is due; 0 if none waits."""
        return int.from_bytes(self._firsts[0][:8], "big") if self._firsts else 0

    @property
    def oldest(self) -> int | None:
        """A position of the log before which nothing waits, None if nothing waits at all."""
        return min(self._grains) * self._grain if self._grains else None

    def due(self, now_us: int, *, max_batches: int, max_bytes: int) -> list[Parked]:
        """The next batches whose time has come, in order, at least one if there is any."""
        found: list[Parked] = []
        size = 0
        for entry in self._behind(Mark(), max_batches):
            size += entry.size
            if entry.due_at > now_us or (found and size > max_bytes):
                break
            found.append(entry)
        return found

    def page(self, after: Mark, limit: int) -> list[Parked]:
        """The batches behind a place of the order, at most so many."""
        return list(self._behind(after, limit))

    def _behind(self, place: Mark, limit: int) -> Iterator[Parked]:
        i, at = self._find(place)
        while limit > 0 and i < len(self._chunks):
            part = self._chunks[i][at : at + limit * _SIZE]
            limit -= len(part) // _SIZE
            yield from map(Parked._make, ENTRY.iter_unpack(part))
            i, at = i + 1, 0

    def _find(self, place: Mark) -> tuple[int, int]:
        """The chunk, and the byte in it, behind all batches up to a place of the order."""
        bound = _KEY.pack(*place) + _BEHIND
        i = bisect_right(self._firsts, bound) - 1
        return (i, _up_to(self._chunks[i], bound)) if i >= 0 else (0, 0)

    def reach(self, mark: Mark) -> None:
        """All up to a place of the order was delivered, or passed for good."""
        self.reached = max(self.reached, mark)
        i, at = self._find(self.reached)
        if not at:
            return
        gone = [*self._chunks[:i], self._chunks[i][:at]]
        rest = self._chunks[i][at:]
        self._put(0, i + 1, [rest] if rest else [])
        for chunk in gone:
            for _, position, _, messages in ENTRY.iter_unpack(chunk):
                self._count(position, -1)
                self.batches -= 1
                self.messages -= messages

    def set_back(self, now_us: int) -> None:
        """
        The clock shows less than the watermark: it was ahead when that was reached.

        What was delivered is not here any more, and what waits is due later still. So batches may be given times from
        now on again; that one is given a time below the watermark tells a start that this has happened.
        """
        self.reached = min(self.reached, Mark(now_us))

    def packed(self) -> list[bytes]:
        """All that waits, for a checkpoint: in pieces of at most a chunk, which are shared and not copied."""
        return self._chunks[:]


def _up_to(chunk: bytes, bound: bytes) -> int:
    """The byte behind all batches of a chunk that are not above a bound."""
    count = len(chunk) // _SIZE
    if chunk[-_SIZE:] <= bound:
        return len(chunk)
    return bisect_right(range(count), bound, key=lambda i: chunk[i * _SIZE : (i + 1) * _SIZE]) * _SIZE
