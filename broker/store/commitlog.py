"""
The commit log: one line of batches over many segments, addressed by physical offset.

Appending has two steps. :meth:`CommitLog.stage` hands out a position; :meth:`CommitLog.write` puts everything
staged into the file with one ``writev``. If that fails, nothing of it exists: positions are handed out again.
Segments follow each other without a gap, so a position needs no translation.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from rmq.wire.layout import Buffer

from .directory import sync_directory
from .segment import Segment


class CommitLog:
    """
    The segments of a data directory.

    Everything but :meth:`sync` belongs to the event loop; ``sync`` belongs to the flusher's thread, and the two
    share only ``written`` and the list of segments, which grows at its end.
    """

    def __init__(self, directory: Path, segment_bytes: int, segment: type[Segment] = Segment) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segment = segment
        names = sorted(path for path in directory.iterdir() if path.name.isdigit())
        self.segments = [segment.open(path) for path in names] or [segment.create(directory, 0)]
        self._starts = [segment.start for segment in self.segments]
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
            if segment.size and segment.size + length > self._segment_bytes:
                segment = self._roll()
            segment.append(staged, length)
        except OSError:
            self.end = self.written
            raise
        self.written = self.end

    def _roll(self) -> Segment:
        segment = self._segment.create(self._directory, self.written)
        self.segments.append(segment)
        self._starts.append(segment.start)
        return segment

    def read(self, position: int, size: int) -> bytes:
        """The bytes at a physical offset; the caller knows that they are within one batch run of a segment."""
        return self.segment_at(position).read(position, size)

    def segment_at(self, position: int) -> Segment:
        """The segment that holds a physical offset."""
        return self.segments[bisect_right(self._starts, position) - 1]

    def sync(self) -> int:
        """
        Make all that is written durable, oldest segment first; return the position reached.

        Raises:
            OSError: nothing can be said of what was not durable before. Never try again.
        """
        until = self.written
        for segment in list(self.segments):
            size = min(segment.size, until - segment.start)
            if size > segment.synced:
                segment.sync()
                segment.synced = size
            if not segment.name_synced:
                sync_directory(self._directory)
                segment.name_synced = True
        return until

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
