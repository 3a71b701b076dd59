from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rmq.broker.store import commitlog
from rmq.broker.store import read as reading
from rmq.broker.store.consume_queue import Location
from rmq.broker.store.read import ColdRead, DamagedRange, Found
from rmq.wire.batch import batch as batches
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, Opened, make_batch, segment_files
from ..faulty_files import FaultyFiles, error_of, flip

BODIES = [b"%d" % i * 100 for i in range(8)]


def build(path: Path, *, recent_bytes: int = 0, segment_bytes: int = 1 << 20) -> tuple[Opened, FaultyFiles]:
    """A store with eight batches; without memory for the newest, all of them are read from files."""
    files = FaultyFiles()
    opened = Opened(path, files=files, recent_bytes=recent_bytes, segment_bytes=segment_bytes)
    for body in BODIES:
        opened.append(body)
    files.done.clear()
    return opened, files


def bodies(found: Found | ColdRead) -> list[bytes]:
    assert isinstance(found, Found)
    return [
        message.body
        for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1))
        for message in batch.messages()
    ]


def read(opened: Opened, offset: int, max_bytes: int = 1 << 20) -> Found | ColdRead:
    return opened.store.read(ORDERS, offset, max_bytes)


def test_the_newest_are_read_from_memory(memory_path: Path) -> None:
    opened, files = build(memory_path, recent_bytes=1 << 20)

    assert bodies(read(opened, 0)) == BODIES
    assert files.done == []
    opened.close()


def test_what_is_read_keeps_no_frame_in_memory_that_is_far_longer(memory_path: Path) -> None:
    opened = Opened(memory_path, recent_bytes=1 << 20)
    short, long = make_batch(b"short"), make_batch(b"long" * 5000)
    frame = bytearray().join((short, long))
    for batch in (memoryview(frame)[: len(short)], memoryview(frame)[len(short) :]):
        opened.store.stage(ORDERS, 1, batch, batches.check(batch, stamped=False))  # type: ignore[arg-type]  # as good
    opened.write()
    opened.sync()

    found = read(opened, 0)

    assert bodies(found) == [b"short", b"long" * 5000]
    assert isinstance(found, Found)
    assert [isinstance(part, memoryview) for part in found.buffers] == [False, False, False, True]
    assert found.kept == len(frame) - len(found.buffers[3])
    opened.close()


def test_older_ones_are_read_from_files_with_one_call_for_those_that_lie_together(memory_path: Path) -> None:
    opened, files = build(memory_path)

    assert bodies(read(opened, 2)) == BODIES[2:]
    assert files.ops("commitlog") == ["read_cached"]
    opened.close()


def test_a_read_goes_from_files_over_into_memory(memory_path: Path) -> None:
    opened, files = build(memory_path, recent_bytes=4000)

    assert bodies(read(opened, 0)) == BODIES
    assert files.ops("commitlog") == ["read_cached"]
    opened.close()


def test_a_read_goes_over_the_border_of_segments(memory_path: Path) -> None:
    opened, files = build(memory_path, segment_bytes=600)
    assert len(segment_files(memory_path)) > 2

    assert bodies(read(opened, 0)) == BODIES
    files.cold = True
    cold = read(opened, 0)
    assert isinstance(cold, ColdRead)
    assert bodies(cold.run(files)) == BODIES
    opened.close()


def test_what_is_not_in_the_page_cache_is_for_a_thread(memory_path: Path) -> None:
    opened, files = build(memory_path)
    files.cold = True

    cold = read(opened, 3)

    assert isinstance(cold, ColdRead)
    assert files.ops("", "read") == []
    assert bodies(cold.run(files)) == BODIES[3:]
    opened.close()


def test_what_is_had_is_given_before_a_thread_is_asked_for_the_rest(memory_path: Path) -> None:
    opened, files = build(memory_path, segment_bytes=600)
    second = int(segment_files(memory_path)[1].name)
    files.fail("read_cached", f"{second:020d}", errno.EIO)  # a thread will see what is left of it

    found = read(opened, 0)

    assert isinstance(found, Found)
    assert bodies(found) == BODIES[: found.next_offset]
    assert 0 < found.next_offset < 8
    assert isinstance(read(opened, found.next_offset), ColdRead)
    opened.close()


