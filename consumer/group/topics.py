"""Which topics exist, under which topic generation, with which queues, as pushes and joins reported them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq.wire.errors import QueueNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import QueueInfo, TopicInfo

GONE = (TopicNotFound.code, QueueNotFound.code)  # refusals that say: what we know of the topic is not true any more


class KnownTopics:
    """
    A topic that is deleted and made again is another one under the same name, with a higher generation.

    The newest word counts. A push is newer than the answer to a JOIN that was asked for before it came, since such
    an answer says what was true when the JOIN was served, and may be held back until that is durable.
    """

    def __init__(self) -> None:
        self._infos: dict[str, TopicInfo] = {}
        self._dead: dict[str, int] = {}  # the highest generation of each topic that is known to be gone
        self._old: dict[str, set[int]] = {}  # the queues each topic had when it was subscribed to
        self._pushed: set[str] = set()  # reported since the newest JOIN was asked for

    # What is known

    def generation(self, topic: str) -> int | None:
        """The living generation of a topic; None if it does not exist."""
        info = self._infos.get(topic)
        return None if info is None else info.generation

    def places(self, topic: str) -> list[QueueInfo]:
        """The queues of a topic with their brokers; none if it does not exist."""
        info = self._infos.get(topic)
        return [] if info is None else info.queues

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic; none if it does not exist."""
        return [MessageQueue(topic, place.queue_id) for place in self.places(topic)]

    def is_new(self, queue: MessageQueue) -> bool:
        """Whether a queue came into being after its topic was subscribed to."""
        return queue.queue_id not in self._old.get(queue.topic, ())

    # What the broker says

    def changed(self, info: TopicInfo) -> None:
        """A push: the topic was made or has grown."""
        self._pushed.add(info.topic)
        self._learn(info)

    def deleted(self, topic: str, generation: int) -> bool:
        """A push: this generation is gone, for ever. Says whether it was the one we knew."""
        self._pushed.add(topic)
        self._dead[topic] = max(generation, self._dead.get(topic, generation))
        known = self.generation(topic)
        return known is not None and known <= generation and self._forget(topic)

    def missing(self, topic: str, generation: int | None) -> bool:
        """A request was refused because the topic does not exist; the next JOIN may say otherwise."""
        return self.generation(topic) == generation and self._forget(topic)

    def joining(self) -> None:
        """A JOIN is being asked for."""
        self._pushed.clear()

    def joined(self, asked: Iterable[str], infos: Sequence[TopicInfo]) -> None:
        """The answer: of the topics ``asked`` for these exist."""
        there = {info.topic: info for info in infos}
        for topic in asked:
            info = there.get(topic)
            if info is not None:
                self._learn(info)
            elif topic not in self._pushed:
                self._forget(topic)
            self._old.setdefault(topic, set() if info is None else {queue.queue_id for queue in info.queues})

    def _learn(self, info: TopicInfo) -> None:
        known = self._infos.get(info.topic)
        if info.generation <= self._dead.get(info.topic, -1):
            return
        if known is None or (info.generation, len(info.queues)) >= (known.generation, len(known.queues)):
            if known is not None and info.generation > known.generation:
                self._forget(info.topic)
            self._infos[info.topic] = info

    def _forget(self, topic: str) -> bool:
        if self._infos.pop(topic, None) is None:
            return False
        self._old[topic] = set()  # whatever comes under this name is new
        return True
