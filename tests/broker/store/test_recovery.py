from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgpack
import pytest

from rmq.broker.services.state import Attempted, Committed
from rmq.broker.store.directory import StoreError
from rmq.broker.store.segment import Segment
from rmq.wire import batch as batches
from rmq.wire import layout
from rmq.wire.batch import ProducerMark, Rows
from rmq.wire.layout import Buffer

from ..builders import BORN_AT, ORDERS, PAYMENTS, Opened, descriptors_limited_to, log_bytes, segment_files
from support.batches import patched


class Small(NamedTuple):
    """A log of data and state batches in two segments, closed as by ``kill -9``."""

    path: Path
    bounds: list[int]  # where batches begin and the last one ends
    bodies: list[list[bytes]]  # of orders/0 after so many batches
    changes: list[int]  # how many changes were made after so many batches

    @property
    def last(self) -> Path:
        return segment_files(self.path)[-1]

    @property
    def last_start(self) -> int:
        return int(self.last.name)


def build(path: Path, *, synced: bool) -> Small:
    """Three to five batches a segment; ``synced`` says whether each batch was durable before the next."""
    opened = Opened(path, segment_bytes=1000)
    store, bounds, changes = opened.store, [0], [0]
    bodies: list[list[bytes]] = [[]]
    small = Small(path, bounds, bodies, changes)

    def note(data: Sequence[bytes] = (), made: int = 0) -> None:
        bounds.append(store.log.written)
        bodies.append([*bodies[-1], *data])
        changes.append(changes[-1] + made)
        if synced:
            opened.sync()

    for i, count in enumerate((3, 2, 1, 4)):
        data = [b"%d.%d" % (i, j) for j in range(count)]
        opened.stage(*data, by=ProducerMark(7, i))
        store.write()
        note(data)
        store.stage_changes([Committed("g", *ORDERS, i), Attempted("g", *ORDERS, i, 1)])
        store.write()
        note(made=2)
    store.abandon()
    return small


def check_everything_readable(opened: Opened, small: Small, kept: int) -> None:
    assert opened.bodies() == small.bodies[kept]
    assert len(opened.changes) == small.changes[kept]
    assert [header.sequence for header in opened.headers] == list(range(len(opened.headers)))
    assert opened.store.log.end == opened.store.log.written == opened.store.log.durable == small.bounds[kept]


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
    assert sum(bound > small.last_start for bound in small.bounds) == 3

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


def damage(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)


def test_damage_where_the_log_had_been_synced_refuses_the_start_and_cuts_nothing(tmp_path: Path) -> None:
    small = build(tmp_path / "data", synced=True)
    first = segment_files(small.path)[0]
    damage(first, small.bounds[1] + 100)
    before = log_bytes(small.path)

    for _ in range(2):
        with pytest.raises(StoreError) as failure:
            Opened(small.path)

        assert f"the log is damaged at {small.bounds[1]} (" in str(failure.value)
        assert f"restore {first} from a copy" in str(failure.value)
        assert log_bytes(small.path) == before
        assert not list((small.path / "quarantine").iterdir())


def test_damage_is_rot_only_if_a_later_header_knows_that_the_place_was_synced(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.stage(b"a")
    opened.store.write()
    opened.stage(b"b")  # written before anything was synced
    opened.store.write()
    opened.store.abandon()
    damage(segment_files(tmp_path)[0], 80)

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
    damage(small.last, position - small.last_start + 140)

    opened = Opened(small.path)

    assert opened.recovered.cut is not None
    assert opened.recovered.cut.position == position
    opened.close()


def test_a_segment_missing_in_the_middle_refuses_the_start(tmp_path: Path) -> None:
    opened = Opened(tmp_path, segment_bytes=4096)
    for i in range(3):
        opened.append(b"%d" % i * 5000)
    opened.close()
    first, second, third = segment_files(tmp_path)
    second.rename(tmp_path / "copy")

    with pytest.raises(StoreError, match=rf"damaged at {int(second.name)} \(a segment is missing\)"):
        Opened(tmp_path)

    assert segment_files(tmp_path) == [first, third]
    (tmp_path / "copy").rename(second)
    opened = Opened(tmp_path)
    assert len(opened.bodies()) == 3
    opened.close()


def test_segments_behind_a_missing_one_that_was_never_synced_are_put_aside(tmp_path: Path) -> None:
    opened = Opened(tmp_path, segment_bytes=4096)
    for i in range(3):
        opened.stage(b"%d" % i * 5000)
        opened.store.write()
    opened.store.abandon()
    _, second, third = segment_files(tmp_path)
    tail = third.read_bytes()
    second.unlink()

    opened = Opened(tmp_path)

    assert opened.recovered.cut is not None
    assert (opened.recovered.cut.position, opened.recovered.cut.reason) == (int(second.name), "a segment is missing")
    assert opened.recovered.cut.kept_in.read_bytes() == tail
    assert opened.bodies() == [b"0" * 5000]
    opened.close()


def test_the_first_segment_missing_refuses_the_start(small: Small) -> None:
    shutil.move(segment_files(small.path)[0], small.path / "copy")

    with pytest.raises(StoreError, match=rf"the log begins at {small.last_start}: restore the segments before"):
        Opened(small.path)


def test_a_tail_over_several_segments_is_put_aside_as_one(tmp_path: Path) -> None:
    opened = Opened(tmp_path, segment_bytes=4096)
    for i in range(3):
        opened.stage(b"%d" % i * 5000)
        opened.store.write()  # never synced
    opened.store.abandon()
    files = segment_files(tmp_path)
    damage(files[1], 200)
    tail = files[1].read_bytes() + files[2].read_bytes()

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
    parked = patched(whole[at:], 64, ">B", layout.KIND_PARKED)
    small.last.write_bytes(whole[:at] + parked)

    with pytest.raises(StoreError, match=rf"cannot read the log at {small.bounds[-2]} .*kind 1 is unknown.*version"):
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


def test_a_queue_with_a_hole_refuses_the_start(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.append(b"a", b"b")
    opened.store.queue(ORDERS).end += 1
    opened.append(b"c")
    opened.close()

    with pytest.raises(StoreError, match=r"the log misses orders/0 offset 2: the batch at \d+ begins at 3"):
        Opened(tmp_path)


def test_what_no_header_proves_durable_is_written_again_before_it_is_synced(tmp_path: Path) -> None:
    written: list[int] = []

    class Recording(Segment):
        def put(self, buffers: Sequence[Buffer], at: int) -> int:
            written.append(self.start + at)
            return super().put(buffers, at)

    opened = Opened(tmp_path)
    opened.append(b"a")
    unproven = opened.append(b"b").physical_offset  # says that "a" was durable
    opened.store.abandon()

    opened = Opened(tmp_path, segment=Recording)

    assert written == [unproven]
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
        assert len(segment_files(memory_path)) == 300
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
        opened.append(b"%03d" % i + bytes(100))
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
    assert segment_files(memory_path) == files[:2]
    opened.close()
