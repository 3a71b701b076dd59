"""A loop that was blocked is reported, one that was only busy is not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rmq.consumer.stall_watch import watch_for_stalls

from support.virtual_time import VirtualTimeLoop

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest.mark.parametrize(("blocked_s", "told"), [(3.0, 1), (0.4, 0)])
async def test_a_blocked_loop_is_reported_once(blocked_s: float, told: int, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    watching = asyncio.ensure_future(watch_for_stalls())
    await asyncio.sleep(10.5)

    with caplog.at_level(logging.WARNING):
        loop.now += 0.5 + blocked_s  # what a listener that blocks does to every timer
        await asyncio.sleep(10)
    watching.cancel()

    assert [record.getMessage().split()[0] for record in caplog.records] == ["loop.stalled"] * told
