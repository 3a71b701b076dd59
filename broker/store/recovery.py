"""
What the log holds after a start, whatever ended the last run.

:class:`Recovery` walks the batches behind a position and checks each in full. A place that is not sound is one of two
things. If a later header, or the checkpoint, proves that it had once been synced, it is **rot**: it is left as it is,
told to the visitor, and the walk goes on at the next sound header; nothing is renumbered. Otherwise it is a **torn
tail**, which was never acknowledged as durable: it is copied to ``quarantine/`` and cut. A start is refused only where
a newer version wrote.

What nothing proves to be on the disk is written once more before it is synced: after a failed sync the system may
hold pages for clean that never got there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from rmq.wire import batch as batches
from rmq.wire import layout

from .commitlog import CommitLog
from .directory import StoreError
from .files import Files
from .scan import Bad, Scan, read_or_zeros
from .segment import Segment

_COPY_BYTES = 8 << 20


class Cut(NamedTuple):
    """A torn tail that was removed."""

    position: int
    size: int
    reason: str
    kept_in: Path


class Damage(NamedTuple):
    """A part of the log that had been synced and cannot be read any more."""

    position: int
    end: int
    reason: str
    header: layout.Header | None = None  # if only what follows it is damaged


class Visitor(Protocol):
    """Who is shown what the log holds, in order."""

    def batch(self, checked: batches.Checked, data: memoryview) -> None:
        """A sound batch."""

    def damaged(self, damage: Damage) -> None:
        """A place that was kept and cannot be read."""


class Recovery:
    """One walk over a log from ``begin`` on. ``proven``: the position below which all is known to have been synced."""

    def __init__(self, files: Files, log: CommitLog, quarantine: Path, visitor: Visitor, proven: int = 0) -> None:
        self._files = files
        self._log = log
        self._quarantine = quarantine
        self._visitor = visitor
        self._proven = proven
        self._looked_ahead = False

    def run(self, begin: int) -> Cut | None:
        """
        Show everything from ``begin`` on to the visitor, cut a torn tail, and sync all that is kept.

        Raises:
            StoreError: a newer version wrote here.
        """
        position, cut = begin, None
        while (index := self._segment(position)) is not None:
            bad = self._walk(index, position)
            if bad is None:
                position = self._log.segments[index].end
                continue
            if bad.newer:
                raise StoreError(
                    f"this version cannot read the log at {bad.position} ({bad.reason}): "
                    "start the version that wrote it"
                )
            if not self._is_rot(bad.position):
                cut = self._cut(bad.position, bad.reason)
                break
            position = self._pass(bad)
        end = self._log.segments[-1].end
        if end < self._proven:
            self._visitor.damaged(Damage(end, self._proven, "the log is shorter than it was when it was synced"))
            self._log.skip_to(self._proven)
        self._log.settle(self._proven)
        return cut

    def _segment(self, position: int) -> int | None:
        """The segment to go on in: the one that holds ``position``, or the first one behind it."""
        for index, segment in enumerate(self._log.segments):
            if segment.end > position:
                return index
        return None

    def _walk(self, index: int, position: int) -> Bad | None:
        """Visit sound batches of a segment; the place that ends them, if it is not the segment's end."""
        segment = self._log.segments[index]
        if segment.start > position:
            return Bad(position, "a segment is missing")
        with self._scan(segment) as scan:
            for found in scan.batches(position):
                if isinstance(found, Bad):
                    return found
                self._proven = max(self._proven, found.checked.header.durable_before)
                self._visitor.batch(*found)
        return None

    @contextmanager
    def _scan(self, segment: Segment) -> Iterator[Scan]:
        with segment.opened() as fd:
            yield Scan(self._files, fd, segment.start, segment.size)

    def _is_rot(self, position: int) -> bool:
        """Whether a place had been synced: the headers behind it know how far the disk was when they were written."""
        if position >= self._proven and not self._looked_ahead:
            self._looked_ahead = True
            self._proven = max(self._proven, *(header.durable_before for header in self._headers(position)), 0)
        return position < self._proven

    def _headers(self, position: int) -> Iterator[layout.Header]:
        for segment in self._log.segments:
            if segment.end > position:
                with self._scan(segment) as scan:
                    yield from scan.headers(max(position, segment.start))

    def _pass(self, bad: Bad) -> int:
        """Tell of a damaged place, and find where the log goes on behind it."""
        header = bad.header
        if header is not None:
            following = bad.position + header.size
        else:
            sound = (header.physical_offset for header in self._headers(bad.position))
            following = min(next(sound, self._proven), self._proven)
        self._visitor.damaged(Damage(bad.position, following, bad.reason, header))
        return following

    def _cut(self, position: int, reason: str) -> Cut:
        segments = self._log.segments
        index = max(i for i, segment in enumerate(segments) if segment.start <= position)
        good = min(position - segments[index].start, segments[index].size)
        kept_in = self._unused(self._quarantine / f"{position:020d}")
        size = self._copy_tail(segments[index:], good, kept_in)
        with segments[index].opened():
            segments[index].truncate(good)
        self._log.drop_behind(index)
        return Cut(position, size, reason, kept_in)

    def _unused(self, path: Path) -> Path:
        """A name that nothing has: what an earlier start put aside is never written over."""
        number = 1
        while self._files.exists(path):
            number += 1
            path = path.with_suffix(f".{number}")
        return path

    def _copy_tail(self, segments: list[Segment], at: int, to: Path) -> int:
        size = 0
        target = self._files.open(to, create=True)
        try:
            for segment in segments:
                with segment.opened() as fd:
                    while at < segment.size:
                        part = read_or_zeros(self._files, fd, min(_COPY_BYTES, segment.size - at), at)
                        self._files.write_all(target, part, size)
                        size += len(part)
                        at += len(part)
                at = 0
            self._files.sync(target)
        finally:
            self._files.close(target)
        self._files.sync_directory(to.parent)
        return size
