"""
Batches of a queue read from the log: on the loop while that never waits, else by a thread.

The newest lie in memory as they were written. Whatever comes from a file is judged by its checksums before anybody
gets it, so that what the disk changed is answered as damaged and never handed out.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec

from rmq.wire import layout
from rmq.wire.errors import WireError
from rmq.wire.layout import Buffer
from rmq.wire.model import MessageQueue

from .commitlog import CommitLog, Extent
from .consume_queue import Bounds, ConsumeQueue, Location, Window
from .files import Files

P = ParamSpec("P")

RUN_BYTES = 1 << 20  # of batches that lie one behind the other, read with one call


class Found(NamedTuple):
    """Whole batches read from a queue, and where to go on."""

    buffers: list[Buffer]
    size: int
    next_offset: int


class DamagedRange(Exception):
    """The asked offset cannot be read, nor those behind it before ``next_offset``."""

    def __init__(self, next_offset: int) -> None:
        super().__init__(f"damaged up to {next_offset}")
        self.next_offset = next_offset


class ColdRead(NamedTuple):
    """A read that would wait for the disk; :meth:`run` does it, in any thread."""

    queue: MessageQueue
    offset: int
    bounds: Bounds
    window: Window | None
    where: list[Location]
    extents: tuple[Extent, ...]

    def run(self, files: Files) -> Found:
        """
        Read and judge.

        Raises:
            DamagedRange: the first batch is damaged.
            OSError: a file is gone, since the log was shortened meanwhile, or cannot be read.
        """
        where = self.where
        if self.window is not None:
            where = self.window.locate(self.bounds, lambda path, size, at: _read(files, path, size, at)) or []
        taken = Taken(self.queue)
        for run in runs(where, self.extents):
            extent = extent_of(self.extents, run[0].position)
            size = sum(location.size for location in run)
            data = _read_or_nothing(_read, files, extent.path, size, run[0].position - extent.start)
            assert data is not None
            if not taken.add(run, data):
                break
        return taken.found()


def read_now(
    log: CommitLog, files: Files, *, of: MessageQueue, queue: ConsumeQueue, offset: int, bounds: Bounds,
    out_of_time: Callable[[], bool],
) -> Found | ColdRead:  # fmt: skip
    """
    What can be had without waiting, at least one batch; a cold read if there is none.

    Raises:
        DamagedRange: the batch at ``offset`` is damaged.
    """
    window = queue.window(offset)
    where: list[Location] | None = None

    def cached(path: str, size: int, at: int) -> bytes | None:
        return files.read_cached(log.readers.fd(path), size, at)

    where = queue.locate(offset, bounds) if window is None else window.locate(bounds, cached)
    if where is None:
        return ColdRead(of, offset, bounds, window, [], log.extents())
    taken = Taken(of)
    for run in _hot_runs(where, log):
        pair = log.recent.get(run[0].position)
        if pair is not None:
            taken.take(run[0], pair)
        else:
            size = sum(location.size for location in run)
            data = _read_or_nothing(log.read_cached, run[0].position, size)
            if data is None and not taken.buffers:
                return ColdRead(of, offset, bounds, None, where, log.extents())
            if data is None or not taken.add(run, data):
                break
        if out_of_time():
            break
    return taken.found()


class Taken:
    """The batches of a queue that a read has gathered so far."""

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self.buffers: list[Buffer] = []
        self._size = 0
        self._next_offset = -1
        self._damaged_until: int | None = None

    def take(self, location: Location, parts: Sequence[Buffer]) -> None:
        """A batch that needs no judging."""
        self.buffers += parts
        self._size += location.size
        self._next_offset = location.end_offset

    def add(self, run: list[Location], data: bytes) -> bool:
        """Judge and take a run of batches; says whether all of it was sound."""
        at = 0
        for location in run:
            header = sound(data, at, location, self._queue)
            if header is None:
                self._damaged_until = location.end_offset
                break
            at += location.size
            self._next_offset = header.end_offset
        if at:
            self.buffers.append(data if at == len(data) else memoryview(data)[:at])
            self._size += at
        return self._damaged_until is None

    def found(self) -> Found:
        """All of it; raises DamagedRange if it begins with damage."""
        if not self.buffers:
            assert self._damaged_until is not None
            raise DamagedRange(self._damaged_until)
        return Found(self.buffers, self._size, self._next_offset)


def sound(data: Buffer, at: int, location: Location, queue: MessageQueue) -> layout.Header | None:
    """The header of the batch at a place of ``data``, if batch and place are what the index says."""
    if not location.size or at + location.size > len(data):
        return None
    try:
        header = layout.parse_header(data, at)
    except WireError:
        return None
    is_right = (
        header.size == location.size
        and header.physical_offset == location.position
        and header.queue_id == queue.queue_id
        and header.topic == queue.topic
        and layout.header_crc(data, at, header.header_size) == header.header_crc
        and layout.batch_crc(data, at, header) == header.batch_crc
        and not any(data[at + header.content_size : at + header.size])
    )
    return header if is_right else None


def extent_of(extents: tuple[Extent, ...], position: int) -> Extent:
    """The segment that holds a position."""
    return extents[max(bisect_right(extents, position, key=lambda extent: extent.start) - 1, 0)]


def runs(where: list[Location], extents: tuple[Extent, ...]) -> list[list[Location]]:
    """Batches that lie one behind the other in one segment, together as long as one read should be."""
    grouped: list[list[Location]] = []
    length, end = 0, -1
    for location in where:
        begins_segment = any(extent.start == location.position for extent in extents)
        if location.position != end or begins_segment or length + location.size > RUN_BYTES or not location.size:
            grouped.append([])
            length = 0
        grouped[-1].append(location)
        length += location.size
        end = location.position + location.size
    return grouped


def _hot_runs(where: list[Location], log: CommitLog) -> list[list[Location]]:
    if log.recent.get(where[0].position) is not None:  # then all behind it are in memory too
        return [[location] for location in where]
    grouped: list[list[Location]] = []
    for run in runs(where, log.extents()):
        cold = [location for location in run if log.recent.get(location.position) is None]
        grouped += [cold] if cold else []
        grouped += [[location] for location in run[len(cold) :]]
    return grouped


def _read_or_nothing(read: Callable[P, bytes | None], *args: P.args, **kwargs: P.kwargs) -> bytes | None:
    """What was read; nothing where the disk cannot read, which is then judged as damaged."""
    try:
        return read(*args, **kwargs)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def _read(files: Files, path: str, size: int, at: int) -> bytes:
    fd = files.open_to_read(path)
    try:
        return files.read(fd, size, at)
    finally:
        files.close(fd)
