"""The real broker with a disk that syncs only when the test lets it; on the loop of a test, or in a thread."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from rmq.broker.app import Broker
from rmq.broker.store.flusher import Failed, SyncableLog, Synced
from rmq.testing.broker import InlineFlusher, InMemoryBroker

T = TypeVar("T")
DEADLINE_S = 30.0


class StallingFlusher(InlineFlusher):
    """Syncs in the next turn of the loop, unless it is stalled."""

    stalled = False
    _due = False

    def request(self) -> None:
        """Sync in the next turn, or when it goes on."""
        if self.stalled:
            self._due = True
        else:
            super().request()

    def go_on(self) -> None:
        """Sync again."""
        self.stalled = False
        if self._due:
            self._due = False
            self.request()


class StallingBroker(InMemoryBroker):
    """``stall()`` keeps everything from becoming durable, and so all answers back, until ``go_on()``."""

    flusher: StallingFlusher

    async def start(self) -> None:
        """Start; ``async with`` does this."""
        now = asyncio.get_running_loop().time
        # Work is measured by the same clock, so that a slow machine does not cut it into other turns than a fast one.
        self.broker = Broker(self.config, now=now, clock=now, flusher=self._make)
        await self.broker.start()
        self.config = replace(self.config, listen=self.broker.address)

    def _make(self, log: SyncableLog, post: object, synced: Synced, failed: Failed) -> StallingFlusher:
        self.flusher = StallingFlusher(log, asyncio.get_running_loop().call_soon, synced, failed)
        return self.flusher

    def stall(self) -> None:
        """Let nothing become durable."""
        self.flusher.stalled = True

    def go_on(self) -> None:
        """Let everything become durable."""
        self.flusher.go_on()

    async def crash(self, to: Path, *, kept: float) -> None:
        """
        End at once and start again on the same port and a copy of the data, as a power cut leaves it.

        ``kept`` is the part that is left of what was written and not synced: 0.0 nothing, 1.0 all.
        """
        log = self.broker._store.log
        lost = int((log.written - log.durable) * (1.0 - kept))
        shutil.copytree(self.config.data_dir, to)
        newest = sorted((to / "commitlog").iterdir())[-1]
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size - lost)
        assert self.broker._server is not None
        self.broker._server.close()
        for connection in list(self.broker._connections):
            connection.abort()  # before anything can be answered
        self.go_on()
        await self.stop()
        self.config = replace(self.config, data_dir=str(to), recognise_copies=False)
        await self.start()


class BrokerThread:
    """A broker for the length of a ``with`` block; keyword arguments are fields of its configuration."""

    def __init__(self, **settings: Any) -> None:
        self.broker = StallingBroker(**settings)
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self.broker.address

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.broker.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.broker.__aexit__)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def do(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(function(*args), self._loop).result(DEADLINE_S)

    def stall(self) -> None:
        """Let nothing become durable, and so nothing be answered."""
        self._loop.call_soon_threadsafe(self.broker.stall)

    def go_on(self) -> None:
        """Let everything become durable."""
        self._loop.call_soon_threadsafe(self.broker.go_on)


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so, where no event says that it is."""
    patience = threading.Event()
    for _ in range(int(DEADLINE_S * 200)):
        if condition():
            return
        patience.wait(0.005)
    raise AssertionError(f"{what} did not come within {DEADLINE_S:g} s")
