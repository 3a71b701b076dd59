"""Memory for unfinished frames: one budget for all connections, first come, first served."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiter(Protocol):
    """Somebody who could not get memory."""

    def budget_freed(self) -> None:
        """Try again."""


class ReceiveBudget:
    """
    Bytes that connections may hold in copies that outlive a read callback.

    A charge is granted while the sum stays within ``limit`` and nobody waits in line before; the only holder always
    gets what it asks for, so that a frame larger than the whole budget cannot wait for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[Waiter] = deque()

    @property
    def contended(self) -> bool:
        """Whether somebody waits for memory."""
        return bool(self._waiting)

    def charge(self, who: Waiter, held: int, needed: int) -> bool:
        """Change what ``who`` holds from ``held`` to ``needed``; False puts it in line and changes nothing."""
        if needed > held and not self._fits(who, held, needed):
            if who not in self._waiting:
                self._waiting.append(who)
            return False
        self._leave_line(who)
        self.used += needed - held
        if needed <= held:
            self._wake()
        return True

    def _fits(self, who: Waiter, held: int, needed: int) -> bool:
        if self._waiting and self._waiting[0] is not who:
            return False
        return self.used <= held or self.used - held + needed <= self._limit

    def give_back(self, who: Waiter, held: int) -> None:
        """``who`` is gone."""
        self._leave_line(who)
        self.used -= held
        self._wake()

    def _leave_line(self, who: Waiter) -> None:
        if who in self._waiting:
            self._waiting.remove(who)

    def _wake(self) -> None:
        """Let the first in line try again, and those behind it as long as each gets what it needs."""
        while self._waiting:
            first = self._waiting[0]
            first.budget_freed()
            if self._waiting and self._waiting[0] is first:
                return
