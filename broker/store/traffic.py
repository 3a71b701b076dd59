"""How many messages and bytes went into each topic and out of it, since the start: counted by batch and by answer."""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

MAX_TOLD: Final = 1000  # topics in one answer


class Flow(NamedTuple):
    """
    What went in, and what readers were given.

    A batch that a reader was given for one of its messages counts whole in bytes; what a filter passed between two
    batches counts as messages out. Delayed messages count when they are delivered.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


class Traffic:
    """Totals by topic; those of deleted topics stay in the sum, so that it never falls."""

    def __init__(self) -> None:
        self._topics: dict[str, list[int]] = {}
        self._gone = [0, 0, 0, 0]

    def took(self, topic: str, messages: int, size: int) -> None:
        """A batch was written to a queue of a topic."""
        row = self._topics.get(topic) or self._row(topic)
        row[0] += messages
        row[1] += size

    def gave(self, topic: str, messages: int, size: int) -> None:
        """A reader is given batches of a queue of a topic."""
        row = self._topics.get(topic) or self._row(topic)
        row[2] += messages
        row[3] += size

    def forget(self, topic: str) -> None:
        """A topic is gone."""
        row = self._topics.pop(topic, None)
        if row is not None:
            self._gone = [was + more for was, more in zip(self._gone, row, strict=True)]

    def total(self) -> Flow:
        """All topics together."""
        return Flow(*map(sum, zip(self._gone, *self._topics.values(), strict=True)))

    def busiest(self, count: int) -> dict[str, Flow]:
        """The topics with the most messages in and out, at most so many and never more than 1000."""
        most = heapq.nlargest(min(count, MAX_TOLD), self._topics.items(), key=lambda item: item[1][0] + item[1][2])
        return {topic: Flow(*row) for topic, row in most}

    def _row(self, topic: str) -> list[int]:
        return self._topics.setdefault(topic, [0, 0, 0, 0])
