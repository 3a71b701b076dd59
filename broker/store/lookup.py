"""
Finding stored messages: by key, by id, by time. Runs in a thread, on a reader of its own.

The key index names batches that may hold a key; here each is read, judged and asked for the key itself. So what is
found is right whatever the index says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.checksum import crc32
from rmq.wire.errors import BadRequest, Damaged, MessageNotFound, Refused
from rmq.wire.protocol.ops.messages import MAX_FOUND, MAX_FOUND_BYTES, NO_TIME, FoundBatch
from rmq.wire.stores import StoreIds

from .key_index import Gap, Hit
from .log_reader import LogReader

Alive = Callable[[str, int], bool]  # whether a topic (and this generation of it) exists

_FOREVER = 1 << 62


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
    query: Query, places: Iterable[Hit | Gap], reader: LogReader, alive: Alive, out_of_time: Callable[[], bool]
) -> Findings:
    """
    The newest messages of a key, as many as wanted and as fit one answer.

    ``places`` are what the key index says, newest first. Out of time it stops, and says where to go on.
    """
    found: list[FoundBatch] = []
    left, room = min(query.limit, MAX_FOUND), MAX_FOUND_BYTES
    for position in _positions(places, reader):
        if out_of_time():
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


def _positions(places: Iterable[Hit | Gap], reader: LogReader) -> Iterator[int]:
    for place in places:
        if isinstance(place, Gap):
            yield from reader.positions(place.first, place.end)
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
    if columns.keys is None or query.key.encode() not in columns.keys.blob:  # before anything is decoded
        return []
    first = batches.handle(position, 0)
    count = min(header.count, query.before - first) if query.before else header.count
    return [index for index in range(count) if query.key in columns.keys_of(index)]


def _is_message(
    header: layout.Header, position: int, alive: Alive, kinds: Collection[int] = (layout.KIND_DATA,)
) -> bool:
    return header.physical_offset == position and header.kind in kinds and alive(header.topic, header.topic_gen)


def get(message_id: str, stores: StoreIds, reader: LogReader, alive: Alive) -> FoundBatch:
    """
    The message of an id, in its batch.

    Raises:
        BadRequest: that is no message id.
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
        raise MessageNotFound(f"the message {message_id} is no longer stored: the log now begins behind it")
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
    # The producer of a delayed message was told the id of the one that waits.
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
        while time is None and known + step < end:  # damage: ask somebody behind it
            known += step
            step *= 2
            time = time_of(known)
        if time is not None and time < time_us:
            first = known + 1
        else:
            end = middle
    return first
