"""T.broker.store.test_recovery"""

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
from rmq.broker.store.history import Parted
from rmq.broker.store.read import DamagedRange
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.layout import Buffer

from ..builders import BORN_AT, ORDERS, PAYMENTS, Opened, descriptors_limited_to, log_bytes, make_batch, segment_files
from .small_log import Small, build, check_everything_readable, pull
from rigs.batches import patched
from rigs.disk.faulty import FaultyFiles, UnreadableFiles, flip


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
def test_everything_after_the_last_batch_is_cut(small: Small, tail: bytes) -> None:
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


def test_appending_goes_on_after_the_cut(small: Small) -> None:
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


def test_segments_after_a_missing_one_that_was_never_synced_are_put_aside(tmp_path: Path) -> None:
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


def test_a_header_proves_nothing_of_what_lies_after_it(tmp_path: Path) -> None:
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


def test_damage_where_the_log_had_been_synced_is_passed_over_and_cuts_nothing(tmp_path: Path) -> None:
    small = build(tmp_path / "data", synced=True)
    first = segment_files(small.path)[0]
    flip(first, small.bounds[2] + 150)  # in the body of the second data batch
    before = log_bytes(small.path)

    for _ in range(2):
        opened = Opened(small.path)
        (damage,) = opened.recovered.damages
        assert (damage.position, damage.end) == (small.bounds[2], small.bounds[3])
        assert damage.header is not None
        assert opened.recovered.cut is None

        assert pull(opened, 0) == (small.bodies[-1][:3], 3)
        with pytest.raises(DamagedRange) as failure:
            pull(opened, 3)
        assert failure.value.next_offset == 5
        with pytest.raises(DamagedRange):
            pull(opened, 4)
        assert pull(opened, 5) == (small.bodies[-1][5:], 10)
        assert opened.store.queue(ORDERS).end == 10
        opened.store.abandon()
        assert log_bytes(small.path) == before
        assert not list((small.path / "quarantine").iterdir())


def test_every_flipped_byte_of_a_synced_log_damages_its_own_batch_at_most(memory_path: Path) -> None:
    small = build(memory_path / "data", synced=True)
    last_synced = max(i for i, bound in enumerate(small.bounds) if bound < small.bounds[-1])
    for segment in segment_files(small.path):
        whole, start = segment.read_bytes(), int(segment.name)
        for at in range(len(whole)):
            if start + at >= small.bounds[last_synced - 1]:
                break  # whose the newest messages were, nothing else says: see the next test
            flip(segment, at)
            hit = max(i for i, bound in enumerate(small.bounds) if bound <= start + at)
            lost = range(len(small.bodies[hit]), len(small.bodies[hit + 1]))

            opened = Opened(small.path)

            assert opened.recovered.cut is None, start + at
            assert [damage.position for damage in opened.recovered.damages] == [small.bounds[hit]], start + at
            for offset, body in enumerate(small.bodies[-1]):
                if offset in lost:
                    with pytest.raises(DamagedRange) as failure:
                        pull(opened, offset)
                    assert failure.value.next_offset == lost.stop
                else:
                    assert pull(opened, offset)[0][0] == body, (start + at, offset)
            opened.store.abandon()
            segment.write_bytes(whole)


