"""When a blocked event loop is to be reported, and the stack of what blocks it."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Final

MAX_FRAMES: Final = 16  # the innermost ones tell most
OURS: Final = (
    str(Path(__file__).parents[1]),
    str(Path(asyncio.__file__).parent),
)  # what calls listeners, and what calls us


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
    ours = [place for place, frame in enumerate(stack, 1) if str(Path(frame.filename).parent) in OURS]
    theirs = stack[ours[-1] :] if ours else stack
    return (theirs or stack)[-MAX_FRAMES:]
