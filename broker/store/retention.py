"""
Retention: which old segments of the log may go, and their removal with the index files that lead to them.

The loop prepares a search or a removal as a value; a thread runs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rmq.wire.batch import layout
from rmq.wire.batch.columns import BORN_AT, unpack_meta
from rmq.wire.errors import Refused

from .changes import Change
from .commitlog import Extent
from .files import UNREADABLE, AnyPath, Files, IndexFaults
from .key_index import KeyIndex
from .rebuild import read_head

_HEAD_BYTES = 1024  # of a segment: the header and the meta of the state batch that it begins with are shorter


class Expired(NamedTuple):
    """The log may begin at ``start``, whose segment has this snapshot at its head."""

    start: int
    head: list[Change]


class RetentionSearch(NamedTuple):
    """Which old segments may go: all before ``needed_from`` that are older than ``before_us``, or too much."""

    files: Files
    extents: Sequence[Extent]
    end: int
    before_us: int  # 0: however old
    max_bytes: int  # 0: however many
    needed_from: int
    now_us: int
    old_before: int  # a position; what lies before it is known to be too old, whatever clocks showed

    def run(self) -> Expired | None:
        """The longest run of old segments that can go; None if none can. Raises OSError."""
        begun = list(self._begun()) if self.before_us else [self.now_us] * len(self.extents)
        for i in range(len(self.extents) - 1, 0, -1):
            following = self.extents[i]
            if following.start <= self.needed_from and self._is_over(following, begun[i]):
                head = read_head(self.files, following.path, following.start)
                if head is not None and head.end <= self.needed_from:  # durable, as all before a checkpoint is
                    return Expired(following.start, head.changes)
        return None

    def _is_over(self, following: Extent, begun_at: int) -> bool:
        """Whether all before a segment is too old (it was stored before the segment began), or too much."""
        if self.max_bytes and self.end - following.start >= self.max_bytes:
            return True
        return self.before_us > 0 and (following.start <= self.old_before or begun_at < self.before_us)

    def _begun(self) -> Iterator[int]:
        """
        Yield when each segment was begun; the present time where that is not known.

        A segment is not older than those before it: of one that seems to be, the clock was set back.
        """
        latest = 0
        for extent in self.extents:
            try:
                begun_at = _begun_at(self.files.read_at(extent.path, _HEAD_BYTES, 0), self.now_us)
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                begun_at = None  # a head that cannot be read keeps its segment, and no other one
            if begun_at is None or begun_at < latest:
                yield self.now_us
            else:
                latest = begun_at
                yield latest


def _begun_at(head: bytes, now_us: int) -> int | None:
    """
    Return when the segment with this head was begun; None if that is not known.

    ``stored_at`` never falls: if it lies beyond the present time, the clock was ahead some time before. Then the time
    at which the snapshot was made counts, which is what the clock showed.
    """
    try:
        header = layout.parse_header(head, alone=True)
        if header.stored_at <= now_us:
            return header.stored_at
        born_at = unpack_meta(memoryview(head)[header.header_size :][: header.meta_size], header)[BORN_AT]
    except Refused:
        return None
    is_known = header.kind == layout.KIND_STATE and isinstance(born_at, int) and born_at <= now_us
    return born_at if is_known else None


class Removal(NamedTuple):
    """Files that are not needed any more. Segments go from the oldest on, each durably: the log never has a hole."""

    files: Files
    directory: Path
    segments: list[Path]
    index_files: list[str]
    key_index: KeyIndex
    faults: IndexFaults

    def run(self) -> None:
        """Do it; raises OSError. What is left over is removed at the next start, by what the log then begins with."""
        for segment in self.segments:
            remove(self.files, [segment])
            self.files.sync_directory(self.directory)
            self.key_index.drop(int(segment.name))
        # Last: as long as the log has a message, its index is there.
        remove_indexes(self.files, self.index_files, self.faults)


def remove(files: Files, paths: Iterable[AnyPath]) -> None:
    """Remove files; one that is gone already is ignored."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)


def remove_indexes(files: Files, paths: Iterable[AnyPath], faults: IndexFaults) -> None:
    """Remove index files that nothing needs; one that cannot be removed stays."""
    for path in paths:
        try:
            remove(files, [path])
        except OSError as error:
            faults.write_failed(path, error)
