"""Retention by age beside a wall clock that is set: a clock that is never set says what is certainly old."""

from __future__ import annotations

from pathlib import Path

from rmq.broker.jobs.maintenance import RETENTION_S

from .test_maintenance import SCHEDULE, Rig, fill, shorten

HOUR_S = 3600.0
DAY_US = 24 * 3_600_000_000


def test_what_the_broker_saw_for_as_long_as_the_log_is_kept_goes_whatever_the_wall_clock_shows(
    memory_path: Path,
) -> None:
    rig = Rig(memory_path, SCHEDULE._replace(retention_s=100 * HOUR_S), segment_bytes=300)
    rig.wall.us += DAY_US
    fill(rig, 3)
    rig.wall.us -= DAY_US
    shorten(rig)
    newest = rig.store.log.segments[-1].start

    rig.pass_time(100 * HOUR_S - RETENTION_S)
    shorten(rig)
    assert rig.store.log.start == 0, "it is a moment too young"
    shorten(rig)

    assert rig.store.log.start == newest
    rig.opened.store.abandon()
