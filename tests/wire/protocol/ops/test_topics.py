"""What a description of a topic says without being asked twice."""

from __future__ import annotations

import pytest

from rmq.wire.protocol.ops.topics import GroupState, QueueState, TopicDescription

ORDERS = TopicDescription(
    "orders", 3, 2, 17, 0,
    [QueueState(0, "rmq", 5, 9), QueueState(1, "rmq", 0, 0), QueueState(2, "rmq", 0, 7)],
    [GroupState("billing", 1, [6, -1, 7])],
)  # fmt: skip


def test_the_messages_of_a_topic_are_those_that_can_be_read() -> None:
    assert ORDERS.messages == 4 + 0 + 7


@pytest.mark.parametrize(
    ("committed", "lag"), [(9, 0), (7, 2), (5, 4), (-1, 4), (2, 4)], ids=["end", "within", "first", "none", "overtaken"]
)
def test_a_group_lags_by_what_it_can_still_read(committed: int, lag: int) -> None:
    assert ORDERS.queues[0].lag(committed) == lag


def test_lags_come_queue_by_queue() -> None:
    assert ORDERS.lags(ORDERS.groups[0]) == [3, 0, 0]
