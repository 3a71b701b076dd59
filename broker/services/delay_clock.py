"""
The time by which delayed messages are delivered: it never falls, and nobody has to wait because a clock was set back.

It is the wall clock. When that is set back, the old time goes on at the rate of a clock that nobody sets, until the
wall clock has caught up or the broker starts anew. A step back of some milliseconds, as time servers make them, is
waited for instead, so that many of them do not add up.
"""

from __future__ import annotations

from typing import Final

SMALL_STEP_US: Final = 50_000


class DelayClock:
    """Microseconds since 1970, from what both clocks show."""

    def __init__(self) -> None:
        self._last = 0
        self._steady_s = 0.0  # what the other clock showed then

    def read(self, wall_us: int, steady_s: float) -> int:
        """The time, never less than the last one."""
        passed = max(int((steady_s - self._steady_s) * 1_000_000), 0)
        behind = self._last - wall_us
        if behind <= 0:
            self._last, self._steady_s = wall_us, steady_s
        elif behind <= SMALL_STEP_US:
            self._steady_s = steady_s
        else:
            self._last += passed
            self._steady_s += passed / 1_000_000  # not what was cut off: it counts the next time
        return self._last
