"""
A sample of a broker: its metrics, groups and leases.

The cost of a sample is bounded on large brokers, too: leases are not listed if they are very many, and the age of the
oldest unconsumed message is requested only for the groups with the largest lag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq.wire.errors import Refused
from rmq.wire.model import MessageQueue, from_us
from rmq.wire.protocol.ops.core import LockRow
from rmq.wire.protocol.ops.groups import GroupDescription, GroupRow

if TYPE_CHECKING:
    from ..admin.admin import Admin

MOST_TOPICS: Final = 1000
MOST_LEASES: Final = 2000
MOST_DATED: Final = 10  # groups
MOST_HEADS: Final = 256  # queues of a group


class Sample(NamedTuple):
    """
    The state of a broker at ``at`` (seconds, monotonic).

    ``locks`` is None if there are too many to list. ``behind_s``: the age of the oldest message that a group has not
    consumed, for the groups with the largest lag.
    """

    at: float
    stats: Mapping[str, Mapping[str, Any]]
    groups: list[GroupRow]
    locks: list[LockRow] | None
    behind_s: Mapping[str, float]

    def number(self, part: str, name: str) -> float:
        """Return a metric; 0 from a broker that does not report it."""
        return self.stats.get(part, {}).get(name) or 0


async def take(admin: Admin, clock: Callable[[], float]) -> Sample:
    """Take a sample; raises what the requests raise. Cancelling is safe."""
    stats = await admin.stats(topics=MOST_TOPICS)
    at = clock()
    groups = await admin.list_groups()
    listed = stats["serving"]["leases"] <= MOST_LEASES
    locks = await admin.lock_status() if listed else None
    now = from_us(stats["broker"]["time_us"])
    behind_s: dict[str, float] = {}
    for row in furthest_behind(groups):
        oldest = await _oldest(admin, row.group)
        if oldest is not None:
            behind_s[row.group] = max((now - oldest) / timedelta(seconds=1), 0.0)
    return Sample(at, stats, groups, locks, behind_s)


async def _oldest(admin: Admin, group: str) -> datetime | None:
    """Return when the oldest message that waits for a group was stored, or None if that is unknown."""
    try:
        heads = await admin.heads(waiting_heads(await admin.describe_group(group)))
    except Refused:  # the group or a topic has just gone, or the broker has too much to do at present
        return None
    return min((head.stored_at for head in heads.values() if head.stored_at is not None), default=None)


def furthest_behind(groups: list[GroupRow]) -> list[GroupRow]:
    """Return the groups with the largest lag."""
    waiting = [row for row in groups if row.lag > 0 and row.model != "broadcasting"]
    return sorted(waiting, key=lambda row: -row.lag)[:MOST_DATED]


def waiting_heads(described: GroupDescription) -> dict[MessageQueue, int]:
    """Return the next offsets of a group in the queues with a lag; in those with the largest, if they are many."""
    waiting = sorted((queue for queue in described.queues if queue.lag > 0), key=lambda queue: -queue.lag)
    return {
        MessageQueue(queue.topic, queue.queue_id): max(queue.committed, queue.min_offset)
        for queue in waiting[:MOST_HEADS]
    }
