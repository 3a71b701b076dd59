"""The real broker with a disk that syncs only when the test lets it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from rmq.broker.app import Broker
from rmq.broker.store.flusher import Failed, SyncableLog, Synced
from rmq.testing.broker import InlineFlusher, InMemoryBroker


class HeldFlusher(InlineFlusher):
    """Syncs in the next turn of the loop, unless it is held."""

    held = False
    _due = False

    def request(self) -> None:
        """Sync in the next turn, or when it is released."""
        if self.held:
            self._due = True
        else:
            super().request()

    def release(self) -> None:
        """Sync again."""
        self.held = False
        if self._due:
            self._due = False
            self.request()


class HeldBroker(InMemoryBroker):
    """``hold()`` keeps everything from becoming durable, and so all answers back, until ``release()``."""

    flusher: HeldFlusher

    async def start(self) -> None:
        """Start; ``async with`` does this."""
        now = asyncio.get_running_loop().time
        # Work is measured by the same clock, so that a slow machine does not cut it into other turns than a fast one.
        self.broker = Broker(self.config, now=now, clock=now, flusher=self._make)
        await self.broker.start()
        self.config = replace(self.config, listen=self.broker.address)

    def _make(self, log: SyncableLog, post: object, synced: Synced, failed: Failed) -> HeldFlusher:
        self.flusher = HeldFlusher(log, asyncio.get_running_loop().call_soon, synced, failed)
        return self.flusher

    def hold(self) -> None:
        """Let nothing become durable."""
        self.flusher.held = True

    def release(self) -> None:
        """Let everything become durable."""
        self.flusher.release()

    async def crash(self, to: Path, *, kept: float) -> None:
        """
        End at once and start again on the same port and a copy of the data, as a power cut leaves it.

        ``kept`` tells how much is left of what was written and not synced: 0.0 nothing, 1.0 all.
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
        self.release()
        await self.stop()
        self.config = replace(self.config, data_dir=str(to), recognise_copies=False)
        await self.start()
