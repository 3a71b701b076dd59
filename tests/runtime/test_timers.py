from __future__ import annotations

import asyncio

import pytest

from rmq.runtime.tasks import Timers

pytestmark = pytest.mark.virtual_time


async def test_an_action_is_called_at_its_pace_until_cancelled() -> None:
    timers, calls = Timers(), list[float]()
    loop = asyncio.get_running_loop()
    timers.every(0.5, lambda: calls.append(loop.time()))

    await asyncio.sleep(1.6)
    timers.cancel()
    await asyncio.sleep(1)

    assert calls == [0.5, 1.0, 1.5]
    assert len(timers) == 0


async def test_a_defect_in_one_pass_does_not_end_a_timer() -> None:
    timers, calls = Timers(), list[int]()

    def action() -> None:
        calls.append(1)
        raise ValueError("a defect")

    timers.every(1.0, action)
    await asyncio.sleep(3.5)
    timers.cancel()

    assert len(calls) == 3


async def test_work_that_ended_is_not_kept() -> None:
    timers = Timers()
    timers.keep(asyncio.sleep(1))
    assert len(timers) == 1

    await asyncio.sleep(2)

    assert len(timers) == 0
