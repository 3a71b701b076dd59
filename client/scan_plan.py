"""What a scan reads: ranges of queues, frozen when the scan was planned, each readable on its own and anywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueRange:
    """``[start, end)`` of a queue, and all that is needed to read it anywhere, again and again."""

    broker: str
    store_id: int
    topic: str
    generation: int
    queue_id: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return self.end - self.start

    def place(self, offset: int) -> str:
        """An offset of it, for error messages."""
        return f"topic {self.topic}, queue {self.queue_id}, offset {offset}, broker {self.broker}"
