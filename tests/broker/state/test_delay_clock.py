"""The time by which delayed messages are delivered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.deferred import RATE, SMALL_STEP_US, DelayClock

from support.batches import quick

NOON = 1_700_000_000_000_000
SECOND = 1_000_000


def test_it_is_the_wall_clock() -> None:
    clock = DelayClock()

    assert clock.read(NOON, 5.0) == NOON
    assert clock.read(NOON + 3, 5.1) == NOON + 3


def test_it_follows_a_wall_clock_that_is_set_forward() -> None:
    clock = DelayClock()
    clock.read(NOON, 5.0)

    assert clock.read(NOON + 3600 * SECOND, 5.5) == NOON + 3600 * SECOND


def test_the_old_time_goes_on_when_the_wall_clock_is_set_back() -> None:
    clock = DelayClock()
    clock.read(NOON, 5.0)
    back = NOON - 3600 * SECOND

    assert clock.read(back, 5.0) == NOON
    assert clock.read(back + 1 * SECOND, 6.0) == NOON + RATE
    assert clock.read(back + 10 * SECOND, 15.0) == NOON + 10 * RATE
    assert clock.read(NOON + 11 * SECOND, 15.5) == NOON + 11 * SECOND  # and back again


def test_many_reads_lose_nothing_of_the_time_that_goes_on() -> None:
    clock = DelayClock()
    clock.read(NOON, 0.0)

    for i in range(1, 10_001):
        told = clock.read(NOON - 3600 * SECOND, i / 10_000 * 1.00003)

    assert abs(told - NOON - 1.00003 * RATE) <= 1


@pytest.mark.parametrize("step_s", [0.06, 1.0, 2.0])
def test_a_step_back_is_made_up_for_in_the_end(step_s: float) -> None:
    """Times that people name would be early for as long as the broker runs else."""
    clock, back, shown = DelayClock(), round(step_s * SECOND), NOON
    clock.read(NOON, 0.0)
    for tenths in range(round(step_s * 5000) + 2):
        passed, wall = tenths * 100_000, NOON - back + tenths * 100_000
        told = clock.read(wall, tenths / 10)
        assert max(shown, wall) <= told <= shown + 100_000
        assert passed - (told - NOON) <= passed // 500 + SMALL_STEP_US + 100_000  # the last for the time between reads
        shown = told
    assert told == wall


def test_a_small_step_back_is_waited_for() -> None:
    """Steps of a time server would add up else, and everything would come early."""
    clock = DelayClock()
    clock.read(NOON, 5.0)

    assert clock.read(NOON - SMALL_STEP_US, 5.02) == NOON
    assert clock.read(NOON - SMALL_STEP_US + 20_000, 5.04) == NOON
    assert clock.read(NOON + 1, 5.06) == NOON + 1
    assert clock.read(NOON - SMALL_STEP_US, 5.06) == NOON + 1  # 1 us more than a small step
    assert clock.read(NOON - SMALL_STEP_US, 5.07) == NOON + 1 + RATE // 100


@quick
@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 100)), max_size=20))
def test_it_never_falls(steps: list[tuple[int, float]]) -> None:
    clock, last, steady = DelayClock(), 0, 0.0
    for wall, passed in steps:
        steady += passed
        told = clock.read(wall, steady)
        assert told >= max(last, wall)
        last = told
