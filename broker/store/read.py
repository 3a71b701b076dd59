"""
Batches of a queue read from the log: on the loop while that never waits, else by a thread.

The newest lie in memory as they were written. Whatever comes from a file is verified by its checksums first, so that
corrupted data is reported as damaged and never delivered.

A read may be for some tags only. Then a batch whose header says that it has none of them is skipped, and what else is
wrong with it does not matter; the header itself is verified all the same.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from rmq.wire.batch import layout
from rmq.wire.batch.columns import tag_names
from rmq.wire.batch.layout import Buffer
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import WireError
from rmq.wire.model import MessageQueue

from .commitlog import CommitLog, Extent
from .consume_queue import Bounds, ConsumeQueue, Location, Window
from .files import Files, IndexFaults
from .index_repair import IndexRepair, LostMessages
from .scan import read_or_zeros

LOOP_BYTES = 64 << 10  # read and judged on the loop; more is for a thread, also if it is in the page cache
RUN_BYTES = 1 << 20  # of batches that lie one after the other, read with one call
MUCH_LONGER = 4  # times a batch: a frame that is not kept in memory for it


class Only(NamedTuple):
    """A read for some tags: ``room`` bytes of batches that have one are wanted, at least one batch."""

    wanted: Wanted
    room: int


class ReadBatches(NamedTuple):
    """
    Whole batches read from a queue, and where to go on. None, if what lies before that is not wanted.

    ``kept`` counts the bytes of longer frames that the batches lie in and keep in memory.
    """

    buffers: list[Buffer]
    size: int
    next_offset: int
    kept: int = 0


class DamagedRange(Exception):
    """The asked offset cannot be read, nor those after it before ``next_offset``."""

    def __init__(self, next_offset: int) -> None:
        super().__init__(f"damaged up to {next_offset}")
        self.next_offset = next_offset


class ColdRead(NamedTuple):
    """
    A read that would wait for the disk, or whose index leads nowhere; :meth:`run` does it, in any thread.

    ``window`` is the part of the index to look in, None if ``where`` is known; the log ends at ``end``.
    """

    queue: MessageQueue
    generation: int
    offset: int
    bounds: Bounds
    window: Window | None
    where: list[Location]
    extents: tuple[Extent, ...]
    end: int
    faults: IndexFaults
    only: Only | None = None

    def run(self, files: Files) -> ReadBatches:
        """
        Read and judge; a segment that is gone is damage, unless it is the oldest, as those are that retention takes.

        Raises:
            DamagedRange: the first batch is damaged.
            OSError: the oldest segment is gone, since the log was shortened meanwhile, or a file cannot be read.
        """
        try:
            return self._run(files)
        except FileNotFoundError:
            left = tuple(extent for extent in self.extents if files.exists(extent.path))
            if left == self.extents or left[:1] != self.extents[:1]:
                raise
            return self._replace(extents=left)._run(files)

    def _run(self, files: Files) -> ReadBatches:
        taken = BatchCollector(self.queue, self.generation, self.offset, self.only)
        for run in runs(self._locate(files), self.extents):
            extent = extent_of(self.extents, run[0].position)
            size = sum(location.size for location in run)
            if not taken.add(run, _read_or_zeros(files, extent.path, size, run[0].position - extent.start)):
                break
        if taken.moved or self.window is None:
            return taken.found()
        look = IndexRepair(files, self.queue, self.generation, self.window, self.extents, self.faults).run(self.bounds)
        if isinstance(look, LostMessages):
            raise DamagedRange(look.next_offset)
        for data in look.buffers:
            header = layout.parse_header(data)
            parts = data[: layout.BROKER_PART], data[layout.BROKER_PART :]
            if not taken.take(Location(header.physical_offset, header.size, header.end_offset), parts):
                break
        return taken.found()

    def _locate(self, files: Files) -> list[Location]:
        if self.window is None:
            return self.where
        try:
            found = self.window.locate(self.bounds, files.read_at)
        except OSError as error:
            self.faults.read_failed(error.filename, error)
            return []
        return possible(found, self.extents[0].start, self.end)


def read_now(
    log: CommitLog, files: Files, *, of: MessageQueue, queue: ConsumeQueue, offset: int, bounds: Bounds,
    out_of_time: Callable[[], bool], faults: IndexFaults, only: Only | None = None,
) -> ReadBatches | ColdRead:  # fmt: skip
    """
    What can be had without waiting, at least one batch, taken or passed; a cold read if there is none.

    Raises:
        DamagedRange: the batch at ``offset`` is damaged.
        OSError: descriptors have run out.
    """
    window = queue.window(offset)
    if window is not None:
        return ColdRead(of, queue.generation, offset, bounds, window, [], log.extents(), log.written, faults, only)
    where = queue.locate(offset, bounds)
    taken = BatchCollector(of, queue.generation, offset, only)
    for run in _hot_runs(where, log):
        pair = log.recent.get(run[0].position)
        if pair is not None:
            if not taken.take(run[0], pair):
                break
        else:
            data = _cached(log, run)
            if data is None and not taken.moved:
                return ColdRead(
                    of, queue.generation, offset, bounds, None, where, log.extents(), log.written, faults, only
                )
            if data is None or not taken.add(run, data):
                break
        if out_of_time():
            break
    return taken.found()


def _cached(log: CommitLog, run: list[Location]) -> Buffer | None:
    """A run of batches from the page cache; None where that would wait, or take long."""
    size = sum(location.size for location in run)
    if size > LOOP_BYTES:
        return None
    try:
        return log.read_cached(run[0].position, size)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.ENOENT):  # a thread looks further
            raise
        return None


class BatchCollector:
    """The batches of a queue that a read has gathered so far, from ``offset`` on."""

    def __init__(self, queue: MessageQueue, generation: int, offset: int, only: Only | None = None) -> None:
        self._queue = queue
        self._generation = generation
        self._only = only
        self.buffers: list[Buffer] = []
        self._size = 0
        self._kept = 0
        self._offset = offset
        self._next_offset = offset
        self._damaged_until: int | None = None

    @property
    def moved(self) -> bool:
        """Whether a batch was taken, or passed."""
        return self._next_offset != self._offset

    def take(self, location: Location, parts: tuple[Buffer, Buffer]) -> bool:
        """Take a batch that needs no judging, the broker's part and the rest; False if there is no room for it."""
        if self._only is None or _has_wanted_tag(self._only.wanted, *parts):
            if self._is_full(location.size):
                return False
            self.buffers += (parts[0], self._apart(parts[1]))
            self._size += location.size
        self._next_offset = location.end_offset
        return True

    def add(self, run: list[Location], data: Buffer) -> bool:
        """Judge and take a run of batches; says whether all of it was sound, and had room."""
        if self._only is not None:
            return self._select(run, data, self._only.wanted)
        at = 0
        for location in run:
            header = self._ours(sound(data, at, location))
            if header is None:
                self._damaged_until = location.end_offset
                break
            at += location.size
            self._next_offset = header.end_offset
        if at:
            self.buffers.append(data if at == len(data) else memoryview(data)[:at])
            self._size += at
        return self._damaged_until is None

    def _select(self, run: list[Location], data: Buffer, wanted: Wanted) -> bool:
        at = 0
        for location in run:
            header = self._ours(sound_header(data, at, location))
            is_possible = header is not None and wanted.possible(header.tag_bloom)
            if header is None or (is_possible and not _is_whole(data, at, header)):
                self._damaged_until = location.end_offset
                return False
            meta_at = at + header.header_size
            if is_possible and wanted.among(tag_names(memoryview(data)[meta_at : meta_at + header.meta_size])):
                if self._is_full(header.size):
                    return False
                self.buffers.append(bytes(data[at : at + header.size]))  # a copy: the run would be kept in memory
                self._size += header.size
            at += location.size
            self._next_offset = header.end_offset
        return True

    def _apart(self, rest: Buffer) -> Buffer:
        """Copy a batch out of its frame if that is far longer: a slow reader would keep all of it in memory."""
        if isinstance(rest, memoryview):
            longer: int = len(rest.obj) - len(rest)  # type: ignore[arg-type]  # bytes, or a bytearray
            if longer > (MUCH_LONGER - 1) * len(rest):
                return bytes(rest)
            self._kept += longer
        return rest

    def _is_full(self, size: int) -> bool:
        return self._only is not None and bool(self.buffers) and self._size + size > self._only.room

    def _ours(self, header: layout.Header | None) -> layout.Header | None:
        """The header of a batch that is of this queue, and holds the next offset."""
        if header is None or (header.topic, header.queue_id) != self._queue or header.topic_gen != self._generation:
            return None
        return header if header.base_offset <= self._next_offset < header.end_offset else None

    def found(self) -> ReadBatches:
        """All of it; raises DamagedRange if it begins with damage."""
        if not self.moved:
            assert self._damaged_until is not None
            raise DamagedRange(self._damaged_until)
        return ReadBatches(self.buffers, self._size, self._next_offset, self._kept)


