"""
Detects an event loop that keeps everything waiting, renewals included, and stops dispatch meanwhile.

A timer that should fire every second is the measure. ``LoopLag`` is the rule, with the time as an argument;
``StallWatch`` is the task that ticks. While nothing on the loop runs, a thread reports the stack of what blocks it:
``LoopWatcher``, one for all consumers on a loop; ``Blockage`` decides when.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Final, NamedTuple

from rmq.runtime.logging import get_logger

log = get_logger("rmq.consumer")
EVERY_S = 1.0
WORTH_LOGGING_S = 0.5
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
        self._due = float("inf")  # it does not tick yet
        self._last_s = 0.0

    def begin(self, now: float) -> float:
        """Ticks begin; returns how long to sleep before the first."""
        self._every_s, self._last_s = EVERY_S, 0.0
        self._due = now + EVERY_S
        return EVERY_S

    def tick(self, now: float) -> float:
        """A tick, late or not: ``stall`` tells what it means. Returns how long to sleep before the next."""
        late_s, whole = max(0.0, now - self._due), self._every_s == EVERY_S
        if late_s > WORTH_LOGGING_S:
            began = now - late_s if self.stall is None else self.stall.began
            self.stall = Stall(began, max(late_s, 0.0 if self.stall is None else self.stall.longest_s))
        elif whole:
            self.stall = None
        self._every_s = LOOK_AGAIN_S if late_s > WORTH_LOGGING_S else EVERY_S
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
        self.lag = LoopLag(limit_s)
        self.now = now
        self.group = group
        self.calls = calls
        self.watcher: LoopWatcher | None = None  # while it ticks
        self._by_thread = by_thread

    @property
    def lag_s(self) -> float:
        """How late the loop is; it grows while nothing on the loop gets to run."""
        return self.lag.lag_s(self.now())

    def stalled(self, now: float) -> bool:
        """Whether no batch may start: the loop is late by more than ``stall_limit_s``."""
        return self.lag.stalled(now)

    async def run(self) -> None:
        """
        Tick until cancelled.

        What is late most likely waits for a listener that is ``async def`` and blocks: make it a plain ``def``, then
        it runs in a thread.
        """
        pause_s = self.lag.begin(self.now())
        if self._by_thread:
            self._watch_by_thread()
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = self._tick(self.now())
        finally:
            if self.watcher is not None:
                self.watcher.remove(self)

    def _watch_by_thread(self) -> None:
        try:
            self.watcher = _watched_by(self)
        except RuntimeError as error:  # no further thread can be started: the tick reports a stall afterwards
            log.warning("loop.not_watched", error=str(error))

    def _tick(self, now: float) -> float:
        before = self.lag.stall
        pause_s = self.lag.tick(now)
        stall = self.lag.stall
        if stall is not None and before is None:
            if self.watcher is None or not self.watcher.blockage.reported:
                log.warning("loop.stalled", seconds=round(stall.longest_s, 3), advice=ADVICE)
        elif stall is None and before is not None:
            log.warning("loop.recovered", after_s=round(now - before.began, 3), longest_s=round(before.longest_s, 3))
        return pause_s


class LoopWatcher:
    """
    A thread that reports a blocked loop, once for all stall watches on it.

    It ends with the last of them, or when the loop that it was made in is closed.
    """

    def __init__(self, first: StallWatch) -> None:
        self.blockage = Blockage(first.lag.limit_s, EVERY_S, first.now())
        self._watches: tuple[StallWatch, ...] = (first,)  # replaced, never changed: the thread reads it
        self._now = first.now
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="rmq loop watcher", daemon=True).start()

    @property
    def is_here(self) -> bool:
        """Whether it watches the running loop."""
        return self._loop is asyncio.get_running_loop() and not self._stopped.is_set()

    def add(self, watch: StallWatch) -> None:
        """Watch the loop for another one, too; the smallest limit counts."""
        self._set(*self._watches, watch)

    def remove(self, watch: StallWatch) -> None:
        """Forget one; the last ends the thread, without waiting for it."""
        left = [each for each in self._watches if each is not watch]
        if left:
            self._set(*left)
        else:
            self._stopped.set()

    def _set(self, *watches: StallWatch) -> None:
        self._watches = watches
        self.blockage.limit_s = min(watch.lag.limit_s for watch in watches)

    def _run(self) -> None:
        while not self._stopped.wait(self.blockage.every_s) and not self._loop.is_closed():
            self.look()

    def look(self) -> None:
        """Log what blocks the loop, if something does."""
        watches, now = self._watches, self._now()
        overdue_s = max(watch.lag.overdue_s(now) for watch in watches)
        in_stall = any(watch.lag.stall is not None for watch in watches)
        if self.blockage.look(now, overdue_s=overdue_s, in_stall=in_stall):
            log.warning(
                "loop.blocked",
                group=", ".join(sorted({watch.group for watch in watches})),
                queues=", ".join([queue for watch in watches for queue in watch.calls()][:MAX_QUEUES]),
                seconds=round(overdue_s, 3),
                advice=ADVICE,
                stack=stack_of(self._watched),
            )


class _Here(threading.local):
    watcher: LoopWatcher | None = None  # of the loop that runs in this thread


_here = _Here()


def _watched_by(watch: StallWatch) -> LoopWatcher:
    watcher = _here.watcher
    if watcher is None or not watcher.is_here:
        watcher = _here.watcher = LoopWatcher(watch)
    else:
        watcher.add(watch)
    return watcher


MAX_FRAMES: Final = 16  # the innermost ones tell most
OURS: Final = (Path(__file__).parents[1], Path(asyncio.__file__).parent)  # what calls listeners, and what calls us


class Blockage:
    """
    Decides when a blocked loop is to be reported: once for each stall, however often it blocks in that. Pure.

    A look that comes late itself proves nothing: the whole process was stopped, or the machine suspended. A suspension
    stops the timers of the loop and not our clock, so the next tick may be due ``tick_s`` after it.
    """

    def __init__(self, limit_s: float, tick_s: float, now: float) -> None:
        self.limit_s = limit_s
        self.reported = False
        self._tick_s = tick_s
        self._looked_at = now
        self._excused_until = float("-inf")

    @property
    def every_s(self) -> float:
        """The time between two looks."""
        return min(max(self.limit_s / 4, 0.05), 1.0)

    def look(self, now: float, *, overdue_s: float, in_stall: bool) -> bool:
        """
        Whether to report now that the next tick of the loop is overdue by so much.

        ``in_stall``: ticks came late before, and none was punctual since.
        """
        late_s = max(now - self._looked_at - self.every_s, 0.0)
        self._looked_at = now
        if late_s > self.limit_s:
            self._excused_until = now + self._tick_s + self.limit_s
        if not in_stall and overdue_s <= self.limit_s:
            self.reported = False
        if self.reported or now < self._excused_until or overdue_s - late_s <= self.limit_s:
            return False
        self.reported = True
        return True


def stack_of(thread: int) -> str:
    """Return where a thread is at this moment, from the first frame of the user on; empty if it has ended."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_list(users(traceback.extract_stack(frame)))).rstrip()


def users(stack: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """Return the innermost frames of a stack, without those that lead to the code of the user."""
    files = [Path(frame.filename) for frame in stack]
    ours = [place for place, file in enumerate(files, 1) if any(file.is_relative_to(folder) for folder in OURS)]
    theirs = stack[ours[-1] :] if ours else stack
    return (theirs or stack)[-MAX_FRAMES:]
