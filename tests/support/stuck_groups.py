"""
Groups that are well, and groups that are stuck, each for another reason: the real broker and real consumers.

A *cause* brings the group ``billing`` of the topic ``orders`` into a state; :func:`explained` is what
``Admin.explain`` says of it then. Everything runs on the clock of the loop, so a call of 70 s takes no time.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rmq.broker.testing import InMemoryBroker
from rmq.client import Admin, Connection, ConnectionLost, Explanation, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus, PullConsumer
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

    def cut(self) -> None:
        """From here on there is nobody at the other end."""
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
            return await admin.explain(group, topic, now=wall_clock, **how)

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


def wall_clock() -> datetime:
    """The time of day on the clock of the loop."""
    return BEGAN + timedelta(seconds=asyncio.get_running_loop().time())


def wall_us() -> int:
    """The same, for the broker."""
    return int(wall_clock().timestamp() * 1e6)


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


# ---- groups that are well


@staged()
async def no_new_messages(at: Scene) -> None:
    await at.send(3)
    await at.consumer(well)


@staged()
async def no_new_messages_but_delayed_ones(at: Scene) -> None:
    await at.consumer(well)
    await at.send(3, delay_level=5)


@staged()
async def consuming(at: Scene) -> None:
    await at.send(100)
    await at.send(1, queue_id=1)
    await at.consumer(taking(0.1))


# ---- nobody works on it


@staged()
async def no_member(at: Scene) -> None:
    member = await at.consumer(well)
    await at.send(1)
    await asyncio.sleep(1.0)
    await member.stop()
    await at.send(5)
    await asyncio.sleep(300.0)


@staged()
async def no_member_in_its_grace(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(100.0))
    at.wires[0].cut()
    await asyncio.sleep(1.0)


@staged()
async def not_subscribed(at: Scene) -> None:
    member = await at.consumer(well)
    await at.send(1)
    await asyncio.sleep(1.0)
    await member.stop()
    async with Admin(at.broker.address) as admin:
        await admin.create_topic("invoices", 1)
    await at.send(4)
    await at.consumer(well, topics={"invoices": "*", "refunds": "*"})


@staged()
async def not_allocated(at: Scene) -> None:
    await at.send(3, queue_id=1)
    await at.consumer(well, strategy="config:orders/0")


@staged()
async def not_assigned(at: Scene) -> None:
    await at.send(3, queue_id=0)
    await at.send(3, queue_id=1)
    member = await at.pull_consumer(topics={})
    member.assign([(TOPIC, 1)])
    for _ in range(8):
        await member.poll(1.0)


@staged()
async def waiting_for_a_lock_in_grace(at: Scene) -> None:
    await at.send(5, queue_id=0)
    await at.consumer(taking(100.0))
    await at.consumer(taking(100.0), "pay-2@52")
    at.wires[0].cut()
    await asyncio.sleep(1.0)


@staged()
async def waiting_for_a_lock_of_a_running_call(at: Scene) -> None:
    await at.send(5, queue_id=0)
    await at.send(5, queue_id=1)
    await at.consumer(taking(100.0))
    await at.consumer(well, "pay-2@52")
    await asyncio.sleep(6.0)


@staged()
async def member_silent(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(100.0))
    at.wires[0].is_deaf = True


# ---- stopped


@staged(queues=1)
async def crash_loop(at: Scene) -> None:
    await at.send(3)
    await at.send(1, body=b"bad")
    await at.send(3)
    await _lives(at, 10)


@staged(queues=1)
async def crash_loop_that_is_not_over(at: Scene) -> None:
    await at.send(3)
    await at.send(1, body=b"bad")
    await _lives(at, 4)


async def _lives(at: Scene, lives: int) -> None:
    """Processes that end at a message, one after the other, until one of them does not."""
    for _ in range(lives):
        died = asyncio.Event()

        async def deadly(messages: list[StoredMessage], context: Any, died: asyncio.Event = died) -> ConsumeStatus:
            if any(message.body == b"bad" for message in messages):
                died.set()
                at.wires[-1].cut()
                await asyncio.sleep(1e6)
            return SUCCESS

        member = await at.consumer(deadly)
        await asyncio.sleep(8.0)
        if not died.is_set():
            return
        await member.stop()
        await asyncio.sleep(8.0)


@staged(queues=1, segment_bytes=4096, retention_bytes=8192, checkpoint_bytes=4096, recent_bytes=0)
async def messages_lost(at: Scene) -> None:
    await at.send(2)
    member = await at.consumer(well)
    await member.stop()
    await overtaken(at)
    await at.consumer(well)


@staged(queues=1, segment_bytes=4096, retention_bytes=8192, checkpoint_bytes=4096, recent_bytes=0)
async def no_member_and_messages_lost(at: Scene) -> None:
    await at.send(2)
    member = await at.consumer(well)
    await member.stop()
    await overtaken(at)


async def overtaken(at: Scene) -> None:
    """More messages than the broker keeps."""
    for _ in range(40):
        await at.send(1, body=b"y" * 400)
        await asyncio.sleep(1.0)
    await asyncio.sleep(100.0)


@staged(queues=1)
async def damaged(at: Scene) -> None:
    for i in range(6):
        await at.send(1, body=b"mark-%d" % i)
    await at.broker.stop()
    (segment,) = (at.folder / "data" / "commitlog").iterdir()
    data = bytearray(segment.read_bytes())
    data[data.index(b"mark-4")] ^= 1
    segment.write_bytes(data)
    await at.broker.start()
    await at.consumer(well)


# ---- its owner works on it, or has a reason not to


@staged()
async def paused(at: Scene) -> None:
    member = await at.consumer(well)
    member.pause(TOPIC)
    await at.send(7)
    await asyncio.sleep(1.0)


@staged()
async def retrying(at: Scene) -> None:
    await at.send(2)
    await at.send(1, body=b"bad")
    await at.send(3)
    await at.consumer(failing)
    await asyncio.sleep(8.0)


@staged()
async def retrying_for_the_first_time(at: Scene) -> None:
    await at.send(1, body=b"bad")
    await at.consumer(failing, suspend_s=4.0)


@staged()
async def retrying_concurrently(at: Scene) -> None:
    await at.send(1)
    await at.send(2, body=b"bad")
    await at.send(1)
    await at.consumer(failing, orderly=False)
    await asyncio.sleep(1.0)


@staged()
async def listener_running(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(1000.0))
    await asyncio.sleep(70.0)


@staged()
async def listener_running_for_a_while(at: Scene) -> None:
    await at.send(5)
    await at.consumer(taking(1000.0), orderly=False)
    await asyncio.sleep(10.0)


@staged()
async def batch_in_hand(at: Scene) -> None:
    await at.send(5)
    member = await at.pull_consumer()
    await member.poll(1.0)
    await asyncio.sleep(70.0)


@staged()
async def not_polled(at: Scene) -> None:
    await at.send(5)
    await at.pull_consumer()
    await asyncio.sleep(20.0)


@staged()
async def not_polled_for_so_long_that_it_left(at: Scene) -> None:
    await at.send(5)
    await at.pull_consumer(consume_timeout_s=30.0)
    await asyncio.sleep(60.0)


@staged()
async def slots_busy(at: Scene) -> None:
    await at.send(5, queue_id=0)
    await at.send(5, queue_id=1)
    await at.consumer(taking(100.0), slots=1)
    await asyncio.sleep(3.0)


@staged()
async def loop_late(at: Scene) -> None:
    """Something keeps the loop of a member: its clock is far ahead whenever it gets to look."""
    loop, ahead = asyncio.get_running_loop(), 0.0

    async def block() -> None:
        nonlocal ahead
        while True:
            ahead += 6.0
            await asyncio.sleep(0.05)

    await at.consumer(well, now=lambda: loop.time() + ahead)
    blocking = asyncio.create_task(block())
    at.stack.callback(blocking.cancel)
    await asyncio.sleep(0.7)
    await at.send(3)


@staged()
async def flow_control(at: Scene) -> None:
    await at.send(60)
    await at.consumer(taking(3.0), cache_messages=20)
    await asyncio.sleep(3.5)


# ---- what is told besides


@staged(queues=1)
async def idle_members_and_dead_letters(at: Scene) -> None:
    await at.send(2, body=b"bad")
    await at.consumer(failing, max_attempts=1)
    await at.consumer(failing, "pay-2@52", max_attempts=1)
    await asyncio.sleep(2.0)


@staged()
async def broadcasting(at: Scene) -> None:
    await at.send(2)
    await at.send(1, body=b"bad")
    await at.send(2, queue_id=1)
    common = {"model": "broadcasting", "orderly": True}
    await at.consumer(well, offsets_dir=str(at.folder / "1"), **common)
    await at.consumer(failing, "pay-2@52", offsets_dir=str(at.folder / "2"), **common)
    await asyncio.sleep(9.0)
