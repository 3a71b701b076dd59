"""
Which messages a group has sent back or given up already, so that asking again copies nothing twice.

Messages below the committed offset are done, whatever became of them; this table has those at it and above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

from rmq.wire.model import MessageQueue

from ..store.changes import Copied

MAX_COPIED: Final = 16_384  # messages that a group has had copied in a queue and not passed with its progress


class CopiedTable:
    """Offsets of messages that were copied, by group and queue."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, MessageQueue], set[int]] = {}

    def offsets(self, group: str, queue: MessageQueue) -> Set[int]:
        """The messages of a queue that were sent back or given up."""
        return self._offsets.get((group, queue), frozenset())

    @staticmethod
    def change(group: str, queue: MessageQueue, offsets: Sequence[int]) -> Copied:
        """The change that says that messages were copied; :meth:`apply` makes it true."""
        return Copied(group, *queue, list(offsets))

    def forget_below(self, group: str, queue: MessageQueue, committed_offset: int) -> None:
        """Forget what a commit has passed. Belongs to every applied commit."""
        known = self._offsets.get((group, queue))
        if known is not None:
            self._keep(group, queue, {offset for offset in known if offset >= committed_offset})

    def forget_from(self, group: str, queue: MessageQueue, queue_end: int) -> Copied | None:
        """Forget what recovery cut off: the next messages there are others. The change that says so."""
        known = self._offsets.get((group, queue), set())
        left = {offset for offset in known if offset < queue_end}
        if left == known:
            return None
        self._keep(group, queue, left)
        return Copied(group, *queue, sorted(left), True)

    def forget_queue(self, group: str, queue: MessageQueue) -> Copied | None:
        """Forget all of a queue; the change that says so, if there was anything."""
        if self._offsets.pop((group, queue), None) is None:
            return None
        return Copied(group, *queue, [], True)

    def forget_topic(self, topic: str) -> None:
        """Forget what was copied of a topic that is gone."""
        for key in [key for key in self._offsets if key[1].topic == topic]:
            del self._offsets[key]

    def apply(self, change: Copied) -> None:
        """Repeat a change from the log."""
        queue = MessageQueue(change.topic, change.queue_id)
        if change.is_all:
            self._keep(change.group, queue, set(change.queue_offsets))
        elif change.queue_offsets:
            self._offsets.setdefault((change.group, queue), set()).update(change.queue_offsets)

    def rows(self) -> Iterator[Copied]:
        """All of it, as the changes that bring it back."""
        for (group, queue), offsets in self._offsets.items():
            yield Copied(group, *queue, sorted(offsets), True)

    def _keep(self, group: str, queue: MessageQueue, offsets: set[int]) -> None:
        if offsets:
            self._offsets[group, queue] = offsets
        else:
            self._offsets.pop((group, queue), None)
