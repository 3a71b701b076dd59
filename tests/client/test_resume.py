"""What the broker's hello tells of batches in line: answered, renumbered, or unknown for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq.client import Message, Producer, Receipt
from rmq.wire import errors
from rmq.wire.batch.batch import split_message_id
from rmq.wire.protocol.hello import ProducerHello, ProducerResumed
from rmq.wire.protocol.ops import core as ops
from rmq.wire.stores import FormerStore

from .fake_broker import DropAfter, FakeBroker
from .producing import TOPIC, Script, message, numbers, send_each, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def producer(broker: FakeBroker) -> AsyncIterator[Producer]:
    """A producer that has sent message 0, and may end as it likes."""
    made = Producer(broker.address, delivery_timeout_s=20)
    await made.open()
    await made.send(message(0), key="k")
    yield made
    await made.close()


def sequences(broker: FakeBroker) -> list[int]:
    return [header.sequence for header in broker.stored]


async def in_flight(broker: FakeBroker, producer: Producer, count: int) -> list[asyncio.Task[Receipt]]:
    """Sends 1 to ``count``, all stored and none answered."""
    broker.holding = True
    tasks = []
    for number in range(1, count + 1):
        tasks.append(asyncio.create_task(producer.send(message(number), key="k")))
        await asyncio.sleep(0)
    await until(lambda: len(broker.arrived) == 1 + count)
    broker.held.clear()
    return tasks


def lose(broker: FakeBroker, producer: Producer, last: int) -> None:
    """The broker never got what came behind a number."""
    known = broker.producers[producer.producer_id]
    for number in range(last + 1, known.last + 1):
        del known.answers[number]
        broker.queues[broker.stored[-1].topic, broker.stored[-1].queue_id].pop()
        broker.stored.pop()
    known.last = last


async def again(broker: FakeBroker, producer: Producer) -> None:
    """Break all connections; answers are given from now on."""
    broker.holding = False
    broker.drop_all()
    await until(lambda: not producer._connection.connected)


async def test_what_the_hello_tells_is_answered_and_only_the_rest_is_sent_again(
    broker: FakeBroker, producer: Producer
) -> None:
    tasks = await in_flight(broker, producer, 8)
    lose(broker, producer, 5)

    await again(broker, producer)
    receipts = await asyncio.gather(*tasks)

    assert [receipt.queue_offset for receipt in receipts] == list(range(1, 9))
    assert numbers(broker) == list(range(9))
    assert broker.duplicates == 0
    assert sequences(broker) == list(range(1, len(broker.stored) + 1))


async def test_what_another_store_tells_of_the_numbers_in_line_is_about_other_messages(
    broker: FakeBroker, producer: Producer
) -> None:
    tasks = await in_flight(broker, producer, 2)
    broker.store_id += 1

    await again(broker, producer)
    receipts = await asyncio.gather(*tasks)

    assert [receipt.queue_offset for receipt in receipts] == [3, 4]
    assert numbers(broker) == [0, 1, 2, 1, 2]


async def test_a_copy_of_the_store_answers_for_the_numbers_in_line_with_the_ids_of_its_original(
    broker: FakeBroker, producer: Producer
) -> None:
    tasks = await in_flight(broker, producer, 2)
    original, end = broker.store_id, 4096 * len(broker.stored)
    broker.store_id, broker.former = original + 1, [FormerStore(original, end, 5)]

    await again(broker, producer)
    receipts = await asyncio.gather(*tasks)
    later = await producer.send(message(3), key="k")

    assert numbers(broker) == [0, 1, 2, 3]
    ids = [split_message_id(receipt.message_id)[0] for receipt in (*receipts, later)]
    assert ids == [original, original, original + 1]


async def test_a_permanent_refusal_whose_answer_was_lost_is_told_by_the_hello(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.before_store = Script({2: errors.BadBatch("no good")})
    tasks = await in_flight(broker, producer, 3)

    await again(broker, producer)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [Receipt, errors.BadBatch, Receipt]
    assert numbers(broker) == [0, 1, 3]


async def test_numbers_go_on_where_the_broker_is(broker: FakeBroker, producer: Producer) -> None:
    broker.producers[producer.producer_id].last = 40  # as if another incarnation had gone on
    broker.producers[producer.producer_id].answers.update({n: ops.SendResult(0) for n in range(2, 41)})
    broker.drop_all()
    await until(lambda: len(broker.hellos) == 2)

    await send_each(producer, range(1, 4))

    assert numbers(broker) == [0, 1, 2, 3]
    assert sequences(broker) == [1, 41, 42, 43]


async def test_a_number_that_another_took_is_told_and_those_behind_are_numbered_anew(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.before_store = Script({1: errors.SequenceConflict("taken")})

    outcomes = await send_each(producer, range(1, 4))

    assert [type(outcome) for outcome in outcomes] == [errors.SequenceConflict, Receipt, Receipt]
    assert numbers(broker) == [0, 2, 3]
    await until(lambda: len(broker.hellos) == 2)


@pytest.mark.parametrize("one_way", [False, True])
async def test_what_the_broker_has_forgotten_is_unknown_and_not_sent_again(
    broker: FakeBroker, producer: Producer, one_way: bool
) -> None:
    if one_way:
        broker.holding = True
        producer.send_nowait(message(1), key="k")
        await until(lambda: len(broker.arrived) == 2)
        tasks = []
    else:
        tasks = await in_flight(broker, producer, 1)
    broker.held.clear()
    broker.producers.clear()

    await again(broker, producer)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await producer.send(message(2), key="k")

    assert all(isinstance(outcome, errors.OutcomeUnknown) for outcome in outcomes)
    assert "does not know any more whether messages for 'orders' were stored" in "".join(map(str, outcomes)) or one_way
    assert producer.failed_one_way == one_way
    assert numbers(broker) == [0, 1, 2], "1 was stored once, before it was forgotten"


async def test_a_new_producer_of_whom_nothing_was_stored_sends_again(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        broker.create(TOPIC)
        broker.holding = True
        sending = asyncio.create_task(producer.send(message(0), queue_id=0))
        await asyncio.sleep(0.1)
        broker.holding = False
        broker.release()  # the route
        broker.before_store = Script({1: DropAfter()})
        await until(lambda: len(broker.stored) == 1)
        broker.producers.clear()  # the crash took it back
        broker.queues.clear()

        await sending

    assert numbers(broker) == [0]


async def test_below_what_the_broker_still_knows_outcomes_are_unknown(broker: FakeBroker, producer: Producer) -> None:
    tasks = await in_flight(broker, producer, 4)
    resume = broker.resume

    def only_the_last(hello: ProducerHello) -> ProducerResumed:
        told = resume(hello)
        return told._replace(first=told.next_sequence - 1, outcomes=told.outcomes[-1:])

    broker.resume = only_the_last  # type: ignore[method-assign]
    await again(broker, producer)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [errors.OutcomeUnknown] * 3 + [Receipt]
    assert broker.duplicates == 0


async def test_a_reply_that_tells_too_little_makes_the_rest_unknown(broker: FakeBroker, producer: Producer) -> None:
    tasks = await in_flight(broker, producer, 2)
    resume = broker.resume
    broker.resume = lambda hello: resume(hello)._replace(outcomes=[])  # type: ignore[method-assign]

    await again(broker, producer)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [errors.OutcomeUnknown] * 2


# Whatever two things come one after the other


async def test_the_time_runs_out_between_the_loss_and_the_hello(broker: FakeBroker, producer: Producer) -> None:
    tasks = await in_flight(broker, producer, 4)
    lose(broker, producer, 3)  # the first two are stored
    await broker.crash()

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    broker.holding = False
    await broker.start()
    await send_each(producer, range(10, 13))

    assert [type(outcome) for outcome in outcomes] == [errors.OutcomeUnknown] * 4
    assert numbers(broker) == [0, 1, 2, 10, 11, 12], "what was given up and not stored is not sent any more"
    assert sequences(broker) == list(range(1, len(broker.stored) + 1))


@pytest.mark.parametrize("given_up", [2, 5, 7])
async def test_one_is_given_up_between_the_loss_and_the_hello(
    broker: FakeBroker, producer: Producer, given_up: int
) -> None:
    tasks = await in_flight(broker, producer, 8)
    lose(broker, producer, 5)
    await broker.crash()
    await asyncio.sleep(0.1)
    tasks[given_up - 1].cancel()
    await asyncio.wait([tasks[given_up - 1]])

    broker.holding = False
    await broker.start()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await send_each(producer, range(9, 12))

    assert [type(outcome) for outcome in outcomes].count(Receipt) == 7
    gone = {given_up} if given_up > 4 else set()
    assert numbers(broker) == [number for number in range(12) if number not in gone]


async def test_one_is_given_up_after_the_hello_while_the_rest_is_under_way(
    broker: FakeBroker, producer: Producer
) -> None:
    tasks = await in_flight(broker, producer, 8)
    lose(broker, producer, 5)
    broker.drop_all()  # the hello is answered, sends are not
    await until(lambda: broker.producers[producer.producer_id].last > 5)
    tasks[6].cancel()
    await asyncio.wait([tasks[6]])

    broker.release()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes].count(Receipt) == 7
    assert numbers(broker) == list(range(9)), "it was under way already"


async def test_the_connection_is_lost_again_right_behind_each_hello(broker: FakeBroker, producer: Producer) -> None:
    tasks = await in_flight(broker, producer, 6)
    lose(broker, producer, 3)
    for greeted in range(2, 6):
        broker.drop_all()
        await until(lambda greeted=greeted: len(broker.hellos) == greeted)  # type: ignore[misc]

    await again(broker, producer)
    await asyncio.gather(*tasks)

    assert numbers(broker) == list(range(7))


async def test_the_hello_is_sent_and_the_connection_lost_before_its_reply(
    broker: FakeBroker, producer: Producer
) -> None:
    tasks = await in_flight(broker, producer, 4)
    resume, lost = broker.resume, 0

    def lose_twice(hello: ProducerHello) -> ProducerResumed:
        nonlocal lost
        lost += 1
        if lost < 3:
            broker.drop_all()
        return resume(hello)

    broker.resume = lose_twice  # type: ignore[method-assign]
    await again(broker, producer)
    receipts = await asyncio.gather(*tasks)

    assert [receipt.queue_offset for receipt in receipts] == [1, 2, 3, 4]
    assert (numbers(broker), broker.duplicates, lost) == ([0, 1, 2, 3, 4], 0, 3)


async def test_an_answer_that_comes_in_the_turn_of_the_time_out_wins_or_loses_but_tells_once(
    broker: FakeBroker, producer: Producer
) -> None:
    loop = asyncio.get_running_loop()
    for late in (-0.001, 0.0, 0.001):
        broker.holding = True
        sending = asyncio.create_task(producer.send(message(1), key="k"))
        await asyncio.sleep(0)
        (pending,) = producer._deadlines._sends
        pending.deadline = loop.time() + 1.0
        producer._deadlines._expire()
        loop.call_at(pending.deadline + late, broker.release)
        (outcome,) = await asyncio.gather(sending, return_exceptions=True)

        assert isinstance(outcome, Receipt if late < 0 else errors.OutcomeUnknown)
        await until(lambda: not producer._sender._window.span)


# A defect of the broker


async def test_a_defect_that_stays_fails_its_callers_and_the_line_goes_on(
    broker: FakeBroker, producer: Producer
) -> None:
    def poisoned(header: object) -> None:
        if getattr(header, "tag_bloom", 0):
            raise errors.Internal("id 7")

    broker.before_store = poisoned
    sends = [asyncio.create_task(producer.send(message(1), queue_id=0))]
    await asyncio.sleep(0)
    sends.append(asyncio.create_task(producer.send(Message(TOPIC, b"000002", tag="bad"), queue_id=0)))
    for number in (3, 4, 5):
        await asyncio.sleep(0)
        sends.append(asyncio.create_task(producer.send(message(number), queue_id=0)))
    outcomes = await asyncio.gather(*sends, return_exceptions=True)

    assert isinstance(outcomes[1], errors.Internal)
    assert len(broker.hellos) == 2, "the hello made certain that it was not stored"
    assert broker.bodies(TOPIC, 0) == [
        message(n).body for n, made in enumerate(outcomes, 1) if isinstance(made, Receipt)
    ]
    assert isinstance(outcomes[0], Receipt) and isinstance(outcomes[-1], Receipt)


async def test_a_batch_that_was_stored_in_spite_of_the_defect_is_answered(
    broker: FakeBroker, producer: Producer
) -> None:
    broker.frame_refusals = [errors.Internal("id 7")] * 5
    sending = asyncio.create_task(producer.send(message(1), key="k"))
    await until(lambda: len(broker.frame_refusals) < 5)
    broker.store(1, b"".join(producer._sender._window.unresolved()[0].data))

    receipt = await sending

    assert receipt.queue_offset == len(broker.queues[TOPIC, 1]) - 1
    assert len(broker.hellos) == 2


# Fencing


async def test_a_fenced_producer_tells_all_its_callers_and_ends(broker: FakeBroker, producer: Producer) -> None:
    def fenced(_header: object) -> None:
        raise errors.ProducerFenced("epoch 0 was replaced by 1")

    broker.before_store = fenced
    producer.send_nowait(message(9), key="k")
    outcomes = await send_each(producer, range(1, 5))

    assert [type(outcome) for outcome in outcomes] == [errors.ProducerFenced] * 4
    with pytest.raises(errors.ProducerFenced, match="replaced by 1"):
        await producer.send(message(5), key="k")
    await producer.flush()
    await asyncio.sleep(30)
    assert len(broker.hellos) == 1, "it does not come again"
    assert producer.failed_one_way == 1
    assert numbers(broker) == [0]


async def test_a_producer_that_is_fenced_while_it_is_away_is_told_by_the_hello(
    broker: FakeBroker, producer: Producer
) -> None:
    sent = await in_flight(broker, producer, 2)
    broker.refuse_hello = errors.ProducerFenced("epoch 0 was replaced by 1")
    await again(broker, producer)
    waiting = asyncio.create_task(producer.send(message(3), key="k"))
    outcomes = await asyncio.gather(*sent, waiting, return_exceptions=True)

    kinds = [errors.OutcomeUnknown, errors.OutcomeUnknown, errors.ProducerFenced]
    assert [type(outcome) for outcome in outcomes] == kinds
    assert all("replaced by 1" in str(outcome) for outcome in outcomes)
    await asyncio.sleep(30)
    assert len(broker.hellos) == 2


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"producer_id": 0}, "producer_id must be a number of 63 bits above 0, not 0"),
        ({"producer_id": 1 << 63}, "producer_id"),
        ({"producer_id": "billing"}, "producer_id"),
        ({"producer_id": 1.5}, "producer_id"),
        ({"producer_epoch": "1"}, "producer_epoch"),
        ({"producer_epoch": -1}, "producer_epoch must be a number of 16 bits, not -1"),
        ({"producer_epoch": 1 << 16}, "producer_epoch"),
    ],
)
async def test_numbers_that_no_batch_can_hold_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ConfigError, match=text):
        Producer("127.0.0.1:1", **settings)


async def test_the_id_and_epoch_that_were_given_stand_in_hello_and_batches(broker: FakeBroker) -> None:
    async with Producer(broker.address, producer_id=77, producer_epoch=3) as producer:
        await producer.send(message(0), key="k")

    assert broker.hellos[0].producer == (77, 3, 1)
    assert (broker.stored[0].producer_id, broker.stored[0].producer_epoch) == (77, 3)
