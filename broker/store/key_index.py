"""
The key index: which batches may hold an index key, found without reading the log.

There is one file for each segment of the log, named alike and removed with it. A file is a run of blocks, only ever
appended to. Newly indexed hashes stay in memory, where searches see them, until they fill a block or until
:meth:`KeyIndex.flush`, so that blocks are large even where batches are small.

The index is a function of the log. Readers of a batch verify what it says, and a search reports every range that the
index cannot speak of (damage, a missing file) as an :class:`IndexGap`, to be read in the log instead. Whatever happens
to these files, no wrong message is found and none is missed. :meth:`KeyIndex.extend` and :meth:`KeyIndex.flush` belong
to one thread at a time; searches may run in others meanwhile.

A block covers a range of the log. It lists every batch in it that has keys or index keys: a copy of its hash column of
index keys, then the hash of each key that differs from the one before. Batches without either are covered and not
listed. Version 1 listed index keys alone; a start indexes the log again where it finds such a file. From before the
first of them is cut until a checkpoint follows, the file ``rebuild`` says that this is not over.

Header integers are big-endian, columns little-endian, as in a batch::

     0 u32 magic             4 u16 version       6 u16 zero
     8 u32 header_crc (of 12 to 56)             12 u32 column_crc (of 56 to the end)
    16 u32 batches          20 u32 hashes
    24 u64 first            32 u64 end          the range of the log, [first, end)
    40 i64 oldest           48 i64 newest       stored_at of the listed batches (0 without any)
    56 positions: u64 a batch      then the number of its first hash: u32 a batch      then hashes: u32 a key

``bytes.find`` finds a hash, so a search costs little more than reading. It works in pieces, so that the searching
thread does not keep the interpreter from the event loop.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch.checksum import crc32

from .files import ASIDE, Files, IndexFaults, put_aside

log = get_broker_logger(__name__)
NAME_DIGITS = 20
REBUILD = "rebuild"  # the file that exists while files of an older format are replaced


class Hit(NamedTuple):
    """A batch that has the hash; whether it has the key is for its reader to see."""

    position: int


class IndexGap(NamedTuple):
    """A range of the log, [first, end), of which the index cannot speak."""

    first: int
    end: int


class KeySearch(NamedTuple):
    """What a search is for: a hash, the time of storing, [since, until), and only batches below a log position."""

    hash: int
    since_us: int
    until_us: int
    before: int


class _Place(NamedTuple):
    """A block in a file: its header, and where its columns begin."""

    head: BlockHead
    at: int


class _Latest(NamedTuple):
    """What a search must not read while it is written: the newest file's good part, and what is in no file yet."""

    segment: int
    size: int
    block: Block | None


