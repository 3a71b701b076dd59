"""Storms on the real broker: its disk stalls, fills and fails, it restarts; every caller is told the truth."""

from __future__ import annotations

import asyncio
import random

import pytest

from rmq.client import Admin, Message, Producer, Receipt
from rmq.wire import errors
from rmq.wire.model import StoredMessage

from ..broker.builders import files_limited_to, segment_files
from .producing import TOPIC
from .test_with_broker import stored
from rigs.stalling_broker import StallingBroker

pytestmark = pytest.mark.virtual_time

CALLS = 150
QUEUES = 3


async def weather(broker: StallingBroker, producer: Producer, chance: random.Random, over: asyncio.Event) -> None:
    """One disaster after the other; each is whole again before the next, and at the end."""
    while not over.is_set():
        await asyncio.sleep(chance.uniform(0.05, 1.5))
        match chance.choice(["drop", "drop", "stall", "stall and drop", "full", "write", "restart"]):
            case "drop":
                producer._connection.drop(errors.ConnectionLost("storm"))
            case "stall":
                broker.stall()
                await asyncio.sleep(chance.choice([0.01, 0.5, 6.0]))
                broker.go_on()
            case "stall and drop":
                broker.stall()
                await asyncio.sleep(chance.choice([0.01, 0.5]))
                producer._connection.drop(errors.ConnectionLost("storm"))
                await asyncio.sleep(chance.choice([0.01, 0.5, 4.0]))
                broker.go_on()
            case "full":
                broker.broker._sends.refuse_because = "storm"  # the disk watch corrects it within a second
            case "write":
                size = segment_files(broker.broker.config.data_path())[-1].stat().st_size
                with files_limited_to(size + chance.choice([0, 100, 700])):
                    await asyncio.sleep(chance.choice([0.01, 0.2, 1.0]))
            case "restart":
                await broker.restart()


async def one_call(producer: Producer, number: int, chance: random.Random) -> Receipt:
    topic = "nothing" if chance.random() < 0.05 else TOPIC
    return await producer.send(Message(topic, b"%d" % number), queue_id=chance.randrange(QUEUES))


@pytest.mark.parametrize("seed", range(16))
async def test_order_and_once_and_every_caller_is_told_the_truth(seed: int) -> None:
    chance = random.Random(seed)
    calls = []
    async with StallingBroker() as broker:
        async with Admin(broker.address) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with Producer(broker.address, delivery_timeout_s=5, auto_create=False) as producer:
            over = asyncio.Event()
            storm = asyncio.create_task(weather(broker, producer, chance, over))
            for number in range(CALLS):
                calls.append(asyncio.create_task(one_call(producer, number, chance)))
                await asyncio.sleep(chance.choice([0, 0, 0.01, 0.1]))
                if chance.random() < 0.1:
                    chance.choice(calls).cancel()
            await asyncio.wait(calls)
            over.set()
            await storm
            await producer.send(Message(TOPIC, b"%d" % CALLS), queue_id=0)
        found = {
            int(one.body): (queue_id, one.queue_offset)
            for queue_id in range(QUEUES)
            for one in await in_order(broker, queue_id)
        }
    for number, call in enumerate(calls):
        judge(call, found.get(number))


async def in_order(broker: StallingBroker, queue_id: int) -> list[StoredMessage]:
    messages = await stored(broker.address, TOPIC, queue_id)
    numbers = [int(one.body) for one in messages]
    assert numbers == sorted(set(numbers)), "in the order of calls, none twice"
    return messages


def judge(call: asyncio.Task[Receipt], place: tuple[int, int] | None) -> None:
    error = None if call.cancelled() else call.exception()
    if error is not None and not isinstance(error, errors.OutcomeUnknown):
        assert isinstance(error, errors.RequestTimeout | errors.TopicNotFound)
        assert place is None, f"it failed with {error!r} and is stored"
    elif not call.cancelled() and error is None:
        assert place == (call.result().queue_id, call.result().queue_offset)
