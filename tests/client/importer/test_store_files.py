"""The files of a store: their row, who holds the lock, and that they are only read."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rmq.client.importer.store_files import (
    BadStore,
    RocketMQLog,
    StoreInUse,
    StoreMissing,
    StoreUnreadable,
    faults,
    holder,
    numbered_files,
)
from rmq.client.importer.survey import RocketMQStore

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
print("held", flush=True)
sys.stdin.read()
"""


def log_of(folder: Path, files: dict[int, bytes]) -> RocketMQLog:
    for start, data in files.items():
        (folder / f"{start:020}").write_bytes(data)
    return RocketMQLog(folder)


def test_files_are_one_address_room(tmp_path: Path) -> None:
    log = log_of(tmp_path, {100: b"a" * 50, 150: b"b" * 50})

    assert (log.start, log.end, log.room) == (100, 200, 50)
    assert [log.file_at(at) and log.file_at(at).start for at in (99, 100, 149, 150, 199, 200)] == [  # type: ignore[union-attr]
        None, 100, 100, 150, 150, None,
    ]  # fmt: skip
    first, second = log.files
    assert log.read(first, 148, 10) == b"aa"
    assert log.read(second, 150, 3) == b"bbb"
    assert log.read(first, 100, 1) == b"a"


def test_the_last_byte_that_was_written_is_found(tmp_path: Path) -> None:
    log = log_of(tmp_path, {0: b"a" * 10 + b"\0" * 5 + b"b" + b"\0" * 84})

    assert log.last_written(log.files[0], 10) == 16
    assert log.last_written(log.files[0], 16) == 16


def test_nothing_is_a_log_too(tmp_path: Path) -> None:
    log = RocketMQLog(tmp_path)

    assert (log.start, log.end, log.files) == (0, 0, [])


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({0: 50, 50: 50, 100: 50}, []),
        ({0: 50, 50: 49, 100: 50}, ["has 49 bytes, and the others have 50"]),
        ({0: 50, 50: 51, 100: 50}, ["has 51 bytes, and the others have 50"]),
        ({0: 50, 100: 50}, ["lies behind a gap: the file before it ends at 50"]),
        ({0: 50, 40: 50}, ["overlaps: the file before it ends at 50"]),
    ],
)
def test_a_row_of_files_with_a_fault(tmp_path: Path, files: dict[int, int], text: list[str]) -> None:
    log = log_of(tmp_path, {start: bytes(size) for start, size in files.items()})

    assert [found for _, found in faults(log.files)] == text


def test_a_file_that_does_not_belong_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.tmp").touch()

    with pytest.raises(BadStore, match="does not belong there: names have 20 digits"):
        numbered_files(tmp_path)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="give the root folder of a store"):
        RocketMQLog(tmp_path / "commitlog")
    with pytest.raises(StoreUnreadable, match="cannot be read"):
        numbered_files(tmp_path / "commitlog")


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    log = log_of(tmp_path, {0: b"a" * 50})
    (tmp_path / f"{0:020}").unlink()

    with pytest.raises(StoreUnreadable, match="cannot be read: No such file"):
        log.read(log.files[0], 0, 10)


def test_a_lock_that_nobody_holds_or_that_is_not_there(tmp_path: Path) -> None:
    assert holder(tmp_path) == 0
    (tmp_path / "lock").write_bytes(b"lock")
    (tmp_path / "lock").chmod(0o444)
    assert holder(tmp_path) == 0
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_lock_that_cannot_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("lock")

    assert holder(tmp_path) is None


def test_the_process_that_holds_the_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"lock")
    command = [sys.executable, "-S", "-c", HOLD, os.fspath(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"

        assert holder(tmp_path) == broker.pid

        broker.communicate()
    assert holder(tmp_path) == 0


def test_a_lock_of_a_process_that_is_not_seen_from_here_is_held_too(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_bytes(b"lock")
    with lock.open("r+b") as held:
        # A lock of an open file belongs to no process; one of another container is told in the same way.
        fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("hhlli", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))

        assert holder(tmp_path) == -1
        with pytest.raises(StoreInUse, match="is running \\(in a container or on another machine\\)"):
            RocketMQStore(tmp_path)
