from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rigs.disk.faults import Fails, Fault, FaultyFiles, FillsUp, WritesOnly
from rigs.disk.recording import RecordingFiles, Wrote


def test_the_nth_operation_fails_and_does_nothing(tmp_path: Path) -> None:
    files = FaultyFiles([Fault("write", 2, Fails(errno.EIO))])
    fd = files.open(tmp_path / "f", create=True)

    files.write(fd, [b"one"], 0)
    with pytest.raises(OSError) as caught:
        files.write(fd, [b"two"], 3)
    files.write(fd, [b"3"], 3)

    assert caught.value.errno == errno.EIO
    assert files.read_file(tmp_path / "f") == b"one3"
    files.close(fd)


def test_only_paths_that_match_are_counted(tmp_path: Path) -> None:
    fault = Fault("sync", 1, Fails(errno.EIO), path="*/log/*")
    files = FaultyFiles([fault])
    files.make_directory(tmp_path / "log")
    other = files.open(tmp_path / "f", create=True)
    log = files.open(tmp_path / "log" / "f", create=True)

    files.sync(other)
    with pytest.raises(OSError):
        files.sync(log)

    assert files.fired == [fault]
    files.close(other)
    files.close(log)


def test_a_short_write_says_how_short(tmp_path: Path) -> None:
    files = FaultyFiles([Fault("write", 1, WritesOnly(4))])
    fd = files.open(tmp_path / "f", create=True)

    assert files.write(fd, [b"abc", b"def"], 0) == 4
    files.write_all(fd, b"ef", 4)

    assert files.read_file(tmp_path / "f") == b"abcdef"
    files.close(fd)


def test_a_full_disk_takes_what_fits_then_nothing_until_it_is_repaired(tmp_path: Path) -> None:
    files = FaultyFiles([Fault("write", 2, FillsUp(5))])
    fd = files.open(tmp_path / "f", create=True)
    files.write(fd, [b"before"], 0)

    assert files.write(fd, [b"0123"], 6) == 4
    assert files.write(fd, [b"4567"], 10) == 1
    for _ in range(3):
        with pytest.raises(OSError) as caught:
            files.write(fd, [b"567"], 11)
        assert caught.value.errno == errno.ENOSPC
    files.repair()
    files.write(fd, [b"567"], 11)

    assert files.read_file(tmp_path / "f") == b"before01234567"
    files.close(fd)


def test_a_fault_may_strike_several_times(tmp_path: Path) -> None:
    files = FaultyFiles([Fault("sync_directory", 2, Fails(errno.EIO), times=2)])
    outcomes = []
    for _ in range(5):
        try:
            files.sync_directory(tmp_path)
            outcomes.append("done")
        except OSError:
            outcomes.append("failed")

    assert outcomes == ["done", "failed", "failed", "done", "done"]


def test_a_fault_added_later_counts_from_then(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.make_directory(tmp_path / "a")
    files.add(Fault("make_directory", 1, Fails(errno.ENOSPC)))

    with pytest.raises(OSError):
        files.make_directory(tmp_path / "b")

    assert not (tmp_path / "b").exists()


def test_faults_print_as_what_makes_them() -> None:
    fault = Fault("write", 3, Fails(errno.ENOSPC), path="*/commitlog/*")

    assert eval(repr(fault)) == fault
    assert "errno.ENOSPC" in repr(FaultyFiles([fault]))


def test_what_a_faulty_disk_did_can_be_recorded(tmp_path: Path) -> None:
    recording = RecordingFiles(tmp_path)
    files = FaultyFiles([Fault("write", 1, WritesOnly(2))], inner=recording)
    fd = files.open(tmp_path / "f", create=True)
    files.write(fd, [b"abc"], 0)
    files.close(fd)

    assert [step.operation for step in recording.recording.steps][-1] == Wrote(1, 0, b"ab")


def test_reading_fails_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    files = FaultyFiles([Fault("read", 1, Fails(errno.EIO))])
    fd = files.open_to_read(tmp_path / "f")

    with pytest.raises(OSError):
        files.read(fd, 7, 0)

    assert files.read(fd, 7, 0) == b"content"
    files.close(fd)
