"""Queues that are nobody's: always believed in, until their stay ends."""

from __future__ import annotations

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Generation, Lease
from rmq.consumer.group.leases import Unleased
from rmq.wire.model import MessageQueue


def taken() -> tuple[Unleased, Generation, list[Generation]]:
    begun: list[Generation] = []
    unleased = Unleased(begun.append)
    generation = Generation(
        Lease(MessageQueue("t", 0), 0, 17.0), ProcessQueue(0), on_lost=lambda *_: None, topic_generation=1
    )
    unleased.added(generation)
    return unleased, generation, begun


async def test_a_queue_is_believed_in_however_long_nothing_is_heard() -> None:
    unleased, generation, begun = taken()

    assert unleased.believed(generation)
    assert unleased.believed_until(generation) == float("inf")
    assert not generation.lost
    assert begun == [generation]


async def test_renewing_asks_nobody_and_changes_nothing() -> None:
    unleased, generation, _ = taken()

    await unleased.renew_one(generation)
    await unleased.renew_these([generation])
    unleased.connected()
    unleased.proven(generation)

    assert unleased.believed(generation)


async def test_a_stay_that_ended_is_not_believed_in_any_more() -> None:
    unleased, generation, _ = taken()

    generation.lose("the topic was deleted")
    unleased.proven(generation)

    assert not unleased.believed(generation)
    assert unleased.believed_until(generation) == float("-inf")
    assert generation.lost
