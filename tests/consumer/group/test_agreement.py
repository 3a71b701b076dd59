"""What was done while the broker was away is said when a queue is given up, if the broker still has the messages."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.group.assignment import Generation
from rmq.consumer.group.progress import AGREEING, agree
from rmq.wire.errors import Fenced, LogTruncated, OffsetOutOfRange
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, PullQueue, PullResult

QUEUE = MessageQueue("t", 0)


class Cache:
    """Progress up to 5, behind a message that was stored under log epoch 3."""

    commit_offset = 5

    class log_epochs:
        """As far as it is asked."""

        @staticmethod
        def before(queue_offset: int) -> int:
            return 3 if queue_offset == 5 else 0


class Lease:
    """Held, until it is lost."""

    lost = False


class Given:
    """A queue that is being given up."""

    queue, epoch = QUEUE, 7

    def __init__(self, agreed: int) -> None:
        self.cache, self.lease, self.agreed = Cache(), Lease(), agreed
        self.why_lost = ""

    def agrees(self, log_epoch: int) -> bool:
        return Generation.agrees(self, log_epoch)  # type: ignore[arg-type]

    def lose(self, why: str) -> None:
        self.why_lost = why


class Broker:
    """Started under log epoch 4; answers with a status, or raises."""

    log_epoch = 4

    def __init__(self, answer: int | Exception | None) -> None:
        self._answer = answer
        self.asked: list[PullQueue] = []

    async def pull(self, queue: PullQueue, **_: Any) -> PullResult | None:
        self.asked.append(queue)
        if isinstance(self._answer, Exception):
            raise self._answer
        return None if self._answer is None else PullResult(0, self._answer, 5, 0, 5, b"")


async def asked(given: Given, broker: Broker) -> Given:
    await agree(given, broker, timeout_s=1.0)  # type: ignore[arg-type]
    return given


async def test_a_broker_that_is_known_to_agree_is_not_asked() -> None:
    broker = Broker(0)

    assert (await asked(Given(4), broker)).agreed == 4
    assert broker.asked == []


@pytest.mark.parametrize("status", AGREEING)
async def test_a_broker_that_started_anew_is_asked_for_what_follows_our_progress(status: int) -> None:
    broker = Broker(status)

    assert (await asked(Given(3), broker)).agreed == 4
    assert broker.asked == [PullQueue("t", 0, 5, 7, NO_OFFSET, 3)]


@pytest.mark.parametrize("answer", [LogTruncated.code, OffsetOutOfRange.code, None])
async def test_one_that_does_not_have_it_or_does_not_say_is_told_nothing(answer: int | None) -> None:
    assert (await asked(Given(3), Broker(answer))).agreed == 3


async def test_a_queue_that_turns_out_to_be_another_s_is_lost() -> None:
    given = await asked(Given(3), Broker(Fenced("another has it")))

    assert given.why_lost == "another has it"
    assert given.agreed == 3


async def test_nothing_is_asked_under_a_lease_that_is_lost_or_without_progress() -> None:
    lost, fresh, broker = Given(3), Given(3), Broker(0)
    lost.lease.lost = True
    fresh.cache.commit_offset = NO_OFFSET

    await asked(lost, broker)
    await asked(fresh, broker)

    assert broker.asked == []
