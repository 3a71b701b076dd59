"""
The key index: which batches may hold a key, found without reading the log.

There is one file for each segment of the log, named alike, and it goes with its segment. A file is a run of blocks
(see :mod:`.key_blocks`), only ever appended to. What was indexed last waits in memory until it fills a block, or until
:meth:`KeyIndex.flush`; a search sees it there. So blocks are large even where batches are small.

The index is a function of the log. What it says is checked by whoever reads the batch, and a range for which it says
nothing (damage, a file that is missing) is named by a search as a :class:`Gap`, to be looked through in the log. So
whatever happens to these files, nothing wrong is found and nothing is missed.

:meth:`KeyIndex.extend` and :meth:`KeyIndex.flush` belong to one thread at a time; searches may run in others meanwhile.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rmq.runtime.logging import get_broker_logger

from .files import Files
from .index_faults import ASIDE, IndexFaults, put_aside
from .key_blocks import BLOCK_HASHES, HEADER, Block, Entry, Growing, Head, cut, parse_head

log = get_broker_logger(__name__)

NAME_DIGITS = 20


class Hit(NamedTuple):
    """A batch that has the hash; whether it has the key is for its reader to see."""

    position: int


class Gap(NamedTuple):
    """A range of the log, [first, end), of which the index cannot speak."""

    first: int
    end: int


class Wanted(NamedTuple):
    """What a search is for: a hash, the time of storing, [since, until), and only batches below a log position."""

    hash: int
    since_us: int
    until_us: int
    before: int


class _Place(NamedTuple):
    """A block in a file: its header, and where its columns begin."""

    head: Head
    at: int


class _Latest(NamedTuple):
    """What a search must not read while it is written: the newest file's good part, and what is in no file yet."""

    segment: int
    size: int
    block: Block | None


