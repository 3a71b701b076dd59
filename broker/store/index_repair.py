"""
A second look at messages that a queue's index does not lead to: are they lost, or only their entries?

The index is a function of the log. Where an entry of its files leads nowhere, the batches are looked for in the log,
from the last place before that is known to be right; what is found is read and indexed again. Only what the log itself
does not hold is damaged. All of this waits for the disk: it is done by a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.model import MessageQueue

from .changes import Change, QueueBounds
from .commitlog import Extent
from .consume_queue import ENTRY, AskLog, Bounds, PackedEntries, Window, entries, file_of
from .files import Files, IndexFaults, is_passing, put_aside
from .rebuild import read_head
from .scan import Good, Scan

log = get_broker_logger(__name__)

_LOOK_BACK = 256  # entries before the asked one, in which a good one is looked for
_WALK_BYTES = 64 << 20  # of the log, after the first batch that was found


class _Sound(NamedTuple):
    checked: batches.Checked
    data: bytes


class RestoredMessages(NamedTuple):
    """Batches that are sound after all, one after the other in their queue."""

    buffers: list[bytes]
    next_offset: int


class LostMessages(NamedTuple):
    """The log does not hold the messages before ``next_offset``."""

    next_offset: int


class IndexRepair(NamedTuple):
    """For the first offset of ``window``; ``extents`` are the segments of the log."""

    files: Files
    queue: MessageQueue
    generation: int
    window: Window
    extents: Sequence[Extent]
    faults: IndexFaults

    def run(self, bounds: Bounds) -> RestoredMessages | LostMessages:
        """
        The batch that holds the offset and some after it, indexed again if the disk lets us; or how far none is left.

        Raises:
            OSError: a segment is gone, since the log was shortened meanwhile.
        """
        found: list[_Sound] = []
        offset, size, stop = self.window.offset, 0, 0
        following = self.window.end
        for scan, header in self._walk(self._start()):
            if header.end_offset <= offset:
                continue
            if header.base_offset > offset or header.base_offset >= self.window.end:
                following = header.base_offset  # what lies before it is not there
                break
            size += header.size
            if found and (size > bounds.max_bytes or len(found) >= bounds.max_batches or header.physical_offset > stop):
                break
            judged = scan.judge(header.physical_offset)
            if not isinstance(judged, Good):
                following = header.end_offset
                break
            found.append(_Sound(judged.checked, bytes(judged.data)))
            offset = header.end_offset
            stop = stop or header.physical_offset + _WALK_BYTES
        if not found:
            return LostMessages(min(following, self.window.end))
        self._index_again(found)
        return RestoredMessages([sound.data for sound in found], offset)

    # ---- where to begin

    def _start(self) -> int:
        """A place of the log at or before the batch that holds the offset, as near as can be known."""
        for position in self._positions_before():
            header = self._header_at(position)
            if header is not None and self._is_ours(header) and header.base_offset <= self.window.offset:
                return position
        return self._segment_before().start

    def _positions_before(self) -> list[int]:
        """What the index says of the messages right before the offset, newest first, each place once."""
        window = self.window
        first = max(window.offset - min(window.offset % window.per_file, _LOOK_BACK), 0)
        path = file_of(window.directory, window.per_file, first)
        data = b""
        with suppress(OSError):
            size = (window.offset - first) * ENTRY.size
            data = self.files.read_at(path, size, first % window.per_file * ENTRY.size)
        whole = len(data) // ENTRY.size * ENTRY.size
        positions = [position for position, size, _ in ENTRY.iter_unpack(data[:whole]) if size]
        return list(dict.fromkeys(reversed(positions)))

    def _header_at(self, position: int) -> layout.Header | None:
        extent = max((extent for extent in self.extents if extent.start <= position), default=None)
        if extent is None or position % layout.ALIGN:
            return None
        fd = self.files.open_to_read(extent.path)
        try:
            size = self.files.size(extent.path)
            if position >= extent.start + size:
                return None
            return Scan(self.files, fd, extent.start, size, window=layout.MAX_BATCH).header(position)
        finally:
            self.files.close(fd)

    def _segment_before(self) -> Extent:
        """The last segment whose snapshot says that the queue had not come to the offset yet; else the oldest."""
        low, high = 0, len(self.extents)
        while high - low > 1:
            middle = (low + high) // 2
            extent = self.extents[middle]
            head = read_head(self.files, extent.path, extent.start)
            if head is not None and self._end_in(head.changes) <= self.window.offset:
                low = middle
            else:
                high = middle
        return self.extents[low]

    def _end_in(self, head: Sequence[Change]) -> int:
        for change in head:
            if isinstance(change, QueueBounds) and change[:3] == (
                self.queue.topic,
                self.generation,
                self.queue.queue_id,
            ):
                return change.end_offset
        return 0

    # ---- the walk

    def _walk(self, position: int) -> Iterator[tuple[Scan, layout.Header]]:
        """The batches of the queue from a place of the log on, by their headers."""
        for extent, following in zip(self.extents, [*self.extents[1:], None], strict=True):
            if following is not None and following.start <= position:
                continue
            fd = self.files.open_to_read(extent.path)
            try:
                scan = Scan(self.files, fd, extent.start, self.files.size(extent.path))
                for header in scan.headers_in_line(max(position, extent.start)):
                    if self._is_ours(header):
                        yield scan, header
            finally:
                self.files.close(fd)

    def _is_ours(self, header: layout.Header) -> bool:
        of = (header.topic, header.topic_gen, header.queue_id, header.kind)
        return of == (self.queue.topic, self.generation, self.queue.queue_id, layout.KIND_DATA)

    def _index_again(self, found: list[_Sound]) -> None:
        packed = b"".join(
            entries(header.physical_offset, header.size, header.count, columns.tags)
            for header, columns in (sound.checked for sound in found)
        )
        first, end = found[0].checked.header.base_offset, found[-1].checked.header.end_offset
        file = file_of(self.window.directory, self.window.per_file, first)
        try:
            self._write(PackedEntries(self.window.directory, self.window.per_file, first, packed))
        except OSError as error:  # a full disk does not prevent reading
            if self.faults.is_first("not repaired", file):
                log.error("index.not_repaired", queue=str(self.queue), first=first, end=end, error=str(error))
        else:
            if not self.faults.is_known(file):
                log.warning("index.repaired", queue=str(self.queue), first=first, end=end)

    def _write(self, waiting: PackedEntries) -> None:
        """Write entries; a file that does not take them makes room for a new one."""
        try:
            waiting.write(self.files)
        except OSError as error:
            if is_passing(error):
                raise
            put_aside(self.files, error.filename)
            waiting.write(self.files)


def log_asker(
    files: Files, queue: MessageQueue, generation: int, extents: Sequence[Extent], faults: IndexFaults
) -> AskLog:
    """Return a function that finds the batch of an offset in the log, where the index does not say."""

    def ask(window: Window, error: OSError | None) -> tuple[int, int] | None:
        if error is not None:
            faults.read_failed(error.filename, error)
        try:
            found = IndexRepair(files, queue, generation, window, extents, faults).run(Bounds(1, 1, 1))
        except FileNotFoundError:  # retention was quicker
            return None
        if isinstance(found, LostMessages):
            return None
        header = layout.parse_header(found.buffers[0])
        return header.physical_offset, header.size

    return ask
