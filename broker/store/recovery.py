"""
What the log contains after a start, whatever ended the last run.

:class:`Recovery` walks the batches after a position and checks each in full. A place that is not sound is one of two
things. If a later header, or the checkpoint, proves that it had once been synced, it is **damage**: it is left as it
is, reported to the visitor, and the walk continues at the next sound header; nothing is renumbered. Otherwise it is a
**torn tail**, which was never acknowledged as durable: it is copied to ``quarantine/`` and cut. A start is refused
where a newer version wrote.

It is also refused where the disk cannot read. Such a place is neither: it may be sound, and the disk may read it again.
A start that ignored it would store new messages under the offsets of those that it holds, and a checkpoint without its
changes; so no byte of the log is touched. What lies before a checkpoint is not read at a start, and a place there that
the disk cannot read is damaged for as long as that lasts.

What is not proven to be on the disk is written once more before it is synced: after a failed sync the system may take
pages for clean that never got there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout

from .commitlog import CommitLog
from .directory import StoreError
from .files import Files
from .scan import Bad, Scan, Unreadable, UnreadableRange, read_needed
from .segment import Segment

log = get_broker_logger(__name__)

_COPY_BYTES = 8 << 20


class Cut(NamedTuple):
    """A torn tail that was removed."""

    position: int
    size: int
    reason: str
    kept_in: Path


class LogDamage(NamedTuple):
    """A part of the log that had been synced and cannot be read any more."""

    position: int
    end: int
    reason: str
    header: layout.Header | None = None  # if only what follows it is damaged


class Visitor(Protocol):
    """Who is shown what the log holds, in order."""

    def batch(self, checked: batches.Checked, data: memoryview) -> None:
        """A sound batch."""

    def damaged(self, damage: LogDamage) -> None:
        """A place that was kept and cannot be read."""


class SegmentFile(NamedTuple):
    """A file of the log, from the physical offset ``start`` up to ``end``."""

    start: int
    end: int
    path: str


class Walk:
    """
    A look at the log, which changes nothing. ``proven``: the position below which all is known to have been synced.

    It rises on the way: every header knows how far the disk was when it was written. What the disk cannot read is shown
    as damage; with ``must_read`` it ends the walk.
    """

    def __init__(
        self, files: Files, pieces: list[SegmentFile], visitor: Visitor, proven: int = 0, *, must_read: bool = False
    ) -> None:
        self._files = files
        self._must_read = must_read
        starts = [piece.start for piece in pieces[1:]]
        # Where the next file begins, this one ends: what a failed write left that is not a part of the log.
        self._pieces = [
            piece._replace(end=min(piece.end, following))
            for piece, following in zip(pieces, [*starts, pieces[-1].end], strict=True)
        ]
        self._pairs = list(pairwise(pieces))
        self._visitor = visitor
        self.proven = proven
        self._looked_ahead = False
        self.unreadable: list[tuple[SegmentFile, UnreadableRange]] = []  # what the disk could not read

    def run(self, begin: int) -> Bad | None:
        """
        Show everything from ``begin`` on to the visitor; return where a torn tail begins, if there is one.

        Raises:
            StoreError: two logs are mixed, and it must read all of one.
            Unreadable: the disk cannot read all of it, and must.
        """
        if self._must_read and (mixed := self.mixed()) is not None:
            raise StoreError(mixed)
        position = begin
        while (piece := self._piece(position)) is not None:
            bad = self._walk(piece, position)
            if bad is None:
                position = piece.end
            elif bad.newer or not self._is_rot(bad.position):
                return bad
            else:
                position = self._pass(bad)
        end = self._pieces[-1].end
        if end < self.proven:
            self._visitor.damaged(LogDamage(end, self.proven, "the log is shorter than it was when it was synced"))
        return None

    def mixed(self) -> str | None:
        """
        Return which two files cannot be of one log, and what to do; None if there are none.

        One may hold bytes where the next begins: whole batches of a failed write, whose removal had not reached the
        disk. Nothing there was ever synced; what proves the contrary is of another log.
        """
        for piece, following in self._pairs:
            if piece.end > following.start and self._is_synced_beyond(following.start, piece):
                return (
                    f"{piece.path} holds what had been stored durably where {following.path} begins, so the files of "
                    "two logs are mixed: move away the one that does not belong here, see 'Two logs are mixed' in "
                    "docs/operations.md"
                )
        return None

    def _is_synced_beyond(self, position: int, piece: SegmentFile) -> bool:
        if position <= piece.start:
            return True
        with self._scan(piece) as scan:
            return any(_proves(header) > position for header in scan.headers(position))

    def _piece(self, position: int) -> SegmentFile | None:
        """The file to go on in: the one that holds ``position``, or the first one after it."""
        return next((piece for piece in self._pieces if piece.end > position), None)

    def _walk(self, piece: SegmentFile, position: int) -> Bad | None:
        """Visit the sound batches of a file; the place that ends them, if it is not the file's end."""
        if piece.start > position:
            return Bad(position, "a segment is missing")
        with self._scan(piece) as scan:
            for found in scan.batches(position):
                if isinstance(found, Bad):
                    return found
                self.proven = max(self.proven, _proves(found.checked.header))
                self._visitor.batch(*found)
        return None

    @contextmanager
    def _scan(self, piece: SegmentFile) -> Iterator[Scan]:
        fd = self._files.open_to_read(piece.path)
        try:
            yield Scan(
                self._files, fd, piece.start, piece.end - piece.start, on_unreadable=partial(self._cannot_read, piece)
            )
        finally:
            self._files.close(fd)

    def _cannot_read(self, piece: SegmentFile, found: UnreadableRange) -> None:
        if self._must_read:
            raise Unreadable.bytes_of(piece.path, found)
        self.unreadable.append((piece, found))

    def _is_rot(self, position: int) -> bool:
        """Whether a place had been synced, as the headers after it know; or may have been, if it cannot be read."""
        if position >= self.proven and not self._looked_ahead:
            self._looked_ahead = True
            self.proven = max(self.proven, *map(_proves, self._headers(position)), 0)
            self.proven = max(self.proven, *(piece.start + found.end for piece, found in self.unreadable), 0)
        return position < self.proven

    def _headers(self, position: int) -> Iterator[layout.Header]:
        for piece in self._pieces:
            if piece.end > position:
                with self._scan(piece) as scan:
                    yield from scan.headers(max(position, piece.start))

    def _pass(self, bad: Bad) -> int:
        """Report a damaged place, and return where the log continues after it."""
        header = bad.header
        if header is not None:
            following = bad.position + header.size
        else:
            sound = (header.physical_offset for header in self._headers(bad.position))
            following = min(next(sound, self.proven), self.proven)
        reason = self._unreadable_within(bad.position, following) or bad.reason
        self._visitor.damaged(LogDamage(bad.position, following, reason, header))
        return following

    def _unreadable_within(self, position: int, end: int) -> str | None:
        for piece, found in self.unreadable:
            if piece.start + found.first < end and position < piece.start + found.end:
                return f"bytes {found.first} to {found.end} of {piece.path} cannot be read"
        return None


