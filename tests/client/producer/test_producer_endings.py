"""How a call of the producer ends without an answer: its time runs out, or its caller goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rmq.client import Producer
from rmq.wire import errors
from rmq.wire.batch.layout import MAX_COUNT

from ..fake_broker import FakeBroker
from ..producing import TOPIC, message, numbers, send_each, time, until

pytestmark = pytest.mark.virtual_time


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
    return await producer.send(message(500), sharding_key="k")


async def _send_many(producer: Producer) -> object:
    return await producer.send_many([message(i) for i in range(500, 500 + MAX_COUNT + 5)], sharding_key="k")


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
                await producer.send(message(0), sharding_key="k")
            before = asyncio.create_task(producer.send(message(1), sharding_key="k"))
            await asyncio.sleep(0)
            cancelled = asyncio.ensure_future(call(producer))
            await asyncio.sleep(0)
            after = asyncio.create_task(producer.send(message(2), sharding_key="k"))
            for _ in range(steps):
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([before, cancelled, after])
            await producer.flush()
            others = [number for number in numbers(broker) if number < 500]

            assert others == ([0] if known else []) + [1, 2]
            assert not producer._deadlines._parcels and not producer._sender._line._batches
            assert all(not route.waiting for route in producer._router._topics.values())
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
