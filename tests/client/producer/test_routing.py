"""
The choice of a queue.

Routes: retried while they may come, failed when they cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rmq.client import Producer
from rmq.client.producer.pending import PendingSend
from rmq.client.producer.routing import (
    REFRESH_S,
    ROUND_ROBIN,
    Choice,
    TopicRoute,
    by_int,
    choice,
    choose,
    keyed,
    runs_of,
)
from rmq.wire import errors
from rmq.wire.batch.texts import pack_bodies
from rmq.wire.errors import ConfigError, QueueNotFound
from rmq.wire.model import Message, MessageQueue
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, QueueInfo, TopicInfo

from ..fake_broker import FakeBroker
from ..producing import TOPIC, message, numbers, until

INFO = TopicInfo("orders", 1, 4, [QueueInfo(i, "b") for i in range(4)])
GROWN = TopicInfo("orders", 1, 4, [QueueInfo(i, "b") for i in range(9)])
MESSAGE = Message("orders", b"x")


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("o-17", 3351620),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("é😀", 1996812),
        ("order-1", -1207111310),
    ],
)
def test_a_key_maps_as_in_java(key: str, java_hash: int) -> None:
    """RocketMQ's SelectMessageQueueByHash: the absolute value of the hash, modulo the number of queues."""
    assert choose(INFO, Choice(key=key), MESSAGE, 0) == abs(java_hash) % 4


def test_growing_a_topic_moves_no_key() -> None:
    keys = [f"k{i}" for i in range(100)]

    assert [choose(GROWN, Choice(key=key), MESSAGE, 0) for key in keys] == [
        choose(INFO, Choice(key=key), MESSAGE, 0) for key in keys
    ]


def test_round_robin_visits_every_queue() -> None:
    assert [choose(INFO, Choice(), None, turn) for turn in range(6)] == [0, 1, 2, 3, 0, 1]


def test_an_explicit_queue_must_exist() -> None:
    assert choose(INFO, Choice(queue_id=3), None, 0) == 3
    with pytest.raises(QueueNotFound, match="has no queue 4: it has 0 to 3"):
        choose(INFO, Choice(queue_id=4), None, 0)


