"""Due times depend on the clock alone; bodies carry a time, have their size, and differ."""

from __future__ import annotations

import pytest

from rmq.bench.workers.schedule import LEAST, SECOND, WARM_UP, DueTimes, StampedBodies, stamp_of

MS = SECOND // 1000


@pytest.mark.parametrize(
    ("now", "owed"),
    [(-MS, 0), (-1, 0), (0, 1), (1, 1), (10 * MS - 1, 1), (10 * MS, 2), (25 * MS, 3), (SECOND, 5), (100 * SECOND, 5)],
)
def test_exactly_what_is_due_is_owed(now: int, owed: int) -> None:
    assert DueTimes(7 * SECOND, 100, 5).owed(7 * SECOND + now) == owed


@pytest.mark.parametrize("per_second", [20, 100, 20_000, 30_000, 7, 0.3])
def test_a_message_is_owed_from_the_moment_that_it_is_due(per_second: float) -> None:
    schedule = DueTimes(123_456_789, per_second, 1000)

    for number in (0, 1, 2, 3, 500, 998, 999):
        assert schedule.owed(schedule.due(number)) == number + 1
        assert schedule.owed(schedule.due(number) - 1) == number


def test_a_late_sender_owes_what_became_due_meanwhile() -> None:
    schedule = DueTimes(0, 20_000, 1000)

    assert schedule.owed(5 * MS) - schedule.owed(2 * MS) == 60
    assert [schedule.due(number) for number in (41, 42)] == [2_050_000, 2_100_000]


@pytest.mark.parametrize(
    ("sent", "now", "wait_s"), [(0, 0, 0.0), (1, 0, 0.01), (1, 4 * MS, 0.006), (1, 30 * MS, 0.0), (5, 0, 0.0)]
)
def test_waiting_ends_when_the_next_message_is_due(sent: int, now: int, wait_s: float) -> None:
    assert DueTimes(0, 100, 5).wait_s(sent, now) == pytest.approx(wait_s)


@pytest.mark.parametrize(("asked", "got"), [(100, 100), (1024, 1024), (8, 8), (0, LEAST)])
def test_a_body_has_its_size_and_its_time(asked: int, got: int) -> None:
    body = StampedBodies(asked).stamped(1_234_567_890_123)

    assert (len(body), stamp_of(body)) == (got, 1_234_567_890_123)


def test_bodies_with_the_same_time_differ() -> None:
    bodies = StampedBodies(100)

    assert len({bodies.stamped(WARM_UP) for _ in range(1000)}) == 1000
