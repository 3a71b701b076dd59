"""A broker whose wall clock was wrong for a while: what retention and deferred messages make of it."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmq.client import Admin, Message, Producer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue

from rigs.wall_clock import WallClock

pytestmark = pytest.mark.virtual_time

DAY_S = 24 * 3600.0
RETENTION_S = 3600.0


def over(path: Path, wall: WallClock) -> InMemoryBroker:
    return InMemoryBroker(
        data_dir=str(path), wall_us=wall, min_free_bytes=0, segment_bytes=4096, checkpoint_s=10.0,
        retention_hours=RETENTION_S / 3600,
    )  # fmt: skip


async def fill(broker: InMemoryBroker, number: int) -> None:
    """Fill a segment with one message, and begin the next."""
    async with Producer(broker.address) as producer:
        await producer.send(Message("orders", b"%d" % number * 5000), queue_id=0)


async def held(broker: InMemoryBroker) -> tuple[int, int]:
    """The offsets that are still there: the first, and the one after the last."""
    async with Admin(broker.address) as admin:
        (found,) = await admin.ranges([MessageQueue("orders", 0)])
    return found.min_offset, found.max_offset


@pytest.mark.parametrize("restarts", [False, True])
async def test_messages_stored_while_the_clock_was_ten_days_ahead_do_not_stop_retention_by_age(
    tmp_path: Path, restarts: bool
) -> None:
    wall = WallClock()
    async with over(tmp_path, wall) as broker:
        for minute in range(6):
            wall.ahead_s = 10 * DAY_S if minute == 2 else 0.0  # for a moment, in which retention does not look
            await fill(broker, minute)
            wall.ahead_s = 0.0
            if restarts and minute == 2:
                await broker.restart()
            await asyncio.sleep(60)

        await asyncio.sleep(RETENTION_S - 6 * 60 - 1)
        assert await held(broker) == (0, 6), "all is younger than an hour"
        if restarts:
            await broker.restart()
        await asyncio.sleep(3 * 60)
        assert (await held(broker))[0] in (2, 3), "the first three are older than an hour; what followed is not"
        await asyncio.sleep(3 * 60)
        assert await held(broker) == (6, 6)


async def test_after_a_start_with_a_clock_that_was_set_back_deferred_messages_wait_for_their_time_and_that_is_logged(
    tmp_path: Path,
) -> None:
    wall = WallClock()
    with capture_logs() as logs:
        async with over(tmp_path, wall) as broker:
            async with Producer(broker.address, wall_us=wall) as producer:
                await producer.send(Message("orders", b"level", delay_level=3), queue_id=0)  # 10 s
                await producer.send(Message("orders", b"exact", delay_s=20), queue_id=0)
            await broker.stop()
            wall.ahead_s = -600.0
            await broker.start()

            await asyncio.sleep(605)
            assert await held(broker) == (0, 0), "none is early"
            await asyncio.sleep(10)
            assert await held(broker) == (0, 1)
            await asyncio.sleep(10)
            assert await held(broker) == (0, 2)

    (reported,) = steps(logs)
    assert (reported["by_s"], reported["waiting_batches"]) == (pytest.approx(600, abs=1), 2)


@pytest.mark.parametrize(("level", "ahead_s"), [(3, 0.0), (0, -600.0)])
async def test_a_start_reports_a_step_only_if_there_was_one_and_a_message_waits(
    tmp_path: Path, level: int, ahead_s: float
) -> None:
    wall = WallClock()
    with capture_logs() as logs:
        async with over(tmp_path, wall) as broker:
            async with Producer(broker.address, wall_us=wall) as producer:
                await producer.send(Message("orders", b"", delay_level=level), queue_id=0)
            wall.ahead_s = ahead_s
            await broker.restart()

    assert steps(logs) == []


def steps(logs: list[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [entry for entry in logs if entry["event"] == "delay.clock_set_back"]
