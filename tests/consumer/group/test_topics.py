"""What is known of topics: the newest word counts, and a dead generation never comes back."""

from __future__ import annotations

from rmq.consumer.group.topics import KnownTopics
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import QueueInfo, TopicInfo


def info(generation: int, queues: int = 2) -> TopicInfo:
    return TopicInfo("t", generation, queues, [QueueInfo(i, "b") for i in range(queues)])


def joined(*infos: TopicInfo) -> KnownTopics:
    topics = KnownTopics()
    topics.joining()
    topics.joined(["t"], list(infos))
    return topics


def new_ids(topics: KnownTopics) -> list[int]:
    return [queue.queue_id for queue in topics.queues("t") if topics.is_new(queue)]


def test_the_queues_a_topic_had_when_it_was_subscribed_to_are_old_and_all_others_new() -> None:
    topics = joined(info(1))
    assert new_ids(topics) == []

    topics.changed(info(1, 4))
    assert new_ids(topics) == [2, 3]

    topics.joining()
    topics.joined(["t"], [info(1, 4)])
    assert new_ids(topics) == [2, 3]


def test_a_topic_that_was_not_there_is_new_as_a_whole() -> None:
    topics = joined()
    assert (topics.generation("t"), topics.queues("t")) == (None, [])

    topics.changed(info(5))

    assert topics.generation("t") == 5
    assert new_ids(topics) == [0, 1]


def test_a_topic_that_was_deleted_and_made_again_is_new_as_a_whole() -> None:
    topics = joined(info(1))

    assert topics.deleted("t", 1)
    assert topics.generation("t") is None
    topics.changed(info(2))

    assert topics.generation("t") == 2
    assert new_ids(topics) == [0, 1]


def test_a_higher_generation_alone_says_that_the_topic_was_made_again() -> None:
    topics = joined(info(1))

    topics.joining()
    topics.joined(["t"], [info(2)])

    assert topics.generation("t") == 2
    assert new_ids(topics) == [0, 1]


def test_news_of_an_older_topic_or_of_fewer_queues_change_nothing() -> None:
    topics = joined(info(2, 4))

    topics.changed(info(1, 8))
    topics.changed(info(2, 3))
    assert not topics.deleted("t", 1)

    assert topics.generation("t") == 2
    assert topics.queues("t") == [MessageQueue("t", i) for i in range(4)]


def test_a_dead_generation_does_not_come_back_with_an_answer_that_was_held_up() -> None:
    topics = joined(info(1))
    topics.joining()

    assert topics.deleted("t", 1)
    topics.joined(["t"], [info(1)])

    assert topics.generation("t") is None


def test_an_answer_without_the_topic_ends_it_unless_it_was_made_since_it_was_asked_for() -> None:
    topics = joined(info(1))

    topics.joining()
    topics.joined(["t"], [])
    assert topics.generation("t") is None

    topics.joining()
    topics.changed(info(2))
    topics.joined(["t"], [])
    assert topics.generation("t") == 2

    topics.joining()
    topics.joined(["other"], [])
    assert topics.generation("t") == 2


def test_a_topic_that_was_missed_may_turn_out_to_be_there() -> None:
    topics = joined(info(1))

    assert not topics.missing("t", 0)
    assert topics.missing("t", 1)
    assert not topics.missing("t", 1)
    topics.joining()
    topics.joined(["t"], [info(1)])

    assert topics.generation("t") == 1


def test_places_tell_the_brokers_of_queues() -> None:
    topics = joined(info(1, 2))

    assert topics.places("t") == [(0, "b"), (1, "b")]
    assert topics.places("unheard-of") == []
