"""What is lost together is told together."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Generation, Lease
from rmq.consumer.group.leases import GATHER_S, MOST_NAMED, LossLog, listed
from rmq.wire.model import MessageQueue

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

EPS = 0.001


def lost(queue_id: int, losses: LossLog, reason: str = "FENCED") -> None:
    Generation(Lease(MessageQueue("t", queue_id), 7 + queue_id, 0.0), ProcessQueue(0), on_lost=losses.add).lose(reason)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "lease.lost" in record.getMessage()]


async def test_queues_lost_at_once_are_one_line_with_all_of_them(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    for queue_id in range(3):
        lost(queue_id, losses)
    await asyncio.sleep(GATHER_S + EPS)

    assert lines(caplog) == ["lease.lost queues=t/0,t/1,t/2 epochs=7,8,9 count=3 reason=FENCED"]


async def test_what_is_lost_later_than_the_gathering_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    lost(0, losses)
    await asyncio.sleep(GATHER_S - EPS)
    assert lines(caplog) == []
    lost(1, losses)
    await asyncio.sleep(2 * EPS)
    lost(2, losses)
    await asyncio.sleep(GATHER_S + EPS)

    assert [line.split()[1] for line in lines(caplog)] == ["queues=t/0,t/1", "queues=t/2"]


async def test_the_reason_is_that_of_the_first(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    lost(0, losses, "first")
    lost(1, losses, "second")
    await asyncio.sleep(GATHER_S + EPS)

    assert [line.split()[-1] for line in lines(caplog)] == ["reason=first"]


async def test_a_stop_tells_at_once_and_nothing_is_told_twice(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    lost(0, losses)
    losses.tell()
    assert len(lines(caplog)) == 1

    losses.tell()
    await asyncio.sleep(GATHER_S + EPS)
    assert len(lines(caplog)) == 1


def test_of_thousands_the_first_are_named() -> None:
    assert listed([]) == ""
    assert listed(range(MOST_NAMED)).endswith(",98,99")
    assert listed(range(MOST_NAMED + 1)).endswith(",98,99,...")
