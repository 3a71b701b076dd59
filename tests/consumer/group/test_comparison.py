"""Drop, keep, add: what is held compared with what should be, and queues that nobody pulls."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Gap, Generation, Lease, Stopped
from rmq.consumer.group.rebalancer import compare, is_pull_expired
from rmq.wire.errors import MessagesLost
from rmq.wire.model import MessageQueue

QUEUES = [MessageQueue("t", i) for i in range(4)]


def held(queue: MessageQueue, **marks: Any) -> Generation:
    generation = Generation(Lease(queue, 1, 0.0), ProcessQueue(0), on_lost=lambda generation, reason: None)
    generation.pulled_at = 0.0
    for name, value in marks.items():
        setattr(generation, name, value)
    return generation


def test_what_is_not_ours_leaves_what_is_stays_and_what_we_lack_is_missing() -> None:
    generations = {queue: held(queue) for queue in QUEUES[:2]}

    result = compare(generations, {QUEUES[1], QUEUES[3], QUEUES[2]}, now=1.0, pull_expiry_s=120.0)

    assert result == ([generations[QUEUES[0]]], [], [QUEUES[2], QUEUES[3]])


def test_what_was_dropped_before_is_neither_dropped_again_nor_missing_until_it_is_gone() -> None:
    generations = {QUEUES[0]: held(QUEUES[0], dropped=True), QUEUES[1]: held(QUEUES[1], dropped=True)}

    assert compare(generations, {QUEUES[0]}, now=500.0, pull_expiry_s=120.0) == ([], [], [])


@pytest.mark.parametrize(("now", "expired"), [(119.999, False), (120.0, False), (120.001, True)])
def test_a_queue_expires_when_it_was_not_pulled_for_longer_than_120_s(now: float, expired: bool) -> None:
    """RocketMQ's PULL_MAX_IDLE_TIME, which is strict."""
    assert is_pull_expired(held(QUEUES[0]), now=now, pull_expiry_s=120.0) is expired


def test_an_expired_queue_that_is_not_ours_leaves_and_is_not_taken_anew() -> None:
    generations = {QUEUES[0]: held(QUEUES[0]), QUEUES[1]: held(QUEUES[1])}

    result = compare(generations, {QUEUES[1]}, now=121.0, pull_expiry_s=120.0)

    assert (result.leaving, result.expired) == ([generations[QUEUES[0]]], [generations[QUEUES[1]]])


@pytest.mark.parametrize(
    "marks",
    [
        {"paused": True},
        {"crash_loop": "a message ended 5 processes"},
        {"stopped": Stopped(Gap(MessagesLost.code, 0, 1))},
        {"pulled_at": float("-inf")},
    ],
)
def test_a_queue_that_stands_still_for_a_known_reason_never_expires(marks: dict[str, Any]) -> None:
    assert not is_pull_expired(held(QUEUES[0], **marks), now=1000.0, pull_expiry_s=120.0)
