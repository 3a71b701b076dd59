"""T.broker.store.test_commitlog"""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store.commitlog import MAX_UNSYNCED, OVERHEAD, CommitLog, Extent, Moved, Recent
from rmq.broker.store.files import Files
from rmq.broker.store.segment import EXTENT, TAIL

from ..builders import descriptors_limited_to, files_limited_to
from rigs.batches import quick
from rigs.disk.faulty import Done, FaultyFiles


def make(path: Path, segment_bytes: int = 1 << 20, files: Files | None = None) -> CommitLog:
    return CommitLog(files or Files(), path, segment_bytes)


def read(log: CommitLog, position: int, size: int) -> bytes:
    segment = log.segment_at(position)
    fd = segment.fd if segment.is_open else log.readers.fd(str(segment.path))
    return os.pread(fd, size, position - segment.start)


def append(log: CommitLog, *runs: bytes) -> None:
    """Write as the store does: where a segment is full, another one begins."""
    if log.full:
        log.roll()
    for run in runs:
        log.stage(run[:2], memoryview(run)[2:], len(run))
    log.write()


def names(path: Path) -> list[int]:
    return sorted(int(file.name) for file in path.iterdir())


def test_staged_runs_get_positions_one_after_the_other_and_exist_once_written(tmp_path: Path) -> None:
    log = make(tmp_path)

    log.stage(b"a", b"bc", 3)
    assert (log.end, log.written) == (3, 0)
    log.stage(b"d", b"e", 2)
    assert (log.end, log.written, log.segments[0].size) == (5, 0, 0)
    log.write()

    assert (log.end, log.written) == (5, 5)
    assert read(log, 0, 5) == b"abcde"
    log.close()


def test_writing_nothing_does_nothing(tmp_path: Path) -> None:
    log = make(tmp_path)

    log.write()

    assert (log.written, names(tmp_path)) == (0, [0])
    log.close()


def test_a_segment_is_full_once_it_has_reached_its_size(tmp_path: Path) -> None:
    log = make(tmp_path, 10)

    append(log, b"123456789")
    assert not log.full
    append(log, b"abcd")
    assert log.full
    append(log, b"efgh")

    assert names(tmp_path) == [0, 13]
    assert [read(log, at, size) for at, size in ((5, 4), (9, 4), (13, 4))] == [b"6789", b"abcd", b"efgh"]
    log.close()


def test_a_turn_is_never_cut_in_two_segments(tmp_path: Path) -> None:
    log = make(tmp_path, 10)

    append(log, b"12")
    append(log, *[b"abcdef"] * 4)
    append(log, b"next")

    assert names(tmp_path) == [0, 26]
    log.close()


def test_a_segment_is_not_full_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    append(log, b"1234")
    assert log.full

    log.stage(b"ab", b"cd", 4)

    assert not log.full
    log.close()


