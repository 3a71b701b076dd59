from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

from rmq.broker.store.files import Files

from rigs.disk.recording import (
    AllSynced,
    Created,
    DirectoryMade,
    DirectoryRemoved,
    DirectorySynced,
    Marked,
    Operation,
    RecordingFiles,
    Renamed,
    Resized,
    Synced,
    Unlinked,
    Wrote,
)

COMPOSED = {"write_all", "read_at", "read_file", "replace_file", "unshare"}  # made of the other operations


def operations(files: RecordingFiles) -> list[Operation]:
    return [step.operation for step in files.recording.steps]


def test_every_operation_of_the_disk_is_recorded() -> None:
    public = {name for name in vars(Files) if not name.startswith("_")} - COMPOSED

    assert public - set(vars(RecordingFiles)) == set()


def test_each_change_is_done_and_noted_in_order(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)

    files.make_directory(tmp_path / "a" / "b")
    fd = files.open(tmp_path / "a" / "b" / "one", create=True)
    assert files.write(fd, [b"hello ", bytearray(b"world")], 3) == 11
    files.truncate(fd, 8)
    files.sync(fd)
    files.close(fd)
    files.rename(tmp_path / "a" / "b" / "one", tmp_path / "two")
    files.sync_directory(tmp_path / "a")
    files.sync_filesystem(tmp_path)
    files.mark("acknowledged")
    files.unlink(tmp_path / "two")
    files.remove_tree(tmp_path / "a")

    noted = operations(files)
    assert noted == [
        DirectoryMade("a"), DirectoryMade("a/b"), Created("a/b/one", 1), Wrote(1, 3, b"hello world"), Resized(1, 8),
        Synced(1), Renamed("a/b/one", "two"), DirectorySynced("a"), AllSynced(), Marked("acknowledged"),
        Unlinked("two"), DirectoryRemoved("a/b"), DirectoryRemoved("a"),
    ]  # fmt: skip
    assert [type(operation) for operation in noted[:2]] == [DirectoryMade, DirectoryMade]
    assert list(tmp_path.iterdir()) == []


def test_a_file_made_again_under_its_old_name_is_another_file(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    old = files.open(tmp_path / "f", create=True)
    files.unlink(tmp_path / "f")
    new = files.open(tmp_path / "f", create=True)

    files.write(old, [b"old"], 0)
    files.write(new, [b"new"], 0)

    assert operations(files)[-2:] == [Wrote(1, 0, b"old"), Wrote(2, 0, b"new")]
    files.close(old)
    files.close(new)


def test_a_file_is_followed_through_the_renaming_of_its_directory(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    files.make_directory(tmp_path / "a")
    files.close(files.open(tmp_path / "a" / "f", create=True))
    files.rename(tmp_path / "a", tmp_path / "b")

    fd = files.open(tmp_path / "b" / "f")
    files.write(fd, [b"x"], 0)
    files.close(fd)

    assert operations(files)[-1] == Wrote(1, 0, b"x")


def test_what_was_there_before_is_the_start(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"before")

    files = RecordingFiles(tmp_path)

    assert files.recording.start == (["d"], {"d/f": 1}, {1: b"before"})


def test_what_happens_elsewhere_is_done_and_not_noted(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    files = RecordingFiles(tmp_path / "inside")

    files.make_directory(tmp_path / "outside")
    files.replace_file(tmp_path / "outside" / "f", b"content")
    files.sync_directory(tmp_path)

    assert operations(files) == []
    assert files.read_file(tmp_path / "outside" / "f") == b"content"


def test_a_replaced_file_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)

    files.replace_file(tmp_path / "f", b"content")

    kinds = [type(operation) for operation in operations(files)]
    assert kinds == [Created, Resized, Wrote, Synced, Renamed, DirectorySynced]


def test_steps_carry_the_moment_of_the_clock(tmp_path: Path) -> None:
    moments = iter([1.0, 2.5])
    files = RecordingFiles(tmp_path, now=lambda: next(moments))

    files.mark("a")
    files.mark("b")

    assert [step.moment for step in files.recording.steps] == [1.0, 2.5]
    assert files.recording.marks(1) == [(0, "a")]


def test_threads_take_turns(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    fds = [files.open(tmp_path / str(i), create=True) for i in range(4)]

    def work(fd: int) -> None:
        for at in range(200):
            files.write(fd, [b"x"], at)

    threads = [Thread(target=work, args=(fd,)) for fd in fds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(1, 5):
        assert [w.at for w in operations(files) if isinstance(w, Wrote) and w.file == number] == list(range(200))
    for fd in fds:
        os.close(fd)
