"""``LocalProgress``: how far a broadcasting member is in each queue, which nobody else knows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from rmq.wire.model import MessageQueue
from rmq.wire.stores import MAX_LOG_EPOCH

from .offsets_content import OffsetsContent, QueueProgress

OF_ANOTHER_LOG: Final = MAX_LOG_EPOCH  # a broker refuses positions of epochs above its own, and none gets to this one


class LocalProgress:
    """
    The progress of one member in one store, as it is to be written next.

    Where a member begins is decided once for all queues that a topic has when the member first sees it. From then on
    the topic is known, also to those who read the file later: a queue of a known topic without progress came into being
    afterwards, and is read from 0. Queues of topics that are not subscribed to any more keep their progress.
    """

    def __init__(self, group: str, instance: str, found: OffsetsContent | None = None) -> None:
        """``found`` is what the file holds."""
        self._content = found or OffsetsContent(group, instance, 0)
        self._topics = set(self._content.topics)
        self._queues = dict(self._content.queues)

    @property
    def store_id(self) -> int:
        """The store that all of it is about; 0 before the first is known."""
        return self._content.store_id

    def enter(self, store_id: int, kept: OffsetsContent | None = None) -> OffsetsContent | None:
        """
        The broker has this store; returns the progress in another one, if there was any: it means nothing here.

        ``kept`` is the progress that was made in this store before the other.
        """
        before = self.content()
        if store_id == self.store_id:
            return None
        self._content = kept or OffsetsContent(before.group, before.instance, store_id)
        self._topics, self._queues = set(self._content.topics), dict(self._content.queues)
        return before if before.topics or before.queues else None

    def disown(self, log_epoch: int) -> None:
        """Mark positions from ``log_epoch`` on, or of none, as of another log: a broker stops there."""
        for queue, at in self._queues.items():
            if at.offset and (not at.log_epoch or at.log_epoch >= log_epoch):
                self._queues[queue] = at._replace(log_epoch=OF_ANOTHER_LOG)

    def is_known(self, topic: str) -> bool:
        """Whether it was decided before where the queues of a topic begin."""
        return topic in self._topics

    def of(self, queue: MessageQueue, generation: int | None) -> QueueProgress | None:
        """The progress in a queue of this generation of its topic; None is no topic."""
        at = self._queues.get(queue)
        return at if at is not None and at.generation == generation else None

    def known(self, topics: Iterable[str]) -> None:
        """It is decided where the queues of these topics begin; a queue they get later begins at 0."""
        self._topics.update(topics)

    def note(self, queue: MessageQueue, at: QueueProgress) -> None:
        """A queue has come so far."""
        self._queues[queue] = at

    def forget_others(self, generations: Mapping[str, int]) -> list[str]:
        """Drop the progress in other topics of these names; returns the names of those there were, sorted."""
        others = [q for q, at in self._queues.items() if at.generation != generations.get(q.topic, at.generation)]
        for queue in others:
            del self._queues[queue]
        return sorted({queue.topic for queue in others})

    def content(self) -> OffsetsContent:
        """All of it, not changed by what comes later."""
        was = self._content
        return OffsetsContent(was.group, was.instance, was.store_id, frozenset(self._topics), dict(self._queues))


def in_copy(content: OffsetsContent, store_id: int, log_epoch: int) -> OffsetsContent:
    """Return progress as it counts in a copy of its store; ``log_epoch`` is the last that both can have."""
    queues = {
        queue: at._replace(log_epoch=min(at.log_epoch or log_epoch, log_epoch)) if at.offset else at
        for queue, at in content.queues.items()
    }
    return replace(content, store_id=store_id, queues=queues)


def in_another_copy(content: OffsetsContent, store_id: int) -> OffsetsContent:
    """Return progress for a store that has an original in common with its own: nothing shows how far the two agree."""
    queues = {queue: at._replace(log_epoch=OF_ANOTHER_LOG) if at.offset else at for queue, at in content.queues.items()}
    return replace(content, store_id=store_id, queues=queues)
