"""
Ordered consumers with default settings, which take the time between the stamp of each message and its listener's call.

A topic has a consumer of its own, which is a group of its own with a connection of its own; each of its queues has one
pull, which is parked at the broker while there is nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, StoredMessage

from ..processes import go, run, say
from .schedule import WARM_UP, stamp_of

PATIENCE_S = 60.0  # a message that did not come for so long is lost
TICK_S = 0.01
AT_ONCE = 5  # consumers that start beside each other: all at once would be told that their loop stalls


class Listener:
    """Keeps how long messages took, and tells when another ``count`` of them came; those for warming up count apart."""

    def __init__(self, count: int, warm: int, now: Callable[[], int] = time.monotonic_ns) -> None:
        self.came = asyncio.Event()
        self.warmed = asyncio.Event()
        self._count = count
        self._warm = warm
        self._now = now
        self._took: list[float] = []
        if not warm:
            self.warmed.set()

    async def __call__(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Look at the clock first."""
        now = self._now()
        for message in messages:
            stamp = stamp_of(message.body)
            if stamp == WARM_UP:
                self._warm -= 1
                if self._warm == 0:
                    self.warmed.set()
            else:
                self._took.append((now - stamp) / 1000)
                if len(self._took) >= self._count:
                    self.came.set()
        return ConsumeStatus.SUCCESS

    def take(self) -> list[float]:
        """The oldest ``count`` of them, in microseconds."""
        took, self._took = self._took[: self._count], self._took[self._count :]
        if len(self._took) < self._count:
            self.came.clear()
        return took


async def main(
    *, address: str, topics: list[str], queues: int, warm: int, count: int, rounds: int, ahead: bool
) -> None:
    """
    Say ``rounds`` times how long the next ``count`` messages took.

    ``warm`` more come before them, ``ahead`` of the word or behind it.
    """
    listener = Listener(count, warm)
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(PATIENCE_S):
            for at in range(0, len(topics), AT_ONCE):
                names = topics[at : at + AT_ONCE]
                some = [Consumer(address, group=name, listener=listener, topics={name: "*"}) for name in names]
                for consumer in some:
                    await stack.enter_async_context(consumer)
                while any(len(consumer.assignment) < queues for consumer in some):
                    await asyncio.sleep(TICK_S)
            if ahead:
                await listener.warmed.wait()
        await go()
        async with asyncio.timeout(PATIENCE_S):
            await listener.warmed.wait()
        for _ in range(rounds):
            async with asyncio.timeout(PATIENCE_S):
                await listener.came.wait()
            say(us=listener.take())


if __name__ == "__main__":
    run(main)
