from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.store.files import Files, IndexFaults, put_aside
from rmq.broker.store.key_index import Hit, IndexGap, KeyEntry, KeyIndex, KeySearch
from rmq.wire.batch.layout import Buffer

from rigs.disk.faulty import FaultyFiles


def test_what_is_written_is_read_at_its_place(tmp_path: Path) -> None:
    files = Files()
    fd = files.open(tmp_path / "x", create=True)

    assert files.write(fd, [b"ab", memoryview(b"cd")], 2) == 4
    assert files.read(fd, 100, 1) == b"\0abcd"
    files.truncate(fd, 4)
    files.sync(fd)

    assert (files.size(tmp_path / "x"), files.read(fd, 100, 0)) == (4, b"\0\0ab")
    files.close(fd)


def test_a_file_is_made_only_when_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Files().open(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        Files().open_to_read(tmp_path / "x")


def test_cached_bytes_are_the_same_or_nothing_and_never_fewer(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    files = Files()
    fd = files.open_to_read(tmp_path / "x")
    files.read(fd, 10, 0)

    assert files.read_cached(fd, 4, 3) in (b"3456", None)  # None where the file system cannot tell
    assert files.read_cached(fd, 100, 3) is None  # the file ends before
    files.close(fd)


def test_what_cannot_be_written_out_early_is_left_for_the_sync() -> None:
    reading, writing = os.pipe()
    try:
        Files().begin_writeback(writing, 10, 0)
    finally:
        os.close(reading)
        os.close(writing)


def test_an_early_write_that_fails_is_reported() -> None:
    with pytest.raises(OSError) as failure:
        Files().begin_writeback(-1, 10, 0)
    assert failure.value.errno == errno.EBADF


@pytest.mark.parametrize("at_most", [1, 3, 100])
def test_writing_all_goes_on_after_short_writes(tmp_path: Path, at_most: int) -> None:
    files = FaultyFiles()
    files.at_most = at_most
    fd = files.open(tmp_path / "x", create=True)

    files.write_all(fd, b"0123456789", 5)

    assert (tmp_path / "x").read_bytes() == bytes(5) + b"0123456789"
    files.close(fd)


def test_replacing_a_file_leaves_no_other(tmp_path: Path) -> None:
    file = tmp_path / "x.json"

    Files().replace_file(file, b"old, and longer")
    Files().replace_file(file, b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert Files().read_file(file) == b"new"


def test_a_file_is_replaced_by_what_is_on_the_disk_already(tmp_path: Path) -> None:
    files = FaultyFiles()

    files.replace_file(tmp_path / "x", b"new")
    assert [done.op for done in files.done] == ["open", "truncate", "write", "sync", "rename", "sync_directory"]
    files.done.clear()
    files.replace_file(tmp_path / "x", b"new", durable=False)

    assert [done.op for done in files.done] == ["open", "truncate", "write", "rename"]


@pytest.mark.parametrize("op", ["open", "write", "sync", "rename"])
def test_a_file_that_cannot_be_replaced_is_as_it_was_and_costs_no_descriptor(tmp_path: Path, op: str) -> None:
    (tmp_path / "x").write_bytes(b"old")
    files = FaultyFiles()
    before = len(os.listdir("/proc/self/fd"))
    files.fail(op, "x", errno.ENOSPC, after=1)

    with pytest.raises(OSError):
        files.replace_file(tmp_path / "x", b"new")

    assert (tmp_path / "x").read_bytes() == b"old"
    assert len(os.listdir("/proc/self/fd")) == before
    files.heal()
    files.replace_file(tmp_path / "x", b"newer")
    assert (tmp_path / "x").read_bytes() == b"newer"


def test_names_are_sorted_and_trees_go_whole(tmp_path: Path) -> None:
    files = Files()
    for name in ("b", "a/1", "a/2"):
        files.make_directory(tmp_path / name)
    files.make_directory(tmp_path / "b")  # once more is no error
    (tmp_path / "a" / "2" / "file").write_bytes(b"x")

    assert files.names(tmp_path) == ["a", "b"]
    files.remove_tree(tmp_path / "a")
    files.remove_tree(tmp_path / "a")

    assert (files.names(tmp_path), files.exists(tmp_path / "a")) == (["b"], False)


def test_directories_and_whole_file_systems_are_synced(tmp_path: Path) -> None:
    files = Files()
    fd = files.open_directory(tmp_path)

    files.sync_directory(tmp_path)
    files.sync_directory(tmp_path / "not looked at", fd)
    files.sync_filesystem(tmp_path)
    files.close(fd)

    with pytest.raises(FileNotFoundError):
        files.sync_filesystem(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        files.sync_directory(tmp_path / "missing")


def test_a_file_is_read_whole_however_little_comes_at_once(tmp_path: Path) -> None:
    class Slow(Files):
        def read(self, fd: int, size: int, at: int) -> bytes:
            return super().read(fd, min(size, 3), at)

        def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
            raise AssertionError

    (tmp_path / "x").write_bytes(b"0123456789")

    assert Slow().read_file(tmp_path / "x") == b"0123456789"


def test_a_place_of_a_file_is_read_without_keeping_it_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    files = Files()

    assert files.read_at(tmp_path / "file", 4, 3) == b"3456"
    assert files.read_at(tmp_path / "file", 4, 8) == b"89"


HASH = (7).to_bytes(4, "little")
ANY = KeySearch(7, 0, 1 << 62, 1 << 62)


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
        index.extend(segment, [KeyEntry(segment, 1, HASH)], segment, segment + 100)
        index.flush()
    files.fail("open", str(memory_path), times=2)
    again = KeyIndex(files, memory_path)
    again.recover([0, 100, 200], 50, from_scratch=False)
    again.extend(0, [KeyEntry(50, 1, HASH)], 50, 100)
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
    index.extend(0, [KeyEntry(0, 1, HASH)], 0, 100)
    index.flush()
    files.fail(op, str(memory_path))
    files.fail("rename", str(memory_path))

    again = KeyIndex(files, memory_path)
    again.recover([0], 50, from_scratch=False)
    files.heal()
    assert list(again.search(ANY, [(0, 200)])) == [IndexGap(0, 50)]

    again.extend(0, [KeyEntry(150, 1, HASH)], 50, 200)
    again.flush()  # the file can be moved now
    assert list(again.search(ANY, [(0, 200)])) == [Hit(150), IndexGap(0, 50)]
    assert list(KeyIndex(files, memory_path).listed(0)) == [IndexGap(0, 50), (150, HASH)]


def test_a_block_that_its_file_does_not_take_is_a_gap_and_the_next_one_is_written(memory_path: Path) -> None:
    files = FaultyFiles()
    index = KeyIndex(files, memory_path)
    files.fail("write", str(memory_path), errno.EIO, times=1, after=10)

    index.extend(0, [KeyEntry(0, 1, HASH)], 0, 100)
    index.flush()
    index.extend(0, [KeyEntry(100, 1, HASH)], 100, 200)
    index.flush()

    assert list(index.search(ANY, [(0, 200)])) == [Hit(100), IndexGap(0, 100)]


def test_a_gap_is_logged_once_however_often_it_is_searched(memory_path: Path, logs: list[dict[str, Any]]) -> None:
    index = KeyIndex(Files(), memory_path)
    index.extend(0, [], 100, 200)

    for _ in range(3):
        assert list(index.search(ANY, [(0, 200)])) == [IndexGap(0, 100)]

    assert [entry["event"] for entry in logs] == ["key_index.gap"]
    assert index.damaged == 3
