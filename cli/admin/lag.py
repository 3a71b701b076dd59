"""
How far a group is behind in time: the age of the oldest message of a queue that it has not done.

The broker tells how many messages a group has before it; when the first of them was stored is asked for those queues
alone that have any. The age is by the broker's clock, which stored the message: the one here may be another.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from rmq.wire.model import MessageQueue, from_us

if TYPE_CHECKING:
    from rmq.client import Admin, GroupDescription
    from rmq.client.admin.messages import Head

Ages: TypeAlias = Mapping[MessageQueue, float]


def next_offsets(told: GroupDescription) -> dict[MessageQueue, int]:
    """Where each queue that the group is behind in goes on."""
    return {
        MessageQueue(queue.topic, queue.queue_id): max(queue.committed, queue.min_offset)
        for queue in told.queues
        if queue.lag > 0
    }


def ages_of(heads: Mapping[MessageQueue, Head], now: datetime) -> dict[MessageQueue, float]:
    """The age in seconds of each message; one that cannot be read (or was done meanwhile) has none."""
    return {
        queue: max(0.0, round((now - head.stored_at).total_seconds(), 3))
        for queue, head in heads.items()
        if head.stored_at is not None
    }


def oldest(ages: Ages) -> float | None:
    """How far the group is behind in all its queues, None if nothing is known to wait."""
    return max(ages.values(), default=None)


def ahead(stats: Mapping[str, Mapping[str, Any]], now: datetime) -> timedelta:
    """How far the broker's clock is ahead of the one here; nothing if it does not tell, being of another version."""
    time_us = stats.get("broker", {}).get("time_us")
    return from_us(time_us) - now if isinstance(time_us, int) else timedelta()


async def ask_ahead(admin: Admin) -> timedelta:
    """The same, asked of the broker."""
    return ahead(await admin.stats(), datetime.now(UTC))


async def ask_ages(admin: Admin, told: GroupDescription, now: datetime) -> dict[MessageQueue, float]:
    """The ages of a group's queues; a broadcasting group has none, since each of its members has its own progress."""
    if told.model == "broadcasting":
        return {}
    asked = next_offsets(told)
    return ages_of(await admin.heads(asked), now) if asked else {}