def sound(data: Buffer, at: int, location: Location) -> layout.Header | None:
    """The header of the batch at a place of ``data``, if batch and place are what the index says."""
    header = sound_header(data, at, location)
    return header if header is not None and _is_whole(data, at, header) else None


def sound_header(data: Buffer, at: int, location: Location) -> layout.Header | None:
    """The same, whatever has become of meta and bodies."""
    if not location.size or at + location.size > len(data):
        return None
    try:
        header = layout.parse_header(data, at)
    except WireError:
        return None
    is_right = (
        header.size == location.size
        and header.physical_offset == location.position
        and layout.header_crc(data, at, header.header_size) == header.header_crc
    )
    return header if is_right else None


def _is_whole(data: Buffer, at: int, header: layout.Header) -> bool:
    is_same = layout.batch_crc(data, at, header) == header.batch_crc
    return is_same and not any(data[at + header.content_size : at + header.size])


def _has_wanted_tag(wanted: Wanted, head: Buffer, rest: Buffer) -> bool:
    """Whether a batch that was judged has a wanted tag."""
    meta_size, tag_bloom = layout.tag_fields(rest)
    if not wanted.possible(tag_bloom):
        return False
    meta_at = head[7] * 8 - layout.BROKER_PART
    return wanted.among(tag_names(memoryview(rest)[meta_at : meta_at + meta_size]))


