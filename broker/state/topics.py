"""Topics: their queues, the number their keys are divided over, and generations that are never reused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmq.wire import names
from rmq.wire.errors import BadName, BadRequest, QueueNotFound, TopicExists, TopicNotFound

from ..store.changes import TopicDeleted, TopicMade


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

    def deleted(self) -> TopicDeleted:
        """The change that ends this topic in the log."""
        return TopicDeleted(self.name, self.generation)


class TopicTable:
    """
    All topics by name.

    A generation is given once: :attr:`last_generation` never falls, so that what is left of a deleted topic is never
    taken for part of a younger one of the same name.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self.last_generation = 0  # the highest that was ever given, also if that topic is gone

    def create(self, name: str, queues: int, *, created_at: int) -> tuple[Topic, bool]:
        """
        Make a topic, or find it if it was made with the same number of queues; says whether it is new.

        Raises:
            BadName: the name is illegal.
            BadRequest: a topic cannot have so many queues.
            TopicExists: it exists with another number of queues.
        """
        names.check_topic(name)
        _check_queues(queues)
        topic = self._topics.get(name)
        if topic is None:
            topic = Topic(name, self.last_generation + 1, queues, queues, created_at)
            self._put(topic)
            return topic, True
        if topic.queues != queues:
            advice = f"`rmq-admin topic grow {name} --queues {queues}` gives it more"
            advice = advice if queues > topic.queues else "it cannot have fewer, use it as it is"
            raise TopicExists(f"the topic {name!r} exists with {topic.queues} queues, not {queues}: {advice}")
        return topic, False

    def make_own(self, name: str, *, created_at: int) -> tuple[Topic, bool]:
        """Make a topic of one queue that the broker itself writes to, or find it; says whether it is new."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic, False
        topic = Topic(name, self.last_generation + 1, 1, 1, created_at)
        self._put(topic)
        return topic, True

    def grow(self, name: str, queues: int) -> tuple[Topic, bool]:
        """
        Give a topic more queues; says whether it has more now. ``shards`` stays, so that no key moves.

        Raises:
            TopicNotFound: there is no such topic.
            BadName: the topic belongs to the broker.
            BadRequest: a topic cannot have so many queues, or it has more than that.
        """
        _check_own(name)
        topic = self.require(name)
        _check_queues(queues)
        if queues < topic.queues:
            raise BadRequest(f"the topic {name!r} has {topic.queues} queues and never gets fewer: {queues} are too few")
        if queues == topic.queues:
            return topic, False
        topic = replace(topic, queues=queues)
        self._put(topic)
        return topic, True

    def delete(self, name: str, generation: int = 0) -> Topic:
        """
        End a topic, or only this generation of it; returns what it was.

        Raises:
            TopicNotFound: there is no such topic, or it is of another generation.
            BadName: the topic belongs to the broker.
        """
        _check_own(name)
        topic = self._topics.get(name)
        if topic is None:
            shown = name[: names.MAX_TOPIC_LENGTH]
            raise TopicNotFound(f"there is no topic {shown!r}: `rmq-admin topic list` shows those that exist")
        if generation not in (0, topic.generation):
            raise _another(topic, generation)
        del self._topics[name]
        return topic

    def get(self, name: str) -> Topic | None:
        """The topic, if there is one."""
        return self._topics.get(name)

    def require(self, name: str) -> Topic:
        """The topic; raises TopicNotFound if there is none."""
        topic = self._topics.get(name)
        if topic is None:
            raise _missing(name)
        return topic

    def require_queue(self, name: str, queue_id: int, generation: int = 0) -> Topic:
        """The topic that has this queue, of this generation unless it is 0; raises TopicNotFound or QueueNotFound."""
        topic = self.require(name)
        if generation not in (0, topic.generation):
            raise _another(topic, generation)
        if not 0 <= queue_id < topic.queues:
            raise QueueNotFound(f"the topic {name!r} has the queues 0 to {topic.queues - 1}, not {queue_id}")
        return topic

    def all(self) -> list[Topic]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def apply(self, change: TopicMade) -> bool:
        """
        Repeat a change from the log; one that a younger generation or a growth replaced does nothing.

        Says whether it replaced an older generation: then what groups know of the topic belongs to the dead. A log
        has the end first, but a snapshot in the middle of it may be ahead of changes that could not be written.
        """
        known = self._topics.get(change.topic)
        if known is None or (known.generation, known.queues) <= (change.generation, change.queues):
            self._put(Topic(*change))
        return known is not None and known.generation < change.generation

    def apply_deleted(self, change: TopicDeleted) -> bool:
        """
        Repeat an end from the log.

        Says whether what groups know of the topic belongs to the dead: not if a younger generation lives.
        """
        self.restore_generation(change.generation)
        known = self._topics.get(change.topic)
        if known is not None and known.generation > change.generation:
            return False
        self._topics.pop(change.topic, None)
        return True

    def restore_generation(self, last: int) -> None:
        """Never give a generation up to this one again."""
        self.last_generation = max(self.last_generation, last)

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self.restore_generation(topic.generation)


def _another(topic: Topic, generation: int) -> TopicNotFound:
    return TopicNotFound(f"generation {generation} of {topic.name!r} is gone: there is generation {topic.generation}")


def _check_queues(queues: int) -> None:
    if not 1 <= queues <= names.MAX_QUEUES:
        raise BadRequest(f"a topic has 1 to {names.MAX_QUEUES} queues, not {queues}")


def _check_own(name: str) -> None:
    if name == names.SCHEDULE_TOPIC:
        raise BadName(f"the topic {name!r} belongs to the broker: it keeps its shape")


def _missing(name: str) -> TopicNotFound:
    """What to do about a topic that is not there; one whose name is not legal cannot be made."""
    shown, advice = name[: names.MAX_TOPIC_LENGTH], "`rmq-admin topic list` shows those that exist"
    try:
        names.check_topic(name)
    except BadName:
        return TopicNotFound(f"there is no topic {shown!r}: {advice}")
    return TopicNotFound(f"there is no topic {shown!r}: create it with `rmq-admin topic create {shown}`")