@pytest.mark.parametrize("cold", [False, True])
def test_a_flipped_byte_is_damage_of_its_batch_and_the_others_are_read(memory_path: Path, cold: bool) -> None:
    opened, files = build(memory_path)
    files.cold = cold
    (segment,) = segment_files(memory_path)
    size = segment.stat().st_size // 8
    for at in range(3 * size, 4 * size):
        flip(segment, at)

        assert bodies(again(opened, files, 0)) == BODIES[:3], at
        with pytest.raises(DamagedRange) as failure:
            again(opened, files, 3)
        assert failure.value.next_offset == 4
        assert bodies(again(opened, files, 4)) == BODIES[4:]
        flip(segment, at)
    opened.close()


def again(opened: Opened, files: FaultyFiles, offset: int) -> Found:
    found = read(opened, offset)
    return found.run(files) if isinstance(found, ColdRead) else found


def test_a_place_that_the_disk_cannot_read_damages_no_other(memory_path: Path) -> None:
    class BadSector(FaultyFiles):
        broken = False

        def read(self, fd: int, size: int, at: int) -> bytes:
            if self.broken and "commitlog" in self.paths[fd] and at < 12288 and at + size > 8192:
                raise error_of(errno.EIO)
            return super().read(fd, size, at)

    files = BadSector()
    opened = Opened(memory_path, files=files, recent_bytes=0)
    wanted = [b"%d" % i * 1500 for i in range(10)]
    for body in wanted:
        opened.append(body)
    files.cold = files.broken = True

    got: dict[int, bytes] = {}
    offset = 0
    while offset < 10:
        try:
            found = again(opened, files, offset)
        except DamagedRange as damage:
            offset = damage.next_offset
        else:
            got |= dict(enumerate(bodies(found), offset))
            offset = found.next_offset

    lost = [i for i in range(10) if i not in got]
    assert all(got[i] == wanted[i] for i in got)
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert 2 <= len(lost) <= 4  # those that the sector touches
    opened.close()


def test_a_segment_that_is_lost_is_damage_and_what_lies_around_it_is_served(memory_path: Path) -> None:
    opened, files = build(memory_path, segment_bytes=600)
    files.cold = True
    lost = segment_files(memory_path)[1]
    lost.unlink()

    got: list[bytes] = []
    offset, missing = 0, 0
    while offset < len(BODIES):
        cold = read(opened, offset)
        assert isinstance(cold, ColdRead)
        try:
            found = cold.run(files)
        except DamagedRange as damage:
            missing += damage.next_offset - offset
            offset = damage.next_offset
        else:
            got += bodies(found)
            offset = found.next_offset

    assert missing > 0
    assert got == [body for body in BODIES if body in got]
    assert len(got) == len(BODIES) - missing
    assert (got[0], got[-1]) == (BODIES[0], BODIES[-1])
    opened.store.abandon()


def test_an_oldest_segment_that_is_gone_is_no_damage(memory_path: Path) -> None:
    opened, files = build(memory_path, segment_bytes=600)
    files.cold = True
    cold = read(opened, 0)
    assert isinstance(cold, ColdRead)
    segment_files(memory_path)[0].unlink()

    with pytest.raises(FileNotFoundError):
        cold.run(files)
    opened.store.abandon()


def test_a_read_stops_when_its_time_is_over(memory_path: Path) -> None:
    opened, _ = build(memory_path, recent_bytes=1 << 20)

    found = opened.store.read(ORDERS, 0, 1 << 20, lambda: True)

    assert isinstance(found, Found)
    assert found.next_offset == 1
    opened.close()


@pytest.mark.parametrize(
    "impossible",
    [Location(-8, 100, 1), Location(0, 0, 1), Location(0, 1 << 31, 1), Location(992, 16, 1), Location(1 << 63, 8, 1)],
)
def test_an_index_may_say_anything(impossible: Location) -> None:
    good = Location(0, 100, 1)

    assert reading.possible([good, impossible, good], 0, 1000) == [good]
    assert reading.possible([impossible], 0, 1000) == []
    assert reading.possible([good, good], 0, 1000) == [good, good]
    assert reading.possible([good], 8, 1000) == []


def test_runs_lie_together_in_one_segment_and_are_no_longer_than_one_read_should_be() -> None:
    half = reading.RUN_BYTES // 2
    where = [Location(at, 100, 0) for at in (0, 100, 300, 400, 500)]
    where += [Location(600, half, 0), Location(600 + half, half, 0)]
    extents = (commitlog.Extent(0, "a"), commitlog.Extent(400, "b"))

    grouped = reading.runs(where, extents)

    assert [[location.position for location in run] for run in grouped] == [
        [0, 100], [300], [400, 500, 600], [600 + half],
    ]  # fmt: skip