BLOCK_HASHES: Final = 64 << 10  # a block is closed after the batch that brings it there


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
        self._is_rebuilt = False  # since the start, from the start of the log; no checkpoint was saved yet
        self.damaged = 0  # ranges that searches had to look up in the log

    @property
    def end(self) -> int:
        """The position up to which the log is indexed."""
        return self._growing.end

    def segments(self) -> list[int]:
        """The segments that have a file, oldest first."""
        return [int(name) for name in self._files.names(self._directory) if name.isdigit()]

    # ---- growing

    def extend(self, segment: int, entries: Iterable[KeyEntry], first: int, end: int) -> None:
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

    def _take(self, entries: deque[KeyEntry]) -> None:
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

    def recover(self, starts: Sequence[int], begin: int, *, from_scratch: bool) -> None:
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
            if from_scratch or segment not in starts:
                self.drop(segment)
            elif segment >= current and not self.has_older_format(segment):
                self.cut(segment, begin)
        self._is_rebuilt = begin <= starts[0]
        self.extend(current, [], begin, begin)

    def begin_rebuild(self) -> None:
        """
        Note durably, before files of an older format are cut, that the log is to be indexed again from its start.

        Raises:
            OSError: the disk, not the file. Without the file, a crash may leave a gap.
        """
        path = self._directory / REBUILD
        try:
            self._files.replace_file(path, b"")
        except OSError as error:
            self._faults.write_failed(path, error)

    def end_rebuild(self) -> None:
        """A checkpoint was saved: if the log was indexed from its start, the files on the disk have it all."""
        if self._is_rebuilt:
            self._is_rebuilt = False
            with suppress(OSError):  # mostly there is none; while one stays, a start indexes the log again
                self._files.unlink(self._directory / REBUILD)

    def is_outdated(self) -> bool:
        """
        Return whether a file has an older format, so that the log must be indexed again from its start.

        It remains true until :meth:`end_rebuild`: a start that ends early has cut some of the files.
        """
        try:
            if self._files.exists(self._directory / REBUILD):
                return True
            return any(self.has_older_format(segment) for segment in self.segments())
        except OSError:
            return False  # recovery tells of a directory that cannot be read

    def has_older_format(self, segment: int) -> bool:
        """Return whether an older version wrote the file of a segment."""
        try:
            fd = self._files.open_to_read(self._path(segment))
        except OSError:
            return False
        try:
            start = self._files.read(fd, _START.size, 0)
        except OSError:
            return False
        finally:
            self._files.close(fd)
        return len(start) == _START.size and _START.unpack(start)[0] == MAGIC and _START.unpack(start)[1] < VERSION

    def cut(self, segment: int, position: int) -> int:
        """
        Forget what the file of a segment says of the log at ``position`` and after, and whatever in it is damaged.

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
        """Cut a file after its good part, and at a position if there is one: what is covered, and the new size."""
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

        A file that is missing is ignored, and one that stays is not read any more.
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

    def listed(self, segment: int) -> Iterator[tuple[int, bytes] | IndexGap]:
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
                    yield IndexGap(covered, place.head.first)
                block = self._load(fd, segment, place)
                if block is None:
                    yield IndexGap(place.head.first, place.head.end)
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

    def search(self, wanted: KeySearch, segments: Sequence[tuple[int, int]]) -> Generator[Hit | IndexGap, None, None]:
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
        self, wanted: KeySearch, start: int, end: int, latest: _Latest
    ) -> Generator[Hit | IndexGap, None, bool]:
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

    def _search_block(self, wanted: KeySearch, head: BlockHead, block: Block | None) -> Iterator[Hit | IndexGap]:
        if block is None:
            yield from self._gap(head.first, min(head.end, wanted.before))
        elif _may_hold(head, wanted):
            yield from (Hit(position) for position in block.matches(wanted.hash) if position < wanted.before)

    def _gap(self, first: int, end: int) -> Iterator[IndexGap]:
        if first < end:
            self.damaged += 1
            if first not in self._logged:
                self._logged.add(first)
                log.warning("key_index.gap", first=first, end=end)
            yield IndexGap(first, end)

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


def _too_old(head: BlockHead, wanted: KeySearch) -> bool:
    """Whether this block and, since ``stored_at`` never falls, all before it are older than what is wanted."""
    return head.batches > 0 and head.newest < wanted.since_us


def _may_hold(head: BlockHead, wanted: KeySearch) -> bool:
    return bool(head.batches) and head.oldest < wanted.until_us and head.first < wanted.before


MAGIC: Final = 0x524D4B49  # RMKI
VERSION: Final = 2  # 1 had no hashes of keys
HEADER: Final = 56
PIECE: Final = 256 << 10  # bytes searched at once: a fraction of a millisecond
_HEADER = struct.Struct(">IHHIIIIQQqq")
_START = struct.Struct(">IHH")
_CHECKED = struct.Struct(">IIIQQqq")  # from 12: what header_crc covers
_U32 = struct.Struct(">I")
_HASH = struct.Struct("<I")
_SWAP = sys.byteorder == "big"


class KeyEntry(NamedTuple):
    """A batch with keys: where it lies, when it was stored, and its hashes as a column of a batch."""

    position: int
    stored_at: int
    hashes: bytes


class BlockHead(NamedTuple):
    """The header of a block, without what only guards it."""

    column_crc: int
    batches: int
    hashes: int
    first: int
    end: int
    oldest: int
    newest: int

    @property
    def column_size(self) -> int:
        """How many bytes follow the header."""
        return 12 * self.batches + 4 * self.hashes


class Block(NamedTuple):
    """A block to search: its header and its columns."""

    head: BlockHead
    columns: bytes

    def packed(self) -> bytes:
        """The block as it lies in a file."""
        fields = _CHECKED.pack(*self.head)
        return _START.pack(MAGIC, VERSION, 0) + _U32.pack(crc32(fields)) + fields + self.columns

    def is_sound(self) -> bool:
        """Whether the columns are what the header says of them."""
        return len(self.columns) == self.head.column_size and crc32(self.columns) == self.head.column_crc

    def matches(self, value: int) -> list[int]:
        """The positions of the batches that have a hash, newest first."""
        return self._positions(self._batches_with(_HASH.pack(value)))

    def _positions(self, numbers: list[int]) -> list[int]:
        return [int.from_bytes(self.columns[8 * n : 8 * n + 8], "little") for n in reversed(numbers)]

    def _batches_with(self, wanted: bytes) -> list[int]:
        columns, base, stop = self.columns, 12 * self.head.batches, len(self.columns)
        firsts: array[int] | None = None
        found: list[int] = []
        at = base
        while at < stop:
            hit = columns.find(
                wanted, at, min(at + PIECE + 3, stop)
            )  # a hash may begin in one piece and end in the next
            if hit < 0:
                at += PIECE
            elif (hit - base) % 4:  # the end of one hash and the beginning of the next
                at = hit + 1
            else:
                firsts = firsts or self._firsts()
                number = bisect_right(firsts, (hit - base) // 4) - 1
                found.append(number)
                at = base + 4 * firsts[number + 1] if number + 1 < len(firsts) else stop
        return found

    def _firsts(self) -> array[int]:
        return _numbers("I", self.columns[8 * self.head.batches : 12 * self.head.batches])

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Each listed batch, oldest first: its position and its hashes."""
        base, firsts = 12 * self.head.batches, [*self._firsts(), self.head.hashes]
        for number, position in enumerate(_numbers("Q", self.columns[: 8 * self.head.batches])):
            yield position, self.columns[base + 4 * firsts[number] : base + 4 * firsts[number + 1]]


