"""All that a broker, or a stopped log, gives to a reader without a group: batch by batch, and what it refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from rmq.broker.offline.reader import OfflineLog
from rmq.wire.batch import layout
from rmq.wire.errors import Damaged
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from .harness import Client

Ask = Callable[[Op, Any], Awaitable[Any]]


class Content(NamedTuple):
    """What a queue holds, and its batches and damaged ranges in order."""

    generation: int
    min_offset: int
    max_offset: int
    parts: list[bytes | tuple[int, int]]


async def content(
    ask: Ask, *, max_bytes: int = 1 << 20, expression: str | None = None
) -> dict[tuple[str, int], Content]:
    """Everything, by topic and queue."""
    found: dict[tuple[str, int], Content] = {}
    after = ""
    while page := decode_list(ops.TopicInfo, await ask(Op.LIST_TOPICS, ops.ListTopics(after))):
        for info in page:
            refs = [ops.QueueRef(info.topic, queue.queue_id) for queue in info.queues]
            held = decode_list(ops.Range, await ask(Op.RANGES, ops.Ranges(None, refs)))
            for ref, bounds in zip(refs, held, strict=True):
                parts = await _parts(ask, ref, bounds, max_bytes, expression)
                found[ref.topic, ref.queue_id] = Content(info.generation, bounds.min_offset, bounds.max_offset, parts)
        after = page[-1].topic
    return found


async def _parts(
    ask: Ask, ref: ops.QueueRef, bounds: ops.Range, max_bytes: int, expression: str | None
) -> list[bytes | tuple[int, int]]:
    parts: list[bytes | tuple[int, int]] = []
    at = bounds.min_offset
    while at < bounds.max_offset:
        pull = ops.Pull(None, 0, max_bytes, [ops.PullQueue(*ref, at)], expression)
        (answer,) = decode_list(ops.PullResult, await ask(Op.PULL, pull))
        assert answer.status in (0, ops.EMPTY, Damaged.code), answer.text
        assert answer.next_offset > at, "it goes on"
        if answer.status == Damaged.code:
            parts.append((at, answer.next_offset))
        place = 0
        while place < len(answer.batches):
            size = layout.parse_header(answer.batches, place).size
            parts.append(answer.batches[place : place + size])
            place += size
        at = answer.next_offset
    return parts


async def of_broker(client: Client, **how: Any) -> dict[tuple[str, int], Content]:
    """What a running broker gives."""
    return await content(client.request, **how)


async def of_log(log: OfflineLog, **how: Any) -> dict[tuple[str, int], Content]:
    """What a stopped log gives."""

    async def ask(op: Op, payload: Any) -> Any:
        return log.request(op, payload)

    return await content(ask, **how)
