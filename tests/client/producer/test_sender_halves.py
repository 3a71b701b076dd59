"""Calls that were answered together send again in two halves, so that neither side waits for the other."""

from __future__ import annotations

import asyncio

import pytest

from rmq.client import Producer, Receipt
from rmq.client.producer.sender import WORTH_HALVING

from ..fake_broker import DropAfter, FakeBroker
from ..producing import Script, message, numbers

pytestmark = pytest.mark.virtual_time


async def send_in_turn(producer: Producer, numbers: range) -> list[Receipt]:
    return [await producer.send(message(number), sharding_key="k") for number in numbers]


async def rounds(broker: FakeBroker, many: int, *, times: int = 3, **settings: int) -> list[int]:
    """So many tasks that each send one message after the other; how many messages the batches had."""
    async with Producer(broker.address, **settings) as producer:  # type: ignore[arg-type]
        sending = [send_in_turn(producer, range(first, times * many, many)) for first in range(many)]
        receipts = await asyncio.gather(*sending)
    offsets = sorted(receipt.queue_offset for own in receipts for receipt in own)
    assert offsets == list(range(times * many))
    assert sorted(numbers(broker)) == offsets
    assert [[numbers(broker)[receipt.queue_offset] for receipt in own] for own in receipts] == [
        list(range(first, times * many, many)) for first in range(many)
    ]
    return [header.count for header in broker.stored]


async def test_the_second_half_is_told_when_what_the_first_sends_next_is_on_its_way(broker: FakeBroker) -> None:
    broker.durable = False

    assert (await rounds(broker, 65, times=5))[:6] == [65, 32, 33, 32, 33, 32]


async def test_few_calls_stay_together(broker: FakeBroker) -> None:
    broker.durable = False

    assert await rounds(broker, WORTH_HALVING - 1) == [WORTH_HALVING - 1] * 3


async def test_where_answers_wait_for_the_disk_they_share_a_wait(broker: FakeBroker) -> None:
    assert await rounds(broker, 65) == [65] * 3


async def test_where_one_batch_only_may_be_in_flight_no_half_goes_ahead(broker: FakeBroker) -> None:
    broker.durable = False

    assert await rounds(broker, 65, max_in_flight=1) == [65] * 3


async def test_the_second_half_of_longer_calls_is_told_its_own_offsets(broker: FakeBroker) -> None:
    broker.durable = False
    async with Producer(broker.address) as producer:
        calls = [producer.send_many([message(2 * i), message(2 * i + 1)], sharding_key="k") for i in range(64)]
        receipts = await asyncio.gather(*calls)

    assert [[receipt.queue_offset for receipt in own] for own in receipts] == [[2 * i, 2 * i + 1] for i in range(64)]


async def test_all_are_told_what_the_hello_tells_of_a_batch_whose_answer_was_lost(broker: FakeBroker) -> None:
    broker.durable = False
    async with Producer(broker.address) as producer:
        broker.before_store = Script({1: DropAfter()})

        async with asyncio.timeout(5):
            receipts = await asyncio.gather(*(producer.send(message(i), sharding_key="k") for i in range(64)))

    assert [receipt.queue_offset for receipt in receipts] == list(range(64))
    assert [header.count for header in broker.stored] == [64]


@pytest.mark.parametrize("how", ["close", "end"])
async def test_whoever_is_stored_is_told_so_though_the_producer_ends_before(broker: FakeBroker, how: str) -> None:
    broker.durable = False
    producer = Producer(broker.address)
    await producer.open()

    async def send(number: int) -> Receipt:
        receipt = await producer.send(message(number), sharding_key="k")
        if not number:
            if how == "close":
                await producer.close()
            else:
                producer._end(RuntimeError("the broker does not want it any more"))
        return receipt

    receipts = await asyncio.gather(*map(send, range(64)))

    assert [receipt.queue_offset for receipt in receipts] == list(range(64))
    await producer.close()
