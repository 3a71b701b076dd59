"""A directory is read while no broker uses it, by any number of readers."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmq.broker.store.changes import Started
from rmq.broker.store.directory import DataDirectory, SharedLock, StoreError, remedy

from ..builders import Opened

OTHER_USER = "the folder or file belongs to another user: run this as that user, or give it to this one (chown)"
CHECK_THE_DISK = "check the disk and try again; if it stays so, see 'The disk failed' in docs/operations.md"


def test_the_directory_and_its_parents_are_made(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a" / "b")

    made = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert made >= {"commitlog", "consumequeue", "config", "index", "quarantine", "lock"}
    directory.close()


def test_a_second_broker_is_refused_until_the_first_has_let_go(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)

    with pytest.raises(StoreError, match=r"another broker uses the data directory .*: stop it or choose another"):
        DataDirectory(tmp_path)
    first.close()

    DataDirectory(tmp_path).close()


def test_a_second_broker_is_refused_even_if_the_lock_file_was_removed(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    (tmp_path / "lock").unlink()

    with pytest.raises(StoreError, match=r"another broker uses the data directory .*: stop it or choose another"):
        DataDirectory(tmp_path)

    assert not (tmp_path / "lock").exists()  # the refused one left no file that looks like a lock
    first.close()
    DataDirectory(tmp_path).close()


def test_a_broker_of_an_older_version_keeps_a_newer_one_off_by_its_file_and_the_reverse(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    with (tmp_path / "lock").open("r+b") as older:
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StoreError, match="another broker uses the data directory"):
            DataDirectory(tmp_path)
        fcntl.flock(older, fcntl.LOCK_UN)

        newer = DataDirectory(tmp_path)
        with pytest.raises(BlockingIOError):
            fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
        newer.close()


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOLCK, errno.EBADF, errno.ENOSYS])
def test_a_file_system_that_cannot_lock_directories_is_logged_once_and_the_file_still_locks(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lock_files_only(number))

    with capture_logs() as logged:
        first = DataDirectory(tmp_path)

    assert [(entry["event"], entry["path"], entry["error"]) for entry in logged] == [
        ("store.directory_not_locked", str(tmp_path), os.strerror(number))
    ]
    with pytest.raises(StoreError, match="another broker uses the data directory"):
        DataDirectory(tmp_path)
    first.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.ESTALE])
@pytest.mark.parametrize("take", [DataDirectory, lambda path: SharedLock(path, "x").take()], ids=["write", "read"])
def test_a_directory_that_cannot_be_locked_just_now_is_refused_with_the_error(
    memory_path: Path, take: Callable[[Path], object], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a file system that cannot lock directories at all is one: else the next one could lock this directory."""
    monkeypatch.setattr(fcntl, "flock", lock_files_only(number))

    with capture_logs() as logged, pytest.raises((StoreError, OSError), match=os.strerror(number)):
        take(memory_path)

    assert logged == []
    monkeypatch.undo()
    DataDirectory(memory_path).close()  # the refused one had let go


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EWOULDBLOCK])
def test_a_directory_that_another_process_has_locked_is_in_use(
    memory_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lock_files_only(number))

    with pytest.raises(StoreError, match="another broker uses the data directory"):
        DataDirectory(memory_path)


def lock_files_only(number: int) -> Callable[[int, int], None]:
    """``flock`` of a file system that cannot lock directories."""
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        real(fd, how)

    return flock


@pytest.mark.parametrize(
    "where", [Path("taken"), Path("taken") / "below"], ids=["a file in its place", "a file in its way"]
)
def test_a_directory_that_cannot_be_made_is_one_clear_sentence(tmp_path: Path, where: Path) -> None:
    (tmp_path / "taken").write_text("I was here first")

    with pytest.raises(StoreError) as failure:
        DataDirectory(tmp_path / where)

    assert str(failure.value).startswith(
        f"the data directory {tmp_path / where} cannot be used: Not a directory; choose"
    )


