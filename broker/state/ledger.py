"""
All that is known of a group in a queue but who holds it: progress, failed deliveries, marks, messages it gave away.

What became of its dead letters is known here too: they lie in a queue that belongs to the group.

A commit moves all of it in one step, here and when the log is repeated, so that only the commit itself is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from rmq.runtime.logging import get_broker_logger
from rmq.wire.model import MessageQueue

from ..store.changes import Attempted, Change, Committed, Copied, DeadHandled, Suspected
from .attempts import AttemptTable
from .copied_table import CopiedTable
from .crash_suspects import SuspectTable
from .dead_letters import HandledTable
from .offsets import OffsetTable

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
        told: list[Change | None] = [
            self.attempts.forget_queue(group, queue), self.suspects.forget_queue(group, queue),
            self.copied.forget_queue(group, queue), Committed(group, *queue, queue_offset),
        ]  # fmt: skip
        self.offsets.apply(Committed(group, *queue, queue_offset))
        return [change for change in told if change is not None]

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
        told = [
            self.attempts.forget_from(group, queue, end), self.suspects.forget_from(group, queue, end),
            self.copied.forget_from(group, queue, end),
        ]  # fmt: skip
        changes: list[Change] = [change for change in told if change is not None]
        if changes:
            log.warning("progress.forgotten", group=group, queue=str(queue), since=end)
        return changes

    def _passed(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        self.attempts.forget_below(group, queue, queue_offset)
        self.suspects.committed(group, queue, queue_offset)
        self.copied.forget_below(group, queue, queue_offset)
