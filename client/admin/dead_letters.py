"""What a client asks about the dead letters of groups, and has done with them; page by page, and part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rmq.engine.native.connection import Connection
from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops.core import MAX_ENTRIES, Op
from rmq.wire.protocol.ops.redelivery import DeadResult, DeadRow, DeadRun, DeadStates, DropDead, ListDead, ReplayDead

TIMEOUT_S: Final = 30.0  # the broker may have to read, and to write, 1024 messages of 4 MiB


async def list_dead(connection: Connection, *, timeout_s: float) -> list[DeadRow]:
    """The groups with dead letters, by name."""
    found: list[DeadRow] = []
    while True:
        asked = ListDead(found[-1].group if found else "")
        page = decode_list(DeadRow, await connection.request(Op.LIST_DEAD, asked, timeout_s=timeout_s))
        if not page:
            return found
        found += page


async def dead_states(connection: Connection, group: str, *, timeout_s: float) -> list[DeadRun]:
    """Which dead letters of a group were dealt with, in order."""
    found: list[DeadRun] = []
    while True:
        asked = DeadStates(group, found[-1].end_offset if found else 0)
        page = decode_list(DeadRun, await connection.request(Op.DEAD_STATES, asked, timeout_s=timeout_s))
        if not page:
            return found
        found += page


async def replay_dead(
    connection: Connection, group: str, queue_offsets: Iterable[int], *, to_topic: bool, dry_run: bool
) -> dict[int, DeadResult]:
    """Have dead letters delivered again, in the order of their offsets; what became of each."""
    return await _each(
        connection, Op.REPLAY_DEAD, queue_offsets, lambda part: ReplayDead(group, part, to_topic, dry_run)
    )


async def drop_dead(
    connection: Connection, group: str, queue_offsets: Iterable[int], *, dry_run: bool
) -> dict[int, DeadResult]:
    """Have dead letters marked as dealt with; what became of each."""
    return await _each(connection, Op.DROP_DEAD, queue_offsets, lambda part: DropDead(group, part, dry_run))


async def _each(
    connection: Connection, op: Op, queue_offsets: Iterable[int], payload: Callable[[list[int]], Sequence[Any]]
) -> dict[int, DeadResult]:
    offsets = sorted(set(queue_offsets))
    results: dict[int, DeadResult] = {}
    for at in range(0, len(offsets), MAX_ENTRIES):
        part = offsets[at : at + MAX_ENTRIES]
        told = decode_list(DeadResult, await connection.request(op, payload(part), timeout_s=TIMEOUT_S))
        if len(told) != len(part):
            raise BadRequest(f"{op.name}: the broker answered {len(told)} items for {len(part)}")
        results.update(zip(part, told, strict=True))
    return results
