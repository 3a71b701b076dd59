"""Routes: retried while they may come, failed when they cannot."""

from __future__ import annotations

import asyncio

import pytest

from rmq.client import Producer
from rmq.wire import errors

from .fake_broker import FakeBroker
from .producing import message, numbers, until

pytestmark = pytest.mark.virtual_time


async def test_a_temporary_refusal_of_a_route_is_asked_again(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.StoreFailed("not now"), errors.DiskFull("nor now")]

    async with Producer(broker.address) as producer:
        await producer.send(message(1))

    assert numbers(broker) == [1]


async def test_a_permanent_refusal_of_a_route_fails_all_who_wait_for_it(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.BadName("what a name")]

    async with Producer(broker.address) as producer:
        outcomes = await asyncio.gather(*(producer.send(message(i)) for i in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.BadName] * 3
        await producer.send(message(4))

    assert numbers(broker) == [4]


async def test_a_route_is_asked_for_again_after_a_lost_connection(broker: FakeBroker) -> None:
    broker.holding = True
    async with Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await until(lambda: bool(broker.requests))
        broker.drop_all()
        broker.release()
        await sending

    assert numbers(broker) == [1]


async def test_nobody_asks_for_those_who_gave_up(broker: FakeBroker) -> None:
    broker.holding = True
    async with Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await until(lambda: bool(broker.requests))
        sending.cancel()
        broker.held.clear()
        broker.drop_all()
        broker.release()
        await asyncio.sleep(20)
        assert not producer._router._tasks
        assert broker.topics.keys() == {"orders"}, "it was asked once"
        await producer.send(message(2))

    assert numbers(broker) == [2]
