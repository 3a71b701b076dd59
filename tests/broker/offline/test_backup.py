from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from rmq.broker.offline.backup import Backup, restore
from rmq.broker.offline.verify import Verification
from rmq.broker.store.directory import StoreError
from rmq.broker.store.files import Files

from ..builders import Opened, segment_files
from rigs.disk.faulty import FaultyFiles


@pytest.fixture
def live(memory_path: Path) -> Opened:
    """A store of several segments that goes on being written."""
    opened = Opened(memory_path / "data", segment_bytes=1000)
    for i in range(9):
        opened.append(b"%d" % i)
    return opened


@pytest.mark.parametrize("link", [False, True])
def test_a_copy_holds_what_was_durable_and_nothing_after(live: Opened, memory_path: Path, link: bool) -> None:
    durable = live.store.log.durable
    live.stage(b"not durable")
    live.write()

    copied = Backup(live.directory.path, memory_path / "copy", durable, link=link).run()

    assert (copied.start, copied.end) == (0, durable)
    assert (copied.linked > 0) == link
    assert Verification(memory_path / "copy").run().findings == []
    copy = Opened(memory_path / "copy")
    assert copy.bodies() == [b"%d" % i for i in range(9)]
    assert [former.store_id for former in copy.store.stores.former] == [live.store.stores.current]
    copy.close()
    live.close()


def test_a_broker_on_a_linked_copy_never_changes_the_original(live: Opened, memory_path: Path) -> None:
    """Damage in a closed segment of the copy that nothing proves to have been synced would be cut off in both."""
    Backup(live.directory.path, memory_path / "copy", live.store.log.durable, link=True).run()
    live.close()
    shared = segment_files(memory_path / "copy")[-2]
    before = shared.read_bytes()
    for path in segment_files(memory_path / "copy")[-1:]:
        path.unlink()
    shared.write_bytes(before[:-5] + b"wrong")
    original = segment_files(live.directory.path)[-2]
    assert original.read_bytes() == shared.read_bytes()

    copy = Opened(memory_path / "copy")
    copy.append(b"new")
    copy.close()

    assert original.read_bytes() == before[:-5] + b"wrong"
    assert shared.read_bytes() != original.read_bytes()


