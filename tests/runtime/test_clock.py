"""The clocks."""

from __future__ import annotations

from datetime import UTC, datetime

from rmq.runtime import clock


def test_boottime_does_not_go_back() -> None:
    assert clock.boottime() <= clock.boottime()


def test_wall_time_is_in_microseconds_since_1970() -> None:
    assert abs(clock.wall_us() / 1e6 - datetime.now(UTC).timestamp()) < 5
