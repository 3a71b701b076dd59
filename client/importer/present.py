"""
What of a plan a broker has already: nothing, or what an import of the same store sent before it was cut off.

Every message that is there must be one of the plan, at its place, by the offset id and the store time that imported
messages carry. Anything else is refused before a message is sent. A topic may be there, and be empty.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rmq.wire.batch.batch import handle, message_id, split_message_id
from rmq.wire.errors import MessageNotFound
from rmq.wire.model import MessageQueue

from .log_walk import LogWalk
from .messages import identity, identity_of
from .plan import Plan, Queue
from .survey import QUEUED, Survey, SurveyedRecord

if TYPE_CHECKING:
    from ..admin.admin import Admin

TURN: Final = 1000  # records that are read before others have their turn on the loop
_ALL: Final = 1 << 40  # batches that wait: more than any broker has


class ImportRefused(Exception):
    """The broker holds something that the import must not be mixed with; one sentence that says what to do."""


@dataclass(slots=True)
class Present:
    """How many messages each queue has of the plan, and which waiting ones were sent (by their physical offset)."""

    messages: dict[Queue, int] = field(default_factory=dict)
    deferred: set[int] = field(default_factory=set)


async def look(admin: Admin, plan: Plan, survey: Callable[[], Survey]) -> Present:
    """
    Compare the plan with what is there.

    Raises:
        ImportRefused: a topic has too few queues, or holds something else.
    """
    there = {info.topic: info for info in await admin.list_topics()}
    looking = _Looking(admin, plan, survey().walk)
    for topic in plan.topics.values():
        info = there.get(topic.new)
        if info is None:
            continue
        if len(info.queues) < topic.queues:
            text = f"the topic {topic.new!r} exists with {len(info.queues)} queues, and {topic.queues} are needed"
            raise ImportRefused(f"{text}: `rmq-admin topic grow {topic.new} --queues {topic.queues}` makes them")
        await looking.at_deferred(topic.old)  # first: what becomes due meanwhile is then seen in its queue
        for queue_id in range(len(info.queues)):
            await looking.at_queue((topic.old, queue_id))
    await _compare(looking, survey())
    return looking.found


class _Looking:
    """Reads what is there, topic by topic."""

    def __init__(self, admin: Admin, plan: Plan, walk: LogWalk) -> None:
        self._admin = admin
        self._plan = plan
        self._walk = walk
        self._planned: dict[str, dict[str, int]] = {}
        self.found = Present()
        self.digests: dict[Queue, Any] = {}

    async def at_deferred(self, topic: str) -> None:
        """What waits for its time."""
        new = self._plan.target(topic)
        for row in (await self._admin.list_deferred(new, limit=_ALL)).rows:
            store_id, position, _ = split_message_id(row.message_id)
            for index in range(row.messages):
                try:
                    message = await self._admin.message(message_id(store_id, handle(position, index)))
                except MessageNotFound:
                    continue  # it became due, and is found in its queue
                self._note_deferred(topic, f"{new} has a delayed message", identity(message.properties))

    async def at_queue(self, queue: Queue) -> None:
        """What a queue holds."""
        where = MessageQueue(self._plan.target(queue[0]), queue[1])
        (held,) = await self._admin.ranges([where])
        if not held.max_offset:
            return
        if held.min_offset:
            raise _refusal(f"{where} begins at offset {held.min_offset}: messages were removed from it")
        planned = self._plan.queues[queue].messages if queue in self._plan.queues else 0
        digest, count = hashlib.sha256(), 0
        async for messages in self._admin.read(where, 0, held.max_offset):
            for message in messages:
                name = identity(message.properties)
                if count < planned and name is not None:
                    digest.update(name.encode())
                else:
                    self._note_deferred(queue[0], f"{where} has a message at offset {count}", name)
                count += 1
        self.found.messages[queue] = min(count, planned)
        self.digests[queue] = digest

    def _note_deferred(self, topic: str, what: str, name: str | None) -> None:
        """Note that a waiting message of the plan was sent; anything else is refused."""
        if topic not in self._planned:
            mine = [each for each in self._plan.deferred if each.topic == topic]
            records = [self._walk.record_at(each.physical_offset) for each in mine]
            self._planned[topic] = {identity_of(record): record.physical_offset for record in records}
        position = self._planned[topic].get(name or "")
        if position is None:
            raise _refusal(f"{what} that this import did not send")
        self.found.deferred.add(position)


async def _compare(looking: _Looking, survey: Survey) -> None:
    """Whether the messages that are there are the first of the plan, in their order."""
    left = {queue: count for queue, count in looking.found.messages.items() if count}
    expected: dict[Queue, Any] = defaultdict(hashlib.sha256)
    for number, found in enumerate(survey if left else ()):
        if not number % TURN:
            await asyncio.sleep(0)
        if isinstance(found, SurveyedRecord) and found.kind == QUEUED and left.get(found.target, 0):
            left[found.target] -= 1
            expected[found.target].update(identity_of(found.record).encode())
    for queue, digest in expected.items():
        if digest.digest() != looking.digests[queue].digest():
            raise _refusal(f"{queue[0]}/{queue[1]} has other messages than the store, or in another order")


def _refusal(what: str) -> ImportRefused:
    return ImportRefused(f"{what}: import into topics that are empty (--map OLD=NEW gives others)")
