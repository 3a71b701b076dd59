"""
The producer's calls: what they return, raise and leave behind.

Messages with a delay: which of them share a batch, what is asked of the broker, and what the caller is told.

How a call of the producer ends without an answer: its time runs out, or its caller goes.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq.client import BadDelay, Message, Producer, SendStatus
from rmq.client.producer.receipts import Receipt
from rmq.wire import errors
from rmq.wire.batch import layout
from rmq.wire.batch.layout import MAX_BODY, MAX_COUNT
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import DropAfter, DropBefore, FakeBroker
from ..producing import TOPIC, Script, message, numbers, send_each, time, until

pytestmark = pytest.mark.virtual_time


async def test_a_receipt_tells_where_the_message_lies(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        receipt = await producer.send(Message(TOPIC, b"paid", tag="paid", index_keys=("o-17",)), key="o-17")

    assert (receipt.topic, receipt.queue_id, receipt.queue_offset) == (TOPIC, 0, 0)
    assert receipt.status is SendStatus.SEND_OK
    assert len(receipt.message_id) == 32
    assert receipt.durable
    assert receipt.stored_at.year == 2023


async def test_a_missing_topic_is_made_or_refused(broker: FakeBroker) -> None:
    async with Producer(broker.address, auto_create=False) as producer:
        with pytest.raises(errors.TopicNotFound):
            await producer.send(message(1))
    async with Producer(broker.address) as producer:
        await producer.send(message(1))

    assert numbers(broker) == [1]


async def test_a_route_is_asked_for_once(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await asyncio.gather(*(producer.send(message(i)) for i in range(10)))
        await producer.send(message(11))

    assert [op for _, op, _ in broker.requests].count(Op.ROUTE) == 1


async def test_calls_that_wait_for_a_route_are_not_overtaken(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await send_each(producer, range(30))

    assert numbers(broker) == list(range(30))


async def test_a_queue_that_was_added_meanwhile_is_found(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(0), queue_id=3)
        broker.create(TOPIC, queues=9)
        receipt = await producer.send(message(1), queue_id=8)
        assert receipt.queue_id == 8

        with pytest.raises(errors.QueueNotFound, match="it has 0 to 8"):
            await producer.send(message(2), queue_id=9)


async def test_a_selector_chooses_and_its_error_is_the_callers(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        receipt = await producer.send(message(0), selector=lambda queues, message, arg: queues[arg], arg=2)
        assert receipt.queue_id == 2
        for number in range(2):  # the second time the route is known
            topic = f"new{number}"
            with pytest.raises(ZeroDivisionError):
                await producer.send(Message(topic, b""), selector=lambda queues, message, arg: 1 // arg, arg=0)
        with pytest.raises(ZeroDivisionError):
            await producer.send(message(1), selector=lambda queues, message, arg: 1 // arg, arg=0)

    assert numbers(broker) == [0]


async def test_round_robin_moves_on_with_every_batch(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        singles = [(await producer.send(message(i))).queue_id for i in range(8)]
        many = [(await producer.send_many([message(i)] * 3))[-1].queue_id for i in range(4)]
        bodies = [(await producer.send_bodies(TOPIC, [b"1", b"2"]))[-1].queue_id for i in range(4)]

    start = singles[0]
    assert singles == [(start + i) % 4 for i in range(8)]
    assert sorted(many) == sorted(bodies) == [0, 1, 2, 3]


# Many at once


async def test_send_many_is_cut_at_4096_messages_in_order(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        receipts = await producer.send_many([message(i) for i in range(MAX_COUNT * 2 + 1)])

    assert [header.count for header in broker.stored] == [MAX_COUNT, MAX_COUNT, 1]
    assert numbers(broker) == list(range(MAX_COUNT * 2 + 1))
    assert [receipts[i].queue_offset for i in (0, MAX_COUNT, -1)] == [0, MAX_COUNT, MAX_COUNT * 2]
    assert len({receipt.message_id for receipt in receipts}) == len(receipts)


@pytest.mark.parametrize("size", [MAX_BODY, MAX_BODY // 2 + 1, MAX_BODY // 3, 1 << 20])
async def test_send_many_is_cut_at_the_size_of_a_batch(broker: FakeBroker, size: int) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_bodies(TOPIC, [bytes([i]) * size for i in range(9)])

    fit = MAX_BODY // size
    assert [header.count for header in broker.stored] == [fit] * (9 // fit) + ([9 % fit] if 9 % fit else [])
    assert [body[0] for body in broker.bodies(TOPIC)] == list(range(9))


async def test_metadata_that_does_not_fit_beside_the_bodies_makes_smaller_batches(broker: FakeBroker) -> None:
    big = {"p": "x" * 1500}
    async with Producer(broker.address) as producer:
        await producer.send_many([Message(TOPIC, b"%06d" % i, properties=big) for i in range(4000)])

    assert len(broker.stored) == 2
    assert numbers(broker) == list(range(4000))


async def test_a_message_that_cannot_be_encoded_fails_alone(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        bad = Message(TOPIC, b"000003", properties={"p": "\ud800"})
        outcomes = await asyncio.gather(
            *(producer.send(bad if i == 3 else message(i), queue_id=0) for i in range(8)), return_exceptions=True
        )

    assert isinstance(outcomes[3], errors.BadBatch)
    assert numbers(broker) == [0, 1, 2, 4, 5, 6, 7]


async def test_what_is_wrong_with_a_call_is_said_before_anything_is_sent(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        with pytest.raises(errors.MessageTooLarge):
            await producer.send_bodies(TOPIC, [b"x"] * 5000 + [bytes(MAX_BODY + 1)])
        with pytest.raises(ValueError, match="one topic"):
            await producer.send_many([Message("a", b""), Message("b", b"")])
        with pytest.raises(ValueError, match="give one of"):
            await producer.send(message(1), key="k", queue_id=1)
        assert list(await producer.send_many([])) == []
        assert list(await producer.send_bodies(TOPIC, [])) == []

    assert broker.requests == []


async def test_a_list_that_is_changed_during_the_call_does_not_matter(broker: FakeBroker) -> None:
    bodies = [b"1", b"2", b"3"]
    async with Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send_bodies(TOPIC, bodies))
        await asyncio.sleep(0)
        bodies.clear()
        assert len(await sending) == 3


async def test_several_calls_share_a_batch_and_get_their_own_receipts(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(0), queue_id=1)
        one, many, bodies = await asyncio.gather(
            producer.send(message(1), queue_id=1),
            producer.send_many([message(2), message(3)], queue_id=1),
            producer.send_bodies(TOPIC, [b"4", b"5"], queue_id=1),
        )

    assert broker.stored[-1].count == 5
    assert one.queue_offset == 1
    assert [receipt.queue_offset for receipt in many] == [2, 3]
    assert [receipt.queue_offset for receipt in bodies] == [4, 5]
    assert [receipt.message_id[-3:] for receipt in bodies] == ["003", "004"]


async def test_many_messages_make_no_future_each(broker: FakeBroker) -> None:
    loop = asyncio.get_running_loop()
    made = 0
    create = loop.create_future

    def counted() -> asyncio.Future[Any]:
        nonlocal made
        made += 1
        return create()

    async with Producer(broker.address) as producer:
        await producer.send(message(0))
        loop.create_future = counted  # type: ignore[method-assign]
        await producer.send_bodies(TOPIC, [b"x"] * 20_000)
        loop.create_future = create  # type: ignore[method-assign]

    assert made < 10


# Linger and flush


async def test_linger_waits_for_company(broker: FakeBroker) -> None:
    async with Producer(broker.address, linger_s=0.5) as producer:
        broker.create(TOPIC)
        await producer.send(message(0), queue_id=0)
        began = time()
        sends = []
        for i in range(1, 5):
            sends.append(asyncio.create_task(producer.send(message(i), queue_id=0)))
            await asyncio.sleep(0.1)
        await asyncio.gather(*sends)

    assert [header.count for header in broker.stored] == [1, 4]
    assert time() - began == pytest.approx(0.5, abs=0.01)


async def test_enough_for_a_batch_lingers_no_longer(broker: FakeBroker) -> None:
    async with Producer(broker.address, linger_s=60) as producer:
        broker.create(TOPIC)
        await producer.send_bodies(TOPIC, [b"x", b"y"], queue_id=0)
        await asyncio.gather(*(producer.send(message(i), queue_id=0) for i in range(MAX_COUNT)))

        assert time() < 1


async def test_flush_ends_lingering_and_waits_for_all_before_it(broker: FakeBroker) -> None:
    async with Producer(broker.address, linger_s=60) as producer:
        broker.create(TOPIC)
        for i in range(5):
            producer.send_nowait(message(i), queue_id=0)
        await until(lambda: bool(broker.requests))
        await asyncio.sleep(0.1)
        await producer.flush()
        assert numbers(broker) == list(range(5))
        await producer.flush()

    assert time() < 1


# One-way


async def test_one_way_messages_take_part_in_the_order_and_are_sent_again(broker: FakeBroker) -> None:
    broker.before_store = Script({3: errors.DiskFull("full")})
    async with Producer(broker.address) as producer:
        for i in range(0, 20, 2):
            producer.send_nowait(message(i), key="k")
            task = asyncio.create_task(producer.send(message(i + 1), key="k"))
            await asyncio.sleep(0)
        await task

    assert numbers(broker) == list(range(20))
    assert producer.failed_one_way == 0


async def test_one_way_failures_are_counted_and_logged(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.before_store = Script({1: errors.BadBatch("no good")})
    async with Producer(broker.address) as producer:
        producer.send_nowait(message(0))
        await producer.flush()
        assert producer.failed_one_way == 1
        with caplog.at_level(logging.WARNING):
            assert "producer.one_way_failed topic=orders error='no good'" in caplog.text


@pytest.mark.parametrize(("size", "accepted"), [(MAX_BODY, 15), (0, 111_848)])
async def test_one_way_messages_do_not_fill_memory_however_short_they_are(
    broker: FakeBroker, size: int, accepted: int
) -> None:
    async with Producer(broker.address) as producer:
        broker.holding = True
        sent = Message(TOPIC, bytes(size))
        for _ in range(accepted):
            producer.send_nowait(sent)
        with pytest.raises(errors.TooManyInFlight, match="flush"):
            producer.send_nowait(sent)
        broker.release()
        await producer.flush()
        producer.send_nowait(message(1))


# Life


async def test_without_a_broker_entering_says_so() -> None:
    async with FakeBroker() as broker:
        address = broker.address

    with pytest.raises(errors.ConnectionLost, match="start one with `rmq-broker start`"):
        async with Producer(address, delivery_timeout_s=5):
            pass


async def test_leaving_waits_for_what_was_sent(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        for i in range(10):
            producer.send_nowait(message(i), queue_id=0)

    assert numbers(broker) == list(range(10))


async def test_leaving_with_an_error_waits_for_nothing(broker: FakeBroker) -> None:
    broker.holding = True
    with pytest.raises(ZeroDivisionError):
        async with Producer(broker.address) as producer:
            waiting = asyncio.create_task(producer.send(message(0)))
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(errors.RequestTimeout, match="the producer was closed: nothing was stored"):
        await waiting
    assert time() < 2


async def test_a_producer_is_used_between_opening_and_closing(broker: FakeBroker) -> None:
    producer = Producer(broker.address)
    with pytest.raises(errors.ConnectionLost, match="async with"):
        await producer.send(message(0))
    await producer.close()
    async with producer:
        with pytest.raises(errors.ConfigError, match="opened once"):
            await producer.open()
    with pytest.raises(errors.ConnectionLost, match="was closed"):
        producer.send_nowait(message(0))


@pytest.mark.parametrize(
    "options", [{"max_in_flight": 0}, {"max_in_flight": 257}, {"delivery_timeout_s": 0}, {"linger_s": -1}]
)
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError):
        Producer("127.0.0.1:1", **options)


@pytest.mark.parametrize("compression", ["", "gzip", "ZLIB"])
def test_an_unknown_compression_is_refused_with_those_there_are(compression: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"compression '{compression}' is unknown: .*zlib, lz4, zstd"):
        Producer("127.0.0.1:1", compression=compression)


WITHOUT_LZ4 = """
import sys
sys.modules["lz4"] = sys.modules["lz4.block"] = None
from rmq.client import Producer
from rmq.wire.errors import ConfigError
Producer("127.0.0.1:1", compression="zlib")
try:
    Producer("127.0.0.1:1", compression="lz4")
