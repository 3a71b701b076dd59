"""What a client asks about messages that wait for their time."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq.engine.native.connection import Connection
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.deferrals import MAX_ROWS, DelayPage, DelayRow, ListDelays

TIMEOUT_S: Final = 30.0  # the broker may have to read much of its log


class DeferredBatches(NamedTuple):
    """
    Delayed batches in the order they become due, of one topic or of all.

    ``total_batches`` and ``total_messages`` wait in the whole broker. ``more``: there may be others behind ``rows``.
    """

    rows: list[DelayRow]
    more: bool
    total_batches: int
    total_messages: int


async def waiting(connection: Connection, topic: str | None, limit: int) -> DeferredBatches:
    """Ask as often as it takes to get ``limit`` batches, or all there are."""
    if limit < 1:
        raise ValueError(f"the limit must be at least 1, not {limit}")
    rows: list[DelayRow] = []
    asked = ListDelays(topic=topic)
    while True:
        # Of one topic perhaps few are found on a page, which costs the broker little and us a question.
        asked = asked._replace(limit=min(limit - len(rows), MAX_ROWS) if topic is None else MAX_ROWS)
        page = decode(DelayPage, await connection.request(Op.LIST_DELAYS, asked, timeout_s=TIMEOUT_S))
        rows += page.rows
        if page.is_last or len(rows) >= limit:
            more = not page.is_last or len(rows) > limit
            return DeferredBatches(rows[:limit], more, page.batches, page.messages)
        asked = asked._replace(due_at=page.next_due_at, position=page.next_position)


async def still_waits(connection: Connection, due_at: int, position: int) -> bool:
    """Whether the batch at a place of the log, due at a time (us), has not been delivered yet."""
    asked = ListDelays(due_at, max(position - 1, 0), 1)
    page = decode(DelayPage, await connection.request(Op.LIST_DELAYS, asked, timeout_s=TIMEOUT_S))
    return any((row.due_at, row.position) == (due_at, position) for row in page.rows)
