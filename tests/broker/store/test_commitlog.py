from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq.broker.store.commitlog import MAX_UNSYNCED, CommitLog
from rmq.broker.store.segment import Segment
from rmq.wire.layout import Buffer

from ..builders import descriptors_limited_to, files_limited_to


def append(log: CommitLog, *runs: bytes) -> None:
    for run in runs:
        log.stage(run[:2], memoryview(run)[2:], len(run))
    log.write()


def names(path: Path) -> list[int]:
    return sorted(int(file.name) for file in path.iterdir())


def test_staged_runs_get_positions_one_behind_the_other_and_exist_once_written(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1 << 20)

    log.stage(b"a", b"bc", 3)
    assert (log.end, log.written) == (3, 0)
    log.stage(b"d", b"e", 2)
    assert (log.end, log.written, log.segments[0].size) == (5, 0, 0)
    log.write()

    assert (log.end, log.written) == (5, 5)
    assert log.read(0, 5) == b"abcde"
    log.close()


def test_writing_nothing_does_nothing(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1 << 20)

    log.write()

    assert (log.written, names(tmp_path)) == (0, [0])
    log.close()


def test_a_segment_is_closed_before_it_grows_beyond_its_size(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 10)

    append(log, b"1234567890")
    assert names(tmp_path) == [0]
    append(log, b"abcd")
    append(log, b"efgh")
    append(log, b"ijk")

    assert names(tmp_path) == [0, 10, 18]
    assert [log.read(at, size) for at, size in ((6, 4), (10, 4), (14, 4), (18, 3))] == [
        b"7890", b"abcd", b"efgh", b"ijk",
    ]  # fmt: skip
    log.close()


def test_a_turn_is_never_cut_in_two_segments(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 10)

    append(log, b"12")
    append(log, *[b"abcdef"] * 4)

    assert names(tmp_path) == [0, 2]
    assert log.segments[1].size == 24
    log.close()


def test_a_log_goes_on_where_its_last_segment_ends(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 10)
    append(log, b"1234567890")
    append(log, b"abcd")
    log.close()

    log = CommitLog(tmp_path, 10)
    append(log, b"ef")

    assert (log.written, log.read(10, 6)) == (16, b"abcdef")
    log.close()


def test_a_failed_write_gives_its_positions_out_again(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1 << 20)
    append(log, b"kept")

    log.stage(b"lo", b"st" * 50, 102)
    with files_limited_to(20), pytest.raises(OSError):
        log.write()

    assert (log.end, log.written, log.segments[0].size) == (4, 4, 4)
    assert log.segments[0].path.read_bytes() == b"kept"
    append(log, b"next")
    assert log.read(0, 8) == b"keptnext"
    log.close()


def test_a_write_that_fails_in_a_new_segment_leaves_it_empty_and_is_repeated_there(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 8)
    append(log, b"1234")

    log.stage(b"lo", b"st!", 5)
    with files_limited_to(2), pytest.raises(OSError):
        log.write()
    assert (log.end, log.written) == (4, 4)
    append(log, b"abcde")

    assert names(tmp_path) == [0, 4]
    assert log.read(4, 5) == b"abcde"
    log.close()


def test_a_segment_that_cannot_be_made_fails_the_write(tmp_path: Path) -> None:
    class Unmakable(Segment):
        @classmethod
        def create(cls, directory: Path, start: int) -> Segment:
            if start:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().create(directory, start)

    log = CommitLog(tmp_path, 8, Unmakable)
    append(log, b"12345678")

    with pytest.raises(OSError):
        append(log, b"abcd")

    assert (log.end, log.written, len(log.segments)) == (8, 8, 1)
    log.close()


def test_sync_returns_the_position_that_was_written_before_it_began(tmp_path: Path) -> None:
    class WrittenMeanwhile(Segment):
        def sync(self) -> None:
            if log.written == 4:
                append(log, b"late")
            super().sync()

    log = CommitLog(tmp_path, 1 << 20, WrittenMeanwhile)
    append(log, b"1234")

    assert log.sync() == 4
    assert log.segments[0].synced == 4
    assert log.sync() == 8
    log.close()


def test_sync_goes_from_old_to_new_and_leaves_out_what_is_durable(tmp_path: Path) -> None:
    synced: list[int] = []

    class Recording(Segment):
        def sync(self) -> None:
            synced.append(self.start)
            super().sync()

    log = CommitLog(tmp_path, 4, Recording)
    for run in (b"1234", b"5678", b"90"):
        append(log, run)

    assert log.sync() == 10
    assert synced == [0, 4, 8]
    append(log, b"ab")
    assert log.sync() == 12
    assert log.sync() == 12
    assert synced == [0, 4, 8, 8]
    assert all(segment.name_synced for segment in log.segments)
    log.close()


