"""The limits of a topic are divided over its queues here; those of the consumer over all."""

from __future__ import annotations

import pytest

from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.flow_control import divided, of_queue
from rmq.wire.model import MessageQueue


def held(**topics: int) -> list[MessageQueue]:
    return [MessageQueue(topic, queue_id) for topic, count in topics.items() for queue_id in range(count)]


@pytest.mark.parametrize(("queues", "each"), [(1, 1024), (2, 512), (3, 341), (2000, 1)])
def test_a_topics_threshold_is_divided_over_its_queues(queues: int, each: int) -> None:
    """RocketMQ's RebalancePushImplTest: 1024 over 2 is 512, over 3 is 341."""
    config = ConsumerConfig(cache_messages=5000, topic_cache_messages=1024, topic_cache_bytes=1024)

    assert of_queue(config, "t", held(t=queues, other=7)) == (each, each)


def test_a_topics_threshold_that_is_off_changes_nothing() -> None:
    config = ConsumerConfig(cache_messages=1000, cache_bytes=1 << 20)

    assert of_queue(config, "t", held(t=2)) == (1000, 1 << 19)
    assert of_queue(config, "t", held(t=2, other=2)) == (1000, 1 << 18)


def test_the_smaller_of_both_limits_counts() -> None:
    config = ConsumerConfig(
        cache_messages=100, topic_cache_messages=1000, cache_bytes=1 << 20, topic_cache_bytes=1 << 30
    )

    assert of_queue(config, "t", held(t=2)) == (100, 1 << 19)


def test_a_share_is_never_nothing() -> None:
    assert divided(3, 4) == 1
    assert divided(3, 0) == 3
