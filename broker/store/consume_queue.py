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

import structlog

from rmq.wire.columns import TagColumn

log = structlog.get_logger(__name__)

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
        "_bases", "_directory", "_flushed", "_pending", "_pending_size", "_per_file", "_positions", "_recent", "_sizes",
        "end", "min_offset", "published", "readable",
    )  # fmt: skip

    def __init__(
        self, directory: Path, *, entries_per_file: int = ENTRIES_PER_FILE, recent_batches: int = RECENT_BATCHES
    ) -> None:
        self._directory = directory
        self._per_file = entries_per_file
        self._recent = recent_batches
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
        if len(self._bases) >= 2 * self._recent and not len(self._bases) % self._recent:
            self._forget_old()

    def _forget_old(self) -> None:
        try:
            self.flush()
        except (
            OSError
        ) as error:  # the batch exists, whatever becomes of its index: all stays in memory until a later try
            log.error("index.write_failed", error=str(error))
            return
        for column in (self._bases, self._positions, self._sizes):
            del column[: -self._recent]

    @property
    def wants_flush(self) -> bool:
        """Whether enough entries wait to be worth a write."""
        return self._pending_size >= FLUSH_BYTES

    def flush(self) -> None:
        """
        Write waiting entries to their files.

        Raises:
            OSError: they wait on, and can be read all the same.
        """
        if not self._pending:
            return
        run = memoryview(b"".join(self._pending))
        self._directory.mkdir(parents=True, exist_ok=True)
        offset = self._flushed
        while run:
            part = run[: (self._per_file - offset % self._per_file) * ENTRY.size]
            self._write(offset, part)
            offset += len(part) // ENTRY.size
            run = run[len(part) :]
        self._flushed = offset
        self._pending.clear()
        self._pending_size = 0

    def _write(self, offset: int, part: memoryview) -> None:
        at = offset % self._per_file * ENTRY.size
        fd = os.open(self._file(offset), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while part:
                done = os.pwrite(fd, part, at)
                at += done
                part = part[done:]
        finally:
            os.close(fd)

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
        run = self._read(offset, min(max_entries + 1, self.readable - offset, self._flushed - offset))
        found: list[Location] = []
        total, at, count = 0, 0, len(run) // ENTRY.size
        while at < count:
            position, size, _ = ENTRY.unpack_from(run, at * ENTRY.size)
            behind = _behind(run, at, count, position)
            total += size
            if found and (total > max_bytes or len(found) >= max_batches or behind > max_entries):
                break
            found.append(Location(position, size))
            at = behind
        return found

    def _read(self, offset: int, wanted: int) -> bytes:
        """The entries from ``offset`` on, over as many files as they lie in."""
        parts = []
        while wanted > 0:
            index = offset % self._per_file
            count = min(wanted, self._per_file - index)
            fd = os.open(self._file(offset), os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts.append(os.pread(fd, ENTRY.size * count, ENTRY.size * index))
            finally:
                os.close(fd)
            offset += count
            wanted -= count
        return b"".join(parts)

    def _file(self, offset: int) -> Path:
        return self._directory / f"{offset // self._per_file * self._per_file * ENTRY.size:020d}"


def _behind(run: bytes, at: int, count: int, position: int) -> int:
    """The index of the first entry behind those of the batch at ``position``; positions never fall in a queue."""

    def position_of(index: int) -> int:
        return int.from_bytes(run[index * ENTRY.size : index * ENTRY.size + 8], "big")

    if at + 1 == count or position_of(at + 1) != position:
        return at + 1
    return bisect_right(range(count), position, lo=at + 1, key=position_of)