FAULTS = [
    ("sync", "copy"), ("write", "copy"), ("rename", "copy"), ("read", "data/commitlog"), ("sync_directory", "copy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "part", "is_there"),
    [*((*fault, is_there) for fault in FAULTS for is_there in (False, True)), ("rename", "copy/config", True)],
)
def test_a_copy_that_fails_leaves_nothing(
    live: Opened, memory_path: Path, op: str, part: str, *, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_there:
        (memory_path / "copy").mkdir()
    files = FaultyFiles()
    files.fail(op, part, errno.EIO)
    backup = Backup(live.directory.path, memory_path / "copy", live.store.log.durable)
    monkeypatch.setattr(backup, "_files", files)

    with pytest.raises((OSError, StoreError), match="Input/output error"):
        backup.run()

    assert sorted(path.name for path in memory_path.iterdir()) == ["copy", "data"][not is_there :]
    assert not is_there or not list((memory_path / "copy").iterdir())
    live.close()


def test_a_copy_that_is_interrupted_leaves_nothing(live: Opened, memory_path: Path) -> None:
    def interrupt(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Backup(live.directory.path, memory_path / "copy", live.store.log.durable, progress=interrupt).run()

    assert [path.name for path in memory_path.iterdir()] == ["data"]
    live.close()


def test_a_copy_whose_segments_vanish_every_time_leaves_nothing(
    live: Opened, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles()
    files.fail("open_to_read", "commitlog", errno.ENOENT)
    backup = Backup(live.directory.path, memory_path / "copy", live.store.log.durable)
    monkeypatch.setattr(backup, "_files", files)

    with pytest.raises(StoreError, match="vanish while they are copied"):
        backup.run()

    assert [path.name for path in memory_path.iterdir()] == ["data"]
    live.close()


def test_a_folder_that_is_not_empty_is_refused(live: Opened, memory_path: Path) -> None:
    with pytest.raises(StoreError, match="not empty"):
        Backup(live.directory.path, memory_path / "data", 0).run()
    live.close()


def test_an_empty_folder_is_filled_where_it_is(
    live: Opened, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = memory_path / "mounted"
    for part in ("lost+found", ".partial/commitlog/1"):  # of the file system, and of a copy that was killed
        (target / part).mkdir(parents=True)
    inode = target.stat().st_ino
    monkeypatch.chdir(target)

    Backup(live.directory.path, Path(), live.store.log.durable).run()

    assert target.stat().st_ino == inode
    assert sorted(entry.name for entry in target.iterdir()) == ["commitlog", "config", "lost+found"]
    assert not (memory_path / "mounted.partial").exists()
    copy = Opened(target)
    assert copy.bodies() == live.bodies()
    copy.close()
    live.close()


def test_a_broker_on_another_machine_is_distinguished(memory_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be seen from here"):
        Backup(memory_path / "nowhere", memory_path / "copy", 0).run()


def test_a_segment_that_retention_takes_meanwhile_lets_the_copy_begin_again(
    live: Opened, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = segment_files(live.directory.path)[0]

    class Retention(Files):
        def open_to_read(self, path: str | Path) -> int:
            if Path(path) == first and first.exists():
                first.unlink()
            return super().open_to_read(path)

    backup = Backup(live.directory.path, memory_path / "copy", live.store.log.durable)
    monkeypatch.setattr(backup, "_files", Retention())

    copied = backup.run()

    assert copied.start == int(segment_files(memory_path / "copy")[0].name) > 0
    copy = Opened(memory_path / "copy")
    assert copy.store.queue_of  # it starts: the first segment has a snapshot at its head
    copy.close()
    live.close()


def test_a_directory_of_another_store_is_not_copied_in_its_place(live: Opened, memory_path: Path) -> None:
    """The broker's directory has the same path on this machine, and is another broker's."""
    with pytest.raises(StoreError, match="run this on the broker's machine"):
        Backup(live.directory.path, memory_path / "copy", live.store.log.durable, store_id="00" * 8).run()
    assert not (memory_path / "copy").exists()

    own = f"{live.store.stores.current:016x}"
    Backup(live.directory.path, memory_path / "copy", live.store.log.durable, store_id=own).run()
    live.close()


def test_a_target_that_cannot_be_made_is_not_taken_for_a_segment_that_vanished(live: Opened) -> None:
    with pytest.raises(OSError, match="/proc/copy"):
        Backup(live.directory.path, Path("/proc/copy"), live.store.log.durable).run()
    live.close()


def test_a_copy_within_the_directory_itself_is_refused(live: Opened) -> None:
    with pytest.raises(StoreError, match="own directory"):
        Backup(live.directory.path, live.directory.path / "copy", live.store.log.durable).run()
    live.close()


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("how", ["short", "gone"])
def test_what_is_left_of_a_damaged_log_can_be_copied(live: Opened, memory_path: Path, link: bool, how: str) -> None:
    hurt = segment_files(live.directory.path)[1]
    size = hurt.stat().st_size
    if how == "short":
        hurt.write_bytes(hurt.read_bytes()[:-100])
    else:
        hurt.unlink()

    copied = Backup(live.directory.path, memory_path / "copy", live.store.log.durable, link=link).run()

    assert copied.missing_bytes == (100 if how == "short" else size)
    original, copy = segment_files(live.directory.path), segment_files(memory_path / "copy")
    assert [path.read_bytes() for path in copy] == [path.read_bytes() for path in original]
    live.close()


def test_a_restored_copy_is_marked_and_begins_a_history_of_its_own_wherever_it_lies(
    live: Opened, memory_path: Path
) -> None:
    Backup(live.directory.path, memory_path / "copy", live.store.log.durable).run()
    live.close()

    copied = restore(memory_path / "copy", memory_path / "restored")

    assert copied.end == live.store.log.durable
    store = json.loads((memory_path / "restored" / "config" / "store.json").read_bytes())
    assert store == {"format": 1, "incompatible": [], "store_id": f"{live.store.stores.current:016x}", "copy": True}


def test_a_log_without_its_store_file_can_be_restored(live: Opened, memory_path: Path) -> None:
    live.close()
    shutil.rmtree(live.directory.path / "config")

    restore(live.directory.path, memory_path / "restored")

    restored = Opened(memory_path / "restored")
    assert restored.bodies() == [b"%d" % i for i in range(9)]
    assert [former.store_id for former in restored.store.stores.former] == [live.store.stores.current]
    restored.close()


def test_the_folder_of_a_running_broker_is_not_restored(live: Opened, memory_path: Path) -> None:
    with pytest.raises(StoreError, match="a broker uses"):
        restore(live.directory.path, memory_path / "restored")
    live.close()
