"""The model of a crash: what a file system promised is kept, and anything else may be lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from rmq.broker.store.files import Files

from rigs.batches import settings_of
from rigs.disk.crash import INTERRUPTED, KEPT, LOST, POLICIES, TORN, Image, crash, crashes, image_of
from rigs.disk.recording import (
    AllSynced,
    Created,
    DirectoryMade,
    DirectoryRemoved,
    DirectorySynced,
    Marked,
    Recording,
    RecordingFiles,
    Renamed,
    Resized,
    Synced,
    Unlinked,
    Wrote,
    memory_folder,
)

FOLDERS = ("", "a", "b", "a/c")
Script = list[tuple[Any, ...]]
NAMES = ("x", "y", "z")
SEEDS = range(40)


class Story:
    """Random operations on a directory, with what it looked like after each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = RecordingFiles(folder)
        self.seen: list[Image] = [image_of(folder)]

    @property
    def recording(self) -> Recording:
        return self.files.recording

    def do(self, what: Callable[[], object]) -> None:
        """Do something, unless it makes no sense now; look at the directory after each step of it."""
        try:
            what()
        except OSError:
            pass
        if len(self.recording.steps) - len(self.seen) == 0:
            self.seen.append(image_of(self.folder))
        while len(self.recording.steps) >= len(self.seen):  # several steps at once: only the last can be looked at
            self.seen.append({})
        self.seen[-1] = image_of(self.folder)

    def write(self, path: str, at: int, data: bytes, *, sync: bool) -> None:
        fd = self.files.open(self.folder / path, create=True)
        try:
            self.files.write(fd, [data], at)
            if sync:
                self.files.sync(fd)
        finally:
            self.files.close(fd)

    def resize(self, path: str, size: int) -> None:
        fd = self.files.open(self.folder / path)
        try:
            self.files.truncate(fd, size)
        finally:
            self.files.close(fd)


paths = st.tuples(st.sampled_from(FOLDERS), st.sampled_from(NAMES)).map(lambda parts: "/".join(filter(None, parts)))
steps = st.one_of(
    st.tuples(st.just("write"), paths, st.integers(0, 1500), st.binary(min_size=1, max_size=1200), st.booleans()),
    st.tuples(st.just("resize"), paths, st.integers(0, 1500)),
    st.tuples(st.just("folder"), st.sampled_from(FOLDERS[1:])),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("sync"), st.sampled_from(FOLDERS)),
    st.tuples(st.just("remove"), st.sampled_from(FOLDERS[1:])),
    st.tuples(st.just("everything")),
)


def play(story: Story, script: Script) -> None:
    files, folder = story.files, story.folder
    for what, *rest in script:
        actions: dict[str, Callable[..., object]] = {
            "write": lambda path, at, data, sync: story.write(path, at, data, sync=sync),
            "resize": story.resize,
            "folder": lambda path: files.make_directory(folder / path),
            "rename": lambda path, to: files.rename(folder / path, folder / to),
            "unlink": lambda path: files.unlink(folder / path),
            "sync": lambda path: files.sync_directory(folder / path),
            "remove": lambda path: files.remove_tree(folder / path),
            "everything": lambda: files.sync_filesystem(folder),
        }
        story.do(partial(actions[what], *rest))


scripts = st.lists(steps, max_size=14)


@settings_of(80)
@given(scripts)
def test_a_killed_process_leaves_what_was_done(script: Script) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        story = Story(Path(folder))
        play(story, script)

        for prefix, seen in enumerate(story.seen):
            if seen or prefix in (0, len(story.recording.steps)):
                assert crash(story.recording, prefix, KEPT).image == seen


@settings_of(80)
@given(scripts, st.integers(0, 1000))
@example([("write", "x", 0, b"\0", False), ("folder", "a/c"), ("rename", "x", "a/c/x"), ("sync", "a/c")], 0)
def test_what_was_synced_is_the_same_whatever_happens(script: Script, seed: int) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        story = Story(Path(folder))
        play(story, script)
        story.files.sync_filesystem(folder)

        images = [crash(story.recording, len(story.recording.steps), policy, seed).image for policy in POLICIES]
        assert images == [image_of(Path(folder))] * len(POLICIES)


@settings_of(80)
@given(scripts, st.integers(0, 1000))
def test_no_byte_appears_that_was_not_written_there(script: Script, seed: int) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        story = Story(Path(folder))
        play(story, script)

        written: dict[int, set[int]] = defaultdict(lambda: {0})  # at a place of any file: zero is a hole
        longest = 0
        for step in story.recording.steps:
            if isinstance(step.operation, Wrote):
                for i, value in enumerate(step.operation.data, step.operation.at):
                    written[i].add(value)
        for found in crashes(story.recording, torn_seeds=[seed]):
            for content in found.image.values():
                longest = max(longest, len(content or b""))
                assert all(value in written[i] for i, value in enumerate(content or b""))
        assert longest <= 1500 + 1200


