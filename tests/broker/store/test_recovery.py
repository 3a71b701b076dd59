from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rmq.broker.offline.reader import OfflineLog
from rmq.broker.offline.verify import Verification
from rmq.broker.store.directory import StoreError
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.layout import Buffer

from ..builders import BORN_AT, ORDERS, PAYMENTS, Opened, descriptors_limited_to, log_bytes, segment_files
from ..faulty_files import FaultyFiles, flip
from .small_log import Small, build, check_everything_readable
from support.batches import patched


@pytest.fixture
def small(memory_path: Path) -> Small:
    return build(memory_path / "data", synced=False)


def test_a_whole_log_is_kept_as_it_is(small: Small) -> None:
    before = log_bytes(small.path)

    opened = Opened(small.path)

    assert opened.recovered.cut is None
    assert opened.recovered.batches == 4
    assert opened.recovered.messages == len(small.bodies[-1])
    check_everything_readable(opened, small, len(small.bounds) - 1)
    assert log_bytes(small.path) == before
    opened.close()


def test_a_log_cut_at_any_byte_keeps_exactly_the_whole_batches_before(memory_path: Path) -> None:
    small = build(memory_path / "data", synced=True)
    whole = small.last.read_bytes()
    assert len(segment_files(small.path)) == 2
    assert sum(bound > small.last_start for bound in small.bounds) >= 3

    for k in range(len(whole)):
        small.last.write_bytes(whole[:k])
        end = small.last_start + k
        kept = max(i for i, bound in enumerate(small.bounds) if bound <= end)
        torn = whole[small.bounds[kept] - small.last_start : k]

        opened = Opened(small.path)
        cut = opened.recovered.cut
        if torn:
            assert cut is not None, k
            assert (cut.position, cut.size) == (small.bounds[kept], len(torn))
            assert cut.kept_in.read_bytes() == torn
            assert cut.kept_in.parent == small.path / "quarantine"
            cut.kept_in.unlink()
        else:
            assert cut is None, k
        check_everything_readable(opened, small, kept)
        opened.close()

        if torn:
            again = Opened(small.path)
            assert again.recovered.cut is None
            check_everything_readable(again, small, kept)
            again.close()


