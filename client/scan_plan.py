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


@dataclass(frozen=True, slots=True)
class Manner:
    """How ranges are read, the same for all of a scan."""

    columns: tuple[str, ...]
    tags: str = "*"  # an expression: a || b
    verify: bool = True  # the checksum of every batch
    timeout_s: float = 30.0  # of silence of the broker
    skip_damage: bool = False  # leave out what is damaged and report it, instead of failing
    skip_lost: bool = False  # the same for what retention removed since the scan was planned
