"""The choice of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rmq.client.producer.pending import Parcel
from rmq.client.producer.routing import ROUND_ROBIN, Choice, TopicRoute, choice, choose
from rmq.wire.batch.hashing import ShardingKey
from rmq.wire.batch.texts import pack_bodies
from rmq.wire.errors import QueueNotFound
from rmq.wire.model import Message, MessageQueue
from rmq.wire.protocol.ops.core import QueueInfo, TopicInfo

INFO = TopicInfo("orders", 1, 4, [QueueInfo(i, "b") for i in range(4)])
GROWN = TopicInfo("orders", 1, 4, [QueueInfo(i, "b") for i in range(9)])
MESSAGE = Message("orders", b"x")


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("o-17", 3351620),
        ("", 0),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("é😀", 1996812),
        (b"hello", 99162322),
        ("order-1", -1207111310),
        (17, 17),
        (-6, -6),
    ],
)
def test_a_sharding_key_maps_as_in_java(key: ShardingKey, java_hash: int) -> None:
    """RocketMQ's SelectMessageQueueByHash: the absolute value of the hash, modulo the number of queues."""
    assert choose(INFO, Choice(sharding_key=key), MESSAGE, 0) == abs(java_hash) % 4


def test_growing_a_topic_moves_no_key() -> None:
    keys = [f"k{i}" for i in range(100)]

    assert [choose(GROWN, Choice(sharding_key=key), MESSAGE, 0) for key in keys] == [
        choose(INFO, Choice(sharding_key=key), MESSAGE, 0) for key in keys
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
    with pytest.raises(TypeError, match="str, bytes or int, not float"):
        choice(1.5, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "text"), [("k", "k"), (b"k", "k"), (17, "17"), (None, None)])
def test_the_key_is_kept_with_the_message_as_text(key: ShardingKey | None, text: str | None) -> None:
    assert Choice(sharding_key=key).ordering_key() == text


# ---- the route of a topic


def parcel(wanted: Choice = ROUND_ROBIN, count: int = 1) -> Parcel:
    return Parcel("orders", pack_bodies([b"x"] * count), None, choice=wanted, ordering_key=None, born_at=0)


def route_of(info: TopicInfo | None) -> TopicRoute:
    route = TopicRoute("orders")
    route._turn = 0
    route.info = info
    return route


def placed(route: TopicRoute, wanted: Choice = ROUND_ROBIN, count: int = 1) -> int | None:
    each = parcel(wanted, count)
    outbox = route.place(each)
    if outbox is None:
        return None
    assert outbox.parcels[-1] is each
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


@pytest.mark.parametrize("wanted", [Choice(queue_id=3), Choice(sharding_key="polygenelubricants")])
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
    assert (len(old.parcels), route._outboxes[0].generation) == (1, 2)


def test_a_topic_that_grew_is_gone_round_as_it_is_now() -> None:
    route = route_of(INFO)
    route._turn = 4
    assert placed(route) == 0

    route.info = GROWN
    assert placed(route) == 4
