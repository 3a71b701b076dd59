"""Requests about deferred messages."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq.engine.native.connection import Connection
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.deferrals import MAX_ROWS, DelayPage, DelayRow, ListDelays

TIMEOUT_S: Final = 30.0  # the broker may have to read much of its log


class DeferredBatches(NamedTuple):
    """
    Deferred batches of one topic or of all, in the order they become due.

    ``total_batches`` and ``total_messages`` count those of the whole broker. ``more``: others may follow ``rows``.
    """

    rows: list[DelayRow]
    more: bool
    total_batches: int
    total_messages: int


async def list_deferred(connection: Connection, topic: str | None, limit: int) -> DeferredBatches:
    """Return up to ``limit`` batches, in as many requests as it takes."""
    if limit < 1:
        raise ValueError(f"the limit must be at least 1, not {limit}")
    rows: list[DelayRow] = []
    asked = ListDelays(topic=topic)
    while True:
        # A page may have few batches of one topic: that costs the broker little and the client another request.
        asked = asked._replace(limit=min(limit - len(rows), MAX_ROWS) if topic is None else MAX_ROWS)
        page = decode(DelayPage, await connection.request(Op.LIST_DELAYS, asked, timeout_s=TIMEOUT_S))
        rows += page.rows
        if page.is_last or len(rows) >= limit:
            more = not page.is_last or len(rows) > limit
            return DeferredBatches(rows[:limit], more, page.batches, page.messages)
        asked = asked._replace(due_at=page.next_due_at, position=page.next_position)


async def is_deferred(connection: Connection, due_at: int, position: int) -> bool:
    """Return whether the batch at a log position, due at a time (us), has not been delivered yet."""
    asked = ListDelays(due_at, max(position - 1, 0), 1)
    page = decode(DelayPage, await connection.request(Op.LIST_DELAYS, asked, timeout_s=TIMEOUT_S))
    return any((row.due_at, row.position) == (due_at, position) for row in page.rows)
