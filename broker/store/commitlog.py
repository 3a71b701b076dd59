"""
The commit log: one sequence of batches over many segments, addressed by physical offset.

Appending has two steps. :meth:`CommitLog.stage` assigns a position; :meth:`CommitLog.write` appends everything staged
with one ``writev``. If that fails, none of it exists and the positions are assigned again. A segment that has reached
its size is full: the next batch begins another one through :meth:`CommitLog.roll`.

Only the newest segment and those not yet synced have a descriptor of their own; the others are read through a few
shared ones. The loop alone closes descriptors, and only those of segments that the flusher has left for good:
``_unsynced`` holds the segments that the flusher may still touch, and it removes one *after* its last use. So no
descriptor is closed under a running sync, and its number is not given to another file meanwhile.

The newest batches are also kept in memory, so that a reader at the end of the log never touches a file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch.layout import Buffer

from .files import Files
from .segment import Readers, Segment, segment_paths

log = get_broker_logger(__name__)
MAX_UNSYNCED = 16  # segments; beyond that the newest grows on, so that a slow disk does not cost all descriptors


class Extent(NamedTuple):
    """A segment as a reader in another thread sees it."""

    start: int
    path: str


class Moved(OSError):
    """Another directory has the path of the log that is in use; the sentence says what to do."""


LIMIT = 32 << 20


class CommitLog:
    """
    The segments of a data directory.

    Everything but :meth:`sync` and :meth:`begin_writeback` belongs to the event loop; these belong to the flusher's
    thread, and the two share only ``written`` and the list of unsynced segments, to whose end the loop adds and from
    whose front the flusher takes.
    """

    def __init__(self, files: Files, directory: Path, segment_bytes: int, *, recent_bytes: int = LIMIT) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self.recent = Recent(recent_bytes)
        paths = segment_paths(files, directory)
        if paths:
            files.unshare(paths[-1])
        self.segments = [Segment.open(files, path) for path in paths] or [Segment.create(files, directory, 0)]
        self.segments[-1].reopen()
        self._starts = [segment.start for segment in self.segments]
        self._extents: tuple[Extent, ...] | None = None
        self._unsynced = [self.segments[-1]]  # the newest is always one of them
        self._with_descriptor = [self.segments[-1]]  # those that have a descriptor, oldest first
        self.readers = Readers(files)
        self._directory_fd = files.open_directory(directory)
        self.written = self.segments[-1].end
        self.durable = 0  # set by recovery, then by the loop when the flusher posts
        self.end = self.written
        self.head_end = 0  # of the snapshot that the newest segment begins with; set by the store
        self._staged: list[Buffer] = []
        self._roll_error: int | None = None  # why no new segment could be made, the last time

    @property
    def start(self) -> int:
        """The first physical offset that is still there."""
        return self._starts[0]

    @property
    def full(self) -> bool:
        """
        Whether the next batch should begin a new segment; never in the middle of a turn.

        One that holds only the snapshot it begins with goes on, however long that is: the next would have no more.
        """
        is_long = self.segments[-1].size >= self._segment_bytes and self.written > self.head_end
        return is_long and not self._staged and self._may_roll()

    @property
    def begins_segment(self) -> bool:
        """Whether the next batch is the first of a segment that follows another."""
        return not self._staged and not self.segments[-1].size and self.segments[-1].start > 0

    def stage(self, head: bytes, rest: Buffer, size: int) -> None:
        """Put a batch (its stamped part and the rest) in line for the next :meth:`write`."""
        self._staged += (head, rest)
        self.end += size

    def write(self) -> None:
        """
        Append everything staged.

        Raises:
            OSError: nothing was appended; the stage is empty and its positions are free again.
        """
        if not self._staged:
            return
        staged, self._staged = self._staged, []
        try:
            self.segments[-1].append(staged, self.end - self.written)
        except OSError:
            self.end = self.written
            raise
        position, pairs = self.written, iter(staged)
        for head, rest in zip(pairs, pairs, strict=True):
            self.recent.add(position, head, rest)
            position += len(head) + len(rest)
        self.written = self.end

    def _may_roll(self) -> bool:
        return len(self._unsynced) < MAX_UNSYNCED

    def try_roll(self) -> bool:
        """Begin a new segment; where that fails the old one grows on, and the error is logged once."""
        try:
            self.roll()
        except OSError as error:
            if error.errno != self._roll_error:
                log.error("log.roll_failed", error=str(error))
            self._roll_error = error.errno
            return False
        self._roll_error = None
        return True

    def roll(self) -> None:
        """
        Begin a new segment at the written end; its name becomes durable with the first sync that covers it.

        Raises:
            OSError: the old one goes on.
        """
        self.check_place()
        self.segments[-1].tidy()
        segment = self.readers.make_room(lambda: Segment.create(self._files, self._directory, self.written))
        while (
            self._with_descriptor[0] is not self._unsynced[0]
        ):  # the flusher takes from the front only what is synced for good
            self._with_descriptor.pop(0).close()
        self._with_descriptor.append(segment)
        self._add(segment)
        self._unsynced.append(segment)

    def check_place(self) -> None:
        """
        Make sure that the path of the log leads to the directory that was opened; any thread may call it.

        Raises:
            Moved: it leads to another one, where no file must be made, replaced or removed.
            OSError: it leads nowhere, or cannot be looked up.
        """
        if not self._files.is_same(self._directory, self._directory_fd):
            raise Moved(
                f"{self._directory.parent} is not the data directory any more that this broker opened: it was moved or "
                "replaced; move it back, or start the broker with its new path as --data-dir"
            )

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._starts.append(segment.start)
        self._extents = None

    def read_cached(self, position: int, size: int) -> bytearray | None:
        """The bytes at a physical offset, which lie in one segment; None where the disk would be waited for."""
        segment = self.segment_at(position)
        fd = segment.fd if segment.is_open else self.readers.fd(str(segment.path))
        return self._files.read_cached(fd, size, position - segment.start)

    def segment_at(self, position: int) -> Segment:
        """The segment that holds a physical offset."""
        return self.segments[bisect_right(self._starts, position) - 1]

    def extents(self) -> tuple[Extent, ...]:
        """All segments, oldest first, for readers in other threads."""
        if self._extents is None:
            self._extents = tuple(Extent(segment.start, str(segment.path)) for segment in self.segments)
        return self._extents

    def sync(self) -> int:
        """
        Make all that is written durable, oldest segment first; return the position reached.

        It opens no segment: whatever it raises comes from the disk.

        Raises:
            OSError: nothing can be said of what was not durable before. Never try again.
        """
        until = self.written
        waiting = self._unsynced[:]
        for segment in waiting:
            size = min(segment.size, until - segment.start)
            if size > segment.synced:
                segment.sync()
                segment.synced = size
        self._sync_names(waiting)
        done = _done_with(waiting)
        if done:
            del self._unsynced[:done]
        return until

    def begin_writeback(self) -> None:
        """
        Let the system begin to write out what is written, so that the next :meth:`sync` has little left to wait for.

        Raises:
            OSError: as of :meth:`sync`.
        """
        for segment in self._unsynced[:]:
            segment.begin_writeback()

    def _sync_names(self, segments: list[Segment]) -> None:
        if not all(segment.name_synced for segment in segments):
            self._files.sync_directory(self._directory, self._directory_fd)
            for segment in segments:
                segment.name_synced = True

    def settle(self, proven: int) -> None:
        """
        End recovery: all that is kept becomes durable, and only the newest segment stays open.

        What lies after ``proven`` is written once more before, through the descriptor that is then synced; what lies
        before it is on the disk already.

        Raises:
            OSError: nothing can be said of what is on the disk.
        """
        newest = self.segments[-1]
        newest.reopen()
        self._with_descriptor = self._unsynced = [newest]
        self.written = self.end = newest.end
        for segment in self.segments:
            if segment.end > proven or segment is newest:
                if not segment.is_open:
                    self._files.unshare(segment.path)
                with segment.opened():
                    segment.rewrite(proven)
                    segment.sync()
            segment.synced = segment.size
            segment.name_synced = True
        # A crash may have come between the first write to a segment and the sync of its name.
        self._files.sync_directory(self._directory, self._directory_fd)
        self._unsynced = [newest]
        self.durable = self.written

    def skip_to(self, position: int) -> None:
        """Go on at a higher position: what lay before it was promised to be kept and is lost."""
        self._add(Segment.create(self._files, self._directory, position))

    def drop_after(self, index: int) -> None:
        """Remove the segments after one; recovery has copied what they held."""
        for segment in self.segments[index + 1 :]:
            segment.close()
            self._files.unlink(segment.path)
        del self.segments[index + 1 :]
        del self._starts[index + 1 :]
        self._extents = None

    def forget_before(self, start: int) -> list[Segment]:
        """Let go of the segments before the one that begins at ``start``; the caller removes their files, in order."""
        index = self._starts.index(start)
        gone = self.segments[:index]
        assert not any(segment in self._unsynced for segment in gone)
        for segment in gone:
            if segment in self._with_descriptor:
                self._with_descriptor.remove(segment)
                segment.close()
            self.readers.forget(str(segment.path))
        self.segments = self.segments[index:]
        self._starts = self._starts[index:]
        self._extents = None
        return gone

    def close(self) -> None:
        """Close all segments without a sync."""
        for segment in self.segments:
            segment.close()
        self.readers.close()
        if self._directory_fd >= 0:
            self._files.close(self._directory_fd)
            self._directory_fd = -1


def _done_with(segments: Sequence[Segment]) -> int:
    """How many of these will never be synced again; the newest may still grow."""
    for i, segment in enumerate(segments[:-1]):
        if segment.synced < segment.size:
            return i
    return len(segments) - 1


OVERHEAD = 700  # bytes of memory that a batch takes in addition to its own, so that many small ones are bounded too


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
        owner = rest.obj if isinstance(rest, memoryview) else rest
        kept: int = len(owner)  # type: ignore[arg-type]  # bytes, or a bytearray
        if owner is self._newest:
            before, counted = self._order[-1]
            self._order[-1] = (before, counted - kept)
            self.size -= kept
        self._newest = owner
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
