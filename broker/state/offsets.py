"""How far each group has come in each queue: the next offset to deliver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..store.changes import Committed


class OffsetTable:
    """
    Committed offsets by group and queue.

    A commit never lowers an offset. Only two things do, and both leave a :class:`Committed` in the log that says so:
    :meth:`lower`, and :meth:`apply`, which repeats the log as it is written.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, int]] = {}
        self._of_topic: dict[str, dict[str, None]] = {}  # the groups that have an offset in a topic
        self._topics_of: dict[str, dict[str, None]] = {}  # the same, the other way round
        self._names: list[str] | None = None  # of all groups, sorted; None while nobody has asked since they changed

    def get(self, group: str, queue: MessageQueue) -> int:
        """The next offset to deliver, -1 if the group never committed one."""
        queues = self._groups.get(group)
        return NO_OFFSET if queues is None else queues.get(queue, NO_OFFSET)

    def of_queues(self, group: str, queues: Iterable[MessageQueue]) -> list[int]:
        """The next offset to deliver of each queue, -1 where the group never committed one."""
        known = self._groups.get(group, {})
        return [known.get(queue, NO_OFFSET) for queue in queues]

    def commit(self, group: str, queue: MessageQueue, queue_offset: int) -> bool:
        """Note progress; says whether there was any. What is not ahead of the known offset is ignored."""
        if queue_offset <= self.get(group, queue):
            return False
        self._put(group, queue, queue_offset)
        return True

    def lower(self, group: str, queue: MessageQueue, queue_end: int) -> bool:
        """Bring an offset behind the end of a queue that recovery shortened back to that end; says whether it was."""
        if self.get(group, queue) <= queue_end:
            return False
        self._groups[group][queue] = queue_end
        return True

    def apply(self, change: Committed) -> None:
        """Repeat a change from the log: the last one stands, also when it is the lower one."""
        self._put(change.group, MessageQueue(change.topic, change.queue_id), change.queue_offset)

    def groups(self, topic: str) -> list[str]:
        """The groups that committed an offset in a topic, sorted."""
        return sorted(self._of_topic.get(topic, ()))

    def names(self) -> Sequence[str]:
        """The groups that committed an offset anywhere, sorted: they are many, and looked at page by page."""
        if self._names is None:
            self._names = sorted(self._groups)
        return self._names

    def topics(self, group: str) -> set[str]:
        """The topics that a group committed an offset in."""
        return set(self._topics_of.get(group, ()))

    def forget_topic(self, topic: str) -> None:
        """Forget all progress in a topic that is gone."""
        for group in self._of_topic.pop(topic, ()):
            queues = self._groups[group]
            for queue in [queue for queue in queues if queue.topic == topic]:
                del queues[queue]
            del self._topics_of[group][topic]
            if not queues:
                del self._groups[group], self._topics_of[group]
                self._names = None

    def rows(self) -> Iterator[Committed]:
        """All offsets, as the changes that bring them back."""
        for group, queues in self._groups.items():
            for queue, queue_offset in queues.items():
                yield Committed(group, *queue, queue_offset)

    def _put(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        queues = self._groups.get(group)
        if queues is None:
            queues = self._groups[group] = {}
            self._names = None
        if queue not in queues:
            self._of_topic.setdefault(queue.topic, {})[group] = None
            self._topics_of.setdefault(group, {})[queue.topic] = None
        queues[queue] = queue_offset
