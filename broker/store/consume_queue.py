"""
The index of one queue: which batch of the log holds which queue offset.

An entry has 20 bytes (physical offset 8, size 4, tag hash 8), one a message; the entries of a batch point to the
same record. The index is a function of the log: entries are collected in memory, written in large pieces, and
made again from the log at start. Neither descriptors nor directories are had before they are needed, so that a queue
with few messages costs a few hundred bytes and no file.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from pathlib import Path

from rmq.wire.columns import TagColumn

from ..log import get_logger
from .lookup import Locator

log = get_logger(__name__)

ENTRY = struct.Struct(">QIq")
_POSITION = struct.Struct(">Q")
ENTRIES_PER_FILE = 300_000
RECENT_BATCHES = 512
FLUSH_BYTES = 16 << 10


Location = tuple[int, int]  # where a batch lies in the log: its position and its size


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
        "_bases", "_directory", "_flushed", "_pending", "_per_file", "_positions", "_recent", "_sizes",
        "end", "min_offset", "published", "readable",
    )  # fmt: skip

    def __init__(
        self, directory: str | Path, *, entries_per_file: int = ENTRIES_PER_FILE, recent_batches: int = RECENT_BATCHES
    ) -> None:
        self._directory = str(directory)
        self._per_file = entries_per_file
        self._recent = recent_batches
        self.min_offset = 0
        self.end = 0
        self.published = 0
        self.readable = 0
        self._bases = array("Q")  # of the newest batches, and beside them their place in the log
        self._positions = array("Q")
        self._sizes = array("I")
        self._pending = bytearray()  # entries not yet in a file; always covered by the columns above
        self._flushed = 0  # the queue offset up to which the files reach

    def add(self, position: int, size: int, count: int, tags: TagColumn | None) -> bool:
        """Index a batch that the log now holds; say whether enough entries wait to be worth a :meth:`flush`."""
        self._bases.append(self.published)
        self._positions.append(position)
        self._sizes.append(size)
        self._pending += entries(position, size, count, tags)
        self.published += count
        if not len(self._bases) % self._recent:
            self._forget_old()
        return len(self._pending) >= FLUSH_BYTES

    def _forget_old(self) -> None:
        try:
            self.flush()
        except OSError as error:
            # The batch exists, whatever becomes of its index: all stays in memory until a later try.
            log.error("index.write_failed", error=str(error))
            return
        for column in (self._bases, self._positions, self._sizes):
            del column[: -self._recent]

    def flush(self) -> None:
        """
        Write waiting entries to their files.

        Raises:
            OSError: they wait on, and can be read all the same.
        """
        if not self._pending:
            return
        run = memoryview(bytes(self._pending))  # a copy: an export would keep the next entries out
        offset = self._flushed
        while run:
            part = run[: (self._per_file - offset % self._per_file) * ENTRY.size]
            self._write(offset, part)
            offset += len(part) // ENTRY.size
            run = run[len(part) :]
        self._flushed = offset
        self._pending = bytearray()

    def _write(self, offset: int, part: memoryview) -> None:
        at = offset % self._per_file * ENTRY.size
        fd = self._open_to_write(offset)
        try:
            while part:
                done = os.pwrite(fd, part, at)
                at += done
                part = part[done:]
        finally:
            os.close(fd)

    def _open_to_write(self, offset: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(self._file(offset), flags, 0o644)
        except FileNotFoundError:  # the first entries of this queue
            os.makedirs(self._directory, exist_ok=True)
            return os.open(self._file(offset), flags, 0o644)

    def locate(self, offset: int, *, max_bytes: int, max_batches: int, max_entries: int) -> list[Location]:
        """
        The batches from the one that holds ``offset`` on, up to the readable end.

        At least one if ``offset`` is readable; then it stops before a limit.
        """
        bases = self._bases
        if not bases or offset < bases[0]:
            return self._locate_in_files(offset, max_bytes, max_batches, max_entries)
        first = bisect_right(bases, offset) - 1
        end = min(bisect_left(bases, self.readable, first), first + max_batches)
        if self.published > offset + max_entries:  # the entries of a batch end where the next one begins
            end = min(end, max(bisect_right(bases, offset + max_entries, first) - 1, first + 1))
        sizes = self._sizes[first:end]
        count = max(bisect_right(list(accumulate(sizes)), max_bytes), 1)
        return list(zip(self._positions[first : first + count], sizes[:count], strict=True))

    def locator(self) -> Locator:
        """The index as it is now, for a thread: what is in memory is copied, what is in files never changes."""
        bases, positions, sizes = self._bases[:], self._positions[:], self._sizes[:]

        def position_of(offset: int) -> Location | None:
            if not bases or offset < bases[0]:
                try:
                    entry = self._read(offset, 1)
                except FileNotFoundError:
                    return None
                return ENTRY.unpack(entry)[:2] if len(entry) == ENTRY.size else None
            at = bisect_right(bases, offset) - 1
            return positions[at], sizes[at]

        return Locator(self.min_offset, self.readable, position_of)

    def _locate_in_files(self, offset: int, max_bytes: int, max_batches: int, max_entries: int) -> list[Location]:
        run = self._read(offset, min(max_entries + 1, self.readable - offset, self._flushed - offset))
        found: list[Location] = []
        total, at, length, count = 0, 0, 1, len(run) // ENTRY.size
        while at < count:
            position, size, _ = ENTRY.unpack_from(run, at * ENTRY.size)
            behind = _behind(run, at, count, length)
            total += size
            if found and (total > max_bytes or len(found) >= max_batches or behind > max_entries):
                break
            found.append((position, size))
            at, length = behind, behind - at
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

    def _file(self, offset: int) -> str:
        return f"{self._directory}/{offset // self._per_file * self._per_file * ENTRY.size:020d}"


def _behind(run: bytes, at: int, count: int, guess: int) -> int:
    """
    The index of the first entry behind those of the batch at ``at``; positions never fall in a queue.

    ``guess`` is the length of the batch before: most batches of a queue are alike.
    """
    (position,) = _POSITION.unpack_from(run, at * ENTRY.size)

    def is_behind(index: int) -> bool:
        return index >= count or _POSITION.unpack_from(run, index * ENTRY.size)[0] != position

    end = at + guess
    if is_behind(end):
        if not is_behind(end - 1):
            return end
        return bisect_left(range(end), True, lo=at + 1, key=is_behind)
    while not is_behind(end + guess):
        end += guess
        guess *= 2
    return bisect_left(range(end + guess), True, lo=end + 1, key=is_behind)
