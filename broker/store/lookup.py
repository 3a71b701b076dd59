"""
Finding stored messages by key, by id and by time, in a thread.

The key index names batches that may hold a key; each is read, verified and searched for the key itself, so that every
result is right whatever the index says. A :class:`LogReader` reads the log through descriptors of its own. The loop
creates it from the segments and the readable end of that moment, a thread uses it for one piece of work, and closes
it. It never returns what may not be read yet. A segment that retention removes meanwhile reads as empty.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.checksum import crc32
from rmq.wire.errors import BadRequest, Damaged, MessageNotFound, Refused
from rmq.wire.protocol.ops.messages import MAX_FOUND, MAX_FOUND_BYTES, NO_TIME, FoundBatch
from rmq.wire.stores import StoreIds

from .files import AnyPath, Files
from .key_index import Hit, IndexGap

Alive = Callable[[str, int], bool]  # whether a topic (and this generation of it) exists
_FOREVER = 1 << 62
_GAP_BYTES = 4 << 20  # looked through at once


class Locator(NamedTuple):
    """The offsets that a queue holds, and where the batch of each lies: position and size, None if unknown."""

    min_offset: int
    max_offset: int
    position_of: Callable[[int], tuple[int, int] | None]


class Query(NamedTuple):
    """The messages of a key; see :class:`~rmq.wire.protocol.ops.messages.QueryMessages`."""

    key: str
    topic: str | None = None
    since_us: int = NO_TIME
    until_us: int = NO_TIME
    limit: int = MAX_FOUND
    before: int = 0

    @property
    def until(self) -> int:
        """The end of the time range."""
        return _FOREVER if self.until_us == NO_TIME else self.until_us

    @property
    def below(self) -> int:
        """The log position below which batches can hold a message that is wanted."""
        if not self.before:
            return _FOREVER
        position, index = divmod(self.before, layout.MAX_COUNT)
        return (position + bool(index)) * layout.ALIGN


def hash_of(key: str) -> int:
    """The hash that the index has of a key."""
    return crc32(key.encode())


class Findings(NamedTuple):
    """Batches with messages of a key, newest first, and the handle to go on before; 0: that was all."""

    found: list[FoundBatch]
    before: int


def find(
    query: Query, places: Iterable[Hit | IndexGap], reader: LogReader, alive: Alive, out_of_time: Callable[[], bool]
) -> Findings:
    """
    The newest messages of a key, as many as wanted and as fit one answer.

    ``places`` are what the key index says, newest first. Out of time it stops after one batch at least, and says where
    to go on.
    """
    found: list[FoundBatch] = []
    left, room = min(query.limit, MAX_FOUND), MAX_FOUND_BYTES
    for number, position in enumerate(_positions(places, reader)):
        if number and out_of_time():
            return Findings(found, batches.handle(position + layout.ALIGN, 0))
        data = reader.batch(position)
        if data is None:
            continue
        indexes = _indexes(query, position, data, alive)
        if not indexes:
            continue
        if len(data) > room:
            return Findings(found, batches.handle(position + layout.ALIGN, 0))
        taken = indexes[::-1][:left]
        found.append(FoundBatch(data, taken))
        left -= len(taken)
        room -= len(data)
        if not left:
            return Findings(found, batches.handle(position, taken[-1]))
    return Findings(found, 0)


def _positions(places: Iterable[Hit | IndexGap], reader: LogReader) -> Iterator[int]:
    for place in places:
        if isinstance(place, IndexGap):
            # In pieces from the end: out of time, a walk over the whole of a large gap would be lost.
            for end in range(place.end, place.first, -_GAP_BYTES):
                yield from reader.positions(max(end - _GAP_BYTES, place.first), end)
        else:
            yield place.position


def _indexes(query: Query, position: int, data: bytes, alive: Alive) -> list[int]:
    """Which messages of a batch are wanted, oldest first; none of one that is damaged."""
    try:
        header, columns = batches.check(data, stamped=True)
    except Refused:
        return []
    if not _is_message(header, position, alive) or (query.topic is not None and header.topic != query.topic):
        return []
    if not query.since_us <= header.stored_at < query.until:
        return []
    wanted = query.key.encode()
    if not any(texts is not None and wanted in texts.blob for texts in (columns.index_keys, columns.keys)):
        return []  # before anything is decoded
    first = batches.handle(position, 0)
    count = min(header.count, query.before - first) if query.before else header.count
    return [
        index for index in range(count) if columns.key(index) == query.key or query.key in columns.index_keys_of(index)
    ]


def _is_message(
    header: layout.Header, position: int, alive: Alive, kinds: Collection[int] = (layout.KIND_DATA,)
) -> bool:
    return header.physical_offset == position and header.kind in kinds and alive(header.topic, header.topic_gen)


def get(message_id: str, stores: StoreIds, reader: LogReader, alive: Alive) -> FoundBatch:
    """
    The message of an id, in its batch.

    Raises:
        BadRequest: that is not a message id.
        MessageNotFound: nothing of that id is (or is any longer) in this store.
        Damaged: it was there.
    """
    try:
        store, position, index = batches.split_message_id(message_id)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    if store != stores.at(position):
        text = f"the message {message_id} belongs to the store {store:016x}, and this broker has {stores.current:016x}"
        raise MessageNotFound(f"{text}: ask the broker that has it")
    if position < reader.first:
        raise MessageNotFound(f"the message {message_id} is no longer stored: the log now begins after it")
    missing = MessageNotFound(f"there is no message {message_id} in this store")
    data = reader.batch(position)
    if data is None:
        raise missing
    try:
        header = batches.check(data, stamped=True).header
    except Refused as error:
        if reader.head(position) is None:  # no batch begins there: the id was never given
            raise missing from error
        raise Damaged(f"the message {message_id} lies in a damaged batch: {error.text}") from error
    # The producer of a delayed message knows the id of the one that waits.
    kinds = (layout.KIND_DATA, layout.KIND_PARKED)
    if index >= header.count or not _is_message(header, position, alive, kinds):
        raise missing
    return FoundBatch(data, [index])


def offset_at(
    time_us: int,
    first: int,
    end: int,
    position_of: Callable[[int], tuple[int, int] | None],
    stored_at: Callable[[int], int | None],
) -> int:
    """
    The first offset of ``[first, end)`` that was stored at a time or later; ``end`` if there is none.

    ``position_of`` says where the batch of an offset lies, ``stored_at`` when it was stored; either may not know,
    because of damage. Then an earlier offset is given, never a later one.
    """

    def time_of(offset: int) -> int | None:
        place = position_of(offset)
        return None if place is None else stored_at(place[0])

    while first < end:
        middle = known = (first + end) // 2
        time, step = time_of(middle), 1
        while time is None and known + step < end:  # damage: ask a later one
            known += step
            step *= 2
            time = time_of(known)
        if time is not None and time < time_us:
            first = known + 1
        else:
            end = middle
    return first


FIRST_READ = 4096  # most batches of few messages come with it
LONGEST_HEADER = 1024
_WINDOW = 1 << 20
_START = struct.Struct(">IHBBIIQQqQQIIB")
_MAGIC = layout.MAGIC.to_bytes(2, "big") + bytes((layout.FORMAT,))


class BatchHead(NamedTuple):
    """What the log itself needs to know of a batch: how long it is and when it was stored."""

    size: int
    stored_at: int


class LogReader:
    """
    Batches by their physical offset, up to ``end``; ``segments`` are starts and paths, oldest first.

    Reading raises OSError where the disk fails.
    """

    def __init__(self, files: Files, segments: Sequence[tuple[int, AnyPath]], end: int) -> None:
        self._files = files
        self._paths = [path for _, path in segments]
        self._starts = [start for start, _ in segments]
        self.end = end
        self._open: dict[int, int] = {}  # segments to descriptors, -1 for one that is gone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for fd in self._open.values():
            if fd >= 0:
                self._files.close(fd)
        self._open.clear()

    @property
    def first(self) -> int:
        """Where the log begins."""
        return self._starts[0] if self._starts else self.end

    def ranges(self) -> list[tuple[int, int]]:
        """The range of each segment that can be read, oldest first."""
        stops = [*self._starts[1:], self.end]
        return [(start, min(stop, self.end)) for start, stop in zip(self._starts, stops, strict=True)]

    def batch(self, position: int) -> bytes | None:
        """The bytes of the batch at a physical offset, not yet judged; None if none begins there."""
        data = self._read(position, FIRST_READ, needed=layout.FIXED_HEADER)
        if data[4:7] != _MAGIC:
            return None
        size = int.from_bytes(data[:4], "big")
        if size > layout.MAX_BATCH or position + size > self.end:
            return None
        if size > len(data):
            data = self._read(position, size, needed=size)
        return data[:size] if len(data) >= size else None

    def head(self, position: int) -> BatchHead | None:
        """The header of the batch at a physical offset, checked; None if none begins there, or a damaged one."""
        return _head(self._header(position), 0, position, self.end)

    def header(self, position: int) -> layout.Header | None:
        """Return the header of the batch at a physical offset, parsed in full; None as for :meth:`head`."""
        data = self._header(position)
        if _head(data, 0, position, self.end) is None:
            return None
        try:
            return layout.parse_header(data, alone=True)
        except Refused:
            return None

    def _header(self, position: int) -> bytes:
        data = self._read(position, LONGEST_HEADER, needed=layout.FIXED_HEADER)
        size = min(int.from_bytes(data[7:8], "big") * 8, LONGEST_HEADER)
        if data[4:7] == _MAGIC and size > len(data):
            data = self._read(position, LONGEST_HEADER, needed=size)
        return data

    def positions(self, first: int, end: int) -> list[int]:
        """Where batches begin in a range, newest first. Damage, and a batch that begins before it, are passed over."""
        return list(self._walk(first, min(end, self.end)))[::-1]

    def _walk(self, at: int, end: int) -> Iterator[int]:
        while at < end:
            head = self.head(at)
            if head is not None:
                yield at
                at += head.size
            else:
                at = self._next(at + layout.ALIGN, end)

    def _next(self, at: int, end: int) -> int:
        """The first sound header at ``at`` or after it, or ``end``."""
        while at < end:
            window = self._read(at, _WINDOW)
            hit = window.find(_MAGIC)
            while hit >= 0:
                place = at + hit - 4
                if hit >= 4 and not place % layout.ALIGN and self.head(place) is not None:
                    return place
                hit = window.find(_MAGIC, hit + 1)
            at += max(len(window) - len(window) % layout.ALIGN, layout.ALIGN)
        return end

    def _read(self, position: int, size: int, *, needed: int = 1) -> bytes:
        """
        Bytes of one segment, up to ``size``: at least as many as are needed, unless it ends before or is gone.

        The system may return what lies before a bad sector, and fail only when asked for more.

        Raises:
            OSError: the disk cannot read what is needed; names the file and the bytes.
        """
        number = bisect_right(self._starts, position) - 1
        if number < 0 or position >= self.end or position % layout.ALIGN:
            return b""
        fd = self._open.get(number)
        if fd is None:
            fd = self._open[number] = self._descriptor(self._paths[number])
        if fd < 0:
            return b""
        at = position - self._starts[number]
        try:
            data = self._files.read(fd, size, at)
            while len(data) < needed and (more := self._files.read(fd, needed - len(data), at + len(data))):
                data += more
        except OSError as error:
            text = f"bytes {at} to {at + size}: {error.strerror}"
            raise OSError(error.errno, text, str(self._paths[number])) from error
        return data

    def _descriptor(self, path: AnyPath) -> int:
        try:
            return self._files.open_to_read(path)
        except FileNotFoundError:
            return -1


def _head(data: bytes, at: int, position: int, end: int) -> BatchHead | None:
    if len(data) < at + layout.FIXED_HEADER or data[at + 4 : at + 7] != _MAGIC:
        return None
    size, _, _, words, crc, _, physical_offset, _, stored_at, *_ = _START.unpack_from(data, at)
    header_size = words * 8
    if header_size < layout.FIXED_HEADER or at + header_size > len(data) or position + size > end:
        return None
    if physical_offset != position or size < header_size or layout.header_crc(data, at, header_size) != crc:
        return None
    return BatchHead(size, stored_at)
