"""Failed messages on their way back to the broker: what is asked for, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.config import ConsumerConfig
from rmq.consumer.dispatch.failures import Fate, SendBacks
from rmq.consumer.fetch.concurrent_queue import ConcurrentQueue
from rmq.consumer.group.assignment import Generation, Lease
from rmq.wire.errors import BadDelay, ConnectionLost, Fenced, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.redelivery import DEAD

from ..fetch.test_process_queue import made

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("t", 0)


class Broker:
    """Answers SEND_BACK with fates, or raises; keeps what was asked for."""

    log_epoch = 7

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    async def send_back(self, *given: Any, **named: Any) -> list[int]:
        self.asked.append((*given, named))
        if isinstance(self.answer, Exception):
            raise self.answer
        fates: list[int] = self.answer
        return fates


def held(*, agreed: int = 7) -> tuple[Generation, list[Any]]:
    """A generation with two messages, the second of which was delivered four times before, both taken."""
    queue = ConcurrentQueue(5)
    queue.put(made(5, 2, attempts=[0, 4]))
    taken = queue.take_chunk(2)
    assert taken is not None
    return Generation(Lease(QUEUE, 3, 0.0), queue, on_lost=lambda *_: None, agreed=agreed), taken[1]


async def give_back(broker: Broker, generation: Generation, messages: list[Any], progress: int = 7) -> Fate:
    backs = SendBacks(ConsumerConfig(max_attempts=9), broker)  # type: ignore[arg-type]
    return await backs.give_back(generation, messages, progress=lambda: progress, delay_level=4, reason="r" * 300)


@pytest.mark.parametrize(("progress", "stored"), [(7, 7), (5, NO_OFFSET)])
async def test_a_request_names_each_message_its_deliveries_and_the_progress_if_that_is_new(
    progress: int, stored: int
) -> None:
    broker, (generation, messages) = Broker([3, DEAD]), held()

    assert await give_back(broker, generation, messages, progress) is Fate.GIVEN_BACK

    assert broker.asked == [
        (QUEUE, 3, [5, 6], [1, 5], {
            "delay_level": 4, "max_attempts": 9, "commit_offset": stored, "reason": "r" * 200,
        })
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (BadDelay("level 99"), Fate.REFUSED),
        (RequestTimeout("late"), Fate.UNKNOWN),
        (ConnectionLost("cut"), Fate.UNKNOWN),
        (Fenced("gone"), Fate.LOST),
    ],
)
async def test_an_error_says_whether_the_messages_are_still_ours(error: Exception, fate: Fate) -> None:
    generation, messages = held()

    assert await give_back(Broker(error), generation, messages) is fate

    assert generation.lease.lost is (fate is Fate.LOST)


async def test_nothing_is_asked_of_a_broker_that_may_have_lost_the_messages() -> None:
    """It may have given their offsets to others, which must not be taken for these."""
    broker, (generation, messages) = Broker([3, 3]), held(agreed=6)

    assert await give_back(broker, generation, messages) is Fate.UNKNOWN
    assert broker.asked == []


async def test_nothing_is_asked_under_a_lease_that_is_lost() -> None:
    broker, (generation, messages) = Broker([3, 3]), held()
    generation.lose("reset")

    assert await give_back(broker, generation, messages) is Fate.LOST
    assert broker.asked == []


async def test_dead_letters_are_told_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.consumer")
    generation, messages = held()

    await give_back(Broker([3, DEAD]), generation, messages)

    assert "message.dead_lettered" in caplog.text
    assert "message.sent_back" in caplog.text
    assert "queue_offset=6" in caplog.text
