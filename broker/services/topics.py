"""Topics: their queues, the number their keys are divided over, and generations that are never reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmq.wire import names
from rmq.wire.errors import BadRequest, QueueNotFound, TopicExists, TopicNotFound

from .state import TopicMade

MAX_QUEUES: Final = 1024


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; ``shards`` stays what it was at creation, so that growing a topic does not move a key."""

    name: str
    generation: int
    queues: int
    shards: int
    created_at: int

    def made(self) -> TopicMade:
        """The change that brings this topic back from the log."""
        return TopicMade(self.name, self.generation, self.queues, self.shards, self.created_at)


class TopicTable:
    """All topics by name."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self.last_generation = 0

    def create(self, name: str, queues: int, *, created_at: int) -> tuple[Topic, bool]:
        """
        Make a topic, or find it if it was made with the same number of queues; says whether it is new.

        Raises:
            BadName: the name is illegal.
            BadRequest: a topic cannot have so many queues.
            TopicExists: it exists with another number of queues.
        """
        names.check_topic(name)
        if not 1 <= queues <= MAX_QUEUES:
            raise BadRequest(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}")
        topic = self._topics.get(name)
        if topic is None:
            topic = Topic(name, self.last_generation + 1, queues, queues, created_at)
            self._put(topic)
            return topic, True
        if topic.queues != queues:
            raise TopicExists(f"the topic {name!r} exists with {topic.queues} queues, not {queues}: use it as it is")
        return topic, False

    def get(self, name: str) -> Topic | None:
        """The topic, if there is one."""
        return self._topics.get(name)

    def require(self, name: str) -> Topic:
        """The topic; raises TopicNotFound if there is none."""
        topic = self._topics.get(name)
        if topic is None:
            shown = name[: names.MAX_TOPIC_LENGTH]
            raise TopicNotFound(f"there is no topic {shown!r}: create it with `rmq-admin topic create {shown}`")
        return topic

    def require_queue(self, name: str, queue_id: int) -> Topic:
        """The topic that has this queue; raises TopicNotFound or QueueNotFound."""
        topic = self.require(name)
        if not 0 <= queue_id < topic.queues:
            raise QueueNotFound(f"the topic {name!r} has the queues 0 to {topic.queues - 1}, not {queue_id}")
        return topic

    def all(self) -> list[Topic]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def apply(self, change: TopicMade) -> None:
        """Repeat a change from the log; one of a generation that a younger one replaced does nothing."""
        known = self._topics.get(change.topic)
        if known is None or known.generation <= change.generation:
            self._put(Topic(*change))

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self.last_generation = max(self.last_generation, topic.generation)
