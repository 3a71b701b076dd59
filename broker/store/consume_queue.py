"""
The index of one queue: which batch of the log has which queue offset.

An entry has 20 bytes (physical offset 8, size 4, tag hash 8), one a message; the entries of a batch point to the
same record. The index is a function of the log: the loop notes a few bytes a batch, and a thread makes the entries
and writes them in large pieces. Size 0 marks messages that are damaged. Descriptors and directories are created when
they are first needed, so that a queue with few messages costs a few hundred bytes and no file.

Until entries are in a file, the tags of their batches wait in memory, in at most as many bytes a message as an entry
has. A long batch with few tags keeps the column it came with. For others that column would take some hundred bytes a
message, in objects that the garbage collector visits, in perhaps many queues: their hashes are made at once.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from rmq.wire.batch.columns import TagColumn

from .files import Files
from .lookup import Locator

ENTRY = struct.Struct(">QIq")
_POSITION = struct.Struct(">Q")
ENTRIES_PER_FILE = 300_000
RECENT_BATCHES = 512
FLUSH_BYTES = 16 << 10
_PIECE = 256 << 10  # bytes of entries that are made before they are written
MAX_EPOCHS = 32  # starts of the broker that a queue remembers
ReadEntries = Callable[[str, int, int], bytes]  # path, size, place


class Location(NamedTuple):
    """Where a batch lies in the log; ``size`` 0: it is damaged. ``end_offset`` is the queue offset after it."""

    position: int
    size: int
    end_offset: int


class Bounds(NamedTuple):
    """How much a reader wants at most; at least one batch is given."""

    max_bytes: int
    max_batches: int
    max_entries: int


def entries(position: int, size: int, count: int, tags: TagColumn | array[int] | None) -> bytes:
    """The index entries of a batch, with its tags or a hash a message."""
    if tags is None:
        return ENTRY.pack(position, size, 0) * count
    if isinstance(tags, array):
        return b"".join([ENTRY.pack(position, size, value) for value in tags])
    packed = [ENTRY.pack(position, size, value) for value in tags.hashes()]
    return b"".join(map(packed.__getitem__, tags.codes))


class Window(NamedTuple):
    """A part of a queue's files that can be read by any thread: entries from ``offset`` up to ``end``."""

    directory: str
    per_file: int
    offset: int
    end: int

    def locate(self, bounds: Bounds, read: ReadEntries) -> list[Location]:
        """The batches from the one that holds ``offset`` on."""
        run = self._read(min(bounds.max_entries + 1, self.end - self.offset), read)
        found: list[Location] = []
        total, at, length, count = 0, 0, 1, len(run) // ENTRY.size
        while at < count:
            position, size, _ = ENTRY.unpack_from(run, at * ENTRY.size)
            following = _batch_end(run, at, count, length)
            total += size
            if found and (
                total > bounds.max_bytes
                or len(found) >= bounds.max_batches
                or following > bounds.max_entries
                or not size
            ):
                break
            found.append(Location(position, size, self.offset + following))
            if not size:
                break
            at, length = following, following - at
        return found

    def _read(self, wanted: int, read: ReadEntries) -> bytes:
        """The entries from ``offset`` on, over as many files as they lie in."""
        parts, offset = [], self.offset
        while wanted > 0:
            index = offset % self.per_file
            count = min(wanted, self.per_file - index)
            path = file_of(self.directory, self.per_file, offset)
            parts.append(read(path, ENTRY.size * count, ENTRY.size * index))
            offset += count
            wanted -= count
        return b"".join(parts)


AskLog = Callable[[Window, OSError | None], tuple[int, int] | None]  # position and size, as a Locator gives them


class PackedEntries(NamedTuple):
    """Entries to be written, by whichever thread."""

    directory: str
    per_file: int
    offset: int
    entries: bytes

    def write(self, files: Files) -> None:
        """
        Write them to their files.

        Raises:
            OSError: names the file; a part may be written, and writing all of it again is right.
        """
        run, offset = memoryview(self.entries), self.offset
        while run:
            part = run[: (self.per_file - offset % self.per_file) * ENTRY.size]
            path = file_of(self.directory, self.per_file, offset)
            try:
                self._write(files, path, offset, part)
            except OSError as error:
                error.filename = path
                raise
            offset += len(part) // ENTRY.size
            run = run[len(part) :]

    def _write(self, files: Files, path: str, offset: int, part: memoryview) -> None:
        try:
            fd = files.open(path, create=True)
        except FileNotFoundError:  # the first entries of this queue
            files.make_directory(self.directory)
            fd = files.open(path, create=True)
        try:
            files.write_all(fd, part, offset % self.per_file * ENTRY.size)
        finally:
            files.close(fd)