class KeyIndex:
    """
    The key index in ``directory``, made if it is missing.

    ``end`` is the position up to which the log is indexed.
    """

    def __init__(
        self, files: Files, directory: Path, *, block_hashes: int = BLOCK_HASHES, faults: IndexFaults | None = None
    ) -> None:
        self._files = files
        self._directory = directory
        self._block_hashes = block_hashes
        self._faults = faults or IndexFaults()
        files.make_directory(directory)
        self._lock = threading.Lock()  # held for copies in memory only, never while the disk works
        self._segment = -1  # the one that grows; -1 before the first
        self._size = 0  # how much of its file is good
        self._growing = Growing(0)
        self._distrusted: set[int] = set()  # segments whose file could not be cut, and says what may be wrong
        self._logged: set[int] = set()  # where gaps begin that were logged
        self.damaged = 0  # ranges that searches had to look up in the log

    @property
    def end(self) -> int:
        """The position up to which the log is indexed."""
        return self._growing.end

    def segments(self) -> list[int]:
        """The segments that have a file, oldest first."""
        return [int(name) for name in self._files.names(self._directory) if name.isdigit()]

    # ---- growing

    def extend(self, segment: int, entries: Iterable[Entry], first: int, end: int) -> None:
        """
        Index ``[first, end)`` of the log, which lies within a segment; ``entries`` are its batches with keys.

        Segments come in the order of the log, the newest last. What is indexed already is passed over, and a range
        that was left out is a gap for searches.

        Raises:
            OSError: the disk; what could not be written stays in memory. Doing the same again goes on from there.
        """
        if segment != self._segment:
            self._begin(segment)
        if first > self.end:
            self.flush()
            self._start_anew(first)
        rest = deque(entry for entry in entries if entry.position >= self.end)
        while rest:
            if self._growing.hashes >= self._block_hashes:
                self._growing.end = rest[0].position
                self.flush()
            self._take(rest)
        self._growing.end = max(self.end, end)

    def _take(self, entries: deque[Entry]) -> None:
        """List batches until the block is full."""
        with self._lock:
            growing = self._growing
            while entries and growing.hashes < self._block_hashes:
                growing.add(entries.popleft())

    def _begin(self, segment: int) -> None:
        self.flush()
        covered, size = self._cut(segment, None)
        with self._lock:
            self._segment, self._size, self._growing = segment, size, Growing(covered)

    def _start_anew(self, first: int) -> None:
        with self._lock:
            self._growing = Growing(first)

    def flush(self) -> None:
        """
        Write what waits in memory to the file of its segment, not synced.

        A file that does not take it makes a gap.

        Raises:
            OSError: the disk, not the file: it waits on; what had reached the file is written over by the next try.
        """
        growing = self._growing
        if self._segment < 0 or growing.end == growing.first:
            return
        data, written = growing.block().packed(), 0
        try:
            if self._segment not in self._distrusted or self._put_aside(self._segment):
                self._write(data)
                written = len(data)
        except OSError as error:
            self._faults.write_failed(self._path(self._segment), error)
        with self._lock:
            self._size += written
            self._growing = Growing(growing.end)

    def _write(self, data: bytes) -> None:
        fd = self._files.open(self._path(self._segment), create=True)
        try:
            self._files.write_all(fd, data, self._size)
        finally:
            self._files.close(fd)

    # ---- recovery and retention

    def recover(self, starts: Sequence[int], begin: int, *, anew: bool) -> None:
        """
        Forget what was said of the log from ``begin`` on, or everything; ``starts`` are its segments, oldest first.

        Raises:
            OSError: the disk, not a single file.
        """
        try:
            segments = self.segments()
        except OSError as error:
            self._faults.read_failed(self._directory, error)
            segments = list(starts)
        current = starts[max(bisect_right(starts, begin) - 1, 0)]
        for segment in segments:
            if anew or segment not in starts:
                self.drop(segment)
            elif segment >= current:
                self.cut(segment, begin)
        self.extend(current, [], begin, begin)

    def cut(self, segment: int, position: int) -> int:
        """
        Forget what the file of a segment says of the log at ``position`` and behind, and whatever in it is damaged.

        Every byte of the file is judged. Returns the position up to which it speaks of the log without a gap: from
        there on the caller indexes again by :meth:`extend` (with nothing, if nothing is left to index). A file that
        cannot be cut makes room for a new one, or is not read any more.

        Raises:
            OSError: the disk, not the file.
        """
        if segment == self._segment:
            with self._lock:
                self._segment, self._size, self._growing = -1, 0, Growing(0)
        return self._cut(segment, position)[0]

    def _cut(self, segment: int, position: int | None) -> tuple[int, int]:
        path = self._path(segment)
        if segment in self._distrusted:
            return segment, 0
        try:
            return self._shorten(segment, position) if self._files.exists(path) else (segment, 0)
        except OSError as error:
            self._faults.read_failed(path, error)
            self._put_aside(segment)
            return segment, 0

    def _put_aside(self, segment: int) -> bool:
        """Get a file out of the way; else distrust it. Returns whether it is out of the way."""
        try:
            put_aside(self._files, self._path(segment))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._distrusted.add(segment)
            self._faults.write_failed(self._path(segment), error)
            return False
        self._distrusted.discard(segment)
        return True

    def _shorten(self, segment: int, position: int | None) -> tuple[int, int]:
        """Cut a file behind its good part, and at a position if there is one: what is covered, and the new size."""
        fd = self._files.open(self._path(segment))
        try:
            whole = self._files.size(self._path(segment))
            covered, size, rest = segment, 0, None
            for place in self._walk(fd, segment, whole):
                head = place.head
                if head.first != covered and position is not None:
                    break
                if position is not None and head.end > position:
                    block = self._load(fd, segment, place)
                    rest = cut(block, position) if head.first < position and block is not None else None
                    break
                if position is not None and self._load(fd, segment, place) is None:
                    break
                covered, size = head.end, place.at + head.column_size
            if size < whole:
                self._files.truncate(fd, size)
            if rest is not None:
                data = rest.packed()
                self._files.write_all(fd, data, size)
                covered, size = rest.head.end, size + len(data)
            return covered, size
        finally:
            self._files.close(fd)

    def drop(self, segment: int) -> None:
        """
        Remove the file of a segment, and one that was put aside.

        A file that is missing is no error, and one that stays is not read any more.
        """
        path = self._path(segment)
        with suppress(OSError):
            self._files.unlink(f"{path}{ASIDE}")
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            self._put_aside(segment)

    def listed(self, segment: int) -> Iterator[tuple[int, bytes] | Gap]:
        """
        All that the file of a segment says, oldest first: batches with their hashes, and gaps. For verification.

        Raises:
            OSError: the disk.
        """
        fd = self._files.open_to_read(self._path(segment))
        try:
            size, covered = self._files.size(self._path(segment)), segment
            for place in self._walk(fd, segment, size):
                if place.head.first != covered:
                    yield Gap(covered, place.head.first)
                block = self._load(fd, segment, place)
                if block is None:
                    yield Gap(place.head.first, place.head.end)
                else:
                    yield from block.entries()
                covered = place.head.end
        finally:
            self._files.close(fd)

    def covered(self, segment: int) -> int:
        """The position up to which the file of a segment speaks of the log, gaps aside; raises OSError."""
        fd = self._files.open_to_read(self._path(segment))
        try:
            places = list(self._walk(fd, segment, self._files.size(self._path(segment))))
        finally:
            self._files.close(fd)
        return places[-1].head.end if places else segment

    # ---- searching

    def search(self, wanted: Wanted, segments: Sequence[tuple[int, int]]) -> Generator[Hit | Gap, None, None]:
        """
        The batches that may hold a key, newest first, and the gaps between them.

        ``segments`` are the ranges of the log, oldest first; what the index has not reached yet is left out.
        Made for a thread: it reads files, and lets others run about every millisecond. Close it to end it early.
        """
        latest, reached = self._latest()
        for start, stop in reversed(segments):
            end = min(stop, reached, wanted.before)
            if start < end and (yield from self._search_segment(wanted, start, end, latest)):
                return

    def _latest(self) -> tuple[_Latest, int]:
        with self._lock:
            growing = self._growing
            block = growing.block() if growing.end > growing.first else None
            return _Latest(self._segment, self._size, block), growing.end

    def _search_segment(
        self, wanted: Wanted, start: int, end: int, latest: _Latest
    ) -> Generator[Hit | Gap, None, bool]:
        """As :meth:`search`, for one segment; returns whether all that is older is too old."""
        above = end  # everything from here on is done with
        if start == latest.segment and latest.block is not None:
            block = latest.block
            yield from self._search_block(wanted, block.head, block)
            above = min(above, block.head.first)
            if _too_old(block.head, wanted):
                return True
        opened = None if start in self._distrusted else self._open(start, latest)
        if opened is None:
            yield from self._gap(start, above)
            return False
        fd, size = opened
        try:
            for place in reversed(list(self._walk(fd, start, size))):
                yield from self._gap(place.head.end, above)
                above = min(above, place.head.first)
                if _too_old(place.head, wanted):
                    return True
                if _may_hold(place.head, wanted):
                    yield from self._search_block(wanted, place.head, self._load(fd, start, place))
        finally:
            self._files.close(fd)
        yield from self._gap(start, above)
        return False

    def _open(self, segment: int, latest: _Latest) -> tuple[int, int] | None:
        """A descriptor of a file, and how much of it is good; None if it cannot be read."""
        path = self._path(segment)
        try:
            size = latest.size if segment == latest.segment else self._files.size(path)
            return self._files.open_to_read(path), size
        except OSError as error:
            self._faults.read_failed(path, error)
            return None

    def _search_block(self, wanted: Wanted, head: Head, block: Block | None) -> Iterator[Hit | Gap]:
        if block is None:
            yield from self._gap(head.first, min(head.end, wanted.before))
        elif _may_hold(head, wanted):
            yield from (Hit(position) for position in block.matches(wanted.hash) if position < wanted.before)

    def _gap(self, first: int, end: int) -> Iterator[Gap]:
        if first < end:
            self.damaged += 1
            if first not in self._logged:
                self._logged.add(first)
                log.warning("key_index.gap", first=first, end=end)
            yield Gap(first, end)

    def _walk(self, fd: int, segment: int, size: int) -> Iterator[_Place]:
        """The blocks of a file's first ``size`` bytes, oldest first, up to one whose header or size is not sound."""
        at, covered = 0, segment
        while at < size:
            head = parse_head(self._read(fd, segment, HEADER, at))
            if head is None or at + HEADER + head.column_size > size or not covered <= head.first <= head.end:
                return
            yield _Place(head, at + HEADER)
            at += HEADER + head.column_size
            covered = head.end

    def _load(self, fd: int, segment: int, place: _Place) -> Block | None:
        """The block at a place; None if it is damaged."""
        block = Block(place.head, self._read(fd, segment, place.head.column_size, place.at))
        return block if block.is_sound() else None

    def _read(self, fd: int, segment: int, size: int, at: int) -> bytes:
        """Bytes of a file; none where the disk cannot read them."""
        try:
            return self._files.read(fd, size, at)
        except OSError as error:
            self._faults.read_failed(self._path(segment), error)
            return b""

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:0{NAME_DIGITS}d}"


def _too_old(head: Head, wanted: Wanted) -> bool:
    """Whether this block and, since ``stored_at`` never falls, all before it are older than what is wanted."""
    return head.batches > 0 and head.newest < wanted.since_us


def _may_hold(head: Head, wanted: Wanted) -> bool:
    return bool(head.batches) and head.oldest < wanted.until_us and head.first < wanted.before