def test_a_selector_may_name_a_queue_or_its_number() -> None:
    def by_queue(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        assert (message, len(queues)) == (MESSAGE, 4)
        return queues[arg]

    assert choose(INFO, Choice(selector=by_queue, arg=2), MESSAGE, 0) == 2
    assert choose(INFO, Choice(selector=lambda queues, message, arg: arg, arg=1), MESSAGE, 0) == 1


@pytest.mark.parametrize("chosen", [9, MessageQueue("orders", 9), MessageQueue("other", 1)])
def test_a_selector_must_choose_one_of_the_queues(chosen: int | MessageQueue) -> None:
    with pytest.raises(QueueNotFound):
        choose(INFO, Choice(selector=lambda queues, message, arg: chosen), MESSAGE, 0)


def test_a_queue_is_chosen_in_one_way() -> None:
    with pytest.raises(ValueError, match="give one of"):
        choice("k", 1, None, None)


@pytest.mark.parametrize("key", [1.5, 17, b"k"])
def test_a_key_is_text(key: Any) -> None:
    with pytest.raises(TypeError, match="the key must be a str, got"):
        choice(key, None, None, None)
    with pytest.raises(TypeError, match="the key must be a str, got"):
        Message("orders", b"x", key=key)


def test_a_key_is_not_empty() -> None:
    with pytest.raises(ValueError, match="the key is empty"):
        choice("", None, None, None)
    with pytest.raises(ValueError, match="the key is empty"):
        Message("orders", b"x", key="")


@pytest.mark.parametrize(("arg", "key"), [(17, None), (-6, None), (None, "17"), (None, "-6"), (3, "17"), (0, "a")])
def test_by_int_maps_as_a_java_integer(arg: int | None, key: str | None) -> None:
    number = int(key or "") if arg is None else arg
    wanted = Choice(selector=by_int, arg=arg)
    message = Message("orders", b"x", key=key)

    assert choose(INFO, wanted, message, 0) == abs(number) % 4
    assert choose(GROWN, wanted, message, 0) == abs(number) % 4, "a topic that grew moves no number"


@pytest.mark.parametrize(("arg", "key"), [(None, None), (None, "o-17"), (None, "1_7"), ("17", None), (1.5, "17")])
def test_by_int_needs_a_whole_number(arg: Any, key: str | None) -> None:
    with pytest.raises(ValueError, match="by_int needs a whole number, got"):
        choose(INFO, Choice(selector=by_int, arg=arg), Message("orders", b"x", key=key), 0)


def test_the_key_of_a_message_chooses_unless_the_caller_does() -> None:
    assert keyed(ROUND_ROBIN, "k") == Choice("k")
    for wanted in (Choice("k"), Choice(queue_id=3), Choice(selector=by_int)):
        assert keyed(wanted, "k") is wanted
    with pytest.raises(ConfigError, match="the message has the key 'k' and the call gives key='other'"):
        keyed(Choice("other"), "k")


def test_messages_with_different_keys_are_routed_one_by_one() -> None:
    messages = [Message("orders", b"x", key=key) for key in ("a", "a", None, "b", "a")]

    assert [(wanted, len(run)) for wanted, run in runs_of(ROUND_ROBIN, messages)] == [
        (Choice("a"), 2), (ROUND_ROBIN, 1), (Choice("b"), 1), (Choice("a"), 1),
    ]  # fmt: skip
    assert runs_of(Choice(queue_id=1), messages) == [(Choice(queue_id=1), messages)]
    with pytest.raises(ConfigError, match="the message has the key 'b'"):
        runs_of(Choice("a"), messages)
    with pytest.raises(ValueError, match="by_int needs a whole number, got key='a'"):
        runs_of(Choice(selector=by_int), messages)


# ---- the route of a topic


def pending(wanted: Choice = ROUND_ROBIN, count: int = 1) -> PendingSend:
    return PendingSend("orders", pack_bodies([b"x"] * count), None, choice=wanted, key=None, born_at=0)


def route_of(info: TopicInfo | None) -> TopicRoute:
    route = TopicRoute("orders")
    route._turn = 0
    route.info = info
    return route


def placed(route: TopicRoute, wanted: Choice = ROUND_ROBIN, count: int = 1) -> int | None:
    each = pending(wanted, count)
    outbox = route.place(each)
    if outbox is None:
        return None
    assert outbox.sends[-1] is each
    assert outbox.queue_id == each.queue_id
    return each.queue_id


def test_messages_go_to_the_queue_whose_turn_it_is_until_a_batch_of_it_was_made() -> None:
    route = route_of(INFO)

    assert [placed(route) for _ in range(3)] == [0, 0, 0]
    route.left(route._outboxes[0])
    assert [placed(route) for _ in range(2)] == [1, 1]
    route.left(route._outboxes[0])  # it is not at turn
    assert placed(route) == 1


def test_many_at_once_are_a_batch_of_their_own() -> None:
    route = route_of(INFO)

    assert [placed(route, count=2) for _ in range(5)] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("wanted", [Choice(queue_id=3), Choice(key="polygenelubricants")])
def test_a_message_for_a_certain_queue_goes_there_whosever_turn_it_is_and_takes_no_turn(wanted: Choice) -> None:
    route = route_of(INFO)
    expected = choose(INFO, wanted, None, 0)

    assert [placed(route), placed(route, wanted), placed(route), placed(route, wanted)] == [0, expected, 0, expected]


def test_a_certain_queue_is_not_taken_for_the_one_at_turn() -> None:
    route = route_of(INFO)

    assert [placed(route, Choice(queue_id=3)), placed(route)] == [3, 0]


def test_a_route_that_proved_wrong_places_nothing_until_it_is_told_anew() -> None:
    route = route_of(INFO)
    assert placed(route) == 0

    route.info = None
    assert placed(route) is None
    route.info = INFO
    assert placed(route) == 0


def test_messages_for_a_topic_that_was_made_anew_do_not_join_those_of_the_old_one() -> None:
    route = route_of(INFO)
    placed(route)
    old = route._outboxes[0]

    route.info = INFO._replace(generation=2)
    assert placed(route) == 0
    assert route._outboxes[0] is not old
    assert (len(old.sends), route._outboxes[0].generation) == (1, 2)


def test_a_topic_that_grew_is_gone_round_as_it_is_now() -> None:
    route = route_of(INFO)
    route._turn = 4
    assert placed(route) == 0

    route.info = GROWN
    assert placed(route) == 4


def routes(broker: FakeBroker) -> list[list[Any]]:
    """The questions for a route so far."""
    return [payload for _, op, payload in broker.requests if op == Op.ROUTE]


@pytest.mark.virtual_time
async def test_a_temporary_refusal_of_a_route_is_asked_again(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.StoreFailed("not now"), errors.DiskFull("nor now")]

    async with Producer(broker.address) as producer:
        await producer.send(message(1))

    assert numbers(broker) == [1]


@pytest.mark.virtual_time
async def test_a_permanent_refusal_of_a_route_fails_all_who_wait_for_it(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.BadName("what a name")]

    async with Producer(broker.address) as producer:
        outcomes = await asyncio.gather(*(producer.send(message(i)) for i in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.BadName] * 3
        await producer.send(message(4))

    assert numbers(broker) == [4]


@pytest.mark.virtual_time
async def test_a_route_is_asked_for_again_after_a_lost_connection(broker: FakeBroker) -> None:
    broker.holding = True
    async with Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await until(lambda: bool(broker.requests))
        broker.drop_all()
        broker.release()
        await sending

    assert numbers(broker) == [1]


@pytest.mark.virtual_time
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
@pytest.mark.virtual_time
async def test_a_producer_learns_of_new_queues_within_30_s_and_keys_stay_where_they_are(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        kept = {key: (await producer.send(message(0), key=key)).queue_id for key in ("a", "b", "c", "d", "e")}
        assert {(await producer.send(message(0))).queue_id for _ in range(8)} == {0, 1, 2, 3}

        broker.topics[TOPIC] = broker.topics[TOPIC]._replace(queues=[ops.QueueInfo(i, "fake") for i in range(6)])
        await asyncio.sleep(REFRESH_S + 1)
        await producer.send(message(0))
        await asyncio.sleep(1)

        assert {(await producer.send(message(0))).queue_id for _ in range(12)} == {0, 1, 2, 3, 4, 5}
        assert {key: (await producer.send(message(0), key=key)).queue_id for key in kept} == kept


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_a_route_that_cannot_be_asked_for_again_is_used_on(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(1))
        await asyncio.sleep(REFRESH_S + 1)
        broker.route_refusals = [errors.StoreFailed("not now")]

        for number in range(2, 6):
            await producer.send(message(number), key="k")

    assert broker.route_refusals == []
    assert sorted(numbers(broker)) == [1, 2, 3, 4, 5]


@pytest.mark.virtual_time
async def test_a_topic_that_is_gone_refuses_what_was_sent_and_the_next_send_makes_it_anew(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send(message(1))
        del broker.topics[TOPIC]

        with pytest.raises(errors.TopicNotFound):
            await producer.send(message(2))
        await producer.send(message(3))

    assert [header.sequence for header in broker.stored] == [1, 3], "the refused one spent its number"


@pytest.mark.virtual_time
async def test_no_message_goes_to_a_topic_by_the_route_of_another_of_its_name(broker: FakeBroker) -> None:
    broker.create(TOPIC, 8)
    async with Producer(broker.address) as producer:
        await producer.send(message(1), selector=by_int, arg=6)
        broker.queues.clear()
        broker.create(TOPIC, 7)

        with pytest.raises(errors.TopicNotFound):
            await producer.send(message(2), selector=by_int, arg=7)
        assert (await producer.send(message(3), selector=by_int, arg=7)).queue_id == 0

    assert numbers(broker) == [3]


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_without_auto_create_a_topic_that_is_gone_stays_away(broker: FakeBroker) -> None:
    broker.create(TOPIC)
    async with Producer(broker.address, auto_create=False) as producer:
        await producer.send(message(1))
        del broker.topics[TOPIC]

        for number in (2, 3):
            with pytest.raises(errors.TopicNotFound):
                await producer.send(message(number))

    assert broker.topics == {}


@pytest.mark.virtual_time
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
