"""The life of a topic on the wire: what it holds and who reads it, more queues, and its end."""

from __future__ import annotations

from typing import NamedTuple


class DescribeTopic(NamedTuple):
    """What is known of a topic."""

    topic: str


class QueueState(NamedTuple):
    """A queue: ``[min_offset, max_offset)`` can be read."""

    queue_id: int
    broker: str
    min_offset: int
    max_offset: int

    def lag(self, committed: int) -> int:
        """How many messages a group with this committed offset (-1: none) has before it."""
        return self.max_offset - max(committed, self.min_offset)


class GroupState(NamedTuple):
    """A group that committed progress in the topic; ``committed`` has an offset for each queue, -1 for none."""

    group: str
    members: int
    committed: list[int]


class TopicDescription(NamedTuple):
    """A topic with its queues and groups; so many as ``more_groups`` are left out to keep the answer short."""

    topic: str
    generation: int
    shards: int
    created_at: int
    more_groups: int
    queues: list[QueueState]
    groups: list[GroupState]

    @property
    def messages(self) -> int:
        """How many messages can be read."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)

    def lags(self, group: GroupState) -> list[int]:
        """How many messages a group has before it, queue by queue."""
        return [queue.lag(offset) for queue, offset in zip(self.queues, group.committed, strict=True)]


class GrowTopic(NamedTuple):
    """Give a topic more queues; as many as it has is no error, fewer are refused."""

    topic: str
    queues: int


class DeleteTopic(NamedTuple):
    """End a topic, with its messages and all progress in it; ``generation`` 0 means whichever there is."""

    topic: str
    generation: int = 0


class DeletedTopic(NamedTuple):
    """A generation of a topic that is gone; also the payload of the push TOPIC_DELETED."""

    topic: str
    generation: int
