"""
The stage for groups that are well or stuck: the real broker, real consumers, and a night that begins at 2.

A *cause* brings the group ``billing`` of the topic ``orders`` into a state; :func:`explained` is what
``Admin.explain`` says of it then. Everything runs on the clock of the loop, so a call of 70 s takes no time. The causes
are in :mod:`rigs.explain.stuck_groups`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rmq.client import Admin, Connection, ConnectionLost, Explanation, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus, PullConsumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.address import parse_address
from rmq.wire.model import StoredMessage

GROUP, TOPIC = "billing", "orders"
BEGAN = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)  # at night
SUCCESS, SUSPEND, RETRY = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND, ConsumeStatus.RETRY

Listener = Callable[[list[StoredMessage], Any], Awaitable[ConsumeStatus]]


class Wire(Connection):
    """A connection that a cause can cut for good, or whose owner hears nothing any more."""

    is_deaf = False

    def __init__(self, address: str, *, on_push: Any, **more: Any) -> None:
        super().__init__(address, on_push=lambda *push: None if self.is_deaf else on_push(*push), **more)

    def freeze(self) -> None:
        """From here on the process runs no more, and its socket stays open."""
        assert self._link is not None and self._link._transport is not None and self._pinger is not None
        self._pinger.stop()
        self._link._transport.pause_reading()
        self._link.flush = lambda: None  # type: ignore[method-assign]

    def cut(self) -> None:
        """End the other end from here on."""
        self.address = parse_address("127.0.0.1:1")
        self.drop(ConnectionLost("the process has ended"))


class Scene:
    """A broker, a topic, and the members of a group; all end with it."""

    def __init__(self, broker: InMemoryBroker, folder: Path, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.folder = folder
        self.wires: list[Wire] = []
        self.stack = stack

    async def send(self, count: int = 1, *, queue_id: int = 0, body: bytes = b"x", **fields: Any) -> None:
        """So many messages to a queue, each a batch of its own."""
        async with Producer(self.broker.address) as producer:
            for _ in range(count):
                await producer.send(Message(TOPIC, body, **fields), queue_id=queue_id)

    async def consumer(self, listener: Listener, name: str = "pay-1@4711", **settings: Any) -> Consumer:
        """A member of the group, started; half a second later."""
        member = Consumer(self.broker.address, listener=listener, **self._settings(name, settings))
        return await self._started(member)

    async def pull_consumer(self, name: str = "pay-1@4711", **settings: Any) -> PullConsumer:
        """A member that asks for its messages, started; half a second later."""
        return await self._started(PullConsumer(self.broker.address, **self._settings(name, settings)))

    async def explain(self, group: str = GROUP, topic: str | None = None, **how: Any) -> Explanation:
        """What there is to say of the group."""
        async with Admin(self.broker.address) as admin:
            return await admin.explain(group, topic, **how)

    def _settings(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        def connect(address: str, *, room: str = "", **callbacks: Any) -> Wire:
            self.wires.append(Wire(address, client=name, **callbacks))
            return self.wires[-1]

        common = {"group": GROUP, "drain_s": 0.0, "connect": connect, "now": asyncio.get_running_loop().time}
        return {**common, **({} if "topics" in settings else {"topics": {TOPIC: "*"}}), **settings}

    async def _started(self, member: Any) -> Any:
        member.start()
        self.stack.push_async_callback(member.stop)
        await asyncio.sleep(0.5)
        return member


Cause = Callable[[Scene], Awaitable[object]]


class _Staged(NamedTuple):
    cause: Cause
    queues: int
    settings: dict[str, Any]


CAUSES: dict[str, _Staged] = {}


def staged(queues: int = 2, **settings: Any) -> Callable[[Cause], Cause]:
    """Enter a cause into the table, with the number of queues and the settings of the broker that it needs."""

    def enter(cause: Cause) -> Cause:
        CAUSES[cause.__name__] = _Staged(cause, queues, settings)
        return cause

    return enter


@asynccontextmanager
async def scene(name: str) -> AsyncIterator[Scene]:
    """The group as the cause has left it."""
    cause, queues, settings = CAUSES[name]
    folder = Path(tempfile.mkdtemp(prefix="rmq-explain-"))
    settings = {"min_free_bytes": 0, "data_dir": str(folder / "data"), "wall_us": wall_us, **settings}
    try:
        async with InMemoryBroker(**settings) as broker, AsyncExitStack() as stack:
            async with Admin(broker.address) as admin:
                await admin.create_topic(TOPIC, queues)
            made = Scene(broker, folder, stack)
            await cause(made)
            yield made
    finally:
        shutil.rmtree(folder)


async def explained(name: str, **how: Any) -> Explanation:
    """What ``Admin.explain`` says of a cause."""
    async with scene(name) as made:
        return await made.explain(**how)


def wall_us() -> int:
    """The time of day of the broker: the night goes on with the clock of the loop."""
    return int((BEGAN.timestamp() + asyncio.get_running_loop().time()) * 1e6)


# ---- listeners


async def well(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
    """Finishes everything at once."""
    return SUCCESS


async def failing(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
    """Fails at messages that say so."""
    if any(message.body == b"bad" for message in messages):
        raise LookupError("no such customer: 17")
    return SUCCESS


def taking(seconds: float) -> Listener:
    """Takes its time for each call."""

    async def listener(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
        await asyncio.sleep(seconds)
        return SUCCESS

    return listener
