"""
The index of one queue: which batch of the log holds which queue offset.

An entry has 20 bytes (physical offset 8, size 4, tag hash 8), one a message; the entries of a batch point to the
same record. The index is a function of the log: entries are collected in memory, written in large pieces, and
made again from the log at start. Descriptors are not kept, so that the number of queues is not bounded by them.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from rmq.wire.columns import TagColumn

ENTRY = struct.Struct(">QIq")
ENTRIES_PER_FILE = 300_000
RECENT_BATCHES = 4096
FLUSH_BYTES = 64 << 10


class Location(NamedTuple):
    """Where a batch lies in the log."""

    position: int
    size: int


def entries(position: int, size: int, count: int, tags: TagColumn | None) -> bytes:
    """The index entries of a batch."""
    if tags is None:
        return ENTRY.pack(position, size, 0) * count
    packed = [ENTRY.pack(position, size, value) for value in tags.hashes()]
    return b"".join(map(packed.__getitem__, tags.codes))


class ConsumeQueue:
    """
    Index and bounds of one queue.

    ``end`` is the next offset to be given to a batch (staged ones included), ``published`` the end of what the
    log holds, ``readable`` the end of what may be handed to a reader.
    """

    __slots__ = (
        "_bases", "_directory", "_flushed", "_pending", "_pending_size", "_positions", "_sizes", "end", "min_offset",
        "published", "readable",
    )  # fmt: skip

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.min_offset = 0
        self.end = 0
        self.published = 0
        self.readable = 0
        self._bases: list[int] = []  # of the newest batches, and beside them their place in the log
        self._positions: list[int] = []
        self._sizes: list[int] = []
        self._pending: list[bytes] = []  # entries not yet in a file; always covered by the lists above
        self._pending_size = 0
        self._flushed = 0  # the queue offset up to which the files reach

    def add(self, position: int, size: int, count: int, tags: TagColumn | None) -> None:
        """Index a batch that the log now holds."""
        self._bases.append(self.published)
        self._positions.append(position)
        self._sizes.append(size)
        run = entries(position, size, count, tags)
        self._pending.append(run)
        self._pending_size += len(run)
        self.published += count
        if len(self._bases) >= 2 * RECENT_BATCHES:
            self._forget_old()

    def _forget_old(self) -> None:
        self.flush()
        for column in (self._bases, self._positions, self._sizes):
            del column[:-RECENT_BATCHES]

    @property
    def wants_flush(self) -> bool:
        """Whether enough entries wait to be worth a write."""
        return self._pending_size >= FLUSH_BYTES

    def flush(self) -> None:
        """Write waiting entries to their files."""
        if not self._pending:
            return
        run = memoryview(b"".join(self._pending))
        self._pending.clear()
        self._pending_size = 0
        self._directory.mkdir(parents=True, exist_ok=True)
        while run:
            index = self._flushed % ENTRIES_PER_FILE
            part = run[: (ENTRIES_PER_FILE - index) * ENTRY.size]
            fd = os.open(self._file(self._flushed), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, part, index * ENTRY.size)
            finally:
                os.close(fd)
            self._flushed += len(part) // ENTRY.size
            run = run[len(part) :]

    def locate(self, offset: int, *, max_bytes: int, max_batches: int, max_entries: int) -> list[Location]:
        """
        The batches from the one that holds ``offset`` on, up to the readable end.

        At least one if ``offset`` is readable; then it stops before a limit.
        """
        if not self._bases or offset < self._bases[0]:
            return self._locate_in_files(offset, max_bytes, max_batches, max_entries)
        i = bisect_right(self._bases, offset) - 1
        found: list[Location] = []
        total, last = 0, len(self._bases) - 1
        while i <= last and self._bases[i] < self.readable:
            size = self._sizes[i]
            following = self._bases[i + 1] if i < last else self.published
            total += size
            if found and (total > max_bytes or len(found) >= max_batches or following - offset > max_entries):
                break
            found.append(Location(self._positions[i], size))
            i += 1
        return found

    def _locate_in_files(self, offset: int, max_bytes: int, max_batches: int, max_entries: int) -> list[Location]:
        index = offset % ENTRIES_PER_FILE
        wanted = min(max_entries, self.readable - offset, ENTRIES_PER_FILE - index)
        fd = os.open(self._file(offset), os.O_RDONLY | os.O_CLOEXEC)
        try:
            run = os.pread(fd, ENTRY.size * wanted, ENTRY.size * index)
        finally:
            os.close(fd)
        found: list[Location] = []
        total, at, count = 0, 0, len(run) // ENTRY.size
        while at < count:
            position, size, _ = ENTRY.unpack_from(run, at * ENTRY.size)
            total += size
            if found and (total > max_bytes or len(found) >= max_batches):
                break
            found.append(Location(position, size))
            at = _behind(run, at, count, position)
        return found

    def _file(self, offset: int) -> Path:
        return self._directory / f"{offset // ENTRIES_PER_FILE * ENTRIES_PER_FILE * ENTRY.size:020d}"


def _behind(run: bytes, at: int, count: int, position: int) -> int:
    """The index of the first entry behind those of the batch at ``position``; positions never fall in a queue."""

    def position_of(index: int) -> int:
        return int.from_bytes(run[index * ENTRY.size : index * ENTRY.size + 8], "big")

    if at + 1 == count or position_of(at + 1) != position:
        return at + 1
    return bisect_right(range(count), position, lo=at + 1, key=position_of)
