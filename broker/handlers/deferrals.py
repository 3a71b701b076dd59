"""LIST_DELAYS: deferred batches that wait for their time, page by page, in the order of delivery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import BadRequest, StoreFailed
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.deferrals import MAX_ROWS, DelayPage, DelayRow, ListDelays
from rmq.wire.stores import StoreIds

from ..jobs.read_pool import ReadPool
from ..net.connection import DEFERRED, Connection
from ..state.deferred import DeferredBatch, DeliveryMark
from ..store.lookup import LogReader
from ..store.message_store import MessageStore


class DelayHandler:
    """Reads the headers of a page in a thread: the table knows times and places only."""

    def __init__(self, store: MessageStore, pool: ReadPool) -> None:
        self._store = store
        self._pool = pool

    def list_delays(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Reply with a page once its headers are read."""
        ask = decode(ListDelays, payload)
        if not 1 <= ask.limit <= MAX_ROWS:
            raise BadRequest(f"a page has 1 to {MAX_ROWS} batches, not {ask.limit}")
        if not (0 <= ask.due_at < layout.MAX_TIME and 0 <= ask.position < layout.MAX_POSITION):
            raise BadRequest(f"no batch waits after ({ask.due_at}, {ask.position})")
        table = self._store.delays
        entries = table.page(DeliveryMark(ask.due_at, ask.position), ask.limit + 1)
        is_last = len(entries) <= ask.limit
        entries = entries[: ask.limit]
        end = entries[-1][:2] if entries else (ask.due_at, ask.position)
        page = DelayPage(table.batches, table.messages, [], *end, is_last)
        reader, stores = self._store.reader(), self._store.stores

        def done(result: list[DelayRow] | Exception) -> None:
            if connection.closing:
                return
            if isinstance(result, Exception):
                connection.refuse(request_id, StoreFailed(f"what waits cannot be read: {result}"))
            else:
                connection.reply(request_id, page._replace(rows=result))

        self._pool.submit(lambda: rows_of(entries, reader, ask.topic, stores), done)
        return DEFERRED


def rows_of(entries: Sequence[DeferredBatch], reader: LogReader, topic: str | None, stores: StoreIds) -> list[DelayRow]:
    """Return rows from the headers of batches; those of other topics, damaged or not yet durable are left out."""
    rows = []
    with reader:
        for entry in entries:
            header = reader.header(entry.position)
            if header is None or (topic is not None and header.topic != topic):
                continue
            message_id = batches.id_of_handle(stores, batches.handle(entry.position, 0))
            rows.append(
                DelayRow(
                    entry.due_at,
                    entry.position,
                    header.topic,
                    header.queue_id,
                    header.delay_level,
                    header.count,
                    header.stored_at,
                    message_id,
                )
            )
    return rows