def test_a_segment_that_follows_another_says_that_it_has_nothing_yet(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    assert not log.begins_segment  # the first one has nothing before it
    append(log, b"1234")
    log.roll()
    assert log.begins_segment

    log.stage(b"ab", b"cd", 4)
    assert not log.begins_segment
    log.write()

    assert not log.begins_segment
    log.close()


def test_a_log_goes_on_where_its_last_segment_ends(tmp_path: Path) -> None:
    log = make(tmp_path, 10)
    append(log, b"1234567890")
    append(log, b"abcd")
    log.close()

    log = make(tmp_path, 10)
    append(log, b"ef")

    assert (log.written, read(log, 10, 6)) == (16, b"abcdef")
    log.close()


def test_a_failed_write_gives_its_positions_out_again(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, b"kept")

    log.stage(b"lo", b"st" * 50, 102)
    with files_limited_to(20), pytest.raises(OSError):
        log.write()

    assert (log.end, log.written, log.segments[0].size) == (4, 4, 4)
    assert log.segments[0].path.read_bytes() == b"kept"
    append(log, b"next")
    assert read(log, 0, 8) == b"keptnext"
    log.close()


def test_a_write_that_fails_in_a_new_segment_leaves_it_empty_and_is_repeated_there(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    append(log, b"1234")
    log.roll()

    log.stage(b"lo", b"st!", 5)
    with files_limited_to(2), pytest.raises(OSError):
        log.write()
    assert (log.end, log.written, log.begins_segment) == (4, 4, True)
    append(log, b"abcde")

    assert names(tmp_path) == [0, 4]
    assert read(log, 4, 5) == b"abcde"
    log.close()


def test_where_no_segment_can_be_made_the_old_one_goes_on(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = make(tmp_path, 8, files)
    append(log, b"12345678")
    files.fail("open", "", errno.ENOSPC)

    with pytest.raises(OSError):
        log.roll()
    log.stage(b"ab", b"cd", 4)
    log.write()
    files.heal()
    append(log, b"ef")

    assert (names(tmp_path), read(log, 0, 12), read(log, 12, 2)) == ([0, 12], b"12345678abcd", b"ef")
    log.close()


def test_sync_returns_the_position_that_was_written_before_it_began(tmp_path: Path) -> None:
    def write_meanwhile(done: Done) -> None:
        if done.op == "sync" and log.written == 4:
            append(log, b"late")

    files = FaultyFiles()
    log = make(tmp_path, files=files)
    append(log, b"1234")
    files.before = write_meanwhile

    assert log.sync() == 4
    assert log.segments[0].synced == 4
    assert log.sync() == 8
    log.close()


def test_sync_goes_from_old_to_new_and_leaves_out_what_is_durable(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = make(tmp_path, 4, files)
    for run in (b"1234", b"5678", b"90"):
        append(log, run)

    def synced() -> list[int]:
        return [int(Path(done.path).name) for done in files.done if done.op == "sync"]

    assert log.sync() == 10
    assert synced() == [0, 4, 8]
    append(log, b"ab")
    assert log.sync() == 12
    assert log.sync() == 12
    assert synced() == [0, 4, 8, 8]
    assert all(segment.name_synced for segment in log.segments)
    log.close()


def test_the_name_of_a_new_segment_is_durable_with_the_first_sync_that_covers_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = make(tmp_path, 4, files)
    append(log, b"1234")
    log.sync()
    append(log, b"56")
    files.done.clear()

    log.sync()
    assert [done.op for done in files.done] == ["sync", "sync_directory"]
    append(log, b"7")
    files.done.clear()
    log.sync()

    assert [done.op for done in files.done] == ["sync"]
    log.close()


@pytest.mark.parametrize("op", ["sync", "sync_directory"])
def test_a_failed_sync_raises_and_counts_nothing_as_durable(tmp_path: Path, op: str) -> None:
    files = FaultyFiles()
    log = make(tmp_path, files=files)
    append(log, b"1234")
    files.fail(op, "")

    with pytest.raises(OSError):
        log.sync()

    assert (log.durable, log.segments[0].name_synced) == (0, False)
    log.close()


def test_dropping_segments_removes_their_files(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    for run in (b"1234", b"5678", b"90"):
        append(log, run)

    log.drop_after(0)

    assert names(tmp_path) == [0]
    assert log.segment_at(100) is log.segments[0]
    log.close()


def test_other_files_next_to_the_segments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    log = make(tmp_path, 4)

    assert [segment.start for segment in log.segments] == [0]
    log.close()


def test_a_short_system_call_does_not_shorten_a_turn(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.at_most = 5
    log = make(tmp_path, files=files)

    append(log, b"0123456789", b"abcdefghij")

    assert read(log, 0, 20) == b"0123456789abcdefghij"
    log.close()


def test_what_was_written_is_in_memory_and_what_was_not_is_not(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = make(tmp_path, files=files)
    append(log, b"abcd", b"efg")
    files.fail("write", "", times=1)
    with pytest.raises(OSError):
        append(log, b"lost")

    assert (log.recent.get(0), log.recent.get(4), log.recent.get(7)) == ((b"ab", b"cd"), (b"ef", b"g"), None)
    log.close()


def test_readers_of_other_threads_see_the_segments_that_there_are(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    for run in (b"1234", b"5678", b"90"):
        append(log, run)
        log.sync()
    log.sync()

    first = [Extent(at, str(tmp_path / f"{at:020d}")) for at in (0, 4, 8)]
    assert log.extents() == tuple(first)
    assert [segment.start for segment in log.forget_before(8)] == [0, 4]

    assert (log.start, log.extents()) == (8, tuple(first[2:]))
    assert names(tmp_path) == [0, 4, 8]  # removing them is for a thread
    log.close()


def test_a_log_that_lost_its_end_goes_on_after_what_was_promised(tmp_path: Path) -> None:
    log = make(tmp_path, 1000)
    append(log, b"1234")

    log.skip_to(100)
    log.settle(100)
    append(log, b"next")

    assert (names(tmp_path), log.written, read(log, 100, 4)) == ([0, 100], 104, b"next")
    log.close()


# ---- descriptors


def open_segments(log: CommitLog) -> list[int]:
    return [segment.start for segment in log.segments if segment.is_open]


def test_a_synced_segment_keeps_no_descriptor_and_is_read_all_the_same(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    for i in range(10):
        append(log, b"%04d" % i)
        log.sync()

    assert open_segments(log) == [32, 36]  # the one before the newest goes at the next roll
    assert [read(log, 4 * i, 4) for i in range(10)] == [b"%04d" % i for i in range(10)]
    log.close()
    assert open_segments(log) == []


def test_a_segment_that_is_not_synced_keeps_its_descriptor(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    append(log, b"0000")
    append(log, b"0001")
    log.sync()
    for i in range(2, 6):
        append(log, b"%04d" % i)

    assert open_segments(log) == [4, 8, 12, 16, 20]
    log.close()


def test_a_segment_written_to_while_it_is_synced_stays_open_until_a_sync_covers_it(tmp_path: Path) -> None:
    def write_meanwhile(done: Done) -> None:
        if done.op == "sync" and log.written == 2:
            append(log, b"34")
            append(log, b"5678")

    files = FaultyFiles()
    log = make(tmp_path, 4, files)
    append(log, b"12")
    files.before = write_meanwhile

    assert log.sync() == 2
    append(log, b"9abc")
    assert open_segments(log) == [0, 4, 8]
    assert log.sync() == 12
    append(log, b"defg")
    assert open_segments(log) == [8, 12]
    log.close()


def test_a_segment_grows_on_while_many_segments_are_not_synced(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    for i in range(MAX_UNSYNCED + 5):
        append(log, b"%04d" % i)
    assert len(open_segments(log)) == len(log.segments) == MAX_UNSYNCED

    log.sync()
    append(log, b"next")

    assert open_segments(log) == [log.segments[-2].start, log.segments[-1].start]
    assert [read(log, 4 * i, 4) for i in range(MAX_UNSYNCED + 5)] == [b"%04d" % i for i in range(MAX_UNSYNCED + 5)]
    log.close()


def test_a_sync_looks_at_no_segment_that_is_done(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    for i in range(10):
        append(log, b"%04d" % i)
        log.sync()
    for done in log.segments[:-1]:
        done.synced = -1  # would be synced again, through a descriptor that it does not have

    append(log, b"next")

    assert log.sync() == 44
    log.close()


def test_a_log_without_free_descriptors_grows_on_in_one_segment_and_recovers_by_itself(tmp_path: Path) -> None:
    log = make(tmp_path, 4)
    append(log, b"1234")

    with descriptors_limited_to(0):
        with pytest.raises(OSError) as failure:
            log.roll()
        assert failure.value.errno == errno.EMFILE
        log.stage(b"56", b"78", 4)
        log.write()
        assert log.sync() == 8
    append(log, b"9abc")
    with descriptors_limited_to(0):
        assert log.sync() == 12

    assert (names(tmp_path), read(log, 0, 8) + read(log, 8, 4)) == ([0, 8], b"123456789abc")
    log.close()


def test_no_segment_begins_in_another_directory_of_the_same_name(memory_path: Path) -> None:
    (memory_path / "log").mkdir()
    log = make(memory_path / "log", 4)
    append(log, b"1234")
    (memory_path / "log").rename(memory_path / "moved")
    assert not log.try_roll()
    (memory_path / "log").mkdir()

    with pytest.raises(Moved, match=f"{memory_path} is not the data directory any more that this broker opened"):
        log.roll()
    assert not log.try_roll()
    log.stage(b"56", b"78", 4)
    log.write()
    assert log.sync() == 8

    assert not list((memory_path / "log").iterdir())
    (memory_path / "log").rmdir()
    (memory_path / "moved").rename(memory_path / "log")
    assert log.try_roll()
    assert (names(memory_path / "log"), read(log, 0, 8)) == ([0, 8], b"12345678")
    log.close()


def test_no_segment_follows_one_that_a_failed_write_left_ragged(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = make(tmp_path, 4, files)
    append(log, b"1234")
    files.fail("write", "", errno.ENOSPC, times=1, after=3)
    files.fail("truncate", "", errno.EIO, times=2)
    log.stage(b"lo", b"st", 4)
    with pytest.raises(OSError, match="No space"):
        log.write()

    with pytest.raises(OSError, match="Input/output"):
        log.roll()  # what was refused would stand where the next segment begins
    log.roll()

    assert [segment.path.stat().st_size for segment in log.segments] == [4, 0]
    log.close()


@quick
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 200))
def test_the_newest_batches_stay_and_their_size_is_bounded(sizes: list[int], limit: int) -> None:
    limit *= OVERHEAD // 10
    recent, position = Recent(limit), 0
    added = []
    for size in sizes:
        recent.add(position, b"h" * (size // 2), memoryview(bytearray(size - size // 2)))
        added.append((position, size))
        position += size

        assert recent.size <= limit
        kept = [entry for entry in added if recent.get(entry[0]) is not None]
        assert kept == added[len(added) - len(kept) :]  # the newest, without a hole
        assert recent.size == sum(size + OVERHEAD for _, size in kept)
        if len(kept) < len(added):  # one more would be too much
            assert recent.size + added[-len(kept) - 1][1] + OVERHEAD > limit


def test_a_batch_comes_back_as_it_was_given() -> None:
    recent = Recent(1000)
    rest = memoryview(b"rest")

    recent.add(800, b"head", rest)

    assert recent.get(800) == (b"head", rest)
    assert recent.get(801) is None


def test_a_batch_larger_than_all_that_may_stay_is_not_kept() -> None:
    recent = Recent(OVERHEAD + 10)
    recent.add(0, b"12345", memoryview(b""))
    recent.add(5, b"1234567890", memoryview(b"1"))

    assert (recent.get(0), recent.get(5), recent.size) == (None, None, 0)


def test_memory_is_bounded_however_small_the_batches_are() -> None:
    recent, limit = Recent(1 << 20), 1 << 20
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(5000):
            batch = bytes(bytearray(168))
            recent.add((1 << 40) + 168 * i, bytes(bytearray(72)), memoryview(batch)[72:])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken < 1.3 * limit


def test_batches_of_one_frame_count_as_the_frame_that_they_keep_in_memory() -> None:
    recent, frame, other = Recent(10_000), bytearray(4000), bytearray(3000)

    recent.add(0, b"head", memoryview(frame)[72:100])
    recent.add(100, b"head", memoryview(frame)[172:200])
    assert recent.size == 2 * (4 + OVERHEAD) + 4000
    recent.add(200, b"head", memoryview(other)[72:100])
    assert recent.size == 3 * (4 + OVERHEAD) + 7000
    recent.add(300, b"head", memoryview(bytearray(800))[72:100])
    assert recent.get(0) is None
    assert recent.size == 3 * (4 + OVERHEAD) + 7800, "the second one keeps the frame"


def test_a_frame_is_in_memory_and_counts_until_the_last_of_its_batches_is_gone() -> None:
    recent, frame = Recent(10_000), bytearray(4000)
    for position in (0, 100, 200):
        recent.add(position, b"head", memoryview(frame)[position : position + 28])

    recent.add(300, b"head", memoryview(bytearray(5000))[72:100])

    assert [recent.get(position) is not None for position in (0, 100, 200, 300)] == [False, False, False, True]
    assert recent.size == 4 + OVERHEAD + 5000


def test_a_frame_that_did_not_fit_is_counted_again_with_its_next_batch() -> None:
    recent, frame = Recent(3000), bytearray(4000)

    for position in (0, 100):
        recent.add(position, b"head", memoryview(frame)[position : position + 28])

    assert (recent.get(0), recent.get(100), recent.size) == (None, None, 0)


# ---- beginning to write the log out: which segments, how far, and never through a descriptor that is closed


LONG = TAIL + 2 * EXTENT


class Recording(Files):
    """Notes what is written out: the name of the file, and the range."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int]] = []

    def begin_writeback(self, fd: int, size: int, at: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))  # raises if it is closed
        super().begin_writeback(fd, size, at)
        self.begun.append((name.lstrip("0") or "0", at, at + size))


def write(log: CommitLog, size: int) -> None:
    log.stage(b"", bytes(size), size)
    log.write()


def test_all_segments_that_are_not_synced_are_written_out_and_no_other(tmp_path: Path) -> None:
    files = Recording()
    log = CommitLog(files, tmp_path, LONG)
    write(log, LONG)
    log.sync()
    log.roll()
    write(log, LONG)
    log.roll()
    write(log, LONG + EXTENT)
    log.begin_writeback()
    assert files.begun == [(str(LONG), 0, 2 * EXTENT), (str(2 * LONG), 0, 3 * EXTENT)]

    log.sync()
    log.roll()  # closes those that are done with
    write(log, EXTENT)
    files.begun.clear()
    log.begin_writeback()

    assert files.begun == []
    log.close()
