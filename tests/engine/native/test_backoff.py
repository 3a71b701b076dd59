"""The back-off: fast at first, never a second, never half the grace."""

from __future__ import annotations

import pytest

from rmq.engine.native import connection


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999999])
@pytest.mark.parametrize("attempt", [0, 1, 2, 5, 100, 10**6])
def test_a_pause_lies_in_the_upper_half_of_its_step(attempt: int, chance: float) -> None:
    step = min(0.8, 0.05 * 2 ** min(attempt, 10))

    assert step / 2 <= connection.pause(attempt, longest_s=connection.cap(5.0), chance=chance) <= step


def test_the_first_retries_are_fast() -> None:
    assert sum(connection.pause(i, longest_s=connection.cap(None), chance=1.0) for i in range(4)) <= 0.75


@pytest.mark.parametrize("grace_s", [0.1, 1.0, 5.0, 60.0])
def test_no_pause_reaches_half_the_grace_or_a_second(grace_s: float) -> None:
    longest = connection.pause(50, longest_s=connection.cap(grace_s), chance=1.0)

    assert longest < grace_s / 2
    assert longest < 1.0
