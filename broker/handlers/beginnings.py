"""
Where a group begins in a queue it has no progress in, as far as the broker has a say: so that nothing falls between.

A group that begins at the end of a topic does so once, when the first of its members names that topic: the ends of all
queues become its progress in one step. A queue that is made while a group subscribes to its topic has the group's
progress 0 from its first moment. So a queue without progress is younger than the group, and read from its beginning by
whoever gets it, however late that member came.

What a group failed at is its own from the first message on: its retry topic is never begun at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from rmq.runtime.logging import get_broker_logger
from rmq.wire import names
from rmq.wire.model import MessageQueue

from ..state.groups import Membership
from ..state.topics import Topic, TopicTable

log = get_broker_logger(__name__)


class Progress(Protocol):
    """What a group has done of a queue."""

    def committed(self, group: str, queue: MessageQueue) -> int: ...
    def begin_at(self, group: str, queue: MessageQueue, offset: int) -> None: ...


class Beginnings:
    """Decides; ``held(group)`` returns the topics of its leases, ``end(queue, log_epoch)`` where it begins."""

    def __init__(
        self, topics: TopicTable, members: Membership, progress: Progress,
        *, held: Callable[[str], set[str]], end: Callable[[MessageQueue, int], int],
    ) -> None:  # fmt: skip
        self._topics = topics
        self._members = members
        self._progress = progress
        self._held = held
        self._end = end

    def joined(self, group: str, from_end: Iterable[str], session: bytes, log_epoch: int) -> None:
        """
        A member named topics for the first time, and wants their end: record it, if nobody was there before.

        A member that belonged to the group under ``log_epoch``, of which this log knows nothing, was there before: it
        begins at what has been stored since the two logs parted.
        """
        # A request may name one as often as it likes.
        wanted = {name for name in from_end if not name.startswith(names.RETRIES)}
        held = self._held(group) if wanted else set()
        for name in sorted(wanted - held):
            topic = self._topics.get(name)
            if topic is None or self._members.subscribes(group, name, but=session):
                continue
            queues = [MessageQueue(name, queue_id) for queue_id in range(topic.queues)]
            if all(self._progress.committed(group, queue) < 0 for queue in queues):
                for queue in queues:
                    self._progress.begin_at(group, queue, self._end(queue, log_epoch))
                log.info("group.begins_at_end", group=group, topic=name, queues=len(queues))

    def made(self, topic: Topic, first: int) -> None:
        """A topic was made, or grew, from queue ``first`` on: whoever subscribes to it reads those from 0."""
        groups = set(self._members.subscribing(topic.name))
        if topic.name.startswith(names.RETRIES):
            groups.add(topic.name.removeprefix(names.RETRIES))  # also if none of its members is here just now
        for group in sorted(groups):
            for queue_id in range(first, topic.queues):
                self._progress.begin_at(group, MessageQueue(topic.name, queue_id), 0)
