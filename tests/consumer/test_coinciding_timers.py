"""Timers that end at the same moment: whichever the loop runs first, the outcome is one and the same."""

from __future__ import annotations

import asyncio

import pytest

from rmq.wire.errors import RequestTimeout
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import QUEUE, Make, Recorder, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

EPS = 1e-6


@pytest.mark.parametrize("takes_s", [60.0, 30.0, 20.0, 15.0, 12.0])
async def test_at_60_s_a_call_its_window_its_lease_and_its_renewal_end_together(
    broker: FakeBroker, make: Make, takes_s: float
) -> None:
    """
    The beat of 45 s gets no answer, so that of 30 s has to do until 60 s: where the next is due, the call ends and the
    window is exactly over.

    The timer of a long call was set before that of the beat, that of a short one behind it: both orders are driven.
    Exactly 60 s is not more than 60 s, and exactly at its end a lease is still believed in: the turn goes on.
    """
    broker.create("t", bodies=[b"x"] * 20)
    listener = Recorder(takes_s=takes_s)

    async with make(listener, topics={"t": "*"}, relock_first_s=15.0, relock_every_s=15.0):
        await asyncio.sleep(31)
        broker.refuse[Op.RENEW] = [RequestTimeout("x")]
        await asyncio.sleep(94)

    until_60 = [takes_s * i for i in range(round(60 / takes_s) + 1)]
    assert listener.times[: len(until_60)] == until_60
    assert listener.times[len(until_60)] == pytest.approx(60 + takes_s + 0.01)  # now the window is over
    assert broker.times(Op.RENEW)[:8] == [15.0 * beat for beat in range(1, 9)], "a renewal was asked for out of turn"
    assert len(broker.sent(Op.ACQUIRE)) == 1


@pytest.mark.parametrize(("late_s", "second"), [(-EPS, 60.0), (0.0, 60.0), (EPS, 60.01)])
async def test_a_moment_before_or_behind_60_s_only_the_window_decides(
    broker: FakeBroker, make: Make, late_s: float, second: float
) -> None:
    broker.create("t", bodies=[b"x"] * 3)
    listener = Recorder(takes_s=60.0 + late_s)

    async with make(listener, topics={"t": "*"}, relock_first_s=15.0, relock_every_s=15.0):
        await asyncio.sleep(31)
        broker.refuse[Op.RENEW] = [RequestTimeout("x")]
        await asyncio.sleep(39)

    assert listener.times[1] == pytest.approx(second + late_s, abs=2 * EPS)
    assert broker.times(Op.RENEW)[:5] == [15.0, 30.0, 45.0, 60.0, 70.0]  # the last announces the stop


@pytest.mark.parametrize("begins", [1.0 - EPS, 1.0, 1.0 + EPS])
async def test_a_renewal_of_61_s_beside_the_end_of_a_window_that_began_at_1_s(
    broker: FakeBroker, make: Make, begins: float
) -> None:
    """At the rate of 1, 21, 41 and 61 s: a turn from 1 s on has its window exactly until the fourth beat."""
    broker.create("t")
    listener = Recorder(takes_s=20.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(begins)
        broker.send("t", 0, *[b"x"] * 9)
        await asyncio.sleep(90)

    # Calls of 20 s end at 21, 41 and 61 s: with the beats. The window is looked at then, and is not over before 81 s.
    assert listener.times[:4] == pytest.approx([begins, begins + 20, begins + 40, begins + 60], abs=2 * EPS)
    assert listener.times[4] == pytest.approx(begins + 80.01, abs=2 * EPS)
    assert broker.times(Op.RENEW)[:5] == [1.0, 21.0, 41.0, 61.0, 81.0]
    assert broker.offsets["g", QUEUE] >= 4


async def test_a_renewal_a_heartbeat_and_a_pass_of_the_same_moment_are_each_made_once(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")

    await run_for(60.5, make(topics={"t": "*"}, relock_first_s=20.0))

    # Passes are every 20 s as well; with nothing to do they ask for nothing.
    assert broker.times(Op.RENEW) == [20.0, 40.0, 60.0]
    assert broker.times(Op.JOIN) == [0.0, 0.0, 30.0, 60.0]
    assert len(broker.sent(Op.ACQUIRE)) == 1
