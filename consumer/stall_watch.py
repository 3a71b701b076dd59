"""
Notices when something on the loop keeps everything else waiting, renewals included, and has dispatch stop meanwhile.

A timer that should fire every second is the measure. ``LoopLag`` is the rule, with the time as an argument;
``StallWatch`` is the task that ticks. While nothing on the loop runs, a thread reports what blocks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq.client.log import get_logger

from .blocked_loop import Blockage, LoopWatcher, stack_of

log = get_logger("rmq.consumer")

EVERY_S = 1.0
WORTH_TELLING_S = 0.5
LOOK_AGAIN_S = 0.1  # after a late tick: whether the loop keeps pace again
MAX_QUEUES = 8  # that are named, of those whose call may be what blocks
ADVICE = "a listener that blocks must be a plain def, which runs in a thread"


class Stall(NamedTuple):
    """A time in which ticks came late: when it began, and the latest of them."""

    began: float
    longest_s: float


class LoopLag:
    """
    How late the loop is, and whether that is worth a word. Pure.

    A stall begins with a tick that is late by more than 0.5 s, and ends with the first that is punctual after a whole
    second: a listener that blocks again and again is one stall.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.stall: Stall | None = None
        self._every_s = EVERY_S
        self._due = float("inf")  # nobody ticks yet
        self._last_s = 0.0

    def begin(self, now: float) -> float:
        """Ticks begin; returns how long to sleep before the first."""
        self._every_s, self._last_s = EVERY_S, 0.0
        self._due = now + EVERY_S
        return EVERY_S

    def tick(self, now: float) -> float:
        """A tick, late or not: ``stall`` tells what it means. Returns how long to sleep before the next."""
        late_s, whole = max(0.0, now - self._due), self._every_s == EVERY_S
        if late_s > WORTH_TELLING_S:
            began = now - late_s if self.stall is None else self.stall.began
            self.stall = Stall(began, max(late_s, 0.0 if self.stall is None else self.stall.longest_s))
        elif whole:
            self.stall = None
        self._every_s = LOOK_AGAIN_S if late_s > WORTH_TELLING_S else EVERY_S
        self._last_s = late_s
        self._due = now + self._every_s
        return self._every_s

    def overdue_s(self, now: float) -> float:
        """By how much the next tick is overdue; negative before its time."""
        return now - self._due

    def lag_s(self, now: float) -> float:
        """How late the last tick was, or the next one already is."""
        return max(self._last_s, now - self._due)

    def stalled(self, now: float) -> bool:
        """Whether the loop is late by more than the limit; at exactly the limit it is not."""
        return self.lag_s(now) > self.limit_s


class StallWatch:
    """
    Ticks, logs each stall once and its end once, and answers how late the loop is at any moment.

    With ``by_thread`` a stall beyond the limit is logged while it lasts, with the stack of what blocks: not under a
    clock of tests. ``calls`` are the queues whose listener is being called.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        now: Callable[[], float],
        group: str = "",
        calls: Callable[[], Sequence[str]] = tuple,
        by_thread: bool = False,
    ) -> None:
        self._lag = LoopLag(limit_s)
        self._blockage = Blockage(limit_s)
        self._now = now
        self._group = group
        self._calls = calls
        self._by_thread = by_thread

    @property
    def lag_s(self) -> float:
        """How late the loop is; it grows while nothing on the loop gets to run."""
        return self._lag.lag_s(self._now())

    def stalled(self, now: float) -> bool:
        """Whether no batch may start: the loop is late by more than ``stall_limit_s``."""
        return self._lag.stalled(now)

    async def run(self) -> None:
        """
        Tick until cancelled.

        What is late is most likely behind a listener that is ``async def`` and blocks: make it a plain ``def``, then
        it runs in a thread.
        """
        pause_s = self._lag.begin(self._now())
        watcher = self._watch_by_thread() if self._by_thread else None
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = self._tick(self._now())
        finally:
            if watcher is not None:
                watcher.stop()

    def _watch_by_thread(self) -> LoopWatcher | None:
        try:
            return LoopWatcher(self._blockage.every_s, self.look)
        except RuntimeError as error:  # no further thread can be started: the tick reports a stall afterwards
            log.warning("loop.not_watched", error=str(error))
            return None

    def _tick(self, now: float) -> float:
        before = self._lag.stall
        pause_s = self._lag.tick(now)
        stall = self._lag.stall
        if stall is not None and before is None:
            if not self._blockage.reported:
                log.warning("loop.stalled", seconds=round(stall.longest_s, 3), advice=ADVICE)
        elif stall is None and before is not None:
            log.warning("loop.recovered", after_s=round(now - before.began, 3), longest_s=round(before.longest_s, 3))
        return pause_s

    def look(self, thread: int) -> None:
        """Log what blocks the loop of a thread, if something does; for the thread that watches."""
        now = self._now()
        overdue_s = self._lag.overdue_s(now)
        if self._blockage.look(now, overdue_s=overdue_s, in_stall=self._lag.stall is not None):
            log.warning(
                "loop.blocked",
                group=self._group,
                queues=", ".join(self._calls()[:MAX_QUEUES]),
                seconds=round(overdue_s, 3),
                advice=ADVICE,
                stack=stack_of(thread),
            )
