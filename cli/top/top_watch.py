"""
What ``rmq-admin top`` does from look to look: the last two, whether the broker answers, when to look again.

The loop draws while it waits for an answer too, so that a broker that is frozen is seen to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from rmq.client.overview.sample import Sample
from rmq.wire.errors import RmqError

SILENT_S: Final = 2.0  # an answer may take so long before it is missed
REDRAW_S: Final = 1.0


class Watch:
    """The last two looks, and how it stands with the next."""

    def __init__(self) -> None:
        self.before: Sample | None = None
        self.after: Sample | None = None
        self._error: str | None = None

    def answered(self, sample: Sample) -> None:
        """The broker told its numbers."""
        self.before, self.after = self.after, sample
        self._error = None

    def failed(self, error: RmqError) -> None:
        """It did not."""
        self._error = " ".join(str(error).split()) or type(error).__name__

    def notice(self, *, now: float) -> str | None:
        """What to say of a broker that does not answer."""
        if self.after is None:
            return self._error
        silent_s = now - self.after.at
        if self._error is not None:
            return f"no answer for {silent_s:.0f} s: {self._error}"
        return f"no answer for {silent_s:.0f} s" if silent_s > SILENT_S else None


class Screen(Protocol):
    """Where the view is drawn."""

    @property
    def is_over(self) -> bool:
        """Whether somebody wants no more of it."""

    def wake(self) -> None:
        """End a pause."""

    async def pause(self, timeout_s: float) -> None:
        """Wait for so long, or until the end, a change of the size or :meth:`wake`."""


async def follow(
    look: Callable[[], Awaitable[Sample]], screen: Screen, draw: Callable[[Watch], None], *, interval_s: float,
    count: int | None, clock: Callable[[], float],
) -> None:  # fmt: skip
    """Look and draw until the end, or for ``count`` answers."""
    watch, answers, next_at = Watch(), 0, clock()
    while not screen.is_over:
        asking = asyncio.ensure_future(look())
        asking.add_done_callback(lambda _: screen.wake())
        try:
            while not (asking.done() or screen.is_over):
                await screen.pause(REDRAW_S)
                if not asking.done() and watch.after is not None:
                    draw(watch)
            if not asking.done():
                return
            watch.answered(asking.result())
            answers += 1
        except RmqError as error:
            watch.failed(error)
        finally:
            asking.cancel()
        draw(watch)
        if answers == count:
            return
        next_at = max(next_at + interval_s, clock())
        while (left_s := next_at - clock()) > 0 and not screen.is_over:
            await screen.pause(min(left_s, REDRAW_S))
            draw(watch)
