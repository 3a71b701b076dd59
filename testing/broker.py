"""
The real broker inside a test process, for our tests and for users'.

::

    async with InMemoryBroker() as broker:
        async with Producer(broker.address) as producer: ...

Everything is the production code, over loopback TCP and a directory that is gone afterwards (in memory where the
system offers that). Syncing happens on the loop, without a thread, so that it also runs under a virtual clock.

:class:`BrokerThread` is the same for tests that block, and for those that should not share their loop with a broker;
:mod:`rmq.testing.plugin` makes a pytest fixture of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import uvloop

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.store.files import Files
from rmq.broker.store.flusher import Failed, SyncableLog, Synced
from rmq.runtime.clock import wall_us

if TYPE_CHECKING:
    from rmq.wire.model import StoredMessage

T = TypeVar("T")

DEADLINE_S: Final = 30.0
_MEMORY = "/dev/shm"
_NOT_STARTED: Final = "this broker runs within its `with` block only"


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

    Keyword arguments are fields of :class:`BrokerConfig`. Give ``data_dir`` to keep the data; without, it also takes
    messages where there is little room, as in the memory of a container. The wall clock goes on
    with ``now``, which is the loop's clock, so that a virtual one moves delays as well; or give ``wall_us``.
    """

    def __init__(
        self, *, now: Callable[[], float] | None = None, wall_us: Callable[[], int] | None = None,
        files: Files | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        is_own = "data_dir" not in settings
        if is_own:
            settings.setdefault("min_free_bytes", 0)
        settings.setdefault("listen", "127.0.0.1:0")
        self.config = BrokerConfig(**settings)
        self._own_directory: str | None = None
        if is_own:  # when the settings were found to be right
            memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
            self._own_directory = tempfile.mkdtemp(prefix="rmq-", dir=memory)
            self.config = replace(self.config, data_dir=self._own_directory)
        self._now = now
        self._wall_us = wall_us
        self._files = files
        self.broker: Broker

    @property
    def address(self) -> str:
        """Where clients connect to; raises RuntimeError before the first start."""
        if not hasattr(self, "broker"):
            raise RuntimeError(_NOT_STARTED)
        return self.broker.address

    async def start(self) -> None:
        """Start; ``async with`` does this."""
        now = self._now or asyncio.get_running_loop().time
        if self._wall_us is None:
            since_us = wall_us() - int(now() * 1_000_000)
            self._wall_us = lambda: since_us + int(now() * 1_000_000)
        broker = Broker(self.config, now=now, wall_us=self._wall_us, flusher=InlineFlusher, files=self._files)
        await broker.start()
        self.broker = broker  # not before: a second start is refused, and the first is still there to be stopped
        self.config = replace(self.config, listen=self.broker.address)

    async def stop(self) -> None:
        """Stop cleanly; the data stays until the ``async with`` ends."""
        await self.broker.stop()

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._remove()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        self._remove()

    def _remove(self) -> None:
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)


class BrokerThread:
    """
    An :class:`InMemoryBroker` on a loop in a thread of its own: ``with BrokerThread() as broker``.

    Keyword arguments are those of the broker. Its calls block until they are done; asynchronous tests may make them
    too, since what they wait for happens in the other thread.
    """

    def __init__(self, **settings: Any) -> None:
        self._broker = InMemoryBroker(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread

    @property
    def address(self) -> str:
        """Where clients connect to; a restart does not change it."""
        return self._broker.address

    def __enter__(self) -> Self:
        loop = self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="rmq-test-broker", daemon=True)
        self._thread.start()
        try:
            self._call(self._broker.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._call(self._broker.__aexit__())
        finally:
            self._end()

    def stop(self) -> None:
        """Stop cleanly, as at the end of a working day; the data stays, :meth:`start` goes on with it."""
        self._call(self._broker.stop())

    def start(self) -> None:
        """Start again after :meth:`stop`; ``with`` does it the first time."""
        self._call(self._broker.start())

    def restart(self) -> None:
        """Stop cleanly and start again, on the same data and port."""
        self._call(self._broker.restart())

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Make a topic with so many queues; raises TopicExists if it has another number of them."""
        self._call(self._create_topic(topic, queues))

    def messages(self, topic: str) -> list[StoredMessage]:
        """
        All messages of a topic, queue by queue and in their order; none, if there is no such topic.

        It tells what was sent, without consuming it. A delayed message is among them when its time has come.
        """
        return self._call(self._messages(topic))

    async def _create_topic(self, topic: str, queues: int) -> None:
        from rmq.client import Admin

        async with Admin(self.address) as admin:
            await admin.create_topic(topic, queues)

    async def _messages(self, topic: str) -> list[StoredMessage]:
        from rmq.client import Admin, MessageQueue, TopicNotFound

        found: list[StoredMessage] = []
        async with Admin(self.address) as admin:
            try:
                info = await admin.topic(topic)
            except TopicNotFound:
                return []
            queues = [MessageQueue(topic, queue.queue_id) for queue in info.queues]
            for queue, held in zip(queues, await admin.ranges(queues), strict=True):
                async for some in admin.read(queue, held.min_offset, held.max_offset):
                    found += some
        return found

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            coroutine.close()
            raise RuntimeError(_NOT_STARTED)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(DEADLINE_S)
        loop.close()