def possible(where: list[Location], start: int, end: int) -> list[Location]:
    """The locations before the first that no batch can have: an index from a file may say anything."""
    for i, (position, size, _) in enumerate(where):
        if not 0 < size <= layout.MAX_BATCH or position < start or position + size > end:
            return where[:i]
    return where


def extent_of(extents: tuple[Extent, ...], position: int) -> Extent:
    """The segment that holds a position."""
    return extents[max(bisect_right(extents, position, key=lambda extent: extent.start) - 1, 0)]


def runs(where: list[Location], extents: tuple[Extent, ...]) -> list[list[Location]]:
    """Group batches that lie one after the other in one segment, together as long as one read should be."""
    grouped: list[list[Location]] = []
    length, end = 0, -1
    for location in where:
        follows = location.position == end and extent_of(extents, end).start != end  # and not in another segment
        if not follows or length + location.size > RUN_BYTES or not location.size:
            grouped.append([])
            length = 0
        grouped[-1].append(location)
        length += location.size
        end = location.position + location.size
    return grouped


def _hot_runs(where: list[Location], log: CommitLog) -> list[list[Location]]:
    if log.recent.get(where[0].position) is not None:  # then all after it are in memory too
        return [[location] for location in where]
    grouped: list[list[Location]] = []
    for run in runs(where, log.extents()):
        cold = [location for location in run if log.recent.get(location.position) is None]
        grouped += [cold] if cold else []
        grouped += [[location] for location in run[len(cold) :]]
    return grouped


def _read_or_zeros(files: Files, path: str, size: int, at: int) -> bytes:
    """Zeros where the disk cannot read: what lies before and after may be good."""
    fd = files.open_to_read(path)
    try:
        return read_or_zeros(files, fd, size, at)
    finally:
        files.close(fd)