def test_a_directory_below_a_system_file_is_one_clear_sentence() -> None:
    with pytest.raises(StoreError, match=r"the data directory /proc/rmq cannot be used: "):
        DataDirectory(Path("/proc/rmq"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"format": 2, "incompatible": []}, "names format 2"),
        ({"format": 1, "incompatible": ["lz4"]}, "names format 1 ['lz4']"),
    ],
)
def test_an_unknown_format_is_refused_and_left_as_it_is(
    tmp_path: Path, content: dict[str, object], sentence: str
) -> None:
    DataDirectory(tmp_path).close()
    file = tmp_path / "config" / "store.json"
    file.write_text(json.dumps(content))

    with pytest.raises(StoreError) as failure:
        DataDirectory(tmp_path)

    remedy = "start the version that wrote it, or choose another folder with --data-dir"
    assert str(failure.value) == f"{file} {sentence}, this version of rmq reads format 1 only: {remedy}"
    assert json.loads(file.read_text()) == content
    file.unlink()
    DataDirectory(tmp_path).close()  # the refused start had let go of the lock


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", "{}", '{"format": 1, "store_id": "xyz"}', '{"store_id": 5}', "\x80"]
)
def test_what_is_no_store_file_says_that_it_may_be_removed(tmp_path: Path, content: str) -> None:
    DataDirectory(tmp_path).close()
    (tmp_path / "config" / "store.json").write_bytes(content.encode("latin-1"))

    sentence = r"store\.json is not a store file \(.+\): removing it is safe, since the log holds what it says"
    with pytest.raises(StoreError, match=sentence):
        DataDirectory(tmp_path)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "free some space, or choose another folder with --data-dir"),
        (errno.EDQUOT, "free some space, or choose another folder with --data-dir"),
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"),
        (errno.EROFS, "choose another folder with --data-dir"),
        (errno.EACCES, OTHER_USER),
        (errno.EPERM, OTHER_USER),
        (errno.EIO, CHECK_THE_DISK),
        (errno.ESTALE, CHECK_THE_DISK),
    ],
)
def test_an_error_at_start_comes_with_what_helps_against_it(number: int, text: str) -> None:
    assert remedy(OSError(number, os.strerror(number))) == text


def test_a_new_store_gets_an_id_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        for _ in range(2):
            directory = DataDirectory(tmp_path / name)
            ids.add((name, directory.name(None)))
            directory.close()

    assert len(ids) == 2
    assert len({number for _, number in ids}) == 2
    assert all(1 << 63 <= number < 1 << 64 for _, number in ids)


def test_a_store_whose_file_was_deleted_has_the_same_id_from_the_log(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    store_id = opened.store.stores.current
    opened.store.stage_changes([Started(store_id, opened.store.log_epoch)])
    opened.store.write()
    opened.close()
    (tmp_path / "config" / "store.json").unlink()

    again = Opened(tmp_path)

    assert again.store.stores.current == store_id
    assert json.loads((tmp_path / "config" / "store.json").read_text())["store_id"] == f"{store_id:016x}"
    again.close()


def test_a_directory_in_use_is_refused_with_what_to_do(memory_path: Path) -> None:
    directory = DataDirectory(memory_path)

    with pytest.raises(StoreError, match=f"a broker uses {memory_path}: stop it first, or read a backup"):
        SharedLock(memory_path, "read a backup").take()
    directory.close()
    with SharedLock(memory_path, "read a backup"):
        pass


def test_readers_share_a_directory_and_keep_a_broker_off(memory_path: Path) -> None:
    DataDirectory(memory_path).close()

    with (
        SharedLock(memory_path, "x"),
        SharedLock(memory_path, "x"),
        pytest.raises(StoreError, match="another broker uses"),
    ):
        DataDirectory(memory_path)
    DataDirectory(memory_path).close()


def test_a_reader_is_refused_even_if_the_lock_file_of_a_broker_was_removed(memory_path: Path) -> None:
    directory = DataDirectory(memory_path)
    (memory_path / "lock").unlink()

    with pytest.raises(StoreError, match=f"a broker uses {memory_path}"):
        SharedLock(memory_path, "read a backup").take()
    directory.close()


def test_a_reader_keeps_a_broker_off_even_if_the_lock_file_was_removed(memory_path: Path) -> None:
    DataDirectory(memory_path).close()

    with SharedLock(memory_path, "x"):
        (memory_path / "lock").unlink()
        with pytest.raises(StoreError, match="another broker uses"):
            DataDirectory(memory_path)


def test_a_copy_without_a_lock_is_free(memory_path: Path) -> None:
    with SharedLock(memory_path, "x"):
        assert not (memory_path / "lock").exists()


def test_a_directory_that_is_missing_is_for_its_reader_to_report(memory_path: Path) -> None:
    with SharedLock(memory_path / "missing", "x"):
        assert not (memory_path / "missing").exists()


def test_closed_once_or_again_it_lets_a_broker_start(memory_path: Path) -> None:
    DataDirectory(memory_path).close()
    held = SharedLock(memory_path, "x")
    held.take()
    held.close()
    held.close()

    started = DataDirectory(memory_path)
    assert started.path == memory_path
    started.close()

    DataDirectory(memory_path).close()