def test_a_failed_sync_counts_nothing_as_durable(tmp_path: Path) -> None:
    class Broken(Segment):
        def sync(self) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = CommitLog(tmp_path, 1 << 20, Broken)
    append(log, b"1234")

    with pytest.raises(OSError):
        log.sync()

    assert log.segments[0].synced == 0
    log.close()


def test_dropping_segments_removes_their_files(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4)
    for run in (b"1234", b"5678", b"90"):
        append(log, run)

    log.drop_behind(0)

    assert names(tmp_path) == [0]
    assert log.segment_at(100) is log.segments[0]
    log.close()


def test_other_files_beside_the_segments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    log = CommitLog(tmp_path, 4)

    assert [segment.start for segment in log.segments] == [0]
    log.close()


def test_a_short_system_call_does_not_shorten_a_turn(tmp_path: Path) -> None:
    class Short(Segment):
        def put(self, buffers: Sequence[Buffer], at: int) -> int:
            return super().put([b"".join(buffers)[:5]], at)

    log = CommitLog(tmp_path, 1 << 20, Short)

    append(log, b"0123456789", b"abcdefghij")

    assert log.read(0, 20) == b"0123456789abcdefghij"
    log.close()


# ---- descriptors


def open_segments(log: CommitLog) -> list[int]:
    return [segment.start for segment in log.segments if segment.is_open]


def test_a_synced_segment_keeps_no_descriptor_and_is_read_all_the_same(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4)
    for i in range(10):
        append(log, b"%04d" % i)
        log.sync()

    assert open_segments(log) == [32, 36]  # the one before the newest goes at the next roll
    assert [log.read(4 * i, 4) for i in range(10)] == [b"%04d" % i for i in range(10)]
    log.close()
    assert open_segments(log) == []


def test_a_segment_that_is_not_synced_keeps_its_descriptor(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4)
    append(log, b"0000")
    append(log, b"0001")
    log.sync()
    for i in range(2, 6):
        append(log, b"%04d" % i)

    assert open_segments(log) == [4, 8, 12, 16, 20]
    log.close()


def test_a_segment_written_to_while_it_is_synced_stays_open_until_a_sync_covers_it(tmp_path: Path) -> None:
    class WrittenMeanwhile(Segment):
        def sync(self) -> None:
            super().sync()
            if log.written == 2:
                append(log, b"34")
                append(log, b"5678")

    log = CommitLog(tmp_path, 4, WrittenMeanwhile)
    append(log, b"12")

    assert log.sync() == 2
    append(log, b"9abc")
    assert open_segments(log) == [0, 4, 8]
    assert log.sync() == 12
    append(log, b"defg")
    assert open_segments(log) == [8, 12]
    log.close()


def test_a_segment_grows_on_while_the_disk_is_many_segments_behind(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4)
    for i in range(MAX_UNSYNCED + 5):
        append(log, b"%04d" % i)
    assert len(open_segments(log)) == len(log.segments) == MAX_UNSYNCED

    log.sync()
    append(log, b"next")

    assert open_segments(log) == [log.segments[-2].start, log.segments[-1].start]
    assert [log.read(4 * i, 4) for i in range(MAX_UNSYNCED + 5)] == [b"%04d" % i for i in range(MAX_UNSYNCED + 5)]
    log.close()


def test_a_sync_looks_at_no_segment_that_is_done(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4)
    for i in range(10):
        append(log, b"%04d" % i)
        log.sync()
    for done in log.segments[:-1]:
        done.synced = -1  # would be synced again, through a descriptor that it does not have

    append(log, b"next")

    assert log.sync() == 44
    log.close()


def test_a_log_without_free_descriptors_refuses_writes_syncs_on_and_recovers_by_itself(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4)
    append(log, b"1234")

    with descriptors_limited_to(0):
        with pytest.raises(OSError) as failure:
            append(log, b"5678")
        assert failure.value.errno == errno.EMFILE
        assert log.sync() == 4
    append(log, b"5678")
    with descriptors_limited_to(0):
        assert log.sync() == 8

    assert log.read(0, 4) + log.read(4, 4) == b"12345678"
    log.close()