except ConfigError as error:
    print(error)
"""


def test_a_compression_that_is_not_installed_is_refused_at_once_with_the_extra_to_install() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_LZ4], capture_output=True, text=True, check=True)

    assert "lz4 compression is not installed" in ran.stdout
    assert "pip install 'rmq[lz4]'" in ran.stdout


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
async def producer_delays(broker: FakeBroker, wall: Clock) -> AsyncIterator[Producer]:
    async with Producer(broker.address, wall_us=wall) as opened:
        yield opened


def delayed(number: int, **delay: Any) -> Message:
    return Message(TOPIC, b"%d" % number, **delay)


def told(headers: list[layout.Header]) -> list[tuple[int, int, int]]:
    """Messages, level and time of each batch."""
    return [(header.count, header.delay_level, header.deliver_at) for header in headers]


async def send_in_one_turn(producer_delays: Producer, *messages: Message) -> list[Receipt]:
    return await asyncio.gather(*(producer_delays.send(message, queue_id=0) for message in messages))


async def test_sends_of_one_turn_are_grouped_by_their_delay_and_keep_their_order(
    broker: FakeBroker, producer_delays: Producer
) -> None:
    levels = [0, 0, 3, 3, 3, 0, 1, 3]
    receipts = await send_in_one_turn(
        producer_delays, *(delayed(i, delay_level=level) for i, level in enumerate(levels))
    )

    assert told(broker.stored) == [(2, 0, 0), (3, 3, 0), (1, 0, 0), (1, 1, 0), (1, 3, 0)]
    assert broker.bodies(TOPIC, 0) == [b"0", b"1", b"5"]
    assert broker.parked == [b"2", b"3", b"4", b"6", b"7"]
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, -1, -1, -1, 2, -1, -1]
    assert [receipt.is_deferred for receipt in receipts] == [level > 0 for level in levels]
    assert len({receipt.message_id for receipt in receipts}) == len(levels)


async def test_one_call_is_cut_where_the_delay_changes(broker: FakeBroker, producer_delays: Producer) -> None:
    delays: list[dict[str, Any]] = [
        *[{"delay_s": 5}] * 2, {}, *[{"deliver_at": NOON}] * 2, {"delay_level": 2}, {"delay_s": 0},
    ]  # fmt: skip
    receipts = await producer_delays.send_many([delayed(i, **delay) for i, delay in enumerate(delays)], queue_id=0)

    assert told(broker.stored) == [(2, 0, NOW_US + 5_000_000), (1, 0, 0), (2, 0, NOON_US), (1, 2, 0), (1, 0, 0)]
    assert [receipt.is_deferred for receipt in receipts] == [True, True, False, True, True, True, False]


async def test_many_with_one_delay_are_as_few_batches_as_many_without(
    broker: FakeBroker, producer_delays: Producer
) -> None:
    await producer_delays.send_many([delayed(i, delay_level=1) for i in range(layout.MAX_COUNT + 1)], queue_id=0)

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
    broker: FakeBroker, producer_delays: Producer, delay: dict[str, Any], level: int, deliver_at: int
) -> None:
    receipts = await producer_delays.send_bodies(TOPIC, [b"1", b"2"], queue_id=0, **delay)
    producer_delays.send_nowait(delayed(3, **delay), queue_id=0)
    await producer_delays.flush()

    assert told(broker.stored) == [(2, level, deliver_at), (1, level, deliver_at)]
    assert {receipt.is_deferred for receipt in receipts} == {bool(delay)}
    assert producer_delays.failed_one_way == 0


async def test_a_delay_of_bodies_that_makes_no_sense_is_refused_before_anything_is_sent(
    broker: FakeBroker, producer_delays: Producer
) -> None:
    with pytest.raises(ValueError, match="give one of delay_level, delay_s and deliver_at"):
        await producer_delays.send_bodies(TOPIC, [b"1"], delay_level=1, delay_s=1)
    with pytest.raises(ValueError, match="delay_level must be"):
        await producer_delays.send_bodies(TOPIC, [], delay_level=-1)

    assert broker.arrived == []


async def test_a_batch_that_is_sent_again_keeps_its_time(
    broker: FakeBroker, producer_delays: Producer, wall: Clock
) -> None:
    """Whether its answer was lost, or it is certainly not stored and is cut anew."""
    broker.before_store = Script({1: DropBefore(), 2: DropAfter()})
    sends = [
        asyncio.create_task(producer_delays.send(delayed(1, delay_s=5), queue_id=0)),
        asyncio.create_task(producer_delays.send(delayed(2, delay_level=4), queue_id=1)),
    ]
    await until(lambda: len(broker.hellos) > 1)
    wall.now_us += 60_000_000

    receipts = await asyncio.gather(*sends)

    assert {header.deliver_at for header in broker.arrived if not header.delay_level} == {NOW_US + 5_000_000}
    assert sorted(broker.parked) == [b"1", b"2"]
    assert all(receipt.is_deferred for receipt in receipts)


async def test_a_delay_that_the_broker_refuses_fails_its_own_callers_only(
    broker: FakeBroker, producer_delays: Producer
) -> None:
    def before_store(header: layout.Header) -> None:
        if header.delay_level > 18:
            raise BadDelay("there are 18 levels, not 19")

    broker.before_store = before_store
    good, bad, last = await asyncio.gather(
        producer_delays.send(delayed(1, delay_level=18), queue_id=0),
        producer_delays.send(delayed(2, delay_level=19), queue_id=0),
        producer_delays.send(delayed(3, delay_level=18), queue_id=0),
        return_exceptions=True,
    )

    assert isinstance(bad, BadDelay)
    assert isinstance(good, Receipt) and isinstance(last, Receipt)
    assert broker.parked == [b"1", b"3"]
    assert len(broker.arrived) == 3, "a permanent refusal is not tried again"


async def test_a_time_beyond_the_calendar_fails_alone(broker: FakeBroker, producer_delays: Producer) -> None:
    far, near = await asyncio.gather(
        producer_delays.send(delayed(1, delay_s=253_402_300_799.0), queue_id=0),
        producer_delays.send(delayed(2, delay_s=1), queue_id=0),
        return_exceptions=True,
    )

    assert isinstance(far, Exception)
    assert isinstance(near, Receipt)
    assert broker.parked == [b"2"]


# Time


async def test_what_was_never_sent_times_out_as_certainly_not_stored() -> None:
    async with FakeBroker() as broker:
        async with Producer(broker.address) as producer:
            broker.create(TOPIC)
            await producer.send(message(0), queue_id=0)
            await broker.stop()
            await until(lambda: not producer._connection.connected)
            began = time()

            with pytest.raises(errors.RequestTimeout, match=r"not connected to .*: nothing was stored"):
                await producer.send(message(1), queue_id=0)
            assert time() - began == pytest.approx(30)

            await broker.start()
            await producer.send(message(2), queue_id=0)

        assert numbers(broker) == [0, 2]


async def test_what_was_sent_and_not_answered_has_an_unknown_outcome_and_stays_in_line(broker: FakeBroker) -> None:
    broker.tells_outcomes = False
    async with Producer(broker.address, delivery_timeout_s=10) as producer:
        await producer.send(message(0), queue_id=0)
        broker.holding = True
        began = time()
        first = asyncio.create_task(producer.send(message(1), queue_id=0))
        await asyncio.sleep(0.1)
        broker.producers[producer.producer_id].last = 1  # as if it had been lost on the way
        broker.queues[TOPIC, 0].pop()
        broker.held.clear()

        with pytest.raises(errors.OutcomeUnknown, match=r"0 of 1 messages .* may or may not be"):
            await first
        assert time() - began == pytest.approx(10)

        broker.holding = False
        broker.drop_all()
        await producer.send(message(2), queue_id=0)

    assert numbers(broker) == [0, 1, 2], "the unknown one was sent again before the next"


async def test_what_a_full_disk_refused_until_the_end_is_certainly_not_stored(broker: FakeBroker) -> None:
    def full(_header: object) -> None:
        raise errors.DiskFull("no space")

    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        await producer.send(message(0), queue_id=0)
        broker.before_store = full
        outcomes = await send_each(producer, range(1, 5))
        assert [type(outcome) for outcome in outcomes] == [errors.DiskFull] * 4
        assert str(outcomes[3]) == "nothing was stored in 'orders' within 5 s: no space"

        broker.before_store = None
        await producer.send(message(9), queue_id=0)

    assert numbers(broker) == [0, 9]


async def test_a_route_that_does_not_come_times_out(broker: FakeBroker) -> None:
    async with Producer(broker.address, delivery_timeout_s=4) as producer:
        broker.holding = True
        with pytest.raises(errors.RequestTimeout, match="nothing was stored"):
            await producer.send(message(0))
        assert time() == pytest.approx(4, abs=0.1)
        broker.release()
        await producer.send(message(1))

    assert numbers(broker) == [1]


async def test_a_part_that_was_stored_makes_the_outcome_of_the_whole_unknown(broker: FakeBroker) -> None:
    async with Producer(broker.address, delivery_timeout_s=5, max_in_flight=1) as producer:
        await producer.send(message(0), queue_id=0)
        broker.before_store = lambda header: _refuse_after(header.sequence, 2)

        with pytest.raises(errors.OutcomeUnknown, match=f"{MAX_COUNT} of {MAX_COUNT + 1} messages"):
            await producer.send_bodies(TOPIC, [b"1"] * (MAX_COUNT + 1), queue_id=0)
        broker.before_store = None


def _refuse_after(sequence: int, last: int) -> None:
    if sequence > last:
        raise errors.DiskFull("no space")


# Cancelling


async def _send(producer: Producer) -> object:
    return await producer.send(message(500), key="k")


async def _send_many(producer: Producer) -> object:
    return await producer.send_many([message(i) for i in range(500, 500 + MAX_COUNT + 5)], key="k")


async def _flush(producer: Producer) -> object:
    return await producer.flush()


@pytest.mark.parametrize("call", [_send, _send_many, _flush])
@pytest.mark.parametrize("known", [True, False])
async def test_cancelling_at_any_step_leaks_nothing_and_keeps_the_order_of_others(
    broker: FakeBroker, call: Callable[[Producer], Awaitable[object]], known: bool
) -> None:
    for steps in range(14):
        async with Producer(broker.address) as producer:
            broker.topics.clear()
            broker.queues.clear()
            if known:
                await producer.send(message(0), key="k")
            before = asyncio.create_task(producer.send(message(1), key="k"))
            await asyncio.sleep(0)
            cancelled = asyncio.ensure_future(call(producer))
            await asyncio.sleep(0)
            after = asyncio.create_task(producer.send(message(2), key="k"))
            for _ in range(steps):
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([before, cancelled, after])
            await producer.flush()
            others = [number for number in numbers(broker) if number < 500]

            assert others == ([0] if known else []) + [1, 2]
            assert not producer._deadlines._sends and not producer._sender._window._batches
            assert all(not route.unrouted for route in producer._router._topics.values())
            theirs = [number for number in numbers(broker) if number >= 500]
            assert theirs == list(range(500, 500 + len(theirs))), "a first part, without a gap"


async def test_one_that_was_cancelled_before_it_was_sent_is_not_sent(broker: FakeBroker) -> None:
    async with Producer(broker.address, max_in_flight=1) as producer:
        broker.create(TOPIC)
        await producer.send(message(0), queue_id=0)
        broker.holding = True
        first = asyncio.create_task(producer.send(message(1), queue_id=0))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(producer.send(message(2), queue_id=0))
        await asyncio.sleep(0.1)
        second.cancel()
        await asyncio.wait([second])
        broker.release()
        await first

    assert numbers(broker) == [0, 1]
