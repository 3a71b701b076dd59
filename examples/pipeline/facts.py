"""What the broker itself knows of the topic and its groups: the other half of an audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmq import Admin, GroupNotFound, TopicNotFound
from rmq.client import MessageQueue
from rmq.wire.names import dead_letter_topic


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """How far a group is: ``committed`` has an offset for each queue, ``dead_letters`` the topic of those, if any."""

    committed: Mapping[int, int]
    passed: int
    lag: int
    dead_letters: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """The topic at one moment: ``held`` has what each queue holds, ``[start, end)``."""

    topic: str
    held: Mapping[int, tuple[int, int]]
    groups: Mapping[str, GroupFacts]


async def ask(broker: str, topic: str, groups: Iterable[str]) -> Facts:
    """Ask the broker; raises what :class:`rmq.client.Admin` does."""
    async with Admin(broker) as admin:
        info = await admin.topic(topic)
        queues = [MessageQueue(topic, queue.queue_id) for queue in info.queues]
        ranges = await admin.ranges(queues)
        held = {queue.queue_id: (held.min_offset, held.max_offset) for queue, held in zip(queues, ranges, strict=True)}
        return Facts(topic, held, {group: await _group(admin, group, topic) for group in groups})


async def lag(broker: str, topic: str, group: str) -> int:
    """How many messages a group has before it."""
    async with Admin(broker) as admin:
        try:
            return (await admin.describe_group(group, topic)).lag
        except GroupNotFound:  # nobody has joined it yet
            return (await admin.describe_topic(topic)).messages


async def _group(admin: Admin, group: str, topic: str) -> GroupFacts:
    queues = (await admin.describe_group(group, topic)).queues
    committed = {queue.queue_id: max(queue.committed, queue.min_offset) for queue in queues}
    passed = sum(committed[queue.queue_id] - queue.min_offset for queue in queues)
    letters: str | None = dead_letter_topic(group)
    try:
        await admin.topic(dead_letter_topic(group))
    except TopicNotFound:
        letters = None  # it is made with the first dead letter
    return GroupFacts(committed, passed, sum(queue.lag for queue in queues), letters)