def _proves(header: layout.Header) -> int:
    """How far the log had been synced when a batch was appended: no further than where that begins."""
    return min(header.durable_before, header.physical_offset)


def files_of(log: CommitLog) -> list[SegmentFile]:
    """Return the files of an open log, oldest first."""
    return [SegmentFile(segment.start, segment.end, str(segment.path)) for segment in log.segments]


class Recovery:
    """One walk over the log of a store that starts, and what follows from it."""

    def __init__(self, files: Files, log: CommitLog, quarantine: Path, visitor: Visitor, proven: int = 0) -> None:
        self._files = files
        self._log = log
        self._quarantine = quarantine
        self._walk = Walk(files, files_of(log), visitor, proven, must_read=True)

    def run(self, begin: int) -> Cut | None:
        """
        Show everything from ``begin`` on to the visitor, cut a torn tail, and sync all that is kept.

        Raises:
            StoreError: a newer version wrote here.
            Unreadable: the disk cannot read all of it. Nothing was changed, unless a torn tail had been cut by then.
        """
        torn = self._walk.run(begin)
        if torn is not None and torn.newer:
            raise StoreError(
                f"this version cannot read the log at {torn.position} ({torn.reason}): start the version that wrote it"
            )
        self._cut_overlaps()
        cut = self._cut(torn.position, torn.reason) if torn is not None else None
        if self._log.segments[-1].end < self._walk.proven:
            self._log.skip_to(self._walk.proven)
        self._log.settle(self._walk.proven)
        return cut

    def _cut_overlaps(self) -> None:
        """Put aside what lies where the next segment begins (see :meth:`Walk.mixed`)."""
        for segment, following in pairwise(self._log.segments):
            if segment.end > following.start:
                good = following.start - segment.start
                kept_in, size = self._put_aside([segment], good)
                self._files.unshare(segment.path)
                with segment.opened():
                    segment.truncate(good)
                log.warning("log.overlap_cut", position=following.start, size=size, kept_in=str(kept_in))

    def _cut(self, position: int, reason: str) -> Cut:
        segments = self._log.segments
        index = max(i for i, segment in enumerate(segments) if segment.start <= position)
        good = min(position - segments[index].start, segments[index].size)
        kept_in, size = self._put_aside(segments[index:], good)
        if not segments[index].is_open:
            self._files.unshare(segments[index].path)
        with segments[index].opened():
            segments[index].truncate(good)
        self._log.drop_after(index)
        return Cut(position, size, reason, kept_in)

    def _put_aside(self, segments: list[Segment], at: int) -> tuple[Path, int]:
        """Copy what lies from a place of the first segment on into a new file; return that and its size."""
        kept_in = self._unused(self._quarantine / f"{segments[0].start + at:020d}")
        try:
            return kept_in, self._copy_tail(segments, at, kept_in)
        except (OSError, Unreadable):  # the next start tries again
            with suppress(OSError):
                self._files.unlink(kept_in)
            raise

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
                        part = read_needed(self._files, fd, min(_COPY_BYTES, segment.size - at), at, segment.path)
                        self._files.write_all(target, part, size)
                        size += len(part)
                        at += len(part)
                at = 0
            self._files.sync(target)
        finally:
            self._files.close(target)
        self._files.sync_directory(to.parent)
        return size
