"""
When each message of a load is due, and the stamp that carries this time in its body.

A sender that waits for an answer, or is late, still owes everything that has become due meanwhile. Each latency counts
from when the message was due, so a stall shows in the figures of everything it delayed. Times are nanoseconds of the
machine's clock, which all its processes share.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

SECOND = 1_000_000_000


@dataclass(frozen=True)
class DueTimes:
    """``count`` moments, ``per_second`` of them a second; times are nanoseconds of one clock."""

    began: int
    per_second: float
    count: int

    def due(self, number: int) -> int:
        """Return when this message, numbered from 0, is due; a later one is never due before an earlier one."""
        return self.began + round(number * SECOND / self.per_second)

    def owed(self, now: int) -> int:
        """Return how many messages are due by now."""
        passed = min(self.count, max(0, int((now - self.began) * self.per_second / SECOND)))
        # The division may be off by one at the very moment that a message is due.
        while passed < self.count and self.due(passed) <= now:
            passed += 1
        while passed and self.due(passed - 1) > now:
            passed -= 1
        return passed

    def wait_s(self, sent: int, now: int) -> float:
        """Return how long to wait after the first ``sent`` messages."""
        return max(0, self.due(sent) - now) / SECOND if sent < self.count else 0.0


_STAMP = struct.Struct("<q")
WARM_UP = 0  # the time of a message that is not measured
LEAST = _STAMP.size


class StampedBodies:
    """Bodies of ``size`` bytes, of at least 8, each with a time and bytes after it that differ from its neighbours'."""

    def __init__(self, size: int, different: int = 4096) -> None:
        self._rest = max(0, size - LEAST)
        self._noise = os.urandom(different + self._rest)
        self._different = different
        self._at = 0

    def stamped(self, time_ns: int) -> bytes:
        """Return the next body."""
        at = self._at = (self._at + 1) % self._different
        return _STAMP.pack(time_ns) + self._noise[at : at + self._rest]


def stamp_of(body: bytes) -> int:
    """Return the time in a body."""
    (time_ns,) = _STAMP.unpack_from(body)
    assert isinstance(time_ns, int)
    return time_ns
