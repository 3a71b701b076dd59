from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.store.files import Files
from rmq.broker.store.index_faults import IndexFaults, put_aside
from rmq.broker.store.key_index import Entry, Gap, Hit, KeyIndex, Wanted

from rigs.disk.faulty import FaultyFiles

HASH = (7).to_bytes(4, "little")
ANY = Wanted(7, 0, 1 << 62, 1 << 62)


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS])
def test_what_is_not_the_fault_of_a_file_is_raised_and_neither_logged_nor_counted(
    number: int, logs: list[dict[str, Any]]
) -> None:
    faults = IndexFaults()

    for note in (faults.read_failed, faults.write_failed):
        with pytest.raises(OSError, match=os.strerror(number)):
            note("f", error_of(number))

    assert (faults.failed_reads, faults.failed_writes, logs) == (0, 0, [])


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ESPIPE])
def test_each_file_is_logged_once_and_every_failed_read_and_write_is_counted(
    number: int, logs: list[dict[str, Any]]
) -> None:
    faults = IndexFaults()

    for _ in range(3):
        for path in ("a", "b"):
            faults.read_failed(path, error_of(number))
            faults.write_failed(path, error_of(number))

    assert (faults.failed_reads, faults.failed_writes) == (6, 6)
    told = [(entry["event"], entry["file"], entry["error"]) for entry in logs]
    assert sorted(told) == [
        (f"index.{what}", file, os.strerror(number)) for what in ("unreadable", "unwritable") for file in "ab"
    ]


def test_a_file_that_is_missing_is_no_fault(logs: list[dict[str, Any]]) -> None:
    faults = IndexFaults()

    faults.read_failed("a", error_of(errno.ENOENT))

    assert (faults.failed_reads, faults.is_known("a"), logs) == (0, False, [])


def test_a_file_or_a_directory_is_put_aside_and_kept(memory_path: Path) -> None:
    for name in ("file", "directory"):
        path = memory_path / name
        path.mkdir() if name == "directory" else path.write_text("x")

        put_aside(Files(), path)

        assert not path.exists()
        assert (memory_path / f"{name}.unreadable").exists()


def test_a_key_index_that_was_put_aside_goes_with_its_segment(memory_path: Path) -> None:
    files = FaultyFiles()
    index = KeyIndex(files, memory_path)
    for segment in (0, 100, 200):
        index.extend(segment, [Entry(segment, 1, HASH)], segment, segment + 100)
        index.flush()
    files.fail("open", str(memory_path), times=2)
    again = KeyIndex(files, memory_path)
    again.recover([0, 100, 200], 50, anew=False)
    again.extend(0, [Entry(50, 1, HASH)], 50, 100)
    again.flush()
    names = [f"{segment:020d}" for segment in (0, 100, 200)]
    assert files.names(memory_path) == [names[0], f"{names[0]}.unreadable", f"{names[1]}.unreadable", names[2]]

    again.drop(0)

    assert files.names(memory_path) == [f"{names[1]}.unreadable", names[2]]


@pytest.mark.parametrize("op", ["open", "truncate"])
def test_a_key_index_that_can_be_neither_cut_nor_moved_is_not_believed_when_it_can_be_read_again(
    memory_path: Path, op: str
) -> None:
    """It speaks of a tail that the log may have lost: a search would miss what took its place."""
    files = FaultyFiles()
    index = KeyIndex(files, memory_path)
    index.extend(0, [Entry(0, 1, HASH)], 0, 100)
    index.flush()
    files.fail(op, str(memory_path))
    files.fail("rename", str(memory_path))

    again = KeyIndex(files, memory_path)
    again.recover([0], 50, anew=False)
    files.heal()
    assert list(again.search(ANY, [(0, 200)])) == [Gap(0, 50)]

    again.extend(0, [Entry(150, 1, HASH)], 50, 200)
    again.flush()  # the file can be moved now
    assert list(again.search(ANY, [(0, 200)])) == [Hit(150), Gap(0, 50)]
    assert list(KeyIndex(files, memory_path).listed(0)) == [Gap(0, 50), (150, HASH)]


def test_a_block_that_its_file_does_not_take_is_a_gap_and_the_next_one_is_written(memory_path: Path) -> None:
    files = FaultyFiles()
    index = KeyIndex(files, memory_path)
    files.fail("write", str(memory_path), errno.EIO, times=1, after=10)

    index.extend(0, [Entry(0, 1, HASH)], 0, 100)
    index.flush()
    index.extend(0, [Entry(100, 1, HASH)], 100, 200)
    index.flush()

    assert list(index.search(ANY, [(0, 200)])) == [Hit(100), Gap(0, 100)]


def test_a_gap_is_logged_once_however_often_it_is_searched(memory_path: Path, logs: list[dict[str, Any]]) -> None:
    index = KeyIndex(Files(), memory_path)
    index.extend(0, [], 100, 200)

    for _ in range(3):
        assert list(index.search(ANY, [(0, 200)])) == [Gap(0, 100)]

    assert [entry["event"] for entry in logs] == ["key_index.gap"]
    assert index.damaged == 3
