"""
Which offsets a query reads, decided once: ranges of queues, cut so that every core has work.

Pure functions of what the user asked for and what the broker said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rmq.client.scan_plan import QueueRange
from rmq.wire.errors import ConfigError, OffsetOutOfRange
from rmq.wire.ops import Range

from .options import EARLIEST, LATEST, Bound

MIN_SPLIT_ROWS: Final = 16_384  # a smaller piece is read faster than a task for it is started


def resolve(start: Bound, end: Bound, queue_id: int, held: Range) -> tuple[int, int]:
    """
    The range of one queue that holds ``[min_offset, max_offset)``.

    Raises:
        OffsetOutOfRange: messages that were asked for are deleted, or an exact offset is not reached.
        ConfigError: the range ends before it starts.
    """
    first, last = start.of(queue_id), end.of(queue_id)
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise ConfigError(f"queue {queue_id}: {start.name} {first} lies behind {end.name} {last}")
    if isinstance(first, int) and first < held.min_offset:
        raise OffsetOutOfRange(
            f"queue {queue_id}: the messages from {first} to {held.min_offset} are deleted; "
            f"{start.name} {EARLIEST} reads what is left"
        )
    begin = _clamp(start, queue_id, held)
    return begin, max(begin, _clamp(end, queue_id, held))


def split(ranges: Sequence[QueueRange], *, max_rows: int, cores: int) -> list[QueueRange]:
    """Cut ranges into pieces of about equal length, none over ``max_rows``; empty ranges vanish."""
    total = sum(part.rows for part in ranges)
    limit = min(max_rows, max(MIN_SPLIT_ROWS, -(-total // cores)))
    return [piece for part in ranges for piece in _cut(part, -(-part.rows // limit))]


def _clamp(bound: Bound, queue_id: int, held: Range) -> int:
    asked = bound.of(queue_id)
    if asked == EARLIEST:
        return held.min_offset
    if asked == LATEST:
        return held.max_offset
    place = int(asked)
    if queue_id in bound.by_queue and not held.min_offset <= place <= held.max_offset:
        raise OffsetOutOfRange(
            f"queue {queue_id} holds {held.min_offset} to {held.max_offset}: {bound.name} {place} lies outside"
        )
    return min(max(place, held.min_offset), held.max_offset)


def _cut(part: QueueRange, pieces: int) -> list[QueueRange]:
    bounds = [part.start + part.rows * i // pieces for i in range(pieces)] + [part.end]
    return [replace(part, start=bounds[i], end=bounds[i + 1]) for i in range(pieces)]
