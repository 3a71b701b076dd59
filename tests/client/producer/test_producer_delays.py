"""Messages with a delay: which of them share a batch, what is asked of the broker, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq.client import BadDelay, Message, Producer
from rmq.client.producer.receipts import Receipt
from rmq.wire.batch import layout

from ..fake_broker import DropAfter, DropBefore, FakeBroker
from ..producing import TOPIC, Script, until

pytestmark = pytest.mark.virtual_time

NOW_US = 1_700_000_000_000_000
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NOON_US = 1_769_860_800_000_000


class Clock:
    """A wall clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now_us = NOW_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def wall() -> Clock:
    return Clock()


@pytest.fixture
async def producer(broker: FakeBroker, wall: Clock) -> AsyncIterator[Producer]:
    async with Producer(broker.address, wall_us=wall) as opened:
        yield opened


def delayed(number: int, **delay: Any) -> Message:
    return Message(TOPIC, b"%d" % number, **delay)


def told(headers: list[layout.Header]) -> list[tuple[int, int, int]]:
    """Messages, level and time of each batch."""
    return [(header.count, header.delay_level, header.deliver_at) for header in headers]


async def send_in_one_turn(producer: Producer, *messages: Message) -> list[Receipt]:
    return await asyncio.gather(*(producer.send(message, queue_id=0) for message in messages))


async def test_sends_of_one_turn_are_grouped_by_their_delay_and_keep_their_order(
    broker: FakeBroker, producer: Producer
) -> None:
    levels = [0, 0, 3, 3, 3, 0, 1, 3]
    receipts = await send_in_one_turn(producer, *(delayed(i, delay_level=level) for i, level in enumerate(levels)))

    assert told(broker.stored) == [(2, 0, 0), (3, 3, 0), (1, 0, 0), (1, 1, 0), (1, 3, 0)]
    assert broker.bodies(TOPIC, 0) == [b"0", b"1", b"5"]
    assert broker.parked == [b"2", b"3", b"4", b"6", b"7"]
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, -1, -1, -1, 2, -1, -1]
    assert [receipt.is_delayed for receipt in receipts] == [level > 0 for level in levels]
    assert len({receipt.message_id for receipt in receipts}) == len(levels)


async def test_one_call_is_cut_where_the_delay_changes(broker: FakeBroker, producer: Producer) -> None:
    delays: list[dict[str, Any]] = [
        *[{"delay_s": 5}] * 2, {}, *[{"deliver_at": NOON}] * 2, {"delay_level": 2}, {"delay_s": 0},
    ]  # fmt: skip
    receipts = await producer.send_many([delayed(i, **delay) for i, delay in enumerate(delays)], queue_id=0)

    assert told(broker.stored) == [(2, 0, NOW_US + 5_000_000), (1, 0, 0), (2, 0, NOON_US), (1, 2, 0), (1, 0, 0)]
    assert [receipt.is_delayed for receipt in receipts] == [True, True, False, True, True, True, False]


async def test_many_with_one_delay_are_as_few_batches_as_many_without(broker: FakeBroker, producer: Producer) -> None:
    await producer.send_many([delayed(i, delay_level=1) for i in range(layout.MAX_COUNT + 1)], queue_id=0)

    assert told(broker.stored) == [(layout.MAX_COUNT, 1, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("delay", "level", "deliver_at"),
    [
        ({}, 0, 0),
        ({"delay_level": 7}, 7, 0),
        ({"delay_s": 0.25}, 0, NOW_US + 250_000),
        ({"deliver_at": NOON}, 0, NOON_US),
    ],
)
async def test_bodies_and_one_way_messages_wait_as_others_do(
    broker: FakeBroker, producer: Producer, delay: dict[str, Any], level: int, deliver_at: int
) -> None:
    receipts = await producer.send_bodies(TOPIC, [b"1", b"2"], queue_id=0, **delay)
    producer.send_nowait(delayed(3, **delay), queue_id=0)
    await producer.flush()

    assert told(broker.stored) == [(2, level, deliver_at), (1, level, deliver_at)]
    assert {receipt.is_delayed for receipt in receipts} == {bool(delay)}
    assert producer.failed_one_way == 0


async def test_a_delay_of_bodies_that_makes_no_sense_is_refused_before_anything_is_sent(
    broker: FakeBroker, producer: Producer
) -> None:
    with pytest.raises(ValueError, match="give one of delay_level, delay_s and deliver_at"):
        await producer.send_bodies(TOPIC, [b"1"], delay_level=1, delay_s=1)
    with pytest.raises(ValueError, match="delay_level must be"):
        await producer.send_bodies(TOPIC, [], delay_level=-1)

    assert broker.arrived == []


async def test_a_batch_that_is_sent_again_keeps_its_time(broker: FakeBroker, producer: Producer, wall: Clock) -> None:
    """Whether its answer was lost, or it is certainly not stored and is cut anew."""
    broker.before_store = Script({1: DropBefore(), 2: DropAfter()})
    sends = [
        asyncio.create_task(producer.send(delayed(1, delay_s=5), queue_id=0)),
        asyncio.create_task(producer.send(delayed(2, delay_level=4), queue_id=1)),
    ]
    await until(lambda: len(broker.hellos) > 1)
    wall.now_us += 60_000_000

    receipts = await asyncio.gather(*sends)

    assert {header.deliver_at for header in broker.arrived if not header.delay_level} == {NOW_US + 5_000_000}
    assert sorted(broker.parked) == [b"1", b"2"]
    assert all(receipt.is_delayed for receipt in receipts)


async def test_a_delay_that_the_broker_refuses_fails_its_own_callers_only(
    broker: FakeBroker, producer: Producer
) -> None:
    def before_store(header: layout.Header) -> None:
        if header.delay_level > 18:
            raise BadDelay("there are 18 levels, not 19")

    broker.before_store = before_store
    good, bad, last = await asyncio.gather(
        producer.send(delayed(1, delay_level=18), queue_id=0),
        producer.send(delayed(2, delay_level=19), queue_id=0),
        producer.send(delayed(3, delay_level=18), queue_id=0),
        return_exceptions=True,
    )

    assert isinstance(bad, BadDelay)
    assert isinstance(good, Receipt) and isinstance(last, Receipt)
    assert broker.parked == [b"1", b"3"]
    assert len(broker.arrived) == 3, "a permanent refusal is not tried again"


async def test_a_time_beyond_the_calendar_fails_alone(broker: FakeBroker, producer: Producer) -> None:
    far, near = await asyncio.gather(
        producer.send(delayed(1, delay_s=253_402_300_799.0), queue_id=0),
        producer.send(delayed(2, delay_s=1), queue_id=0),
        return_exceptions=True,
    )

    assert isinstance(far, Exception)
    assert isinstance(near, Receipt)
    assert broker.parked == [b"2"]
