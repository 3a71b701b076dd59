"""Giving up one send among many in flight, on the real broker: the rest is stored once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.net.connection import Connection as BrokerConnection
from rmq.client import Message, Producer, Receipt
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import ConnectionLost, Internal, OutcomeUnknown, ProducerFenced
from rmq.wire.protocol.ops.core import Op

from .producing import until
from .test_with_broker import stored
from rigs.stalling_broker import StallingBroker

pytestmark = pytest.mark.virtual_time

FLYING = 64
MORE = 1000


@pytest.fixture
async def broker() -> AsyncIterator[StallingBroker]:
    """The real broker, whose answers can be held back."""
    async with StallingBroker() as made:
        yield made
        made.go_on()


def message(number: int) -> Message:
    return Message("orders", b"%d" % number)


def send(producer: Producer, number: int) -> asyncio.Task[Receipt]:
    return asyncio.create_task(producer.send(message(number), queue_id=0))


async def in_flight(broker: StallingBroker, producer: Producer) -> list[asyncio.Task[Receipt]]:
    """64 sends, a batch each, all written by the broker and none answered."""
    await producer.send(message(0), queue_id=0)
    broker.stall()
    tasks = []
    for number in range(1, FLYING + 1):
        tasks.append(send(producer, number))
        await asyncio.sleep(0.001)
    assert producer._sender._window.flying == FLYING
    return tasks


async def more(producer: Producer) -> list[Receipt]:
    tasks = []
    for number in range(FLYING + 1, FLYING + 1 + MORE):
        tasks.append(send(producer, number))
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks)


async def found(broker: InMemoryBroker) -> list[int]:
    return [int(one.body) for one in await stored(broker.address, "orders", 0)]


@pytest.mark.parametrize("reconnect", ["no", "while held", "after"])
@pytest.mark.parametrize("given_up", [1, 32, 64])
async def test_one_of_64_in_flight_is_given_up_and_a_thousand_more_succeed_in_order(
    broker: StallingBroker, given_up: int, reconnect: str
) -> None:
    async with Producer(broker.address) as producer:
        tasks = await in_flight(broker, producer)
        tasks[given_up - 1].cancel()
        await asyncio.wait([tasks[given_up - 1]])
        if reconnect == "while held":
            producer._connection.drop(ConnectionLost("a test"))
            await asyncio.sleep(1)
        following = asyncio.create_task(more(producer))
        await asyncio.sleep(0.1)
        broker.go_on()
        if reconnect == "after":
            producer._connection.drop(ConnectionLost("a test"))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        receipts = await following

    assert [type(outcome) for outcome in outcomes].count(Receipt) == FLYING - 1
    assert await found(broker) == list(range(FLYING + 1 + MORE)), "the given up one had left already"
    assert [receipt.queue_offset for receipt in receipts] == list(range(FLYING + 1, FLYING + 1 + MORE))


@pytest.mark.parametrize("reconnect", [False, True])
async def test_all_64_in_flight_run_out_of_time_and_a_thousand_more_succeed_in_order(
    broker: StallingBroker, reconnect: bool
) -> None:
    async with Producer(broker.address, delivery_timeout_s=2.5) as producer:
        tasks = await in_flight(broker, producer)
        producer.send_nowait(message(-1), queue_id=0)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * FLYING
        await asyncio.sleep(0.1)
        assert producer.failed_one_way == 1

        if reconnect:
            producer._connection.drop(ConnectionLost("a test"))
        broker.go_on()
        receipts = await more(producer)

    assert await found(broker) == [*range(FLYING + 1), -1, *range(FLYING + 1, FLYING + 1 + MORE)]
    assert len({receipt.queue_offset for receipt in receipts}) == MORE


async def test_a_restart_with_64_in_flight_answers_each_of_them(broker: StallingBroker) -> None:
    async with Producer(broker.address) as producer:
        tasks = await in_flight(broker, producer)
        broker.go_on()
        await broker.restart()
        receipts = await asyncio.gather(*tasks)
        await more(producer)

    assert [receipt.queue_offset for receipt in receipts] == list(range(1, FLYING + 1))
    assert await found(broker) == list(range(FLYING + 1 + MORE))


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99, 1.0])
async def test_a_power_cut_with_64_in_flight_costs_neither_order_nor_a_duplicate(
    broker: StallingBroker, memory_path: Path, kept: float
) -> None:
    async with Producer(broker.address) as producer:
        tasks = await in_flight(broker, producer)
        tasks[20].cancel()
        await broker.crash(memory_path / "copy", kept=kept)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await more(producer)

    assert [type(outcome) for outcome in outcomes].count(Receipt) == FLYING - 1
    numbers = await found(broker)
    given_up = set() if kept >= 0.5 else {21}  # it was lost with the tail, and nobody waits for it
    assert numbers == [number for number in range(FLYING + 1 + MORE) if number not in given_up]
    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    assert [numbers[receipt.queue_offset] for receipt in receipts] == [n for n in range(1, FLYING + 1) if n != 21]


async def test_more_lost_connections_than_batches_sent_cost_neither_order_nor_a_duplicate(
    broker: StallingBroker,
) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(0), queue_id=0)
        tasks = []
        for number in range(1, 200):
            tasks.append(send(producer, number))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            if number % 3 == 0:
                producer._connection.drop(ConnectionLost("a test"))
            if number % 10 == 0:
                await asyncio.sleep(0.05)
        receipts = await asyncio.gather(*tasks)

    assert [receipt.queue_offset for receipt in receipts] == list(range(1, 200))
    assert await found(broker) == list(range(200))


# A defect of the broker


async def test_a_batch_that_the_broker_fails_at_each_time_takes_no_other_down(broker: StallingBroker) -> None:
    send_frame = broker.broker.handlers[Op.SEND]

    def defective(connection: BrokerConnection, request_id: int, payload: Any) -> object:
        if any(b"poison" in batch for _, batch, *_ in payload[0]):
            raise ZeroDivisionError("a defect")
        return send_frame(connection, request_id, payload)

    async with Producer(broker.address) as producer:
        await producer.send(message(0), queue_id=0)
        broker.broker.handlers[Op.SEND] = defective
        sends = [producer.send(message(number), queue_id=number % 4) for number in range(1, 10)]
        sends.insert(5, producer.send(Message("orders", b"poison"), queue_id=3))
        frame = await asyncio.gather(*(asyncio.create_task(each) for each in sends), return_exceptions=True)
        await producer.send(message(10), queue_id=0)

    failed = [outcome for outcome in frame if not isinstance(outcome, Receipt)]
    assert all(isinstance(outcome, Internal) for outcome in failed)
    assert isinstance(frame[5], Internal)
    assert len(failed) <= 3, "those of the same batch, no others"
    assert await found(broker) == [0, 4, 8, 10]


# Fencing


async def test_a_higher_epoch_fences_the_lower_and_its_sends_are_told(broker: StallingBroker) -> None:
    async with Producer(broker.address, producer_id=77, producer_epoch=1) as older:
        assert (await older.send(message(0), queue_id=0)).queue_offset == 0
        async with Producer(broker.address, producer_id=77, producer_epoch=2) as newer:
            await newer.send(message(1), queue_id=0)
            tasks = [send(older, number) for number in (5, 6)]
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ProducerFenced] * 2
            assert "epoch 1 of producer 4d was replaced by 2" in str(outcomes[0])
            with pytest.raises(ProducerFenced):
                await older.send(message(7), queue_id=0)
            await newer.send(message(2), queue_id=0)

    with pytest.raises(ProducerFenced):
        await Producer(broker.address, producer_id=77, producer_epoch=1).open()
    assert await found(broker) == [0, 1, 2]


async def test_in_flight_when_it_is_fenced_is_answered_as_it_ended(broker: StallingBroker) -> None:
    async with Producer(broker.address, producer_id=77, producer_epoch=1) as older:
        tasks = await in_flight(broker, older)
        opening = Producer(broker.address, producer_id=77, producer_epoch=2)
        task = asyncio.create_task(opening.open())
        await asyncio.sleep(0.1)
        late = send(older, 65)
        await asyncio.sleep(0.1)
        broker.go_on()
        outcomes = await asyncio.gather(*tasks, late, return_exceptions=True)
        await task
        await opening.close()

    assert [type(outcome) for outcome in outcomes] == [Receipt] * FLYING + [ProducerFenced]
    assert await found(broker) == list(range(FLYING + 1))


async def test_the_same_id_and_epoch_goes_on_behind_its_former_process(broker: StallingBroker) -> None:
    for first in (0, 300, 600):
        async with Producer(broker.address, producer_id=77) as producer:
            for number in range(first, first + 300):
                producer.send_nowait(message(number), queue_id=0)
                if number % 2:
                    await asyncio.sleep(0)

    assert await found(broker) == list(range(900))
    await until(lambda: not broker.broker._connections)
