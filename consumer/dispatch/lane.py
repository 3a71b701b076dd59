"""What a consumer of many messages at a time knows of one queue: its running calls, and what waits to be retried."""

from __future__ import annotations

import asyncio

from ..fetch.concurrent_queue import Chunk, ConcurrentQueue
from ..group.assignment import ConsumeGuard, Generation
from ..statistics import TopicMeter

TELL_AFTER_S = 0.002  # calls are added to the statistics together, not one by one


class Calls(ConsumeGuard):
    """Held while any call of a queue runs or its result is being recorded; ``since`` is the oldest of them."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[Call, None] = {}

    def began(self, call: Call) -> None:
        """A call begins."""
        if self.since is None:
            self.since = call.began_at
        self._running[call] = None

    def ended(self, call: Call) -> None:
        """A call has ended, and all that is to be recorded of it is."""
        del self._running[call]
        if self._running:
            self.since = next(iter(self._running)).began_at
        elif self.waiters:
            self.release()
        else:
            self.since = None

    def running(self) -> list[Call]:
        """The calls, the oldest first."""
        return list(self._running)


class Call:
    """One call of the listener; ``worker`` makes it."""

    __slots__ = ("began_at", "chunk", "interrupted", "sweep", "worker")

    def __init__(self, chunk: Chunk, worker: asyncio.Task[None], began_at: float) -> None:
        self.chunk = chunk
        self.worker = worker
        self.began_at = began_at
        self.interrupted = False  # we cancelled it
        self.sweep: asyncio.Future[None] | None = None  # its first messages are being given up: the result waits

    def interrupt(self) -> None:
        """Cancel the listener, if it still runs."""
        if self.chunk.called_at is not None and not self.interrupted:
            self.interrupted = True
            self.worker.cancel()


class Lane:
    """A generation, and what a service needs beside it."""

    def __init__(self, generation: Generation, meter: TopicMeter) -> None:
        cache = generation.cache
        assert isinstance(cache, ConcurrentQueue), "a queue of another service"
        self.generation = generation
        self.cache = cache
        self.calls = Calls()
        generation.guard = self.calls
        self.offered = False  # workers may take from it
        self.doubted = False  # they could not, since the lease is not proven
        self._withdrawn = asyncio.Event()
        self._held: dict[Chunk, tuple[float, asyncio.TimerHandle]] = {}
        self._meter = meter
        self._told_at = float("-inf")
        self._done = self._called = 0  # not in the statistics yet
        self._seconds = 0.0

    # Whether workers take from it

    def offer(self) -> None:
        """Workers may take from it."""
        self.offered = True
        self.doubted = False
        self._withdrawn.clear()

    def withdraw(self) -> None:
        """There is nothing to take, or it may not be taken."""
        self.offered = False
        self._withdrawn.set()

    async def until_withdrawn(self) -> None:
        """Wait until workers take nothing from it any more. Cancelling is safe."""
        await self._withdrawn.wait()

    def interrupt(self) -> None:
        """Cancel the calls that run."""
        for call in self.calls.running():
            call.interrupt()

    # What is tried again

    def hold(self, chunk: Chunk, seconds: float, now: float) -> None:
        """Have a chunk taken again after a pause; it keeps the progress back."""
        timer = asyncio.get_running_loop().call_later(seconds, self._due, chunk)
        self._held[chunk] = (now + seconds, timer)
        self._note_retry()

    def _due(self, chunk: Chunk) -> None:
        del self._held[chunk]
        self._note_retry()
        self.cache.try_again(chunk)
        self.generation.arrived()

    def forget_held(self) -> None:
        """Nothing is tried again here."""
        for _, timer in self._held.values():
            timer.cancel()
        self._held.clear()
        self._note_retry()

    def _note_retry(self) -> None:
        self.generation.retry_at = min((due for due, _ in self._held.values()), default=None)

    # Statistics

    def count(self, now: float, messages: int, seconds: float) -> None:
        """A call has finished ``messages`` messages."""
        self._called += 1
        self._done += messages
        self._seconds += seconds
        if not self.offered or now > self._told_at + TELL_AFTER_S:
            self.tell(now)

    def tell(self, now: float) -> None:
        """Add what was counted to the statistics."""
        self._told_at = now
        self._meter.succeeded(now, self._done, self._called, self._seconds)
        self._done = self._called = 0
        self._seconds = 0.0
