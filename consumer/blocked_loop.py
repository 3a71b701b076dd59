"""
Reports a blocked event loop while it is blocked, with the stack of what blocks it.

Nothing that runs on the loop can do that, so a thread looks at when the next tick of the stall watch is due.
``Blockage`` is the rule, with the time as an argument; ``LoopWatcher`` is the thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Final

MAX_FRAMES: Final = 16  # the innermost ones tell most
OURS: Final = (
    str(Path(__file__).parent),
    str(Path(asyncio.__file__).parent),
)  # what calls listeners, and what calls us


class Blockage:
    """
    Decides when a blocked loop is to be reported: once for each stall, however often it blocks in that. Pure.

    A look that comes late itself proves nothing: the whole process was stopped, or the machine suspended.
    """

    def __init__(self, limit_s: float) -> None:
        self.every_s = min(max(limit_s / 4, 0.05), 1.0)
        self.reported = False
        self._limit_s = limit_s
        self._looked_at = float("-inf")

    def look(self, now: float, *, overdue_s: float, in_stall: bool) -> bool:
        """
        Whether to report now that the next tick of the loop is overdue by so much.

        ``in_stall``: ticks came late before, and none was punctual since.
        """
        late_s = max(now - self._looked_at - self.every_s, 0.0)
        self._looked_at = now
        if not in_stall and overdue_s <= self._limit_s:
            self.reported = False
        if self.reported or overdue_s - late_s <= self._limit_s:
            return False
        self.reported = True
        return True


class LoopWatcher:
    """A thread that calls ``look`` every ``every_s`` until it is stopped, or the loop that it was made in is closed."""

    def __init__(self, every_s: float, look: Callable[[int], None]) -> None:
        self._every_s = every_s
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="rmq loop watcher", daemon=True).start()

    def stop(self) -> None:
        """End the thread; does not wait for it."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s) and not self._loop.is_closed():
            self._look(self._watched)


def stack_of(thread: int) -> str:
    """Return where a thread is at this moment, from the first frame of the user on; empty if it has ended."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_list(users(traceback.extract_stack(frame)))).rstrip()


def users(stack: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """Return the innermost frames of a stack, without those that lead to the code of the user."""
    ours = [place for place, frame in enumerate(stack, 1) if str(Path(frame.filename).parent) in OURS]
    theirs = stack[ours[-1] :] if ours else stack
    return (theirs or stack)[-MAX_FRAMES:]
