"""A loop that was blocked is told of once, its recovery once; one that was only busy is not told of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.consumer.dispatch.stall_watch import EVERY_S, LOOK_AGAIN_S, LoopLag, StallWatch

from ..fake_broker import FakeBroker
from ..recorder import now
from support.virtual_time import VirtualTimeLoop

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

EPS = 1e-6


# The rule


@pytest.mark.parametrize(("late_s", "stalled"), [(5 - EPS, False), (5.0, False), (5 + EPS, True)])
def test_dispatch_stops_when_the_next_tick_is_late_by_more_than_the_limit(late_s: float, stalled: bool) -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)

    assert lag.stalled(EVERY_S + late_s) is stalled
    assert lag.lag_s(EVERY_S + late_s) == pytest.approx(late_s)


@pytest.mark.parametrize(("late_s", "stalled"), [(5 - EPS, False), (5.0, False), (5 + EPS, True)])
def test_dispatch_goes_on_with_the_first_punctual_tick_after_a_late_one(late_s: float, stalled: bool) -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)
    at = EVERY_S + late_s

    assert lag.tick(at) == LOOK_AGAIN_S
    assert lag.stalled(at) is stalled
    assert lag.stalled(at + LOOK_AGAIN_S) is stalled  # nothing was measured since

    lag.tick(at + LOOK_AGAIN_S)
    assert not lag.stalled(at + LOOK_AGAIN_S)


def test_nothing_is_late_before_anybody_ticks() -> None:
    assert LoopLag(5.0).lag_s(1000.0) == 0.0


@pytest.mark.parametrize(("late_s", "told"), [(0.5 - EPS, False), (0.5, False), (0.5 + EPS, True)])
def test_a_tick_that_is_half_a_second_late_is_not_worth_a_word(late_s: float, told: bool) -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)

    lag.tick(EVERY_S + late_s)

    assert (lag.stall is not None) is told


def test_a_stall_ends_with_a_punctual_tick_after_a_whole_second() -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)
    lag.tick(4.0)
    lag.tick(4.0 + LOOK_AGAIN_S)
    assert lag.stall is not None
    lag.tick(5.0 + LOOK_AGAIN_S + 2.0)  # again: the same stall

    assert lag.stall == pytest.approx((1.0, 3.0))
    at = 5.0 + LOOK_AGAIN_S + 2.0 + LOOK_AGAIN_S
    lag.tick(at)
    lag.tick(at + EVERY_S)
    assert lag.stall is None


# The task


@pytest_asyncio.fixture
async def watch() -> AsyncIterator[StallWatch]:
    watch = StallWatch(5.0, now=now)
    ticking = asyncio.ensure_future(watch.run())
    yield watch
    ticking.cancel()
    await asyncio.wait([ticking])


def block(seconds: float) -> None:
    """What a listener that blocks does to every timer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.now += seconds


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split()[0] for record in caplog.records]


@pytest.mark.parametrize(
    ("blocked_s", "events"), [(3.5, ["loop.stalled", "loop.recovered"]), (0.9, [])], ids=["blocked", "busy"]
)
async def test_a_blocked_loop_is_told_of_once_and_its_recovery_once(
    watch: StallWatch, blocked_s: float, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.sleep(10.5)

    with caplog.at_level(logging.WARNING):
        block(blocked_s)
        await asyncio.sleep(10)

    assert told(caplog) == events


async def test_a_listener_that_blocks_again_and_again_is_one_stall(
    watch: StallWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            await asyncio.sleep(0.3)
            block(6.0)
        await asyncio.sleep(3)

    assert told(caplog) == ["loop.stalled", "loop.recovered"]
    assert "longest_s=5.3" in caplog.text


async def test_the_lag_grows_while_nothing_runs_and_is_gone_soon_after(watch: StallWatch) -> None:
    await asyncio.sleep(0.5)
    assert (watch.lag_s, watch.stalled(now())) == (0.0, False)

    block(6.0)  # 5.5 s beyond the tick, which had no chance yet
    assert watch.lag_s == pytest.approx(5.5)
    assert watch.stalled(now())

    await asyncio.sleep(LOOK_AGAIN_S + EPS)
    assert watch.lag_s == pytest.approx(0.0, abs=1e-3)
    assert not watch.stalled(now())


# Dispatch


@pytest.mark.parametrize(("blocks_s", "next_at"), [(5.5 - 0.01, 5.99), (5.5 + 0.01, 6.01 + LOOK_AGAIN_S)])
async def test_no_batch_starts_while_the_loop_is_late_by_more_than_the_limit(
    broker: FakeBroker, make: Callable[..., Consumer], blocks_s: float, next_at: float
) -> None:
    """A call at 0.5 s blocks; the tick of 1 s is late by that less 0.5 s, so the limit of 5 s is just kept or not."""
    broker.create("t", 2)
    calls: list[tuple[float, int]] = []

    async def listener(messages: Any, context: ConsumeContext) -> ConsumeStatus:
        calls.append((round(now(), 2), context.queue.queue_id))
        if len(calls) == 1:
            block(blocks_s)
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}, max_continuous_s=3600.0):
        await asyncio.sleep(0.5)
        broker.send("t", 0, b"a", b"b")
        await asyncio.sleep(blocks_s + 2)

    (first, second) = calls
    assert first == (0.5, 0)
    assert second[0] == pytest.approx(next_at, abs=0.03)  # whoever found the loop late comes back every 10 ms
