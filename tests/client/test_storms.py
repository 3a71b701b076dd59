"""Storms: random faults, time-outs and cancellations; afterwards every caller was told the truth."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from rmq.client import Message, Producer, Receipt
from rmq.client.producer.sender import Sender
from rmq.engine.native.connection import Connection
from rmq.wire import errors
from rmq.wire.batch import layout

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


class Watch:
    """After every event of a sender: what can be sent is about to be sent, and the rest waits for an event."""

    EVENTS = ("placed", "hurry", "connected", "lost", "writable", "_pump", "_answered", "_notify_others", "_resume")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: Counter[str] = Counter()
        self._depth = 0
        for name in self.EVENTS:
            monkeypatch.setattr(Sender, name, self._watched(getattr(Sender, name)))

    def _watched(self, event: Callable[..., None]) -> Callable[..., None]:
        def run(sender: Sender, *args: Any) -> None:
            self._depth += 1  # one event may be a part of another: it is judged when that is over
            try:
                event(sender, *args)
            finally:
                self._depth -= 1
            if not self._depth and sender._connection is not None:
                self._judge(sender, sender._connection)

        return run

    def _judge(self, sender: Sender, connection: Connection) -> None:
        in_round = list(sender._ready)
        assert len(set(in_round)) == len(in_round)
        assert all(outbox.ready for outbox in in_round)
        if not in_round or sender._pump_due:
            return
        assert not sender._has_room(connection), "nothing would send it"
        if not connection.connected:
            self.waited["for a connection"] += 1
        elif sender._blocked:
            self.waited["after a refusal"] += 1
            assert sender._window.flying or sender._pause is not None
        elif connection.writable:
            self.waited["for an answer"] += 1
            assert sender._window.flying


@pytest.mark.parametrize("window", [1, 256])
@pytest.mark.parametrize("seed", range(10))
async def test_every_pending_batch_has_a_wakeup(
    broker: FakeBroker, seed: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("rmq.client.producer.sender.TURN_S", chance.choice([-1.0, 0.002]))
    watch = Watch(monkeypatch)
    broker.create(TOPIC, queues=3)
    broker.before_store = Storm(chance)
    async with Producer(broker.address, delivery_timeout_s=5, max_in_flight=window) as producer:
        storm = asyncio.create_task(weather(broker, chance))
        calls = []
        for number in range(CALLS):
            calls += [asyncio.create_task(one_call(producer, number, chance)) for _ in range(chance.choice([1, 10]))]
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.1]))
        await asyncio.wait(calls)
        storm.cancel()
        await asyncio.wait([storm])
        for call in calls:
            call.exception()
        broker.before_store = None
        broker.release()
        if not broker._server or not broker._server.is_serving():
            await broker.start()

    assert watch.waited["after a refusal"]
    assert watch.waited["for a connection"] or watch.waited["for an answer"]


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