class PendingEntries(NamedTuple):
    """Batches whose entries are to be made and written, by whichever thread; ``end`` is the offset after the last."""

    directory: str
    per_file: int
    bases: array[int]
    positions: array[int]
    sizes: array[int]
    end: int
    tags: WaitingTags | None

    def write(self, files: Files) -> None:
        """
        Write them to their files.

        Raises:
            OSError: a part may be written; writing all of it again is right.
        """
        offset = self.bases[0]
        for piece in self._pieces():
            PackedEntries(self.directory, self.per_file, offset, piece).write(files)
            offset += len(piece) // ENTRY.size

    def _pieces(self) -> Iterator[bytes]:
        """The entries of all of them, some batches at a time: those of one queue can be more than the memory likes."""
        parts: list[bytes] = []
        size = 0
        ends = [*self.bases[1:], self.end]
        for base, end, position, extent in zip(self.bases, ends, self.positions, self.sizes, strict=True):
            tags = None if self.tags is None else self.tags.of(base, end)
            parts.append(entries(position, extent, end - base, tags))
            size += len(parts[-1])
            if size >= _PIECE:
                yield b"".join(parts)
                parts, size = [], 0
        yield b"".join(parts)


class ConsumeQueue:
    """
    Index and bounds of one queue; it belongs to the event loop.

    ``min_offset`` is the first that the log still holds, ``end`` the next to be given to a batch (staged ones
    included), ``published`` the end of what the log holds, ``readable`` the end of what may be handed to a reader.
    """

    __slots__ = (
        "_bases", "_directory", "_flushed", "_per_file", "_positions", "_recent", "_sizes", "_tags", "_writing", "end",
        "epochs", "generation", "min_offset", "published", "readable",
    )  # fmt: skip

    def __init__(self, *, entries_per_file: int = ENTRIES_PER_FILE, recent_batches: int = RECENT_BATCHES) -> None:
        self.generation = 0  # of its topic; 0 until it has something to hold
        self._directory = ""
        self._per_file = entries_per_file
        self._recent = recent_batches
        self.min_offset = 0
        self.end = 0
        self.published = 0
        self.readable = 0
        self.epochs: list[int] = []  # pairs, flat: a log epoch, and the first offset that was stored under it
        # Of the newest batches, and of all whose entries are in no file yet; with their place in the log.
        self._bases = array("Q")
        self._positions = array("Q")
        self._sizes = array("I")
        self._tags: WaitingTags | None = None  # of batches in no file, if any has some
        self._flushed = 0  # the queue offset up to which the files reach: a batch ends there
        self._writing = 0  # how many entries after it are on their way

    def belong(self, generation: int, directory: str) -> None:
        """Be a queue of this generation of its topic, with files in this directory."""
        self.generation = generation
        self._directory = directory

    def restore(self, min_offset: int, end: int, epochs: list[int]) -> None:
        """Be as a checkpoint says: its files reach up to ``end``."""
        self.min_offset = min_offset
        self.end = self.published = self.readable = self._flushed = end
        self.epochs = epochs

    # ---- growing

    def add(self, position: int, size: int, count: int, tags: TagColumn | None) -> bool:
        """Index a batch that the log now holds; say whether enough entries wait to be worth writing."""
        if tags is not None:
            if self._tags is None:
                self._tags = WaitingTags()
            self._tags.add(self.published, tags)
        self._append(position, size, count)
        return (self.published - self._flushed) * ENTRY.size >= FLUSH_BYTES

    def add_gap(self, position: int, end_offset: int) -> None:
        """The messages up to ``end_offset``, which lay at ``position`` or right after, are damaged."""
        self.end = end_offset
        self._append(position, 0, end_offset - self.published)

    def _append(self, position: int, size: int, count: int) -> None:
        self._bases.append(self.published)
        self._positions.append(position)
        self._sizes.append(size)
        self.published += count
        if not len(self._bases) % self._recent:
            self._forget_old()

    def go_back(self, offset: int) -> bool:
        """
        Forget the batches from ``offset`` on, whose place others have taken; for a start, while nothing is on its way.

        Says whether that could be done: only where one of the newest begins.
        """
        at = bisect_left(self._bases, offset)
        if at == len(self._bases) or self._bases[at] != offset:
            return False
        for column in (self._bases, self._positions, self._sizes):
            del column[at:]
        self._keep_tags(0, offset)
        self._flushed = min(self._flushed, offset)  # entries in files are written over
        self.end = self.published = self.readable = offset
        while self.epochs and self.epochs[-1] >= offset:
            del self.epochs[-2:]
        return True

    def note_epoch(self, log_epoch: int) -> None:
        """The next message to be indexed is stored under this log epoch."""
        if not self.epochs or self.epochs[-2] != log_epoch:
            self.epochs += (log_epoch, self.published)
            del self.epochs[: -2 * MAX_EPOCHS]

    @property
    def forgot_epochs(self) -> bool:
        """Whether messages may have been stored under more epochs than are remembered."""
        return len(self.epochs) >= 2 * MAX_EPOCHS

    def epoch_before(self, offset: int) -> int:
        """Return the log epoch of the message before ``offset``; 0 if there is none, or it is not known any more."""
        for i in range(len(self.epochs) - 2, -1, -2):
            if self.epochs[i + 1] < offset:
                return self.epochs[i]
        return 0

    def epoch_after(self, log_epoch: int) -> tuple[int, int] | None:
        """Return the first epoch above ``log_epoch`` that messages were stored under, and the offset of the first."""
        for i in range(0, len(self.epochs), 2):
            if self.epochs[i] > log_epoch:
                return self.epochs[i], self.epochs[i + 1]
        return None

    def _forget_old(self) -> None:
        """Keep the newest batches in memory, and all whose entries are in no file yet."""
        covered = bisect_right(self._bases, self._flushed) - 1
        spare = min(len(self._bases) - self._recent, covered)
        if spare > 0:
            for column in (self._bases, self._positions, self._sizes):
                del column[:spare]

    # ---- files

    @property
    def waiting(self) -> int:
        """How many bytes of entries are in no file yet."""
        return (self.published - self._flushed) * ENTRY.size

    def take_waiting(self) -> PendingEntries | None:
        """What is to be written now; it stays readable, and :meth:`written` or :meth:`not_written` must follow."""
        if self._writing or self.published == self._flushed:
            return None
        self._writing = self.published - self._flushed
        first = bisect_left(self._bases, self._flushed)
        return PendingEntries(
            self._directory, self._per_file, self._bases[first:], self._positions[first:], self._sizes[first:],
            self.published, None if self._tags is None else self._tags.part(self._flushed, self.published),
        )  # fmt: skip

    def written(self) -> None:
        """What was taken is in the files."""
        self._flushed += self._writing
        self._writing = 0
        self._keep_tags(self._flushed, self.published)
        if len(self._bases) >= 2 * self._recent:
            self._forget_old()

    def _keep_tags(self, start: int, end: int) -> None:
        if self._tags is not None:
            self._tags = self._tags.part(start, end) or None

    def not_written(self) -> None:
        """What was taken waits on."""
        self._writing = 0

    def raise_min(self, min_offset: int) -> list[str]:
        """The log lost its oldest messages; returns the files that are not needed any more."""
        first = self.min_offset // self._per_file
        self.min_offset = max(self.min_offset, min_offset)
        last = min(self.min_offset, self._flushed) // self._per_file
        return [file_of(self._directory, self._per_file, i * self._per_file) for i in range(first, last)]

    # ---- reading

    def window(self, offset: int) -> Window | None:
        """The part of the files that has ``offset``; None if it is in memory."""
        if self._bases and offset >= self._bases[0]:
            return None
        return Window(self._directory, self._per_file, offset, min(self.readable, self._flushed))

    def locator(self, files: Files, offset: int | None = None, ask_log: AskLog = lambda *_: None) -> Locator:
        """
        The index as it is now, for a thread: what is in memory is copied, what is in files never changes.

        ``ask_log`` finds what the files do not say. With an ``offset``, for that one only, or the first after it that
        the queue holds: little is copied then.
        """
        part = slice(None)
        if offset is not None:
            at = bisect_right(self._bases, max(offset, self.min_offset))
            part = slice(max(at - 1, 0), at)
        bases, positions, sizes = self._bases[part], self._positions[part], self._sizes[part]
        directory, per_file, flushed = self._directory, self._per_file, self._flushed

        def position_of(offset: int) -> tuple[int, int] | None:
            if bases and offset >= bases[0]:
                at = bisect_right(bases, offset) - 1
                return positions[at], sizes[at]
            window = Window(directory, per_file, offset, max(flushed, offset + 1))
            try:
                found = window._replace(end=offset + 1).locate(Bounds(1, 1, 1), files.read_at)
            except OSError as error:
                return ask_log(window, error)
            place = (found[0].position, found[0].size) if found else None
            return place if place and place[1] else ask_log(window, None) or place

        return Locator(self.min_offset, self.readable, position_of)

    def locate(self, offset: int, bounds: Bounds) -> list[Location]:
        """
        The batches from the one that holds ``offset`` on, up to the readable end; ``offset`` is in memory.

        At least one if ``offset`` is readable; then it stops before a limit, and before a damaged one.
        """
        bases = self._bases
        first = bisect_right(bases, offset) - 1
        end = min(bisect_left(bases, self.readable, first), first + bounds.max_batches)
        if self.published > offset + bounds.max_entries:  # the entries of a batch end where the next one begins
            end = min(end, max(bisect_right(bases, offset + bounds.max_entries, first) - 1, first + 1))
        sizes = self._sizes[first:end]
        if 0 in sizes:
            sizes = sizes[: max(sizes.index(0), 1)]
        count = max(bisect_right(list(accumulate(sizes)), bounds.max_bytes), 1)
        ends = bases[first + 1 : first + count + 1]
        if len(ends) < count:
            ends.append(self.published)
        return [*map(Location, self._positions[first : first + count], sizes[:count], ends)]


