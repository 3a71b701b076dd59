"""
Order and once: many in flight, lost answers, refusals in the middle, restarts.

Calls that were answered together send again in two halves, so that neither side waits for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmq.client import Producer, Receipt
from rmq.client.producer.sender import WORTH_HALVING
from rmq.wire import errors

from ..fake_broker import DropAfter, DropBefore, FakeBroker
from ..producing import TOPIC, Script, message, numbers, send_each, time, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def producer(broker: FakeBroker) -> AsyncIterator[Producer]:
    async with Producer(broker.address) as made:
        await made.send(message(0), key="k")
        broker.producers[made.producer_id].answers.clear()
        broker.queues.clear()
        broker.stored.clear()
        broker.arrived.clear()
        yield made


async def test_with_many_in_flight_the_order_of_calls_is_the_order_in_the_queue(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.holding = True
    sending = asyncio.create_task(send_each(producer, range(400)))
    await asyncio.sleep(1)
    assert len(broker.stored) == 256, "as many as the broker remembers, no more"

    broker.release()
    receipts = await sending

    assert numbers(broker) == list(range(400))
    assert [receipt.queue_offset for receipt in receipts if isinstance(receipt, Receipt)] == list(range(400))
    assert [header.sequence for header in broker.stored] == list(range(2, 2 + len(broker.stored)))


async def test_the_window_is_as_wide_as_asked_for(broker: FakeBroker) -> None:
    async with Producer(broker.address, max_in_flight=3) as producer:
        broker.create(TOPIC)
        await producer.send(message(0), key="k")
        broker.holding = True
        sending = asyncio.create_task(send_each(producer, range(1, 10)))
        await asyncio.sleep(1)
        assert len(broker.stored) == 1 + 3

        broker.release()
        await sending

    assert numbers(broker) == list(range(10))


@pytest.mark.parametrize("fate", [DropAfter, DropBefore])
@pytest.mark.parametrize("at", range(1, 13))
async def test_a_connection_lost_at_any_batch_costs_neither_order_nor_a_duplicate(
    broker: FakeBroker, producer: Producer, at: int, fate: type[Exception]
) -> None:
    broker.before_store = Script({at: fate()})

    receipts = await send_each(producer, range(12))

    assert numbers(broker) == list(range(12))
    assert [receipt.queue_offset for receipt in receipts if isinstance(receipt, Receipt)] == list(range(12))
    assert len(broker.hellos) == 2


async def test_losing_every_other_connection_costs_neither_order_nor_a_duplicate(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.before_store = Script({n: DropAfter() if n % 4 else DropBefore() for n in range(2, 60, 2)})

    await send_each(producer, range(60))

    assert numbers(broker) == list(range(60))


@pytest.mark.parametrize(("tells", "again"), [(True, 0), (False, 20)])
async def test_answers_lost_on_their_way_are_given_again(
    broker: FakeBroker, producer: Producer, tells: bool, again: int
) -> None:
    broker.tells_outcomes = tells
    broker.holding = True
    sending = asyncio.create_task(send_each(producer, range(20)))
    await asyncio.sleep(1)
    stored = len(broker.stored)
    broker.held.clear()
    broker.drop_all()
    broker.holding = False

    receipts = await sending

    assert (broker.duplicates, stored) == (again, 20)
    assert numbers(broker) == list(range(20))
    assert [receipt.queue_offset for receipt in receipts if isinstance(receipt, Receipt)] == list(range(20))


async def test_the_hello_names_the_first_number_without_an_answer(broker: FakeBroker, producer: Producer) -> None:
    broker.holding = True
    sending = asyncio.create_task(send_each(producer, range(5)))
    await asyncio.sleep(1)
    broker.drop_all()
    broker.release()
    await sending

    first, second = (hello.producer for hello in broker.hellos)
    assert first is not None and second is not None
    assert (first.first_unresolved, second.first_unresolved) == (1, 2)
    assert first.producer_id == producer.producer_id
    assert 0 < producer.producer_id < 1 << 63


async def test_a_restarted_broker_goes_on_where_the_old_one_was(broker: FakeBroker, producer: Producer) -> None:
    broker.before_store = Script({7: DropAfter()})
    sending = asyncio.create_task(send_each(producer, range(15)))
    await until(lambda: len(broker.stored) >= 7)
    await broker.crash()
    await asyncio.sleep(20)

    await broker.start()
    await sending

    assert numbers(broker) == list(range(15))


async def test_a_broker_that_forgot_the_producer_is_told_where_it_stands(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.producers.clear()  # it now expects number 1

    await send_each(producer, range(5))

    assert numbers(broker) == list(range(5))
    assert len(broker.hellos) == 2


@pytest.mark.parametrize(
    "refusal",
    [errors.DiskFull("full"), errors.StoreFailed("write"), errors.Internal("id 7"), errors.TooManyInFlight("256")],
)
@pytest.mark.parametrize("at", [1, 2, 5, 10])
async def test_a_temporary_refusal_in_the_middle_is_sent_again_in_order(
    broker: FakeBroker, producer: Producer, at: int, refusal: errors.Refused
) -> None:
    broker.before_store = Script({at: refusal})

    receipts = await send_each(producer, range(10))

    assert numbers(broker) == list(range(10))
    assert [receipt.queue_offset for receipt in receipts if isinstance(receipt, Receipt)] == list(range(10))
    assert [header.sequence for header in broker.stored] == list(range(2, 2 + len(broker.stored)))
    assert len(broker.hellos) == 1


async def test_while_the_disk_is_full_one_batch_asks_and_the_rest_waits(broker: FakeBroker, producer: Producer) -> None:
    full = True

    def before_store(_header: object) -> None:
        if full:
            raise errors.DiskFull("full")

    broker.before_store = before_store
    sending = asyncio.create_task(send_each(producer, range(50)))
    await asyncio.sleep(0.05)
    asked = len(broker.arrived)

    await asyncio.sleep(10)
    assert len(broker.arrived) - asked <= 15
    full = False
    await sending

    assert numbers(broker) == list(range(50))


async def test_a_loss_during_a_temporary_refusal_keeps_order_and_once(broker: FakeBroker, producer: Producer) -> None:
    broker.before_store = Script(
        {3: errors.DiskFull("full"), 4: DropAfter(), 6: errors.Internal("?"), 7: DropBefore(), 9: errors.DiskFull("x")}
    )

    await send_each(producer, range(20))

    assert numbers(broker) == list(range(20))


async def test_a_permanent_refusal_in_the_middle_fails_only_its_own_callers(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.before_store = Script({4: errors.BadBatch("no good")})

    outcomes = await send_each(producer, range(10))

    failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
    assert failed and all(isinstance(outcomes[number], errors.BadBatch) for number in failed)
    assert numbers(broker) == [number for number in range(10) if number not in failed]


async def test_each_call_in_a_turn_of_its_own_is_a_batch_of_its_own(broker: FakeBroker, producer: Producer) -> None:
    for number in range(5):
        await producer.send(message(number), key="k")

    assert [header.count for header in broker.stored] == [1] * 5


async def test_calls_of_one_turn_travel_as_one_batch(broker: FakeBroker, producer: Producer) -> None:
    receipts = await asyncio.gather(*(producer.send(message(i), key="k") for i in range(100)))

    assert [header.count for header in broker.stored] == [100]
    assert [receipt.queue_offset for receipt in receipts] == list(range(100))


async def test_batches_of_several_queues_share_a_frame(broker: FakeBroker, producer: Producer) -> None:
    before = len(broker.requests)

    await asyncio.gather(*(producer.send(message(i), queue_id=i % 4) for i in range(100)))

    assert len(broker.requests) == before + 1
    assert [header.count for header in broker.stored] == [25] * 4
    assert broker.bodies(TOPIC, 1) == [b"%06d" % i for i in range(1, 100, 4)]


async def test_a_route_that_proved_wrong_is_asked_for_again(broker: FakeBroker, producer: Producer) -> None:
    broker.topics.clear()
    with pytest.raises(errors.TopicNotFound):
        await producer.send(message(1), key="k")

    await producer.send(message(2), key="k")

    assert numbers(broker) == [2]


async def test_a_broker_with_another_store_is_asked_for_routes_again(broker: FakeBroker, producer: Producer) -> None:
    await broker.crash()
    broker.store_id += 1
    broker.topics.clear()
    broker.producers.clear()
    await broker.start()
    await until(lambda: len(broker.hellos) == 2)

    await producer.send(message(1), key="k")

    assert numbers(broker) == [1]


@pytest.mark.parametrize("refusal", [errors.TooManyInFlight("1024"), errors.Internal("id 7")])
async def test_a_whole_frame_that_is_refused_is_sent_again(
    broker: FakeBroker, producer: Producer, refusal: errors.Refused
) -> None:
    broker.frame_refusals = [refusal, refusal]

    await send_each(producer, range(10))

    assert numbers(broker) == list(range(10))


async def test_a_frame_that_the_broker_cannot_take_fails_its_callers_and_the_line_goes_on(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.frame_refusals = [errors.BadRequest("no")]

    with pytest.raises(errors.BadRequest):
        await producer.send(message(1), key="k")
    await producer.send(message(2), key="k")

    assert numbers(broker) == [2]
    assert len(broker.hellos) == 2, "whether the number was spent is told by a new hello"


async def test_much_is_sent_again_in_several_frames(broker: FakeBroker, producer: Producer) -> None:
    broker.tells_outcomes = False
    broker.holding = True
    sending = asyncio.create_task(producer.send_bodies(TOPIC, [bytes([i]) * (3 << 20) for i in range(6)], queue_id=0))
    await until(lambda: len(broker.arrived) == 6)
    frames = len(broker.requests)
    broker.drop_all()
    broker.release()

    receipts = await sending

    assert len(receipts) == 6
    assert broker.duplicates == 6
    assert len(broker.requests) - frames == 6
    assert [body[0] for body in broker.bodies(TOPIC, 0)] == list(range(6))


async def test_an_answer_that_cannot_be_read_ends_the_connection_and_all_is_sent_again(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.spoil_next_send = True

    await send_each(producer, range(3))

    assert numbers(broker) == [0, 1, 2]
    assert len(broker.hellos) == 2


async def test_a_socket_that_takes_nothing_stops_the_sender_until_it_does(broker: FakeBroker) -> None:
    async with Producer(broker.address, delivery_timeout_s=100) as producer:
        broker.create(TOPIC)
        await producer.send(message(0), queue_id=0)
        server = next(iter(broker.connections))
        server.transport.pause_reading()
        bodies = [bytes(1 << 20)] * 64
        sending = asyncio.create_task(producer.send_bodies(TOPIC, bodies, queue_id=0))
        await asyncio.sleep(1)
        assert not producer._connection.writable
        assert producer._sender._window.size < 32 << 20, "most waits uncut"

        server.transport.resume_reading()
        receipts = await sending

    assert receipts[-1].queue_offset == 64
    assert time() < 10


async def test_a_socket_that_takes_more_is_enough_to_go_on_without_an_answer(broker: FakeBroker) -> None:
    async with Producer(broker.address, delivery_timeout_s=100) as producer:
        broker.create(TOPIC)
        await producer.send(message(0), queue_id=0)
        broker.holding = True
        server = next(iter(broker.connections))
        server.transport.pause_reading()
        sending = asyncio.create_task(producer.send_bodies(TOPIC, [bytes(1 << 20)] * 40, queue_id=0))
        await asyncio.sleep(1)
        assert not producer._connection.writable

        server.transport.resume_reading()
        await until(lambda: not producer._sender._ready)  # everything was sent, and nothing answered
        broker.release()
        assert len(await sending) == 40
        assert len(broker.hellos) == 1, "no other connection has helped"


async def test_a_turn_that_was_long_enough_goes_on_in_the_next_without_an_answer(
    broker: FakeBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.client.producer.sender.TURN_S", -1.0)
    broker.holding = True

    sending = [asyncio.create_task(producer.send(message(number), queue_id=number)) for number in range(3)]
    await until(lambda: len(broker.arrived) == 3)
    broker.release()

    assert [(await each).queue_id for each in sending] == [0, 1, 2]
    assert len(broker.hellos) == 1, "no other connection has helped"


async def send_in_turn(producer: Producer, numbers: range) -> list[Receipt]:
    return [await producer.send(message(number), key="k") for number in numbers]


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
        calls = [producer.send_many([message(2 * i), message(2 * i + 1)], key="k") for i in range(64)]
        receipts = await asyncio.gather(*calls)

    assert [[receipt.queue_offset for receipt in own] for own in receipts] == [[2 * i, 2 * i + 1] for i in range(64)]


async def test_all_are_told_what_the_hello_tells_of_a_batch_whose_answer_was_lost(broker: FakeBroker) -> None:
    broker.durable = False
    async with Producer(broker.address) as producer:
        broker.before_store = Script({1: DropAfter()})

        async with asyncio.timeout(5):
            receipts = await asyncio.gather(*(producer.send(message(i), key="k") for i in range(64)))

    assert [receipt.queue_offset for receipt in receipts] == list(range(64))
    assert [header.count for header in broker.stored] == [64]


@pytest.mark.parametrize("how", ["close", "end"])
async def test_whoever_is_stored_is_told_so_though_the_producer_ends_before(broker: FakeBroker, how: str) -> None:
    broker.durable = False
    producer = Producer(broker.address)
    await producer.open()

    async def send(number: int) -> Receipt:
        receipt = await producer.send(message(number), key="k")
        if not number:
            if how == "close":
                await producer.close()
            else:
                producer._end(RuntimeError("the broker does not want it any more"))
        return receipt

    receipts = await asyncio.gather(*map(send, range(64)))

    assert [receipt.queue_offset for receipt in receipts] == list(range(64))
    await producer.close()
