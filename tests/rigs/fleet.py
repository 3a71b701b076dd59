"""What listeners of a whole fleet were given: who got what, when, and in which order."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.wire.model import MessageQueue, StoredMessage

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


class Deliveries:
    """Everything that was delivered, in the order it was."""

    def __init__(self) -> None:
        self.all: list[Delivery] = []
        self._grown = asyncio.Event()

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