def states(files: RecordingFiles, policy: str = TORN) -> list[Image]:
    """The different states after a crash at the end."""
    images = {}
    for seed in SEEDS:
        found = crash(files.recording, len(files.recording.steps), policy, seed)
        images[found.digest] = found.image
    return list(images.values())


def make(files: RecordingFiles, path: Path, content: bytes = b"", *, sync: bool = True) -> int:
    fd = files.open(path, create=True)
    files.write_all(fd, content, 0)
    if sync:
        files.sync(fd)
    return fd


def test_a_synced_file_without_a_synced_name_may_be_missing(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    files.close(make(files, tmp_path / "f", b"content"))

    assert {image.get("f") for image in states(files)} == {None, b"content"}
    assert states(files, LOST) == [{}]


def test_a_name_may_be_durable_and_its_content_not(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    files.close(make(files, tmp_path / "f", b"content", sync=False))
    files.sync_directory(tmp_path)

    assert states(files, LOST) == [{"f": b""}]
    assert {b"", b"content", bytes(7)} <= {image["f"] for image in states(files)}


def test_a_removed_name_may_be_back_until_its_directory_is_synced(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    files = RecordingFiles(tmp_path)
    files.unlink(tmp_path / "f")

    assert states(files, LOST) == [{"f": b"old"}]
    assert {image.get("f") for image in states(files)} == {None, b"old"}

    files.sync_directory(tmp_path)
    assert states(files) == states(files, LOST) == [{}]


def test_a_replaced_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    files = RecordingFiles(tmp_path)
    files.replace_file(tmp_path / "f", b"new")

    for found in crashes(files.recording, torn_seeds=SEEDS):
        assert found.image["f"] in (b"old", b"new")
    assert states(files, LOST) == [{"f": b"new"}]


def test_a_file_replaced_without_a_sync_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    files = RecordingFiles(tmp_path)
    files.close(make(files, tmp_path / "t", b"new", sync=False))
    files.rename(tmp_path / "t", tmp_path / "f")
    files.sync_directory(tmp_path)

    assert states(files, LOST) == [{"f": b""}]


def test_a_directory_that_was_not_synced_in_its_parent_takes_its_files_along(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    files.make_directory(tmp_path / "d")
    files.close(make(files, tmp_path / "d" / "f", b"content"))
    files.sync_directory(tmp_path / "d")

    assert states(files, LOST) == [{}]

    files.sync_directory(tmp_path)
    assert states(files, LOST) == [{"d": None, "d/f": b"content"}]


def test_a_rename_between_directories_leaves_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "f").write_bytes(b"x")
    files = RecordingFiles(tmp_path)
    files.rename(tmp_path / "a" / "f", tmp_path / "b" / "g")

    names = {tuple(path for path in image if "/" in path) for image in states(files)}
    assert names == {("a/f",), ("b/g",)}


def test_a_later_write_may_survive_without_an_earlier_one(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    fd = make(files, tmp_path / "f")
    files.sync_directory(tmp_path)
    files.write(fd, [b"a" * 600], 0)
    files.write(fd, [b"b" * 600], 600)
    files.close(fd)

    assert bytes(600) + b"b" * 600 in {image["f"] for image in states(files)}


def test_a_write_may_survive_in_some_sectors_only(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    fd = make(files, tmp_path / "f")
    files.sync_directory(tmp_path)
    files.write(fd, [b"a" * 1024], 0)
    files.close(fd)

    assert bytes(512) + b"a" * 512 in {image["f"] for image in states(files)}


def test_a_cut_may_be_undone_until_it_is_synced(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    fd = make(files, tmp_path / "f", b"content")
    files.sync_directory(tmp_path)
    files.truncate(fd, 3)

    assert {image["f"] for image in states(files)} == {b"content", b"con"}

    files.sync(fd)
    files.close(fd)
    assert states(files) == [{"f": b"con"}]


def test_a_process_killed_within_a_write_leaves_a_part_of_it(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    fd = make(files, tmp_path / "f", b"first", sync=False)
    files.write(fd, [b"last"], 5)
    files.close(fd)

    assert {image["f"] for image in states(files, INTERRUPTED)} == {b"first" + b"last"[:n] for n in range(5)}


def test_every_operation_of_the_disk_is_recorded() -> None:
    composed = {"write_all", "read_at", "read_file", "replace_file", "unshare"}  # made of the other operations
    public = {name for name in vars(Files) if not name.startswith("_")} - composed

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

    noted = [step.operation for step in files.recording.steps]
    assert noted == [
        DirectoryMade("a"), DirectoryMade("a/b"), Created("a/b/one", 1), Wrote(1, 3, b"hello world"), Resized(1, 8),
        Synced(1), Renamed("a/b/one", "two"), DirectorySynced("a"), AllSynced(), Marked("acknowledged"),
        Unlinked("two"), DirectoryRemoved("a/b"), DirectoryRemoved("a"),
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []
