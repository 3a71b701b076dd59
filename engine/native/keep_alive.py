"""Pings over one link, at a steady pace whatever else travels; silence ends the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rmq.wire.errors import ConnectionLost

from .link import Link

MAX_UNANSWERED: Final = 3


class KeepAlive:
    """
    Pings every ``every_s`` seconds; ``ping(on_reply)`` sends one.

    At most three are unanswered at a time. A link that brought no byte since the first of three unanswered pings is
    dropped; one that brings a long answer is not, although its pings wait behind that.
    """

    def __init__(self, link: Link, every_s: float, ping: Callable[[Callable[[int, Any], None]], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._every_s = every_s
        self._ping = ping
        self._unanswered = 0
        self._silent = 0
        self._timer = self._loop.call_later(every_s, self._tick)

    def stop(self) -> None:
        """No more pings."""
        self._timer.cancel()

    def _tick(self) -> None:
        if self._link.heard:
            self._link.heard = False
            self._silent = 0
        elif self._unanswered:
            self._silent += 1
        if self._silent >= MAX_UNANSWERED:
            self._link.drop(ConnectionLost(f"the broker was silent for {self._silent * self._every_s:g} s"))
            return
        self._timer = self._loop.call_later(self._every_s, self._tick)
        if self._unanswered < MAX_UNANSWERED:
            self._unanswered += 1
            self._ping(self._answered)

    def _answered(self, _status: int, _payload: Any) -> None:
        self._unanswered -= 1
