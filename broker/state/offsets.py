"""
Everything known of a group in a queue but its lease: progress, failed deliveries, crash suspects, copied messages.

Progress is the next offset to deliver. The states of dead letters belong here, too: they lie in a queue of the group.
A commit moves all of it in one step, here and during replay, so that only the commit itself is written to the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from rmq.runtime.logging import get_broker_logger
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..store.changes import Attempted, Change, Committed, Copied, DeadHandled, Suspected
from .attempts import AttemptTable
from .crash_suspects import SuspectTable
from .dead_letters import CopiedTable, HandledTable


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
        self._names: list[str] | None = None  # of all groups, sorted; None after they changed, until the next question

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
        """Lower an offset beyond the end of a queue that recovery shortened to that end; return whether it was."""
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


log = get_broker_logger(__name__)
Entry: TypeAlias = Committed | Attempted | Suspected | Copied | DeadHandled


class Ledger:
    """The tables, which forget together what a commit has passed, a topic has taken or recovery has cut."""

    def __init__(self) -> None:
        self.offsets = OffsetTable()
        self.attempts = AttemptTable()
        self.suspects = SuspectTable()
        self.copied = CopiedTable()
        self.handled = HandledTable()

    def commit(self, group: str, queue: MessageQueue, queue_offset: int) -> Committed | None:
        """Note progress; the change if there was any."""
        if not self.offsets.commit(group, queue, queue_offset):
            return None
        self._passed(group, queue, queue_offset)
        return Committed(group, *queue, queue_offset)

    def reset(self, group: str, queue: MessageQueue, queue_offset: int) -> list[Change]:
        """Put a group anywhere in a queue, with a clean slate; the changes."""
        found: list[Change | None] = [
            self.attempts.forget_queue(group, queue), self.suspects.forget_queue(group, queue),
            self.copied.forget_queue(group, queue), Committed(group, *queue, queue_offset),
        ]  # fmt: skip
        self.offsets.apply(Committed(group, *queue, queue_offset))
        return [change for change in found if change is not None]

    def forget_topic(self, topic: str) -> None:
        """A topic is gone."""
        self.offsets.forget_topic(topic)
        self.attempts.forget_topic(topic)
        self.suspects.forget_topic(topic)
        self.copied.forget_topic(topic)
        self.handled.forget_topic(topic)

    def apply(self, change: Entry) -> None:
        """Repeat a change from the log."""
        match change:
            case Committed():
                self.offsets.apply(change)
                self._passed(change.group, MessageQueue(change.topic, change.queue_id), change.queue_offset)
            case Attempted():
                self.attempts.apply(change)
            case Suspected():
                self.suspects.apply(change)
            case Copied():
                self.copied.apply(change)
            case DeadHandled():
                self.handled.apply(change)

    def rows(self) -> Iterator[Entry]:
        """Everything, as the changes that bring it back."""
        yield from self.offsets.rows()
        yield from self.attempts.rows()
        yield from self.suspects.rows()
        yield from self.copied.rows()
        yield from self.handled.rows()

    def trim(self, min_offset: Callable[[MessageQueue], int]) -> None:
        """Forget what is known of dead letters that retention has taken."""
        for topic in self.handled.topics():
            self.handled.forget_below(topic, min_offset(MessageQueue(topic, 0)))

    def lower(self, readable_end: Callable[[MessageQueue], int]) -> list[Change]:
        """
        A log that lost its tail may have lost messages that were consumed: a group goes on where the queue ends.

        What is known of lost messages is forgotten, since others take their offsets. Returns the changes.
        """
        lowered: list[Change] = []
        for group, topic, queue_id, offset in list(self.offsets.rows()):
            queue = MessageQueue(topic, queue_id)
            end = readable_end(queue)
            if self.offsets.lower(group, queue, end):
                log.warning("offset.lowered", group=group, queue=str(queue), was=offset, now=end)
                lowered.append(Committed(group, *queue, end))
        known: list[Attempted | Suspected | Copied] = [
            *self.attempts.rows(),
            *self.suspects.rows(),
            *self.copied.rows(),
        ]
        for group, queue in dict.fromkeys((row.group, MessageQueue(row.topic, row.queue_id)) for row in known):
            lowered += self._forget_from(group, queue, readable_end(queue))
        for topic in self.handled.topics():
            change = self.handled.forget_from(topic, readable_end(MessageQueue(topic, 0)))
            if change is not None:
                log.warning("dead_letters.forgotten", topic=topic, since=change.runs[0].from_offset)
                lowered.append(change)
        return lowered

    def _forget_from(self, group: str, queue: MessageQueue, end: int) -> list[Change]:
        found = [
            self.attempts.forget_from(group, queue, end), self.suspects.forget_from(group, queue, end),
            self.copied.forget_from(group, queue, end),
        ]  # fmt: skip
        changes: list[Change] = [change for change in found if change is not None]
        if changes:
            log.warning("progress.forgotten", group=group, queue=str(queue), since=end)
        return changes

    def _passed(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        self.attempts.forget_below(group, queue, queue_offset)
        self.suspects.committed(group, queue, queue_offset)
        self.copied.forget_below(group, queue, queue_offset)
