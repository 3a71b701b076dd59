from __future__ import annotations

from rmq.runtime import clock


def test_boottime_does_not_go_back() -> None:
    assert clock.boottime() <= clock.boottime()


def test_wall_time_is_in_microseconds() -> None:
    assert 1_700_000_000_000_000 < clock.wall_us() < 1 << 62
