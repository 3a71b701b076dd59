"""Topics that grow, end and come back under running consumers and producers: real broker, virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import StoredMessage

pytestmark = pytest.mark.virtual_time


class Seen:
    """A listener that notes what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.places: list[tuple[int, int]] = []
        self._more = asyncio.Event()

    async def __call__(self, messages: list[StoredMessage], context: Any) -> ConsumeStatus:
        for message in messages:
            self.bodies.append(message.body)
            self.places.append((message.queue_id, message.queue_offset))
        self._more.set()
        return ConsumeStatus.SUCCESS

    async def count(self, wanted: int) -> float:
        """Wait for so many messages; returns how long that took."""
        began = asyncio.get_running_loop().time()
        while len(self.bodies) < wanted:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)
        return asyncio.get_running_loop().time() - began


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


def consumer(broker: InMemoryBroker, seen: Seen) -> Consumer:
    return Consumer(broker.address, group="g", listener=seen, orderly=True, topics={"orders": "*"})


async def test_new_queues_of_a_topic_are_consumed_within_a_second(broker: InMemoryBroker) -> None:
    seen = Seen()
    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("orders", 2)
        async with consumer(broker, seen):
            await producer.send(Message("orders", b"old"), queue_id=0)
            await seen.count(1)

            await admin.grow_topic("orders", 5)
            await producer.send(Message("orders", b"new"), queue_id=4)  # a queue it does not know: it asks first

            assert await seen.count(2) < 1.0

    assert seen.places == [(0, 0), (4, 0)]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_topic_that_is_made_anew_is_consumed_from_its_first_message(
    broker: InMemoryBroker, restarted: bool
) -> None:
    seen = Seen()
    async with Producer(broker.address) as producer, consumer(broker, seen):
        await producer.send_bodies("orders", [b"1", b"2", b"3"], queue_id=1)
        await seen.count(3)

        async with Admin(broker.address) as admin:
            await admin.delete_topic("orders")
        if restarted:
            await broker.restart()
        await asyncio.sleep(30)
        async with Admin(broker.address) as admin:
            await admin.create_topic("orders", 2)
        async with Producer(broker.address) as other:
            await other.send_bodies("orders", [b"a", b"b"], queue_id=1)

        assert await seen.count(5) < 1.0

    assert seen.bodies == [b"1", b"2", b"3", b"a", b"b"]
    assert seen.places == [(1, 0), (1, 1), (1, 2), (1, 0), (1, 1)]


async def test_deleting_and_making_at_once_loses_nothing_of_the_new_topic(broker: InMemoryBroker) -> None:
    seen = Seen()
    async with Admin(broker.address) as admin, consumer(broker, seen):
        for generation in range(1, 6):
            await admin.create_topic("orders", generation)
            async with Producer(broker.address) as producer:
                for queue_id in range(generation):
                    await producer.send(Message("orders", b"%d/%d" % (generation, queue_id)), queue_id=queue_id)
            if generation < 5:
                await admin.delete_topic("orders")
        last = [b"5/%d" % queue_id for queue_id in range(5)]
        while not set(last) <= set(seen.bodies):
            await seen.count(len(seen.bodies) + 1)

    assert sorted(body for body in seen.bodies if body.startswith(b"5")) == last
