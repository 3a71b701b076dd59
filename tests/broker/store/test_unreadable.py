"""The disk cannot read what a start, a scrub, a scan or a copy needs: it is named, and nothing is changed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.offline.backup import Backup
from rmq.broker.offline.reader import OfflineLog
from rmq.broker.offline.verify import Verification
from rmq.broker.store.directory import StoreError
from rmq.broker.store.files import UNREADABLE, Files
from rmq.broker.store.key_index import IndexGap
from rmq.broker.store.lookup import LogReader
from rmq.broker.store.read import DamagedRange
from rmq.broker.store.scan import Unreadable

from ..builders import Opened, segment_files
from .small_log import pull
from rigs.disk.faulty import FaultyFiles, UnreadableFiles

BODIES = [b"%d" % i * 3000 for i in range(8)]
SECTOR = 4096
SEGMENT = "00000000000000000000"
TORN = b"the beginning of a batch that was never acknowledged"


@pytest.fixture
def killed(memory_path: Path) -> Path:
    """A log of eight batches, 3 kB each, without a checkpoint."""
    opened = Opened(memory_path / "data")
    for body in BODIES:
        opened.append(body)
    opened.store.abandon()
    return memory_path / "data"


def content(path: Path) -> dict[str, bytes]:
    """All of the log, and what was put aside."""
    found = [*(path / "commitlog").iterdir(), *(path / "quarantine").iterdir()]
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def tear(path: Path) -> None:
    """Leave at the end what a crash leaves of a write."""
    with open(segment_files(path)[-1], "ab") as file:
        file.write(TORN)


def refused(path: Path, files: Files, match: str = "cannot be read") -> None:
    """Start on a disk that cannot read; the log is as it was."""
    before = content(path)
    with pytest.raises(Unreadable, match=match):
        Opened(path, files=files)
    assert content(path) == before


@contextmanager
def cannot_look_at(file: Path, monkeypatch: pytest.MonkeyPatch, number: int = errno.EIO) -> Iterator[None]:
    """Let ``stat`` of a file fail."""
    look = os.stat

    def failing(path: Any, **how: Any) -> os.stat_result:
        if str(path) == str(file):
            raise OSError(number, os.strerror(number), str(path))
        return look(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        yield


def check_sound(path: Path) -> None:
    opened = Opened(path)
    assert opened.bodies() == BODIES
    assert opened.recovered.damages == []
    opened.close()


# ---- starts


def test_a_torn_tail_is_not_cut_while_bytes_after_it_cannot_be_read(killed: Path) -> None:
    size = segment_files(killed)[0].stat().st_size
    with open(segment_files(killed)[0], "ab") as file:
        file.write(TORN + bytes(8192))

    refused(killed, UnreadableFiles(SEGMENT, size + 4096, size + 4100))

    check_sound(killed)


def test_a_tail_that_cannot_be_read_when_it_is_put_aside_is_not_cut(killed: Path) -> None:
    """The walk could read it: the disk fails a moment later."""
    tear(killed)

    class FailsLater(UnreadableFiles):
        def open(self, path: Any, *, create: bool = False) -> int:
            if "quarantine" in str(path):
                self._first = 0
            return super().open(path, create=create)

    refused(killed, FailsLater(SEGMENT, 1 << 40, 1 << 41), match=f"{SEGMENT}: bytes")

    check_sound(killed)


def test_what_cannot_be_read_when_it_is_written_once_more_stays_as_it_is(killed: Path) -> None:
    class FailsLater(UnreadableFiles):
        def read(self, fd: int, size: int, at: int) -> bytes:
            data = super().read(fd, size, at)
            if fd in self._fds and at == 0 and len(data) > 4096:
                self._first = 0  # the walk has read all of it
            return data

    refused(killed, FailsLater(SEGMENT, 1 << 40, 1 << 41))

    check_sound(killed)


def test_a_tail_that_was_cut_before_the_disk_failed_is_said_to_be_in_quarantine(killed: Path) -> None:
    tear(killed)

    class FailsLater(UnreadableFiles):
        def truncate(self, fd: int, size: int) -> None:
            super().truncate(fd, size)
            self.fail(0, 1 << 40)

    with pytest.raises(Unreadable, match="so the start ended; a torn tail that it had cut is in quarantine/: check"):
        Opened(killed, files=FailsLater(SEGMENT, end=0))

    (kept,) = (killed / "quarantine").iterdir()
    assert kept.read_bytes() == TORN
    check_sound(killed)


class EndsEarly(FaultyFiles):
    """A disk that gives a segment up to ``end`` and nothing of the rest; if not ``at_first``, once it was read."""

    def __init__(self, end: int, *, at_first: bool = True) -> None:
        super().__init__()
        self._end = end
        self._is_shorter = at_first

    def read(self, fd: int, size: int, at: int) -> bytes:
        if self._is_shorter and "commitlog" in self.paths[fd]:
            size = min(size, max(self._end - at, 0))
        data = super().read(fd, size, at)
        self._is_shorter |= at == 0 and len(data) > SECTOR  # the walk has read all of it
        return data


@pytest.mark.parametrize("at_first", [True, False], ids=["at once", "after the walk"])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_segment_that_ends_before_its_size_refuses_the_start(killed: Path, is_torn: bool, at_first: bool) -> None:
    """A start would cut the rest as torn, or copy nothing for ever."""
    if is_torn:
        tear(killed)
    size = segment_files(killed)[0].stat().st_size

    refused(killed, EndsEarly(8192, at_first=at_first), rf"{SEGMENT}: bytes \d+ to {size} cannot be read \(the file is")

    check_sound(killed)


def test_a_scrub_reports_the_rest_of_a_segment_that_ends_before_its_size(killed: Path) -> None:
    size = segment_files(killed)[0].stat().st_size

    report = Verification(killed, files=EndsEarly(8192)).run()

    assert any(f"bytes 8192 to {size} of " in finding.text for finding in report.findings)
    assert report.torn == 0


def test_a_short_failure_of_the_disk_is_no_bad_sector(killed: Path) -> None:
    files = FaultyFiles()
    files.fail("read", "commitlog", errno.EIO, times=1)

    opened = Opened(killed, files=files)

    assert opened.bodies() == BODIES
    opened.close()


@pytest.mark.parametrize("number", sorted(UNREADABLE))
def test_a_start_that_cannot_read_names_the_bytes_whatever_the_disk_or_the_network_says(
    killed: Path, number: int
) -> None:
    files = FaultyFiles()
    files.fail("read", "commitlog", number)
    size = segment_files(killed)[0].stat().st_size

    refused(killed, files, rf"{SEGMENT}: bytes 0 to {size} cannot be read \({os.strerror(number)}\), so nothing was")

    check_sound(killed)


def test_a_read_that_times_out_is_not_repeated_for_each_sector(killed: Path) -> None:
    files = FaultyFiles()
    files.fail("read", "commitlog", errno.ETIMEDOUT)

    refused(killed, files)

    assert files.ops("commitlog", "read") == ["read"]


def test_an_error_of_the_process_is_raised_as_it_is(killed: Path) -> None:
    files = FaultyFiles()
    files.fail("read", "commitlog", errno.ENOMEM)

    with pytest.raises(OSError) as failure:
        Opened(killed, files=files)

    assert failure.value.errno == errno.ENOMEM
    check_sound(killed)


@pytest.mark.parametrize("operation", ["open_to_read", "read"])
def test_a_store_file_that_cannot_be_read_refuses_the_start_with_its_name(killed: Path, operation: str) -> None:
    opened = Opened(killed)
    opened.store.directory.name(1)
    opened.close()
    before = content(killed)
    files = FaultyFiles()
    files.fail(operation, "store.json", errno.EIO)

    with pytest.raises(OSError) as failure:
        Opened(killed, files=files)

    assert (failure.value.errno, failure.value.filename) == (errno.EIO, str(killed / "config" / "store.json"))
    assert content(killed) == before
    check_sound(killed)


@pytest.mark.parametrize("operation", ["is_file", "size", "open", "open_to_read"])
def test_a_segment_that_cannot_be_opened_refuses_the_start_with_its_name(killed: Path, operation: str) -> None:
    before = content(killed)
    files = FaultyFiles()
    files.fail(operation, SEGMENT, times=9)

    with pytest.raises(OSError) as failure:
        Opened(killed, files=files)

    assert (failure.value.errno, failure.value.filename) == (errno.EIO, str(segment_files(killed)[0]))
    assert content(killed) == before
    check_sound(killed)


READERS: dict[str, Callable[[Path, Files], object]] = {
    "a start": lambda path, files: Opened(path, files=files),
    "verify": lambda path, files: Verification(path, files=files).run(),
    "a scan": lambda path, files: OfflineLog(str(path), files=files),
}


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("reader", READERS)
def test_a_segment_that_cannot_be_looked_at_is_not_taken_for_a_directory(
    killed: Path, monkeypatch: pytest.MonkeyPatch, reader: str, number: int
) -> None:
    (segment,) = segment_files(killed)
    before = content(killed)

    with cannot_look_at(segment, monkeypatch, number), pytest.raises((OSError, StoreError)) as failure:
        READERS[reader](killed, Files())

    assert (os.strerror(number) in str(failure.value), str(segment) in str(failure.value)) == (True, True)
    assert "directory" not in str(failure.value)
    assert content(killed) == before
    check_sound(killed)


def test_a_name_in_the_quarantine_that_cannot_be_looked_at_is_not_written_over(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tear(killed)
    size = segment_files(killed)[0].stat().st_size - len(TORN)
    kept = killed / "quarantine" / f"{size:020d}"
    kept.write_bytes(b"what an earlier start put aside")
    before = content(killed)

    with cannot_look_at(kept, monkeypatch), pytest.raises(OSError, match="Input/output error"):
        Opened(killed)

    assert content(killed) == before


@pytest.mark.parametrize("part", ["index", f"index/{SEGMENT}"])
def test_a_key_index_that_cannot_be_looked_at_is_not_damage_of_the_log(
    killed: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    opened = Opened(killed)
    opened.append(b"last", index_keys=[["k"]])
    opened.checkpoint()
    opened.store.abandon()

    with cannot_look_at(killed / part, monkeypatch):
        assert Verification(killed).run().log_is_sound


def test_a_key_index_that_cannot_be_looked_at_does_not_stop_a_start(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(killed)
    opened.append(b"last", index_keys=[["k"]])
    opened.checkpoint()
    opened.store.abandon()

    with cannot_look_at(killed / "index" / SEGMENT, monkeypatch):
        opened = Opened(killed)

    assert opened.bodies() == [*BODIES, b"last"]
    opened.close()


def test_a_copy_with_zeros_for_what_cannot_be_read_is_started_and_damaged_there(killed: Path) -> None:
    """What an operator does when a sector is dead: see "The disk failed" in operations.md."""
    refused(killed, UnreadableFiles(SEGMENT, 8192, 12288))
    copy = shutil.copytree(killed, killed.parent / "copy")
    (segment,) = segment_files(copy)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:8192] + bytes(4096) + whole[12288:])

    opened = Opened(copy)

    assert pull(opened, 0)[0] == BODIES[:2]
    for offset in (2, 3):
        with pytest.raises(DamagedRange):
            pull(opened, offset)
    assert pull(opened, 4)[0] == BODIES[4:]
    assert opened.append(b"new").base_offset == 8
    opened.close()


# ---- the checkpoint


@pytest.fixture
def stopped(killed: Path) -> Path:
    opened = Opened(killed)
    opened.checkpoint()
    opened.store.abandon()
    return killed


@pytest.mark.parametrize(
    ("operation", "number"),
    [("read", errno.EIO), ("open_to_read", errno.EACCES), ("read", errno.ESTALE), ("read", errno.EUCLEAN)],
)
def test_nothing_is_made_again_while_the_checkpoint_cannot_be_read(stopped: Path, operation: str, number: int) -> None:
    """The newest batch is damaged: with the checkpoint it is known that it was whole; without, it looks torn."""
    (segment,) = segment_files(stopped)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100] + bytes(100))
    files = FaultyFiles()
    files.fail(operation, "checkpoint", number)

    refused(stopped, files, rf"checkpoint cannot be read \({os.strerror(number)}\): .*remove it")

    opened = Opened(stopped)
    assert opened.recovered.cut is None
    assert opened.append(b"new").base_offset == 8
    opened.store.abandon()
    segment.write_bytes(whole + segment.read_bytes()[len(whole) :])
    opened = Opened(stopped)
    assert opened.bodies() == [*BODIES, b"new"]
    opened.close()


def without_index(path: Path) -> FaultyFiles:
    shutil.rmtree(path / "consumequeue")
    return FaultyFiles()


def with_index_unlistable(path: Path) -> FaultyFiles:
    files = FaultyFiles()
    files.fail("names", "/consumequeue")
    return files


@pytest.mark.parametrize("files_of", [without_index, with_index_unlistable])
@pytest.mark.parametrize("rotten", [100, 3100], ids=["body", "header"])
def test_a_checkpoint_proves_what_was_synced_also_without_the_indexes(
    stopped: Path, files_of: Callable[[Path], FaultyFiles], rotten: int, logs: list[dict[str, Any]]
) -> None:
    """The offset of the newest batch, which is damaged, is given to no other message."""
    (segment,) = segment_files(stopped)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-rotten] + bytes(rotten))

    opened = Opened(stopped, files=files_of(stopped))

    assert logs[0]["event"] == "checkpoint.without_index"
    assert (opened.recovered.read_from, opened.recovered.cut) == (0, None)
    assert len(opened.recovered.damages) == 1
    assert opened.append(b"new").base_offset == 8
    with pytest.raises(DamagedRange) as failure:
        pull(opened, 7)
    assert failure.value.next_offset == 8
    assert pull(opened, 8)[0] == [b"new"]
    opened.store.abandon()


def test_a_start_that_is_refused_leaves_the_indexes_of_a_checkpoint(stopped: Path) -> None:
    files = FaultyFiles()
    files.fail("names", "consumequeue", times=1)
    files.fail("read", f"commitlog/{SEGMENT}", skip=1)
    indexes = {path: path.read_bytes() for path in stopped.glob("[ci]*/**/*") if path.is_file()}
    assert any("consumequeue" in str(path) for path in indexes)

    refused(stopped, files)

    assert {path: path.read_bytes() for path in indexes} == indexes
    again = Opened(stopped)
    assert again.recovered.read_from > 0
    assert again.bodies() == BODIES
    again.close()


@pytest.mark.parametrize("gone", [["consumequeue"], ["consumequeue", "index"]])
def test_keys_are_found_by_the_index_after_indexes_were_lost(memory_path: Path, gone: list[str]) -> None:
    opened = Opened(memory_path, segment_bytes=600)
    for key in ("a", "b", "c", "d"):
        opened.append(b"x" * 300, index_keys=[[key]])
    opened.checkpoint()
    segments = [segment.start for segment in opened.store.log.segments]
    assert len(segments) > 1
    opened.store.abandon()
    for name in gone:
        shutil.rmtree(memory_path / name)

    again = Opened(memory_path, segment_bytes=600)
    again.checkpoint()

    assert again.store.keys.segments() == segments
    listed = [item for segment in segments for item in again.store.keys.listed(segment)]
    assert sum(isinstance(item, tuple) and not isinstance(item, IndexGap) for item in listed) == 4
    assert not any(isinstance(item, IndexGap) for item in listed)
    again.close()


def test_the_log_suffices_if_a_checkpoint_that_cannot_be_read_is_removed(stopped: Path) -> None:
    (stopped / "checkpoint").unlink()

    check_sound(stopped)


def test_a_scrub_reports_a_checkpoint_that_cannot_be_read(stopped: Path) -> None:
    report = Verification(stopped, files=UnreadableFiles("checkpoint")).run()

    (finding,) = report.findings
    assert (finding.place, report.log_is_sound) == ("checkpoint", True)
    assert "cannot be read" in finding.text


# ---- others who read the log


@pytest.mark.parametrize("at", range(0, 24 * 1024, 4096))
def test_a_scrub_reports_bytes_that_cannot_be_read_and_takes_none_for_torn(killed: Path, at: int) -> None:
    report = Verification(killed, files=UnreadableFiles(SEGMENT, at, at + 4096)).run()

    assert any(f"bytes {at} to {at + 4096} of " in finding.text for finding in report.findings)
    assert all(finding.in_log for finding in report.findings)
    assert report.torn == 0
    assert report.batches >= 5


def test_a_scrub_of_an_unreadable_segment_reports_all_of_it(killed: Path) -> None:
    size = segment_files(killed)[0].stat().st_size

    report = Verification(killed, files=UnreadableFiles(SEGMENT)).run()

    (finding,) = report.findings
    assert finding.place == f"0 to {size}"
    assert f"bytes 0 to {size} of " in finding.text
    assert report.torn == 0


def test_a_scan_of_a_stopped_log_refuses_bytes_that_cannot_be_read(killed: Path) -> None:
    with pytest.raises(Unreadable, match=f"{SEGMENT}: bytes 8192 to 12288 cannot be read"):
        OfflineLog(str(killed), files=UnreadableFiles(SEGMENT, 8192, 12288))


def test_a_backup_refuses_bytes_that_cannot_be_read_and_makes_no_copy(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(killed)
    backup = Backup(killed, killed.parent / "copy", opened.store.log.durable)
    monkeypatch.setattr(backup, "_files", UnreadableFiles(SEGMENT, 8192, 12288))

    with pytest.raises(Unreadable, match=f"{SEGMENT}: bytes 8192 to 12288 cannot be read"):
        backup.run()

    assert not (killed.parent / "copy").exists()
    opened.close()


@pytest.mark.parametrize("at", range(0, 24 * 1024, 4096))
@pytest.mark.parametrize("shift", [0, 3])
def test_a_reader_of_the_log_returns_a_batch_whole_or_names_the_bytes_that_cannot_be_read(
    killed: Path, at: int, shift: int
) -> None:
    opened = Opened(killed)
    log, first = opened.store.log, at + shift
    with opened.store.reader() as reader:
        sizes = {position: reader.head(position).size for position in reader.positions(0, log.written)}  # type: ignore[union-attr]
    with LogReader(UnreadableFiles(SEGMENT, first, first + 4096), log.extents(), log.written) as reader:
        for position, size in sizes.items():
            if position + size <= first or position >= first + 4096:
                assert len(reader.batch(position) or b"") == size
                assert reader.head(position) is not None
            else:
                with pytest.raises(OSError, match=f"bytes {position} to .*{SEGMENT}"):
                    reader.batch(position)
    opened.close()


def test_a_header_that_lies_across_unreadable_bytes_is_not_taken_for_damaged(killed: Path) -> None:
    opened = Opened(killed)
    log = opened.store.log
    with LogReader(UnreadableFiles(SEGMENT, 64, 4096), log.extents(), log.written) as reader:
        for read in (reader.head, reader.header, reader.batch):
            with pytest.raises(OSError, match="bytes 0 to"):
                read(0)
    opened.close()
