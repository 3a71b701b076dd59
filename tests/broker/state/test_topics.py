"""Topics are made once, keep their shape, and never share a generation."""

from __future__ import annotations

import pytest

from rmq.broker.state.topics import Topic, TopicTable
from rmq.broker.store.changes import TopicMade
from rmq.wire.errors import BadName, BadRequest, QueueNotFound, TopicExists, TopicNotFound


@pytest.fixture
def table() -> TopicTable:
    return TopicTable()


def test_a_new_topic_has_as_many_shards_as_queues(table: TopicTable) -> None:
    topic, made = table.create("orders", 4, created_at=17)

    assert made
    assert topic == Topic("orders", generation=1, queues=4, shards=4, created_at=17)
    assert table.get("orders") is table.require("orders") is topic


def test_making_it_again_with_the_same_shape_is_no_error_and_changes_nothing(table: TopicTable) -> None:
    first, _ = table.create("orders", 4, created_at=17)

    again, made = table.create("orders", 4, created_at=99)

    assert (again, made) == (first, False)


def test_making_it_again_with_another_shape_is_refused_with_both_numbers(table: TopicTable) -> None:
    table.create("orders", 4, created_at=0)

    with pytest.raises(TopicExists, match="'orders' exists with 4 queues, not 8"):
        table.create("orders", 8, created_at=0)


@pytest.mark.parametrize("queues", [1, 1024])
def test_a_topic_may_have_1_to_1024_queues(table: TopicTable, queues: int) -> None:
    assert table.create("orders", queues, created_at=0)[0].queues == queues


@pytest.mark.parametrize("queues", [-1, 0, 1025])
def test_no_topic_has_more_or_fewer(table: TopicTable, queues: int) -> None:
    with pytest.raises(BadRequest, match=f"1 to 1024 queues, not {queues}"):
        table.create("orders", queues, created_at=0)

    assert table.all() == []


@pytest.mark.parametrize("name", ["", "a b", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "x" * 128])
def test_illegal_names_are_refused(table: TopicTable, name: str) -> None:
    with pytest.raises(BadName):
        table.create(name, 4, created_at=0)


def test_a_missing_topic_is_refused_with_the_command_that_makes_it(table: TopicTable) -> None:
    assert table.get("orders") is None
    with pytest.raises(TopicNotFound, match=r"no topic 'orders'.*`rmq-admin topic create orders`"):
        table.require("orders")
    with pytest.raises(TopicNotFound):
        table.require_queue("orders", 0)


@pytest.mark.parametrize(("queue_id", "there"), [(-1, False), (0, True), (3, True), (4, False)])
def test_queues_are_numbered_from_0_and_a_missing_one_is_refused_with_the_range(
    table: TopicTable, queue_id: int, there: bool
) -> None:
    topic, _ = table.create("orders", 4, created_at=0)

    if there:
        assert table.require_queue("orders", queue_id) is topic
    else:
        with pytest.raises(QueueNotFound, match=f"'orders' has the queues 0 to 3, not {queue_id}"):
            table.require_queue("orders", queue_id)


def test_all_topics_come_by_name(table: TopicTable) -> None:
    for name in ("b", "c", "a"):
        table.create(name, 1, created_at=0)

    assert [topic.name for topic in table.all()] == ["a", "b", "c"]


def test_the_log_brings_topics_back_and_their_generations_stay_used(table: TopicTable) -> None:
    topic, _ = table.create("orders", 4, created_at=17)
    again = TopicTable()

    again.apply(TopicMade("payments", 9, 2, 2, 5))
    again.apply(topic.made())

    assert again.get("orders") == topic
    assert again.create("new", 1, created_at=0)[0].generation == 10


def test_repeating_a_change_does_nothing_and_a_dead_generation_does_not_come_back(table: TopicTable) -> None:
    young = TopicMade("orders", 5, 8, 8, 50)

    for change in (young, young, TopicMade("orders", 2, 4, 4, 20)):
        table.apply(change)

    assert [topic.made() for topic in table.all()] == [young]
