"""Requests about the dead letters of groups: listing, replaying and dropping them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rmq.engine.native.connection import Connection
from rmq.engine.native.requests import request_all, request_for_each
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import DeadResult, DeadRow, DeadRun, DeadStates, DropDead, ListDead, ReplayDead

TIMEOUT_S: Final = 30.0  # the broker may have to read, and to write, 1024 messages of 4 MiB


async def list_dead(connection: Connection, *, timeout_s: float) -> list[DeadRow]:
    """Return the groups with dead letters, by name."""
    return await request_all(
        connection, Op.LIST_DEAD, lambda last: ListDead(last.group if last else ""), DeadRow, timeout_s=timeout_s
    )


async def dead_states(connection: Connection, group: str, *, timeout_s: float) -> list[DeadRun]:
    """Return which dead letters of a group were replayed or dropped, in order."""

    def page(last: DeadRun | None) -> DeadStates:
        return DeadStates(group, last.end_offset if last else 0)

    return await request_all(connection, Op.DEAD_STATES, page, DeadRun, timeout_s=timeout_s)


async def replay_dead(
    connection: Connection, group: str, queue_offsets: Iterable[int], *, to_topic: bool, dry_run: bool
) -> dict[int, DeadResult]:
    """Have dead letters delivered again, in the order of their offsets, and return the result of each."""
    return await _each(
        connection, Op.REPLAY_DEAD, queue_offsets, lambda part: ReplayDead(group, part, to_topic, dry_run)
    )


async def drop_dead(
    connection: Connection, group: str, queue_offsets: Iterable[int], *, dry_run: bool
) -> dict[int, DeadResult]:
    """Mark dead letters as dealt with, and return the result of each."""
    return await _each(connection, Op.DROP_DEAD, queue_offsets, lambda part: DropDead(group, part, dry_run))


async def _each(
    connection: Connection, op: Op, queue_offsets: Iterable[int], payload: Callable[[list[int]], Sequence[Any]]
) -> dict[int, DeadResult]:
    offsets = sorted(set(queue_offsets))
    results = await request_for_each(connection, op, offsets, payload, DeadResult, timeout_s=TIMEOUT_S)
    return dict(zip(offsets, results, strict=True))
