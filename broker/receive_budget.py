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

    A charge is granted while the sum stays within ``limit``; the only holder always gets what it asks for, so that
    a frame larger than the whole budget cannot wait for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[Waiter] = deque()

    def charge(self, who: Waiter, held: int, needed: int) -> bool:
        """Change what ``who`` holds from ``held`` to ``needed``; False puts it in line and changes nothing."""
        if needed > held and self.used > held and self.used - held + needed > self._limit:
            if who not in self._waiting:
                self._waiting.append(who)
            return False
        self.used += needed - held
        if needed < held:
            self._wake()
        return True

    def give_back(self, who: Waiter, held: int) -> None:
        """``who`` is gone."""
        if who in self._waiting:
            self._waiting.remove(who)
        self.used -= held
        if held:
            self._wake()

    def _wake(self) -> None:
        for _ in range(len(self._waiting)):
            self._waiting.popleft().budget_freed()
