"""
The real broker inside a test process, for our tests and for users'.

::

    async with InMemoryBroker() as broker:
        async with Producer(broker.address) as producer: ...

Everything is the production code, over loopback TCP and a directory that is gone afterwards (in memory where the
system offers that). Syncing happens on the loop, without a thread, so that it also runs under a virtual clock.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from .app import Broker
from .clock import wall_us
from .config import BrokerConfig
from .store.files import Files
from .store.flusher import Failed, SyncableLog, Synced

_MEMORY = "/dev/shm"


class InlineFlusher:
    """A flusher without a thread: it syncs in the next turn of the loop."""

    def __init__(self, log: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed) -> None:
        self._log = log
        self._post = post
        self._synced = synced
        self._failed = failed
        self._wanted = False

    def start(self) -> None:
        """Nothing to start."""

    def request(self) -> None:
        """Sync in the next turn."""
        if not self._wanted:
            self._wanted = True
            asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        self._wanted = False
        try:
            position = self._log.sync()
        except Exception as error:
            self._failed(error)
        else:
            self._synced(position)

    def stop(self) -> None:
        """Nothing is left: the loop has synced."""

    def stats(self) -> dict[str, float]:
        """Nothing is measured."""
        return {}


class InMemoryBroker:
    """
    A broker for the length of an ``async with``; ``restart()`` stops it and starts it again on the same data and port.

    Keyword arguments are fields of :class:`BrokerConfig`. Give ``data_dir`` to keep the data. The wall clock goes on
    with ``now``, which is the loop's clock, so that a virtual one moves delays as well; or give ``wall_us``.
    """

    def __init__(
        self, *, now: Callable[[], float] | None = None, wall_us: Callable[[], int] | None = None,
        files: Files | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self._own_directory: str | None = None
        if "data_dir" not in settings:
            memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
            self._own_directory = settings["data_dir"] = tempfile.mkdtemp(prefix="rmq-", dir=memory)
        settings.setdefault("listen", "127.0.0.1:0")
        self.config = BrokerConfig(**settings)
        self._now = now
        self._wall_us = wall_us
        self._files = files
        self.broker: Broker

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self.broker.address

    async def start(self) -> None:
        """Start; ``async with`` does this."""
        now = self._now or asyncio.get_running_loop().time
        if self._wall_us is None:
            since_us = wall_us() - int(now() * 1_000_000)
            self._wall_us = lambda: since_us + int(now() * 1_000_000)
        self.broker = Broker(
            self.config, now=now, wall_us=self._wall_us, flusher=InlineFlusher, files=self._files
        )  # fmt: skip
        await self.broker.start()
        self.config = replace(self.config, listen=self.broker.address)

    async def stop(self) -> None:
        """Stop cleanly; the data stays until the ``async with`` ends."""
        await self.broker.stop()

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)
