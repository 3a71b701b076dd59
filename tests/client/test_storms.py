"""Storms: random faults, time-outs and cancellations; afterwards every caller was told the truth."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from rmq.client import Message, Producer, Receipt
from rmq.wire import errors, layout

from .fake_broker import DropAfter, DropBefore, FakeBroker
from .producing import TOPIC

pytestmark = pytest.mark.virtual_time

CALLS = 120
FATES = [
    DropAfter,
    DropBefore,
    errors.DiskFull,
    errors.StoreFailed,
    errors.Internal,
    errors.TooManyInFlight,
    errors.BadBatch,
]


class Storm:
    """Random fates, each with a small chance; the disk may be full for a while."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.full_until = 0.0

    def __call__(self, _header: layout.Header) -> None:
        now = asyncio.get_running_loop().time()
        if now < self.full_until:
            raise errors.DiskFull("full")
        if self.chance.random() < 0.15:
            fate = self.chance.choice(FATES)
            if fate is errors.DiskFull and self.chance.random() < 0.3:
                self.full_until = now + self.chance.choice([0.5, 6.0])
            raise fate("storm")


async def one_call(producer: Producer, number: int, chance: random.Random) -> Receipt:
    return await producer.send(Message(TOPIC, b"%d" % number), queue_id=chance.randrange(3))


async def weather(broker: FakeBroker, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.1, 3))
        event = chance.random()
        if event < 0.3:
            broker.drop_all()
        elif event < 0.4:
            await broker.crash()
            await asyncio.sleep(chance.choice([0.1, 1, 8]))
            await broker.start()
        elif event < 0.6:
            broker.holding = True
            await asyncio.sleep(chance.choice([0.1, 1, 6]))
            if chance.random() < 0.5:
                broker.held.clear()
                broker.drop_all()
            broker.release()


@pytest.mark.parametrize("seed", range(40))
async def test_order_and_once_and_every_caller_is_told_the_truth(broker: FakeBroker, seed: int) -> None:
    chance = random.Random(seed)
    broker.create(TOPIC, queues=3)
    broker.before_store = Storm(chance)
    calls = []
    async with Producer(broker.address, delivery_timeout_s=5, linger_s=chance.choice([0, 0.05])) as producer:
        storm = asyncio.create_task(weather(broker, chance))
        for number in range(CALLS):
            calls.append(asyncio.create_task(one_call(producer, number, chance)))
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.1]))
            if chance.random() < 0.1:
                chance.choice(calls).cancel()
        await asyncio.wait(calls)
        storm.cancel()
        await asyncio.wait([storm])
        broker.before_store = None
        broker.release()
        if not broker._server or not broker._server.is_serving():
            await broker.start()
        await producer.send(Message(TOPIC, b"%d" % CALLS), queue_id=0)

    judge(broker, calls)


def judge(broker: FakeBroker, calls: list[asyncio.Task[Receipt]]) -> None:
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for queue_id in range(3):
        found = [int(body) for body in broker.bodies(TOPIC, queue_id)]
        assert found == sorted(set(found)), "in the order of calls, none twice"
        for offset, number in enumerate(found):
            places[number].append((queue_id, offset))
    for number, call in enumerate(calls):
        if call.cancelled() or isinstance(call.exception(), errors.OutcomeUnknown):
            assert len(places[number]) <= 1
        elif call.exception() is not None:
            assert isinstance(call.exception(), errors.RequestTimeout | errors.Refused)
            assert places[number] == [], f"{number} failed with {call.exception()!r} and is stored"
        else:
            receipt = call.result()
            assert places[number] == [(receipt.queue_id, receipt.queue_offset)]
