"""How often the message that a group is stuck at was delivered in vain, so that a take-over goes on counting."""

from __future__ import annotations

from collections.abc import Iterator

from rmq.wire.model import MessageQueue
from rmq.wire.ops import NO_OFFSET

from .state import Attempted

NO_ATTEMPT = (NO_OFFSET, 0)


class AttemptTable:
    """Failed deliveries by group and queue; an ordered queue has one failing message at a time."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, MessageQueue], tuple[int, int]] = {}

    def get(self, group: str, queue: MessageQueue) -> tuple[int, int]:
        """The offset of the failing message and how often it failed; (-1, 0) if none fails."""
        return self._attempts.get((group, queue), NO_ATTEMPT)

    def record(self, group: str, queue: MessageQueue, queue_offset: int, attempts: int) -> bool:
        """Note a failed delivery; says whether that is news. A repeated report never lowers the count."""
        known_offset, known_attempts = self.get(group, queue)
        if queue_offset == known_offset and attempts <= known_attempts:
            return False
        self._attempts[group, queue] = (queue_offset, attempts)
        return True

    def forget_below(self, group: str, queue: MessageQueue, committed_offset: int) -> bool:
        """Forget a message that a commit has passed; says whether there was one. Belongs to every applied commit."""
        known_offset, _ = self.get(group, queue)
        if not NO_OFFSET < known_offset < committed_offset:
            return False
        del self._attempts[group, queue]
        return True

    def forget_from(self, group: str, queue: MessageQueue, queue_end: int) -> Attempted | None:
        """Forget a message that recovery cut off: the next one at its offset is another. The change that says so."""
        if self.get(group, queue)[0] < queue_end:
            return None
        del self._attempts[group, queue]
        return Attempted(group, *queue, *NO_ATTEMPT)

    def forget_topic(self, topic: str) -> None:
        """Forget the failing messages of a topic that is gone."""
        for key in [key for key in self._attempts if key[1].topic == topic]:
            del self._attempts[key]

    def apply(self, change: Attempted) -> None:
        """Repeat a change from the log: the last one stands, also when it says that nothing fails."""
        key = change.group, MessageQueue(change.topic, change.queue_id)
        if change.queue_offset == NO_OFFSET:
            self._attempts.pop(key, None)
        else:
            self._attempts[key] = (change.queue_offset, change.attempts)

    def rows(self) -> Iterator[Attempted]:
        """All failing messages, as the changes that bring them back."""
        for (group, queue), (queue_offset, attempts) in self._attempts.items():
            yield Attempted(group, *queue, queue_offset, attempts)
