"""
Questions about stored messages: by key, by id, by time, and by offset.

All of it reads the disk, so it runs in the read pool: the loop decides what may be seen, a thread finds it and packs
the answer, the loop sends it. A query first lets the key index catch up, for at most a second, and says so when it
could not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import msgpack

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.layout import MAX_TIME, Buffer
from rmq.wire.errors import OK, BadRequest, Damaged, Refused, StoreFailed, TooManyInFlight
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import EMPTY
from rmq.wire.protocol.ops.messages import (
    MAX_FOUND,
    NO_TIME,
    FoundBatch,
    GetMessage,
    Head,
    HeadAt,
    Heads,
    OffsetAt,
    OffsetsAt,
    QueryMessages,
)

from ..jobs.read_pool import ReadPool
from ..net.connection import DEFERRED, Connection
from ..state.topics import TopicTable
from ..store import lookup
from ..store.key_index import KeySearch
from ..store.lookup import Locator, LogReader
from ..store.message_store import MessageStore
from .requests import check_entries

INDEX_WAIT_S = 1.0  # a query waits for the index as long
SEARCH_S = 2.0  # of one answer; the client asks for the rest
MAX_AT_ONCE = 8  # questions of one connection: each answer may have 8 MiB

Parts = list[Buffer]


class MessageHandler:
    """
    Answers questions about stored messages.

    ``index_now(ready)`` asks for all that can be read to be indexed, and calls ``ready`` on the loop when it is.
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, pool: ReadPool, *,
        index_now: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._pool = pool
        self._index_now = index_now
        self._call_later = call_later
        self._clock = clock
        self._asked: Counter[Connection] = Counter()

    # ---- by key

    def query(self, connection: Connection, request_id: int, payload: Any) -> object:
        """The messages of a key, newest first."""
        request = decode(QueryMessages, payload)
        _check_query(request)
        if request.topic is not None:
            self._topics.require(request.topic)
        query = lookup.Query(request.key, request.topic, *request[2:])
        self._admit(connection)
        begin = _Once(lambda: self._run(connection, request_id, self._search(query)))
        if self._store.index_lag:
            begin.timer = self._call_later(INDEX_WAIT_S, begin)
            self._index_now(begin)
        else:
            begin()
        return DEFERRED

    def _search(self, query: lookup.Query) -> Callable[[], Parts]:
        reader, keys, lag = self._store.reader(), self._store.keys, self._store.index_lag
        clock, alive = self._clock, self._alive

        def search() -> Parts:
            until = clock() + SEARCH_S
            wanted = KeySearch(lookup.hash_of(query.key), query.since_us, query.until, query.below)
            with reader, closing(keys.search(wanted, reader.ranges())) as places:
                found = lookup.find(query, places, reader, alive, lambda: clock() > until)
            packed = [part for batch in found.found for part in _pack(batch)]
            head = frames.array_header(3) + frames.array_header(len(found.found))
            return [head, *packed, msgpack.packb(found.before), msgpack.packb(lag)]

        return search

    def _alive(self, topic: str, generation: int) -> bool:
        """Called by threads; one look into a table is safe."""
        known = self._topics.get(topic)
        return known is not None and known.generation == generation

    # ---- by id

    def get(self, connection: Connection, request_id: int, payload: Any) -> object:
        """The message of an id."""
        request = decode(GetMessage, payload)
        self._admit(connection)
        reader, stores, alive = self._store.reader(), self._store.stores, self._alive

        def read() -> Parts:
            with reader:
                return _pack(lookup.get(request.message_id, stores, reader, alive))

        self._run(connection, request_id, read)
        return DEFERRED

    # ---- by time

    def offsets_at(self, connection: Connection, request_id: int, payload: Any) -> object:
        """The first offset of each queue that was stored at a time or later."""
        check_entries(payload, 1)
        request = decode(OffsetsAt, payload)
        self._admit(connection)
        places = [self._locator(MessageQueue(*ref)) for ref in request.queues]
        reader = self._store.reader()

        def search() -> Parts:
            with reader:
                answers = [_offset_at(request.time_us, place, reader) for place in places]
            return [msgpack.packb(answers)]

        self._run(connection, request_id, search)
        return DEFERRED

    def _locator(self, queue: MessageQueue, offset: int | None = None) -> Locator | Refused:
        try:
            self._topics.require_queue(*queue)
        except Refused as error:
            return error
        return self._store.locator(queue, offset)

    # ---- by offset

    def heads(self, connection: Connection, request_id: int, payload: Any) -> object:
        """When the message at an offset of each queue was stored."""
        check_entries(payload, 0)
        request = decode(Heads, payload)
        self._admit(connection)
        places = [self._locator(MessageQueue(at.topic, at.queue_id), at.queue_offset) for at in request.entries]
        reader = self._store.reader()

        def look() -> Parts:
            with reader:
                found = [_head(entry, place, reader) for entry, place in zip(request.entries, places, strict=True)]
            return [msgpack.packb(found)]

        self._run(connection, request_id, look)
        return DEFERRED

    # ---- running

    def _admit(self, connection: Connection) -> None:
        if self._asked[connection] >= MAX_AT_ONCE:
            raise TooManyInFlight(f"a connection may ask {MAX_AT_ONCE} questions about stored messages at once")
        self._asked[connection] += 1

    def _run(self, connection: Connection, request_id: int, job: Callable[[], Parts]) -> None:
        done = partial(self._done, connection, request_id)
        if connection.closing:  # while it waited for the index
            self._forget(connection)
            return
        try:
            self._pool.submit(job, done)
        except Refused as error:
            done(error)

    def _done(self, connection: Connection, request_id: int, answer: Parts | Exception) -> None:
        self._forget(connection)
        if isinstance(answer, Refused):
            connection.refuse(request_id, answer)
        elif isinstance(answer, OSError):
            connection.refuse(request_id, StoreFailed(f"the log cannot be read: {answer.strerror}"))
        elif isinstance(answer, Exception):
            connection.refuse(request_id, connection.defect(answer, request_id))
        elif connection.blocked:  # answers are large: no more of them for a peer that does not read
            connection.refuse(request_id, TooManyInFlight("read the answers that wait before asking for more"))
        else:
            connection.reply_parts(request_id, answer)

    def _forget(self, connection: Connection) -> None:
        self._asked[connection] -= 1
        if not self._asked[connection]:
            del self._asked[connection]


