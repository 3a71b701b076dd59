from __future__ import annotations

from pathlib import Path

import pytest

from rmq.broker.store.directory import StoreError
from rmq.broker.store.history import Parted
from rmq.broker.store.read import DamagedRange
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout

from ..builders import ORDERS, PAYMENTS, Opened, log_bytes, make_batch, segment_files
from ..faulty_files import flip
from .small_log import Small, build, pull
from support.faulty import UnreadableFiles


@pytest.fixture
def small(memory_path: Path) -> Small:
    return build(memory_path / "data", synced=False)


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


def test_new_messages_come_behind_those_that_are_damaged(tmp_path: Path) -> None:
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
