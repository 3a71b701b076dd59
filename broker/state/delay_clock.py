"""
The time by which delayed messages are delivered: it never falls, and nobody has to wait because a clock was set back.

It is the wall clock. When that is set back, the old time goes on at nearly the rate of a clock that nobody sets, until
the wall clock has caught up or the broker starts anew: a little slower, since times that people name are early until
then. A step back of some milliseconds, as time servers make them, is waited for instead.
"""

from __future__ import annotations

from typing import Final

SMALL_STEP_US: Final = 50_000
RATE: Final = 998_000  # microseconds that it shows a second until then: a step of 1 s is made up for in 500


class DelayClock:
    """Microseconds since 1970, from what both clocks show."""

    def __init__(self) -> None:
        self._last = 0
        self._since = 0, 0.0  # what it and the other clock showed when the wall clock was last believed

    def read(self, wall_us: int, steady_s: float) -> int:
        """The time, never less than the last one."""
        behind = self._last - wall_us
        if behind <= 0:
            self._last = wall_us
            self._since = wall_us, steady_s
        elif behind <= SMALL_STEP_US:
            self._since = self._last, steady_s
        else:
            then, then_s = self._since
            self._last = max(self._last, then + int((steady_s - then_s) * RATE))
        return self._last