def test_a_queue_that_lost_the_header_of_its_newest_messages_parts_from_those_who_have_them(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a")
    position = opened.append(b"b", b"c").physical_offset
    opened.append(b"elsewhere", to=PAYMENTS)
    epoch = opened.store.log_epoch
    opened.store.abandon()
    flip(segment_files(tmp_path)[0], position + 20)

    opened = Opened(tmp_path)
    assert len(opened.recovered.damages) == 1
    assert opened.append(b"d").base_offset == 1

    queue, history = opened.store.queue(ORDERS), opened.store.history
    assert history.parted(queue, epoch, 3) == Parted(1, is_copy=False)
    assert history.parted(queue, epoch, 1) is None
    opened.close()


def test_new_messages_come_after_those_that_are_damaged(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a")
    position = opened.append(b"b", b"c").physical_offset
    opened.append(b"elsewhere", to=PAYMENTS)
    opened.store.abandon()
    flip(segment_files(tmp_path)[0], position + 140)  # the header still tells whose they were

    opened = Opened(tmp_path)
    assert opened.append(b"d").base_offset == 3

    for _ in range(2):
        opened.store.abandon()
        again = opened = Opened(tmp_path)
        assert again.store.queue(ORDERS).readable == 4
        assert pull(again, 3) == ([b"d"], 4)
        with pytest.raises(DamagedRange):
            pull(again, 2)
    opened.close()


def test_damage_survives_a_checkpoint(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a")
    position = opened.append(b"b", b"c").physical_offset
    opened.append(b"elsewhere", to=PAYMENTS)
    opened.store.abandon()
    flip(segment_files(tmp_path)[0], position + 140)
    opened = Opened(tmp_path)
    opened.checkpoint()
    opened.store.abandon()

    again = Opened(tmp_path)

    assert again.recovered.batches == 0
    assert pull(again, 0) == ([b"a"], 1)
    with pytest.raises(DamagedRange) as failure:
        pull(again, 1)
    assert failure.value.next_offset == 3
    assert again.append(b"d").base_offset == 3
    again.close()


def test_damage_is_rot_only_if_a_later_header_knows_that_the_place_was_synced(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.stage(b"a")
    opened.store.write()
    opened.stage(b"b")  # written before anything was synced
    opened.store.write()
    opened.store.abandon()
    flip(segment_files(tmp_path)[0], 80)

    opened = Opened(tmp_path)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.position == 0
    assert opened.bodies() == []
    opened.close()


def test_text_in_a_body_that_looks_like_a_header_proves_nothing(small: Small) -> None:
    """The sign of a header is looked for at any place; only a sound header is believed."""
    opened = Opened(small.path)
    position = opened.append(layout.MAGIC.to_bytes(2, "big") + bytes((layout.FORMAT,)) * 40).physical_offset
    opened.store.abandon()
    flip(small.last, position - small.last_start + 140)

    opened = Opened(small.path)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.position == position
    opened.close()


def test_a_segment_missing_in_the_middle_is_damage_until_it_is_back(tmp_path: Path) -> None:
    opened = Opened(tmp_path, segment_bytes=4096)
    for i in range(3):
        opened.append(b"%d" % i * 5000)
    opened.close()
    first, second, third, fourth = segment_files(tmp_path)
    second.rename(tmp_path / "copy")

    opened = Opened(tmp_path)
    (damage,) = opened.recovered.damages
    assert (damage.position, damage.end, damage.reason) == (int(second.name), int(third.name), "a segment is missing")
    assert pull(opened, 0) == ([b"0" * 5000], 1)
    with pytest.raises(DamagedRange):
        pull(opened, 1)
    assert pull(opened, 2) == ([b"2" * 5000], 3)
    opened.store.abandon()

    assert segment_files(tmp_path) == [first, third, fourth]
    (tmp_path / "copy").rename(second)
    opened = Opened(tmp_path)
    assert len(opened.bodies()) == 3
    opened.close()


def test_a_log_without_its_first_segment_begins_with_the_snapshot_of_the_next(small: Small) -> None:
    first, second, *_ = segment_files(small.path)
    held = max(
        len(bodies) for bound, bodies in zip(small.bounds, small.bodies, strict=True) if bound <= int(second.name)
    )
    first.unlink()

    opened = Opened(small.path)

    queue = opened.store.queue(ORDERS)
    assert (queue.min_offset, queue.readable) == (held, 10)
    assert pull(opened, held)[0] == small.bodies[-1][held:]
    opened.close()


def test_a_log_whose_first_segment_has_no_whole_snapshot_is_refused(small: Small) -> None:
    first, second, *_ = segment_files(small.path)
    first.unlink()
    flip(second, 150)

    with pytest.raises(StoreError, match=r"the oldest segment of the log has no whole snapshot at its head .*restore"):
        Opened(small.path)


def test_a_hole_in_a_queue_is_damage_and_offsets_stay_what_they_were(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a", b"b")
    opened.store.queue(ORDERS).end += 1
    data = make_batch(b"c")
    opened.store.stage(ORDERS, 1, data, batches.check(data, stamped=False))
    opened.store.log.write()
    opened.store.abandon()

    opened = Opened(tmp_path)

    assert pull(opened, 0) == ([b"a", b"b"], 2)
    with pytest.raises(DamagedRange) as failure:
        pull(opened, 2)
    assert failure.value.next_offset == 3
    assert pull(opened, 3) == ([b"c"], 4)
    opened.close()


def test_a_header_that_can_be_read_again_does_not_undo_what_was_stored_since(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a")
    lost = opened.append(b"b")
    opened.append(b"other", to=PAYMENTS)
    opened.close()
    (segment,) = segment_files(tmp_path)
    flip(segment, lost.physical_offset + 20)
    opened = Opened(tmp_path)
    opened.append(b"c")  # nobody knows that there was a second message
    opened.append(b"d")
    opened.close()
    flip(segment, lost.physical_offset + 20)

    for _ in range(2):
        opened = Opened(tmp_path)

        assert opened.bodies() == [b"a", b"c", b"d"]
        assert opened.store.history.parted(opened.store.queue(ORDERS), 1, 2) == Parted(1, is_copy=False)
        opened.checkpoint()
        opened.close()


def test_a_queue_that_goes_back_refuses_the_start(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a", b"b")
    opened.store.queue(ORDERS).end -= 1
    data = make_batch(b"c")
    opened.store.stage(ORDERS, 1, data, batches.check(data, stamped=False))
    opened.store.log.write()
    opened.store.abandon()

    with pytest.raises(StoreError, match=r"begins at offset 1 of orders/0, which has 2 messages already: restore"):
        Opened(tmp_path)


def test_a_place_before_the_checkpoint_that_the_disk_cannot_read_is_damage_for_as_long_as_that_lasts(
    tmp_path: Path,
) -> None:
    opened = Opened(tmp_path)
    for i in range(6):
        opened.append(b"%d" % i * 5000)
    opened.checkpoint()
    opened.store.abandon()

    files = UnreadableFiles("00000000000000000000", 12288, 16384)
    opened = Opened(tmp_path, files=files)

    assert pull(opened, 0)[0] == [b"0" * 5000, b"1" * 5000]
    for offset in (2, 3):  # the sector has the end of one and the header of the other
        with pytest.raises(DamagedRange):
            pull(opened, offset)
    assert pull(opened, 4)[0] == [b"4" * 5000, b"5" * 5000]
    files.repair()
    assert opened.bodies() == [b"%d" % i * 5000 for i in range(6)]
    opened.close()