class Growing:
    """
    A block that still takes batches: columns in memory, 16 bytes a batch and 4 a key.

    ``end`` moves over batches without keys as well.
    """

    __slots__ = ("_firsts", "_hashes", "_newest", "_oldest", "_positions", "end", "first")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self._positions = array("Q")
        self._firsts = array("I")
        self._hashes = bytearray()
        self._oldest = self._newest = 0

    def add(self, entry: KeyEntry) -> None:
        """List a batch; they come in the order of the log."""
        if not self._positions:
            self._oldest = entry.stored_at
        self._newest = entry.stored_at
        self._positions.append(entry.position)
        self._firsts.append(len(self._hashes) // 4)
        self._hashes += entry.hashes

    @property
    def hashes(self) -> int:
        """How many keys it lists."""
        return len(self._hashes) // 4

    def block(self) -> Block:
        """What it holds now, apart from what it will."""
        columns = _little(self._positions) + _little(self._firsts) + bytes(self._hashes)
        sizes = (len(self._positions), self.hashes)
        return Block(BlockHead(crc32(columns), *sizes, self.first, self.end, self._oldest, self._newest), columns)


def pack(entries: Iterable[KeyEntry], first: int, end: int, block_hashes: int = BLOCK_HASHES) -> list[Block]:
    """Blocks that list ``entries`` and cover the log from ``first`` to ``end``; a batch is never split over two."""
    blocks, growing = [], Growing(first)
    for entry in entries:
        if growing.hashes >= block_hashes:
            growing.end = entry.position
            blocks.append(growing.block())
            growing = Growing(entry.position)
        growing.add(entry)
    growing.end = end
    blocks.append(growing.block())
    return blocks


def parse_head(data: bytes) -> BlockHead | None:
    """The header of a block; None if these bytes are none."""
    if len(data) < HEADER:
        return None
    magic, version, zero, header_crc, *fields = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or zero or header_crc != crc32(data[12:HEADER]):
        return None
    return BlockHead(*fields)


def cut(block: Block, position: int) -> Block:
    """What a block says of the log below a position; times may then span more than is left."""
    kept = Growing(block.head.first)
    for at, hashes in block.entries():
        if at < position:
            kept.add(KeyEntry(at, block.head.newest, hashes))
    kept.end = min(block.head.end, position)
    shorter = kept.block()
    oldest = block.head.oldest if shorter.head.batches else 0
    return shorter._replace(head=shorter.head._replace(oldest=oldest))


def hash_column(hashes: array[int]) -> bytes:
    """Return hashes as a column of a batch."""
    return _little(hashes)


def _numbers(typecode: str, data: bytes) -> array[int]:
    column = array(typecode, data)
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column.byteswap()
    return column


def _little(column: array[int]) -> bytes:
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column = column[:]
        column.byteswap()
    return column.tobytes()
