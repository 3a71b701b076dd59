"""Routes: retried while they may come, failed when they cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.client import Producer
from rmq.client.producer.routing import REFRESH_S
from rmq.wire import errors
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..producing import TOPIC, message, numbers, until

pytestmark = pytest.mark.virtual_time


def routes(broker: FakeBroker) -> list[list[Any]]:
    """The questions for a route so far."""
    return [payload for _, op, payload in broker.requests if op == Op.ROUTE]


async def test_a_temporary_refusal_of_a_route_is_asked_again(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.StoreFailed("not now"), errors.DiskFull("nor now")]

    async with Producer(broker.address) as producer:
        await producer.send(message(1))

    assert numbers(broker) == [1]


async def test_a_permanent_refusal_of_a_route_fails_all_who_wait_for_it(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.BadName("what a name")]

    async with Producer(broker.address) as producer:
        outcomes = await asyncio.gather(*(producer.send(message(i)) for i in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.BadName] * 3
        await producer.send(message(4))

    assert numbers(broker) == [4]


async def test_a_route_is_asked_for_again_after_a_lost_connection(broker: FakeBroker) -> None:
    broker.holding = True
    async with Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await until(lambda: bool(broker.requests))
        broker.drop_all()
        broker.release()
        await sending

    assert numbers(broker) == [1]


async def test_nobody_asks_for_those_who_gave_up(broker: FakeBroker) -> None:
    broker.holding = True
    async with Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await until(lambda: bool(broker.requests))
        sending.cancel()
        broker.held.clear()
        broker.drop_all()
        broker.release()
        await asyncio.sleep(20)
        assert not producer._router._tasks
        assert broker.topics.keys() == {"orders"}, "it was asked once"
        await producer.send(message(2))

    assert numbers(broker) == [2]


# ---- topics that change while they are sent to


async def test_a_producer_learns_of_new_queues_within_30_s_and_keys_stay_where_they_are(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        kept = {key: (await producer.send(message(0), sharding_key=key)).queue_id for key in ("a", "b", "c", "d", "e")}
        assert {(await producer.send(message(0))).queue_id for _ in range(8)} == {0, 1, 2, 3}

        broker.topics[TOPIC] = broker.topics[TOPIC]._replace(queues=[ops.QueueInfo(i, "fake") for i in range(6)])
        await asyncio.sleep(REFRESH_S + 1)
        await producer.send(message(0))
        await asyncio.sleep(1)

        assert {(await producer.send(message(0))).queue_id for _ in range(12)} == {0, 1, 2, 3, 4, 5}
        assert {key: (await producer.send(message(0), sharding_key=key)).queue_id for key in kept} == kept


async def test_a_route_is_asked_for_again_at_most_every_30_s_and_only_in_use(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        for _ in range(121):
            await producer.send(message(0))
            await asyncio.sleep(0.5)
        assert len(routes(broker)) == 2, "at first, and once within a minute"
        await asyncio.sleep(1000)
        assert len(routes(broker)) == 2
        await asyncio.gather(*(producer.send(message(0)) for _ in range(5)))
        assert len(routes(broker)) == 3

    assert [create for _, create in routes(broker)] == [True, False, False], "asking again makes no topic"


async def test_a_route_that_cannot_be_asked_for_again_is_used_on(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(1))
        await asyncio.sleep(REFRESH_S + 1)
        broker.route_refusals = [errors.StoreFailed("not now")]

        for number in range(2, 6):
            await producer.send(message(number), sharding_key="k")

    assert broker.route_refusals == []
    assert sorted(numbers(broker)) == [1, 2, 3, 4, 5]


async def test_a_topic_that_is_gone_refuses_what_was_sent_and_the_next_send_makes_it_anew(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(1))
        del broker.topics[TOPIC]

        with pytest.raises(errors.TopicNotFound):
            await producer.send(message(2))
        await producer.send(message(3))

    assert [header.sequence for header in broker.stored] == [1, 3], "the refused one spent its number"


async def test_no_message_goes_to_a_topic_by_the_route_of_another_of_its_name(broker: FakeBroker) -> None:
    broker.create(TOPIC, 8)
    async with Producer(broker.address) as producer:
        await producer.send(message(1), sharding_key=6)
        broker.queues.clear()
        broker.create(TOPIC, 7)

        with pytest.raises(errors.TopicNotFound):
            await producer.send(message(2), sharding_key=7)
        assert (await producer.send(message(3), sharding_key=7)).queue_id == 0

    assert numbers(broker) == [3]


async def test_what_was_placed_by_an_old_route_keeps_its_generation(broker: FakeBroker) -> None:
    """Messages that linger when the topic is made anew are refused, whatever the producer learns in the meantime."""
    async with Producer(broker.address, linger_s=5.0) as producer:
        await producer.send(message(1), queue_id=0)
        lingering = asyncio.create_task(producer.send(message(2), queue_id=0))
        await asyncio.sleep(1)
        broker.queues.clear()
        broker.create(TOPIC)
        producer._router.forget(TOPIC)
        await producer.send(message(3), queue_id=0)

        with pytest.raises(errors.TopicNotFound):
            await lingering

    assert numbers(broker) == [3]


async def test_without_auto_create_a_topic_that_is_gone_stays_away(broker: FakeBroker) -> None:
    broker.create(TOPIC)
    async with Producer(broker.address, auto_create=False) as producer:
        await producer.send(message(1))
        del broker.topics[TOPIC]

        for number in (2, 3):
            with pytest.raises(errors.TopicNotFound):
                await producer.send(message(number))

    assert broker.topics == {}


async def test_asking_again_finds_out_that_a_topic_is_gone(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(1))
        await asyncio.sleep(REFRESH_S + 1)
        broker.route_refusals = [errors.TopicNotFound("gone since the last batch was stored")]
        await producer.send(message(2))
        await until(lambda: not broker.route_refusals)
        await asyncio.sleep(1)

        await producer.send(message(3))

    assert [create for _, create in routes(broker)] == [True, False, True]
