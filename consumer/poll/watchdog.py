"""
Watches whether the user of a pull consumer still asks for messages.

The leases are renewed whatever the user does, so one who never polls again would keep the queues from all others.
After ``limit_s`` without a poll they are given to others; the next poll takes part again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmq.runtime.logging import get_logger

log = get_logger("rmq.consumer")


class PollWatchdog:
    """``rest(True)`` is said when the user was away for ``limit_s``, ``rest(False)`` when they are back."""

    def __init__(self, limit_s: float, *, now: Callable[[], float], rest: Callable[[bool], None]) -> None:
        self._limit_s = limit_s
        self._now = now
        self._rest = rest
        self._polling = False
        self._seen_at = now()
        self._back = asyncio.Event()
        self._back.set()

    @property
    def away_s(self) -> float:
        """How long the user has not asked for anything; 0 while a poll waits."""
        return 0.0 if self._polling else max(self._now() - self._seen_at, 0.0)

    def poll_began(self) -> None:
        """A poll begins."""
        self._polling = True
        if not self._back.is_set():
            self._back.set()
            log.info("poll.resumed", away_s=round(self._now() - self._seen_at, 3))
            self._rest(False)

    def poll_ended(self) -> None:
        """A poll has ended: the user is at work."""
        self._polling = False
        self._seen_at = self._now()

    def active(self) -> None:
        """The user has finished something without a poll."""
        self._seen_at = self._now()

    async def watch(self) -> None:
        """Have the consumer rest whenever the user is away for too long, until cancelled."""
        while True:
            left_s = self._limit_s if self._polling else self._seen_at + self._limit_s - self._now()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            self._back.clear()
            log.warning(
                "poll.overdue",
                away_s=round(self._now() - self._seen_at, 3),
                now="the queues go to others until the next poll",
                advice="poll or commit within consume_timeout_s, or set it higher",
            )
            self._rest(True)
            await self._back.wait()
