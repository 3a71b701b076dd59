"""Restarts with a long log, and the room for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.bench.loads import recovery
from rmq.bench.loads.recovery import NAME, LongLog, measure
from rmq.bench.options import Load, Options

from rigs.bench import Steps


@pytest.mark.parametrize(
    ("options", "gb", "reason"),
    [
        (Options(broker="127.0.0.1:1"), 10.0, "one that runs was given"),
        (Options(), 1e6, "GB of disk space are needed"),
    ],
)
def test_a_restart_that_cannot_be_measured_is_not_shown(options: Options, gb: float, reason: str) -> None:
    report = measure(Load(), options, Steps(), gb=gb)

    assert report.figures == []
    assert [verdict.key for verdict in report.verdicts] == ["P9.clean", "P9.killed"]
    assert all(verdict.met is None and reason in verdict.why_not for verdict in report.verdicts)


def test_a_log_that_is_long_enough_already_needs_no_room(tmp_path: Path) -> None:
    segment = tmp_path / NAME / "commitlog" / "0"
    segment.parent.mkdir(parents=True)
    with segment.open("wb") as file:
        file.truncate(10**12)  # nothing of it is on the disk

    assert LongLog(tmp_path / NAME, "async", Load()).no_room(1000) == ""


@pytest.mark.slow
def test_both_kinds_of_restart_are_measured_on_a_log_that_is_made_once(tmp_path: Path) -> None:
    steps = Steps()

    report = measure(Load(batch=50), Options(rounds=1, quick=True), steps, gb=0.01, folder=tmp_path)

    assert [figure.key for figure in report.figures] == [
        "recovery.clean", "recovery.killed", "recovery.cold", "recovery.stop",
    ]  # fmt: skip
    assert all(figure.middle > 0 for figure in report.figures)
    assert [verdict.met for verdict in report.verdicts] == [None, None]
    assert len(steps.taken) == steps.expected
    assert (tmp_path / NAME / "commitlog").is_dir()


def test_a_log_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    assert recovery.no_room(tmp_path, 1e6).startswith("1200002.1 GB of disk space are needed")
    assert recovery.no_room(None, 1e6) != ""


def test_the_length_of_a_log_is_that_of_its_segments(tmp_path: Path) -> None:
    assert recovery.log_bytes(tmp_path) == 0

    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "0").write_bytes(bytes(10))
    (tmp_path / "commitlog" / "1").write_bytes(bytes(5))

    assert recovery.log_bytes(tmp_path) == 15
