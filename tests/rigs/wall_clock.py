"""The wall clock of a broker in virtual time."""

from __future__ import annotations

import asyncio

NOON_US = 1_700_000_000_000_000


class WallClock:
    """Returns microseconds: follows the loop's clock, or stands still; ``ahead_s`` is how far it is wrong."""

    def __init__(self, base_us: int = NOON_US, *, ahead_s: float = 0.0, is_stuck: bool = False) -> None:
        self._base_us = base_us
        self._is_stuck = is_stuck
        self.ahead_s = ahead_s

    def passed_s(self) -> float:
        """Return the time that has passed since the loop began."""
        return (0.0 if self._is_stuck else asyncio.get_running_loop().time()) + self.ahead_s

    def __call__(self) -> int:
        return self._base_us + round(self.passed_s() * 1e6)
