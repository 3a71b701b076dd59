"""How many messages a broker has taken or given, for one who waits for so many."""

from __future__ import annotations

import asyncio

from ..processes import BenchError


class Count:
    """A number that grows."""

    def __init__(self) -> None:
        self.value = 0
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None
        self._failure = ""

    def add(self, more: int = 1) -> None:
        """So many more."""
        self.value += more
        if self.value >= self._wanted:
            self._wake()

    def fail(self, why: str) -> None:
        """Whoever waits, now or later, is told that it went wrong."""
        self._failure = self._failure or why
        self._wake()

    async def reaches(self, wanted: int) -> None:
        """Wait until so many have come; one waiter at a time. Raises BenchError where it went wrong."""
        if self.value < wanted and not self._failure:
            self._wanted, self._reached = wanted, asyncio.get_running_loop().create_future()
            await self._reached
        if self._failure:
            raise BenchError(self._failure)

    def _wake(self) -> None:
        if self._reached is not None:
            if not self._reached.done():  # its waiter may have been cancelled
                self._reached.set_result(None)
            self._reached = None


class Confirms(Count):
    """Publisher confirms of a channel, whose messages are numbered from 1: one by one, in any order, or up to one."""

    def __init__(self) -> None:
        super().__init__()
        self._early: set[int] = set()  # confirmed before one that was sent earlier

    def confirm(self, tag: int, is_multiple: bool) -> None:
        """``value`` is the last number up to which all are confirmed."""
        last = self.value
        if is_multiple:
            last = max(last, tag)
        elif tag == last + 1:
            last = tag
        else:
            self._early.add(tag)
        if self._early:
            while last + 1 in self._early:
                last += 1
            self._early = {number for number in self._early if number > last}
        self.add(last - self.value)
