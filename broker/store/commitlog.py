"""
The commit log: one line of batches over many segments, addressed by physical offset.

Appending has two steps. :meth:`CommitLog.stage` hands out a position; :meth:`CommitLog.write` puts everything
staged into the file with one ``writev``. If that fails, nothing of it exists: positions are handed out again.
Segments follow each other without a gap, so a position needs no translation.

Only the newest segment and those not yet synced have a descriptor of their own; the others are read through a few
shared ones. The loop alone closes descriptors, and only those of segments that the flusher has gone past for good:
``_unsynced`` names the first segment that the flusher may still touch, it never falls, and the flusher raises it
*after* its last use of the segments below. So no descriptor is closed under a running sync, and its number is not
given to another file meanwhile; a loop that reads an old value merely closes later.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

from rmq.wire.layout import Buffer

from .readers import Readers
from .segment import Segment

MAX_UNSYNCED = 16  # segments; beyond that the newest grows on, so that a slow disk does not cost all descriptors


class CommitLog:
    """
    The segments of a data directory.

    Everything but :meth:`sync` belongs to the event loop; ``sync`` belongs to the flusher's thread, and the two
    share only ``written``, the list of segments, which grows at its end, and ``_unsynced``, which only ``sync`` writes.
    """

    def __init__(self, directory: Path, segment_bytes: int, segment: type[Segment] = Segment) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segment = segment
        names = sorted(path for path in directory.iterdir() if path.name.isdigit())
        self.segments = [segment.open(path) for path in names] or [segment.create(directory, 0)]
        self.segments[-1].reopen()
        self._starts = [segment.start for segment in self.segments]
        self._unsynced = len(self.segments) - 1  # the first segment that a sync has to look at
        self._held = self._unsynced  # the first segment that has a descriptor
        self._readers = Readers()
        self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.written = self.segments[-1].end
        self.durable = 0  # set by recovery, then by the loop when the flusher posts
        self.end = self.written
        self._staged: list[Buffer] = []

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
        length = self.end - self.written
        try:
            segment = self.segments[-1]
            if segment.size and segment.size + length > self._segment_bytes and self._may_roll():
                segment = self._roll()
            segment.append(staged, length)
        except OSError:
            self.end = self.written
            raise
        self.written = self.end

    def _may_roll(self) -> bool:
        return len(self.segments) - self._unsynced < MAX_UNSYNCED

    def _roll(self) -> Segment:
        for synced in self.segments[self._held : self._unsynced]:
            synced.close()
            self._held += 1
        segment = self._readers.make_room(lambda: self._segment.create(self._directory, self.written))
        self.segments.append(segment)
        self._starts.append(segment.start)
        return segment

    def read(self, position: int, size: int) -> bytes:
        """The bytes at a physical offset; the caller knows that they are within one batch run of a segment."""
        segment = self.segment_at(position)
        return segment.read(position, size) if segment.is_open else self._readers.read(segment, position, size)

    def segment_at(self, position: int) -> Segment:
        """The segment that holds a physical offset."""
        return self.segments[bisect_right(self._starts, position) - 1]

    def sync(self) -> int:
        """
        Make all that is written durable, oldest segment first; return the position reached.

        It opens nothing: whatever it raises comes from ``fsync`` itself.

        Raises:
            OSError: nothing can be said of what was not durable before. Never try again.
        """
        until = self.written
        waiting = self.segments[self._unsynced :]
        for segment in waiting:
            size = min(segment.size, until - segment.start)
            if size > segment.synced:
                segment.sync()
                segment.synced = size
        self._sync_names(waiting)
        self._unsynced += _done_with(waiting)
        return until

    def _sync_names(self, segments: list[Segment]) -> None:
        if not all(segment.name_synced for segment in segments):
            os.fsync(self._directory_fd)
            for segment in segments:
                segment.name_synced = True

    def settle(self, proven: int) -> None:
        """
        End recovery: all that is kept becomes durable, and only the newest segment stays open.

        What lies behind ``proven`` is written once more before, through the descriptor that is then synced.

        Raises:
            OSError: nothing can be said of what is on the disk.
        """
        self.written = self.end = self.segments[-1].end
        self.segments[-1].reopen()
        for segment in self.segments:
            with segment.opened():
                segment.rewrite(proven)
                segment.sync()
            segment.synced = segment.size
            segment.name_synced = False  # a crash may have come between its first write and the directory's sync
        self._sync_names(self.segments)
        self._unsynced = self._held = len(self.segments) - 1
        self.durable = self.written

    def drop_behind(self, index: int) -> None:
        """Remove the segments behind one; recovery has copied what they held."""
        for segment in self.segments[index + 1 :]:
            segment.close()
            segment.path.unlink()
        del self.segments[index + 1 :]
        del self._starts[index + 1 :]

    def close(self) -> None:
        """Close all segments; whoever wants durability has called :meth:`sync`."""
        for segment in self.segments:
            segment.close()
        self._readers.close()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1


def _done_with(segments: list[Segment]) -> int:
    """How many of these will never be synced again; the newest may still grow."""
    for i, segment in enumerate(segments[:-1]):
        if segment.synced < segment.size:
            return i
    return len(segments) - 1
