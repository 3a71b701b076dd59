"""Questions that take several requests: entries that are sent in parts, and lists that come in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops.core import MAX_ENTRIES, Op

from .connection import Connection

E = TypeVar("E")
T = TypeVar("T")
Payload = Sequence[Any]


async def request_for_each(
    connection: Connection,
    op: Op,
    entries: Sequence[E],
    payload: Callable[[list[E]], Payload],
    shape: type[T],
    *,
    timeout_s: float,
) -> list[T]:
    """Send entries in as many requests as they need, and return one result for each; raises as ``request`` does."""
    results: list[T] = []
    for at in range(0, len(entries), MAX_ENTRIES):
        part = list(entries[at : at + MAX_ENTRIES])
        found = decode_list(shape, await connection.request(op, payload(part), timeout_s=timeout_s))
        if len(found) != len(part):
            raise BadRequest(f"{op.name}: the broker answered {len(found)} items for {len(part)}")
        results += found
    return results


async def request_all(
    connection: Connection, op: Op, payload: Callable[[T | None], Payload], shape: type[T], *, timeout_s: float
) -> list[T]:
    """
    Request a list page by page, up to the first empty page; raises as ``request`` does.

    ``payload`` gets the last row so far, or None for the first page. Rows that appear meanwhile may be missing.
    """
    rows: list[T] = []
    while True:
        reply = await connection.request(op, payload(rows[-1] if rows else None), timeout_s=timeout_s)
        page = decode_list(shape, reply)
        if not page:
            return rows
        rows += page
