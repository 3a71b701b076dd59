"""
Which messages a group has given up already, so that asking again copies nothing twice.

Messages below the committed offset are done, whatever became of them; this table has those at it and above. While a
log is repeated it also knows the copies that no change has named yet: if the log ends there, the broker went down in
the middle of a write, and whoever starts it names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

from rmq.wire import names
from rmq.wire.model import MessageQueue

from .state import DeadLettered

MAX_DEAD: Final = 16_384  # messages that a group has given up in a queue and not passed with its progress


class DeadTable:
    """Offsets of dead letters by group and queue."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, MessageQueue], set[int]] = {}
        self._unsaid: dict[str, set[int]] = {}  # by dead-letter topic: the origins of copies that no change names yet

    def offsets(self, group: str, queue: MessageQueue) -> Set[int]:
        """The messages of a queue that were given up."""
        return self._offsets.get((group, queue), frozenset())

    @staticmethod
    def change(group: str, queue: MessageQueue, offsets: Sequence[int]) -> DeadLettered:
        """The change that says that messages were given up; :meth:`apply` makes it true."""
        return DeadLettered(group, *queue, list(offsets))

    def forget_below(self, group: str, queue: MessageQueue, committed_offset: int) -> None:
        """Forget what a commit has passed. Belongs to every applied commit."""
        known = self._offsets.get((group, queue))
        if known is not None:
            self._keep(group, queue, {offset for offset in known if offset >= committed_offset})

    def forget_from(self, group: str, queue: MessageQueue, queue_end: int) -> DeadLettered | None:
        """Forget what recovery cut off: the next messages there are others. The change that says so."""
        known = self._offsets.get((group, queue), set())
        left = {offset for offset in known if offset < queue_end}
        if left == known:
            return None
        self._keep(group, queue, left)
        return DeadLettered(group, *queue, sorted(left), True)

    def forget_queue(self, group: str, queue: MessageQueue) -> DeadLettered | None:
        """Forget all of a queue; the change that says so, if there was anything."""
        if self._offsets.pop((group, queue), None) is None:
            return None
        return DeadLettered(group, *queue, [], True)

    def forget_topic(self, topic: str) -> None:
        """Forget the dead letters of a topic that is gone."""
        for key in [key for key in self._offsets if key[1].topic == topic]:
            del self._offsets[key]
        self._unsaid.pop(topic, None)

    def apply(self, change: DeadLettered) -> None:
        """Repeat a change from the log."""
        queue = MessageQueue(change.topic, change.queue_id)
        known = set() if change.is_all else self._offsets.get((change.group, queue), set())
        self._keep(change.group, queue, known.union(change.queue_offsets))
        self._unsaid.pop(names.dead_letter_topic(change.group), None)

    def found_copy(self, topic: str, origin: int) -> None:
        """Recovery met a copy; the change that names it comes behind it, unless the log was torn there."""
        if topic.startswith(names.DEAD_LETTERS):
            self._unsaid.setdefault(topic, set()).add(origin)

    def take_unsaid(self) -> list[tuple[str, int]]:
        """The log ends: the groups and the origins of copies that nothing names, each told once."""
        unsaid, self._unsaid = self._unsaid, {}
        return [
            (topic.removeprefix(names.DEAD_LETTERS), origin)
            for topic, some in unsaid.items()
            for origin in sorted(some)
        ]

    def rows(self) -> Iterator[DeadLettered]:
        """All dead letters, as the changes that bring them back."""
        for (group, queue), offsets in self._offsets.items():
            yield DeadLettered(group, *queue, sorted(offsets), True)

    def _keep(self, group: str, queue: MessageQueue, offsets: set[int]) -> None:
        if offsets:
            self._offsets[group, queue] = offsets
        else:
            self._offsets.pop((group, queue), None)
