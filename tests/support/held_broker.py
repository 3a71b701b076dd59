"""The real broker with a disk that syncs only when the test lets it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rmq.broker.app import Broker
from rmq.broker.store.flusher import Failed, SyncableLog, Synced
from rmq.broker.testing import InlineFlusher, InMemoryBroker


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
        self.broker = Broker(self.config, now=asyncio.get_running_loop().time, flusher=self._make)
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
