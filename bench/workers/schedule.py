"""
When each message of a load is due, whatever became of those before it. Pure.

A sender that waits for an answer, or is late, still owes everything that has become due meanwhile, and each latency
counts from when the message was due: what a stall kept back shows in the figures of all that it kept back.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Schedule:
    """``count`` moments, ``per_second`` of them a second; times are nanoseconds of one clock."""

    began: int
    per_second: float
    count: int

    def due(self, number: int) -> int:
        """When the message of this number, from 0 on, is due; a later one is never due before an earlier one."""
        return self.began + round(number * SECOND / self.per_second)

    def owed(self, now: int) -> int:
        """How many messages are due by now, from the first on."""
        passed = min(self.count, max(0, int((now - self.began) * self.per_second / SECOND)))
        # The division may be off by one at the very moment that a message is due.
        while passed < self.count and self.due(passed) <= now:
            passed += 1
        while passed and self.due(passed - 1) > now:
            passed -= 1
        return passed

    def wait_s(self, sent: int, now: int) -> float:
        """How long nothing is to be done after the first ``sent`` messages."""
        return max(0, self.due(sent) - now) / SECOND if sent < self.count else 0.0
