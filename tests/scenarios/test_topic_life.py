"""Topics that grow, end and come back under running consumers and producers: real broker, virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import Consumer
from rmq.testing.broker import InMemoryBroker

from rigs.fleet import Deliveries, member

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


def consumer(broker: InMemoryBroker, seen: Deliveries) -> Consumer:
    return member(broker, seen, orderly=True)


async def until(seen: Deliveries, wanted: int) -> float:
    """Wait for so many messages; return how long that took."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(60):
        await seen.until(lambda deliveries: len(deliveries.all) >= wanted)
    return asyncio.get_running_loop().time() - began


async def test_new_queues_of_a_topic_are_consumed_within_a_second(broker: InMemoryBroker) -> None:
    seen = Deliveries()
    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("orders", 2)
        async with consumer(broker, seen):
            await producer.send(Message("orders", b"old"), queue_id=0)
            await until(seen, 1)

            await admin.grow_topic("orders", 5)
            await producer.send(Message("orders", b"new"), queue_id=4)  # a queue it does not know: it asks first

            assert await until(seen, 2) < 1.0

    assert [(one.queue.queue_id, one.offset) for one in seen.all] == [(0, 0), (4, 0)]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_topic_that_is_made_anew_is_consumed_from_its_first_message(
    broker: InMemoryBroker, restarted: bool
) -> None:
    seen = Deliveries()
    async with Producer(broker.address) as producer, consumer(broker, seen):
        await producer.send_bodies("orders", [b"1", b"2", b"3"], queue_id=1)
        await until(seen, 3)

        async with Admin(broker.address) as admin:
            await admin.delete_topic("orders")
        if restarted:
            await broker.restart()
        await asyncio.sleep(30)
        async with Admin(broker.address) as admin:
            await admin.create_topic("orders", 2)
        async with Producer(broker.address) as other:
            await other.send_bodies("orders", [b"a", b"b"], queue_id=1)

        assert await until(seen, 5) < 1.0

    assert seen.bodies == [b"1", b"2", b"3", b"a", b"b"]
    assert [(one.queue.queue_id, one.offset) for one in seen.all] == [(1, 0), (1, 1), (1, 2), (1, 0), (1, 1)]


async def test_deleting_and_making_at_once_loses_nothing_of_the_new_topic(broker: InMemoryBroker) -> None:
    seen = Deliveries()
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
            await until(seen, len(seen.bodies) + 1)

    assert sorted(body for body in seen.bodies if body.startswith(b"5")) == last
