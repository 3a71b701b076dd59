"""Whether there is room for a long log, and how long one is."""

from __future__ import annotations

from pathlib import Path

from rmq.bench.loads import recovery


def test_more_than_the_disk_has_is_not_tried(tmp_path: Path) -> None:
    assert recovery.no_room(tmp_path, 1e6).startswith("1200002.1 GB of disk space are needed")
    assert recovery.no_room(None, 1e6) != ""


def test_the_length_of_a_log_is_that_of_its_segments(tmp_path: Path) -> None:
    assert recovery.log_bytes(tmp_path) == 0

    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "0").write_bytes(bytes(10))
    (tmp_path / "commitlog" / "1").write_bytes(bytes(5))

    assert recovery.log_bytes(tmp_path) == 15
