"""Requests about stored messages; the answers are checked and decoded as those of a pull."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from rmq.engine.native.connection import Connection
from rmq.engine.native.requests import request_for_each
from rmq.wire.batch import batch as batches
from rmq.wire.deferral import to_us
from rmq.wire.errors import OK, Damaged, MessagesLost, OffsetOutOfRange, from_wire
from rmq.wire.model import MessageQueue, StoredMessage, from_us
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import messages as message_ops
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullQueue, PullResult, QueueRef
from rmq.wire.protocol.ops.messages import (
    MAX_FOUND,
    NO_TIME,
    FoundBatch,
    GetMessage,
    HeadAt,
    Heads,
    OffsetAt,
    OffsetsAt,
    QueryMessages,
    QueryReply,
)

TIMEOUT_S: Final = 30.0  # the broker may have to read much of its log
READ_BYTES: Final = 1 << 20  # of one answer, but for a batch that is larger


class FoundMessages(NamedTuple):
    """
    The messages of a key, newest first.

    ``more``: older ones may exist beyond the limit. ``lag_bytes`` is how much of the log's end was not searched, as the
    broker has not indexed it yet; usually 0.
    """

    messages: list[StoredMessage]
    more: bool
    lag_bytes: int


class Head(NamedTuple):
    """
    The message of a queue at an offset, or the next one if that is not stored any more.

    ``status`` is 0, EMPTY (-1) if the queue ends before, or the code of an error.
    """

    status: int
    queue_offset: int
    stored_at: datetime | None
    message_id: str | None
    text: str | None


def question(key: str, topic: str | None, since: datetime | None, until: datetime | None) -> QueryMessages:
    """Return a query without its limit."""
    return QueryMessages(topic, key, _bound(since), _bound(until))


def _bound(time: datetime | None) -> int:
    return NO_TIME if time is None else to_us(time)


async def query(
    connection: Connection, asked: QueryMessages, limit: int, *, index_keys_only: bool = False
) -> FoundMessages:
    """
    Return up to ``limit`` messages, in as many requests as it takes.

    The broker searches keys and index keys alike; ``index_keys_only`` leaves out messages found by their key alone.
    """
    if limit < 1:
        raise ValueError(f"the limit must be at least 1, not {limit}")
    messages: list[StoredMessage] = []
    before = lag = 0
    while True:
        part = asked._replace(limit=min(limit - len(messages), MAX_FOUND), before=before)
        reply = decode(QueryReply, await connection.request(Op.QUERY_MESSAGES, part, timeout_s=TIMEOUT_S))
        found = _messages(connection, reply.found)
        messages += [one for one in found if asked.key in one.index_keys] if index_keys_only else found
        before, lag = reply.before, max(lag, reply.lag_bytes)
        if not before or len(messages) >= limit:
            return FoundMessages(messages, bool(before), lag)


async def get(connection: Connection, message_id: str) -> StoredMessage:
    """Return the message with an id."""
    reply = await connection.request(Op.GET_MESSAGE, GetMessage(message_id), timeout_s=TIMEOUT_S)
    (message,) = _messages(connection, [decode(FoundBatch, reply)])
    return message


async def offsets_at(connection: Connection, queues: list[QueueRef], time: datetime) -> list[OffsetAt]:
    """Return the offset of each queue at a time."""
    time_us = to_us(time)
    return await request_for_each(
        connection, Op.OFFSETS_AT, queues, partial(OffsetsAt, time_us), OffsetAt, timeout_s=TIMEOUT_S
    )


async def heads(connection: Connection, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Head]:
    """Return the message at an offset of each queue."""
    entries = [HeadAt(*queue, offset) for queue, offset in offsets.items()]
    found = await request_for_each(connection, Op.HEADS, entries, Heads, message_ops.Head, timeout_s=TIMEOUT_S)
    return {queue: _head(connection, head) for queue, head in zip(offsets, found, strict=True)}


def _head(connection: Connection, head: message_ops.Head) -> Head:
    if head.status != OK:
        return Head(head.status, head.queue_offset, None, None, head.text)
    assert connection.hello is not None  # the connection was open to be asked
    message_id = batches.id_of_handle(connection.hello.stores, head.handle)
    return Head(OK, head.queue_offset, from_us(head.stored_at), message_id, None)


async def read(connection: Connection, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[StoredMessage]]:
    """
    Yield the messages of a queue from offset ``start`` to before ``end``, in order, an answer of the broker at a time.

    Messages that retention removed are left out; it also stops at the end of the queue.

    Raises:
        Damaged: a part of the queue cannot be read.
    """
    at = start
    while at < end:
        asked = Pull(None, 0, READ_BYTES, [PullQueue(*queue, at)])
        reply = await connection.request(Op.PULL, asked, timeout_s=TIMEOUT_S)
        found = decode_list(PullResult, reply)
        if not found or found[0].status in (EMPTY, OffsetOutOfRange.code):
            return
        (answer,) = found
        if answer.status not in (OK, MessagesLost.code):
            raise from_wire(answer.status, answer.text or f"{queue} cannot be read at offset {at}")
        assert connection.hello is not None  # the connection was open to be asked
        read = batches.read_all(answer.batches, stores=connection.hello.stores)
        yield [message for batch in read for message in batch.messages(at) if message.queue_offset < end]
        if answer.next_offset <= at:
            raise Damaged(f"{queue} cannot be read after offset {at}")
        at = answer.next_offset


def _messages(connection: Connection, found: Iterable[FoundBatch]) -> list[StoredMessage]:
    assert connection.hello is not None  # the connection was open to be asked
    stores = connection.hello.stores
    return [message for batch, indexes in found for message in batches.read(batch, stores=stores).pick(indexes)]
