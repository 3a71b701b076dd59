"""Members of groups on a virtual clock: what their listeners got, what their connections asked, what they gave up."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.address import parse_address
from rmq.wire.errors import ConnectionLost
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops.core import Op

Listener = Callable[[list[StoredMessage], ConsumeContext], Coroutine[Any, Any, ConsumeStatus]]


class Delivery(NamedTuple):
    """A message in the hands of a member."""

    at: float
    member: str
    queue: MessageQueue
    offset: int
    body: bytes
    tag: str | None
    attempt: int
    epoch: int


def member(broker: InMemoryBroker, listener: Any, **settings: Any) -> Consumer:
    """Return a member of the group ``g`` of the topic ``orders``, unless the settings say otherwise."""
    now = asyncio.get_running_loop().time
    return Consumer(
        broker.address, listener=listener, **{"group": "g", "topics": {"orders": "*"}, "now": now} | settings
    )


async def dead_letters(broker: InMemoryBroker, group: str = "g") -> list[StoredMessage]:
    """Return the dead letters of a group, in order, read by another group."""
    found: list[StoredMessage] = []

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        found.extend(messages)
        return ConsumeStatus.SUCCESS

    async with member(broker, listener, group="undertaker", topics={f"%DLQ%{group}": "*"}, orderly=True):
        await asyncio.sleep(1)
    return found


class Connections:
    """Makes connections that note their requests, and that a test can end."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.requests: list[tuple[float, Op]] = []

    def __call__(self, *args: Any, **settings: Any) -> Connection:
        requests = self.requests

        class Noting(Connection):
            async def request(self, op: Op, payload: Any, **options: Any) -> Any:
                requests.append((asyncio.get_running_loop().time(), op))
                return await super().request(op, payload, **options)

        self.made.append(Noting(*args, **settings))
        return self.made[-1]

    @property
    def kinds(self) -> set[Op]:
        """The operations that were requested."""
        return {op for _, op in self.requests}

    async def crash(self) -> None:
        """End all as a process that dies: without a farewell."""
        for connection in self.made:
            await connection.close()

    def cut(self) -> None:
        """End all for good: nothing listens at their address any more."""
        for connection in self.made:
            connection.address = parse_address("127.0.0.1:1")
            connection.drop(ConnectionLost("cut by the test"))


class Deliveries:
    """Everything that was delivered, in the order it was; a listener itself, if the member needs no name."""

    def __init__(self) -> None:
        self.all: list[Delivery] = []
        self._grown = asyncio.Event()

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        return await self.listener("")(messages, context)

    def listener(self, member: str, *, takes_s: float = 0.0) -> Listener:
        """A listener that notes each message, and takes so long for it."""

        async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
            for message in messages:
                self.all.append(
                    Delivery(
                        asyncio.get_running_loop().time(), member, context.queue, message.queue_offset,
                        message.body, message.tag, message.attempt, context.epoch,
                    )
                )  # fmt: skip
                self._grown.set()
                if takes_s:
                    await asyncio.sleep(takes_s)
            return ConsumeStatus.SUCCESS

        return on_messages

    async def until(self, condition: Callable[[Deliveries], bool]) -> None:
        """Wait for something to be true of them."""
        while not condition(self):
            self._grown.clear()
            await self._grown.wait()

    async def count(self, wanted: int) -> None:
        """Wait for this many different messages."""
        await self.until(lambda deliveries: len(deliveries.places) >= wanted)

    @property
    def places(self) -> set[tuple[MessageQueue, int]]:
        """The messages that were delivered, however often."""
        return {(delivery.queue, delivery.offset) for delivery in self.all}

    @property
    def offsets(self) -> dict[MessageQueue, list[int]]:
        """The offsets of each queue, as they were delivered."""
        found: dict[MessageQueue, list[int]] = defaultdict(list)
        for delivery in self.all:
            found[delivery.queue].append(delivery.offset)
        return found

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, as they were delivered."""
        return [delivery.body for delivery in self.all]

    @property
    def shares(self) -> Counter[str]:
        """How many messages each member got."""
        return Counter(delivery.member for delivery in self.all)

    def check_order(self) -> None:
        """Each queue from its first message on, ascending; a run that is given again begins at most where it was."""
        for queue, offsets in self.offsets.items():
            reached = 0
            for before, offset in zip([-1, *offsets], offsets, strict=False):
                assert offset == before + 1 or offset <= before, f"{queue}: {before} is followed by {offset}"
                reached = max(reached, offset + 1)
            assert set(offsets) == set(range(reached)), f"{queue}: something is missing"
