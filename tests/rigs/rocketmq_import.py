"""What the tests of an import share: a run of it, and what the broker has afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmq.client.admin.admin import Admin
from rmq.client.importer.plan import Wishes, make_plan
from rmq.client.importer.survey import RocketMQStore
from rmq.client.importer.take_over import ImportResult, TakeOver
from rmq.wire.model import MessageQueue, StoredMessage


def take_over(root: Path, address: str, wishes: Wishes | None = None, **more: Any) -> TakeOver:
    """An import, ready to run."""
    store, wishes = RocketMQStore(root), wishes or Wishes()
    return TakeOver(store, make_plan(store, wishes), wishes, address, **more)


async def imported(root: Path, address: str, wishes: Wishes | None = None) -> ImportResult:
    """Import a store to its end."""
    return await take_over(root, address, wishes).run()


async def messages_in(admin: Admin, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """All messages of a queue."""
    queue = MessageQueue(topic, queue_id)
    (held,) = await admin.ranges([queue])
    return [message async for some in admin.read(queue, 0, held.max_offset) for message in some]


async def bodies_in(admin: Admin, topic: str, queue_id: int = 0) -> list[bytes]:
    """The bodies of a queue."""
    return [message.body for message in await messages_in(admin, topic, queue_id)]


async def committed(admin: Admin, group: str, topic: str, queue_id: int = 0) -> int:
    """Where a group is in a queue; -1: nowhere."""
    (held,) = await admin.ranges([MessageQueue(topic, queue_id)], group)
    return held.committed