class _Once:
    """A callback for whichever of two events comes first."""

    __slots__ = ("_action", "timer")

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self.timer: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            if self.timer is not None:
                self.timer.cancel()
            action()


def _check_query(request: QueryMessages) -> None:
    if not request.key:
        raise BadRequest("the key is empty: name one that messages were sent with")
    if not 1 <= request.limit <= MAX_FOUND:
        raise BadRequest(f"a query finds 1 to {MAX_FOUND} messages, not {request.limit}: ask several times")
    if not 0 <= request.before < 1 << 63:
        raise BadRequest(f"{request.before} is not a handle")
    for time in (request.since_us, request.until_us):
        if not NO_TIME <= time < MAX_TIME:
            raise BadRequest(f"the time {time} is not between 1970 and 9999")


def _pack(found: FoundBatch) -> Parts:
    return [frames.array_header(2) + frames.bin_header(len(found.batch)), found.batch, msgpack.packb(found.indexes)]


def _head(entry: HeadAt, place: Locator | Refused, reader: LogReader) -> Head:
    if isinstance(place, Refused):
        return Head(place.code, text=place.text)
    offset = max(entry.queue_offset, place.min_offset)
    if offset >= place.max_offset:
        return Head(EMPTY, offset)
    lies_at = place.position_of(offset)
    header = None if lies_at is None else reader.header(lies_at[0])
    if lies_at is None or header is None or not _has_message(header, entry, offset):
        where = f"{entry.topic}/{entry.queue_id}"
        return Head(Damaged.code, offset, text=f"the batch of {where} at offset {offset} is damaged")
    return Head(OK, offset, header.stored_at, batches.handle(lies_at[0], offset - header.base_offset))


def _has_message(header: layout.Header, entry: HeadAt, offset: int) -> bool:
    return (header.topic, header.queue_id) == entry[:2] and header.base_offset <= offset < header.end_offset


def _offset_at(time_us: int, place: Locator | Refused, reader: LogReader) -> OffsetAt:
    if isinstance(place, Refused):
        return OffsetAt(place.code, text=place.text)

    def stored_at(position: int) -> int | None:
        head = reader.head(position)
        return None if head is None else head.stored_at

    offset = lookup.offset_at(time_us, place.min_offset, place.max_offset, place.position_of, stored_at)
    return OffsetAt(0, offset, place.min_offset, place.max_offset)