def test_a_flipped_byte_anywhere_in_the_last_batch_cuts_it(small: Small) -> None:
    whole = small.last.read_bytes()
    at = small.bounds[-2] - small.last_start

    for i in range(at, len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 0xFF
        small.last.write_bytes(damaged)

        opened = Opened(small.path)

        assert opened.recovered.cut is not None, i - at
        assert opened.recovered.cut.position == small.bounds[-2]
        assert opened.recovered.cut.kept_in.read_bytes() == damaged[at:]
        opened.recovered.cut.kept_in.unlink()
        check_everything_readable(opened, small, len(small.bounds) - 2)
        opened.close()


@pytest.mark.parametrize("tail", [b"\0" * 8, b"\0" * 4096, b"\xff" * 100, b"RM\x01" * 50, os.urandom(999)])
def test_whatever_stands_behind_the_last_batch_is_cut(small: Small, tail: bytes) -> None:
    whole = small.last.read_bytes()
    small.last.write_bytes(whole + tail)

    opened = Opened(small.path)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.kept_in.read_bytes() == tail
    assert small.last.read_bytes() == whole
    opened.close()


def test_a_batch_that_says_it_lies_elsewhere_is_cut(small: Small) -> None:
    whole = small.last.read_bytes()
    first = small.bounds[-2] - small.last_start
    small.last.write_bytes(whole + whole[first:])

    opened = Opened(small.path)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.reason == f"a batch says it lies at {small.bounds[-2]}"
    check_everything_readable(opened, small, len(small.bounds) - 1)
    opened.close()


def test_appending_goes_on_behind_the_cut(small: Small) -> None:
    whole = small.last.read_bytes()
    small.last.write_bytes(whole[:-3])
    opened = Opened(small.path)

    placed = opened.append(b"new")
    opened.close()

    assert placed.physical_offset == small.bounds[-2]
    again = Opened(small.path)
    assert again.bodies() == [*small.bodies[-1], b"new"]
    again.close()


def test_what_an_earlier_start_put_aside_is_not_written_over(small: Small) -> None:
    whole = small.last.read_bytes()
    kept = []
    for tail in (b"first" * 8, b"second" * 8):
        small.last.write_bytes(whole + tail)
        opened = Opened(small.path)
        assert opened.recovered.cut is not None
        kept.append(opened.recovered.cut.kept_in)
        opened.close()

    assert [file.read_bytes() for file in kept] == [b"first" * 8, b"second" * 8]


def test_segments_behind_a_missing_one_that_was_never_synced_are_put_aside(tmp_path: Path) -> None:
    opened = Opened(tmp_path, segment_bytes=4096)
    for i in range(3):
        opened.stage(b"%d" % i * 5000)
        opened.write()
    opened.store.abandon()
    _, second, third, fourth = segment_files(tmp_path)
    tail = third.read_bytes() + fourth.read_bytes()
    second.unlink()

    opened = Opened(tmp_path)

    assert opened.recovered.cut is not None
    assert (opened.recovered.cut.position, opened.recovered.cut.reason) == (int(second.name), "a segment is missing")
    assert opened.recovered.cut.kept_in.read_bytes() == tail
    assert opened.bodies() == [b"0" * 5000]
    opened.close()


def test_a_tail_over_several_segments_is_put_aside_as_one(tmp_path: Path) -> None:
    opened = Opened(tmp_path, segment_bytes=4096)
    for i in range(3):
        opened.stage(b"%d" % i * 5000)
        opened.write()  # never synced
    opened.store.abandon()
    files = segment_files(tmp_path)
    flip(files[1], 100)
    tail = b"".join(file.read_bytes() for file in files[1:])

    opened = Opened(tmp_path)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.kept_in.read_bytes() == tail
    assert segment_files(tmp_path) == files[:2]
    assert files[1].stat().st_size == 0
    assert opened.bodies() == [b"0" * 5000]
    opened.append(b"on")
    assert opened.bodies()[-1] == b"on"
    opened.close()


def test_a_batch_of_a_newer_version_refuses_the_start(small: Small) -> None:
    whole = small.last.read_bytes()
    at = small.bounds[-2] - small.last_start
    parked = patched(whole[at:], 64, ">B", layout.KIND_TRANSACTION)
    small.last.write_bytes(whole[:at] + parked)

    with pytest.raises(StoreError, match=rf"cannot read the log at {small.bounds[-2]} .*kind 3 is unknown.*version"):
        Opened(small.path)

    assert small.last.read_bytes() == whole[:at] + parked


def test_a_state_change_of_a_newer_version_refuses_the_start(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    body = msgpack.packb([[99, "x"]])
    data = batches.encode("", 0, Rows([body], BORN_AT), kind=layout.KIND_STATE)
    by = layout.Stamp(1, 0, 0, BORN_AT, 0, 0, 0, 0, layout.KIND_STATE)
    header_size = layout.parse_header(data).header_size
    opened.store.log.stage(layout.stamp(data, header_size, by), data[layout.BROKER_PART :], len(data))
    opened.store.log.write()
    opened.close()

    with pytest.raises(StoreError, match=r"the state batch at 0 cannot be used: state change 99 is unknown"):
        Opened(tmp_path)


def test_what_no_header_proves_durable_is_written_again_before_it_is_synced(tmp_path: Path) -> None:
    class Recording(FaultyFiles):
        def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
            if "commitlog" in self.paths[fd]:
                written.append(at)
            return super().write(fd, buffers, at)

    written: list[int] = []
    opened = Opened(tmp_path)
    opened.append(b"a")
    unproven = opened.append(b"b").physical_offset  # says that "a" was durable
    opened.store.abandon()
    files = Recording()

    opened = Opened(tmp_path, files=files)

    assert written == [unproven]
    assert files.ops("commitlog", "write", "sync", "sync_directory") == ["write", "sync", "sync_directory"]
    assert opened.bodies() == [b"a", b"b"]
    opened.close()


def test_queues_and_state_of_several_topics_come_back_apart(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a", to=ORDERS)
    opened.append(b"b", to=PAYMENTS)
    opened.append(b"c", to=ORDERS)
    opened.close()

    again = Opened(tmp_path)

    assert (again.bodies(ORDERS), again.bodies(PAYMENTS)) == ([b"a", b"c"], [b"b"])
    again.close()


def test_hundreds_of_segments_need_few_descriptors_to_be_written_recovered_and_read(memory_path: Path) -> None:
    wanted = [b"%03d" % i + bytes(100) for i in range(300)]
    with descriptors_limited_to(80):
        opened = Opened(memory_path, segment_bytes=200)
        for body in wanted:
            opened.append(body)
        assert len(segment_files(memory_path)) >= 150
        assert opened.bodies() == wanted
        opened.store.abandon()

    with descriptors_limited_to(10):
        again = Opened(memory_path, segment_bytes=200)
        assert again.bodies() == wanted
        assert again.append(b"on").base_offset == 300
        again.close()


def test_a_tail_over_hundreds_of_segments_is_put_aside_with_few_descriptors(memory_path: Path) -> None:
    opened = Opened(memory_path, segment_bytes=200)
    for i in range(100):
        opened.stage(b"%03d" % i + bytes(100))
        opened.write()
        opened.store.log.sync()  # which no header says
    opened.close()
    whole, files = log_bytes(memory_path), segment_files(memory_path)
    for file in files[1:]:  # as if nothing behind the first had ever been proven durable
        content = bytearray(file.read_bytes())
        content[4:8] = bytes(4)
        file.write_bytes(content)

    with descriptors_limited_to(10):
        opened = Opened(memory_path, segment_bytes=200)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.size == len(whole) - int(files[1].name)
    assert opened.recovered.cut.position == int(files[1].name)
    assert segment_files(memory_path) == files[:2]
    opened.close()


@pytest.mark.parametrize("length", [1 << 20, 100], ids=["whole", "torn"])
def test_whole_batches_of_a_failed_write_do_not_come_back_before_a_later_segment(
    memory_path: Path, length: int, logs: list[dict[str, Any]]
) -> None:
    """The segment was cut back, and the power went before that had reached the disk."""
    data, failing = memory_path / "data", FaultyFiles()
    opened = Opened(data, segment_bytes=4096, files=failing)
    failing.fail("open", "commitlog", errno.ENOSPC, times=1)  # the next segment can be made one write later
    opened.append(b"a" * 4096)
    left: list[bytes] = []
    failing.before = lambda done: left.append(segment_files(data)[0].read_bytes()) if done.op == "truncate" else None
    failing.fail("write", "commitlog", errno.EIO, times=1, after=length)
    for body in (b"refused", b"too"):
        opened.stage(body)
    with pytest.raises(OSError, match="Input/output"):
        opened.store.write()
    opened.write()
    opened.append(b"b" * 100)
    opened.append(b"c")
    opened.close()
    first = segment_files(data)[0]
    kept = first.read_bytes()
    first.write_bytes(left[0])
    overlap = left[0][len(kept) :]
    assert overlap

    assert Verification(data).run().findings == []
    failing = FaultyFiles()
    failing.fail("write", "quarantine", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        Opened(data, segment_bytes=4096, files=failing)
    assert first.read_bytes() == left[0] and not list((data / "quarantine").iterdir())
    opened = Opened(data, segment_bytes=4096)

    assert (opened.recovered.cut, opened.recovered.damages) == (None, [])
    assert opened.bodies() == [b"a" * 4096, b"b" * 100, b"c"]
    assert first.read_bytes() == kept
    (event,) = [entry for entry in logs if entry["event"] == "log.overlap_cut"]
    assert (event["position"], event["size"]) == (len(kept), len(overlap))
    assert Path(event["kept_in"]).read_bytes() == overlap
    assert Path(event["kept_in"]).parent == data / "quarantine"
    opened.close()


@pytest.mark.parametrize("name", [f"{500:020d}", "500"])
def test_a_start_on_the_files_of_two_logs_is_refused_and_changes_nothing(memory_path: Path, name: str) -> None:
    opened = Opened(memory_path)
    bodies = [b"%d" % i * 100 for i in range(8)]
    for body in bodies:
        opened.append(body)
    opened.store.abandon()
    (first,) = segment_files(memory_path)
    stored = first.read_bytes()
    stray = first.with_name(name)
    stray.write_bytes(b"of another broker")

    for _ in range(2):
        with pytest.raises(StoreError, match=rf"{first} holds .* where {stray} begins, so the files of two logs"):
            Opened(memory_path)

    assert (first.read_bytes(), stray.read_bytes()) == (stored, b"of another broker")
    report = Verification(memory_path).run()
    assert "the files of two logs are mixed" in report.findings[0].text
    assert not report.log_is_sound
    with pytest.raises(StoreError, match="the files of two logs are mixed"):
        OfflineLog(str(memory_path))
    stray.unlink()
    opened = Opened(memory_path)
    assert opened.bodies() == bodies
    opened.close()


def test_a_header_proves_nothing_of_what_lies_behind_it(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"one")
    opened.store.log.durable = 1 << 60
    opened.append(b"two")
    end = opened.store.log.written
    opened.store.abandon()

    opened = Opened(tmp_path)

    assert (opened.store.log.written, opened.recovered.damages) == (end, [])
    assert opened.bodies() == [b"one", b"two"]
    opened.close()
