"""
The client process of a peer: warms up, waits for the start signal, sends or consumes, and reports its times and counts.

Times are on the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rmq.bench.options import Load
from rmq.bench.processes import BenchError, go, say, settle

STREAM = "messages"
FETCH = 500  # messages that consumers ask for at least: how they were sent is not their concern
WARM_UP = 5_000  # messages, on a stream of its own

Listener = Callable[[Any], Awaitable[None]]


class Client(Protocol):
    """A broker's Python client, each method in the quickest way that it offers."""

    async def create(self, stream: str) -> None:
        """Create a stream, or queue, that can be sent to and consumed from."""

    async def produce(self, stream: str, load: Load, batches: list[list[bytes]]) -> None:
        """Send them all; returns when all are acknowledged."""

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        """Await the listener for each message, acknowledge; returns when the last is handled and acknowledged."""

    async def stored(self, stream: str) -> int:
        """Return how many messages the broker has taken, by its own count, consumed ones included."""


async def work(client: Client, role: str, load: Load) -> None:
    """Play the producer or the consumer of a benchmark; the consumer comes first and makes the stream."""
    warm_up = dataclasses.replace(load, messages=min(load.messages, WARM_UP))
    await client.create(f"warm-up-{role}")
    await client.produce(f"warm-up-{role}", warm_up, warm_up.bodies())
    if role == "produce":
        batches = load.bodies()
        await client.create(STREAM)
        await ready()
        began = time.monotonic()
        await client.produce(STREAM, load, batches)
        ended = time.monotonic()
        say(began=began, ended=ended, stored=await client.stored(STREAM))
        return
    await consume(client, f"warm-up-{role}", warm_up)
    await client.create(STREAM)
    await ready()
    handled, ended = await consume(client, STREAM, load)
    say(ended=ended, handled=handled)


def fetched(load: Load) -> int:
    """Return how many messages a consumer requests, and acknowledges, at once."""
    return max(load.batch, FETCH)


async def ready() -> None:
    """Wait for the start signal."""
    settle()
    await go()


async def consume(client: Client, stream: str, load: Load) -> tuple[int, float]:
    """Consume as many messages as the load has; return how many the listener got, and when the last one."""
    handled, expected, ended = 0, load.messages, 0.0

    async def listener(message: Any) -> None:
        nonlocal handled, ended
        handled += 1
        if handled == expected:  # what acknowledges it is in no clock, of ours neither
            ended = time.monotonic()

    await client.consume(stream, load, listener)
    return handled, ended


class Count:
    """Counts messages that a broker has taken or given, for a waiter that needs so many."""

    def __init__(self) -> None:
        self.value = 0
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None
        self._failure = ""

    def add(self, more: int = 1) -> None:
        """Count more."""
        self.value += more
        if self.value >= self._wanted:
            self._wake()

    def fail(self, why: str) -> None:
        """Raise BenchError in the waiter, now or later."""
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