def file_of(directory: str, per_file: int, offset: int) -> str:
    """The file that has the entry of a queue offset, named by its first byte."""
    return f"{directory}/{offset // per_file * per_file * ENTRY.size:020d}"


def _batch_end(run: bytes, at: int, count: int, guess: int) -> int:
    """
    Return the index of the first entry after those of the batch at ``at``; positions never fall in a queue.

    ``guess`` is the length of the batch before: most batches of a queue are alike.
    """
    (position,) = _POSITION.unpack_from(run, at * ENTRY.size)

    def is_other_batch(index: int) -> bool:
        return index >= count or _POSITION.unpack_from(run, index * ENTRY.size)[0] != position

    end = at + guess
    if is_other_batch(end):
        if not is_other_batch(end - 1):
            return end
        return bisect_left(range(end), True, lo=at + 1, key=is_other_batch)
    while not is_other_batch(end + guess):
        end += guess
        guess *= 2
    return bisect_left(range(end + guess), True, lo=end + 1, key=is_other_batch)


MESSAGES_A_TAG: Final = 32  # from here on a column takes less than its hashes


class WaitingTags:
    """Tags by queue offset, those of the oldest batch first. What :meth:`part` returns is for any thread."""

    __slots__ = ("_columns", "_hashes", "_offsets")

    def __init__(self) -> None:
        self._columns: dict[int, TagColumn] = {}  # by the offset of the first message
        self._offsets = array("Q")  # of the messages of other batches, next to the hashes of their tags
        self._hashes = array("q")

    def __bool__(self) -> bool:
        return bool(self._columns or self._offsets)

    def add(self, base: int, tags: TagColumn) -> None:
        """Add the tags of the batch at ``base``, which is after all others."""
        count = len(tags.codes)
        if count >= MESSAGES_A_TAG * max(len(tags.names), 1):
            self._columns[base] = tags
        else:
            self._offsets.extend(range(base, base + count))
            self._hashes.extend(map(tags.hashes().__getitem__, tags.codes))

    def of(self, base: int, end: int) -> TagColumn | array[int] | None:
        """The tags of a batch, or their hashes, one a message; None if it has none."""
        if (column := self._columns.get(base)) is not None:
            return column
        first = bisect_left(self._offsets, base)
        return self._hashes[first : bisect_left(self._offsets, end, first)] or None

    def part(self, start: int, end: int) -> WaitingTags:
        """Those of the batches from one offset to before another, which begin there."""
        part = WaitingTags()
        part._columns = {base: tags for base, tags in self._columns.items() if start <= base < end}
        first, last = bisect_left(self._offsets, start), bisect_left(self._offsets, end)
        part._offsets, part._hashes = self._offsets[first:last], self._hashes[first:last]
        return part
