from __future__ import annotations

from pathlib import Path

from rmq.broker.jobs.maintenance import DiskWatch

MIB = 1 << 20


def test_sends_are_refused_below_the_limit_and_come_again_by_themselves() -> None:
    watch = DiskWatch(Path(), 256 * MIB)

    watch.judge(256 * MIB - 1)
    assert watch.refusal == "the disk has 255 MiB free, 256 MiB are needed: free some space"

    watch.judge(256 * MIB)
    assert (watch.refusal, watch.free_bytes) == (None, 256 * MIB)


def test_room_is_scarce_below_half_of_the_limit() -> None:
    watch = DiskWatch(Path(), 256 * MIB)

    watch.judge(128 * MIB)
    assert not watch.is_scarce
    watch.judge(128 * MIB - 1)
    assert watch.is_scarce
    watch.judge(256 * MIB)
    assert not watch.is_scarce


def test_it_asks_the_file_system_of_its_folder(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 0)

    watch.look()

    assert watch.free_bytes > 0
    assert watch.refusal is None


def test_a_burst_is_looked_at_after_a_quarter_of_the_reserve_not_after_a_second(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 256 * MIB)
    watch.look(1000 * MIB)

    assert not watch.is_due(1064 * MIB)
    assert watch.is_due(1064 * MIB + 1)

    watch.look(1064 * MIB + 1)
    assert not watch.is_due(1064 * MIB + 1)


def test_without_a_reserve_not_every_write_is_followed_by_a_look(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 0)

    assert not watch.is_due(MIB)
    assert watch.is_due(MIB + 1)
