"""Reads for some tags: what is passed, what is taken, and that damage never hides a wanted message."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.broker.store import commitlog
from rmq.broker.store import read as reading
from rmq.broker.store.consume_queue import Location
from rmq.broker.store.message_store import MAX_PULL_BATCHES
from rmq.broker.store.read import ColdRead, DamagedRange, ReadBatches
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.tags import Wanted, wanted
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, Opened, make_batch, segment_files
from rigs.disk.faulty import FaultyFiles, error_of, flip

BODIES = [b"%d" % i * 100 for i in range(8)]


def build(path: Path, *, recent_bytes: int = 0, segment_bytes: int = 1 << 20) -> tuple[Opened, FaultyFiles]:
    """A store with eight batches; without memory for the newest, all of them are read from files."""
    files = FaultyFiles()
    opened = Opened(path, files=files, recent_bytes=recent_bytes, segment_bytes=segment_bytes)
    for body in BODIES:
        opened.append(body)
    files.done.clear()
    return opened, files


def bodies(found: ReadBatches | ColdRead) -> list[bytes]:
    assert isinstance(found, ReadBatches)
    return [
        message.body
        for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1))
        for message in batch.messages()
    ]


def read(opened: Opened, offset: int, max_bytes: int = 1 << 20) -> ReadBatches | ColdRead:
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
    assert isinstance(found, ReadBatches)
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

    assert isinstance(found, ReadBatches)
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


def again(opened: Opened, files: FaultyFiles, offset: int) -> ReadBatches:
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

    assert isinstance(found, ReadBatches)
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


HOT = 32 << 20
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
Tags = Sequence[str | None]


def some(expression: str) -> Wanted:
    found = wanted(expression)
    assert found is not None
    return found


class Store:
    """A store with one batch for each list of tags; ``how`` says where a read finds them."""

    def __init__(self, path: Path, how: str, *tags: Tags) -> None:
        self.files = FaultyFiles()
        self.opened = Opened(path, files=self.files, recent_bytes=HOT if how == "memory" else 0, segment_bytes=4000)
        self.placed = []
        for i, some_tags in enumerate(tags):
            bodies = [b"%d.%d" % (i, k) for k in range(len(some_tags))]
            self.placed.append(self.opened.append(*bodies, tags=some_tags))
        self.how = how
        if how == "index files":
            self.forget()
        self.files.cold = how != "page cache"

    def forget(self) -> None:
        """Entries are in files only, as after a start."""
        self.opened.checkpoint()
        self.opened.close()
        self.opened = Opened(self.opened.directory.path, files=self.files, recent_bytes=0, segment_bytes=4000)

    def read(self, offset: int, expression: str, max_bytes: int = 1 << 20) -> ReadBatches:
        found = self.opened.store.read(ORDERS, offset, max_bytes, lambda: False, some(expression))
        assert isinstance(found, ColdRead) == (self.how in ("a thread", "index files"))
        return found.run(self.files) if isinstance(found, ColdRead) else found

    def spoil(self, batch: int, at: int) -> None:
        """Flip a byte of a batch, ``at`` bytes behind its beginning."""
        position = self.placed[batch].physical_offset + at
        path = max((p for p in segment_files(self.opened.directory.path) if int(p.name) <= position), key=str)
        flip(path, position - int(path.name))


def bases(found: ReadBatches) -> list[int]:
    """The offsets that batches begin at."""
    return [batch.header.base_offset for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1))]


EVERYWHERE = pytest.mark.parametrize("how", ["memory", "page cache", "a thread", "index files"])
FROM_FILES = pytest.mark.parametrize("how", ["page cache", "a thread", "index files"])
SIX: list[Tags] = [["a"], ["b", "b"], ["c"], [None, "a"], [None], ["b"]]  # at 0, 1, 3, 4, 6, 7; ends at 8


@EVERYWHERE
@pytest.mark.parametrize(
    ("expression", "offset", "taken"),
    [("a", 0, [0, 4]), ("a", 1, [4]), ("b", 0, [1, 7]), ("b", 2, [1, 7]), ("a||c", 0, [0, 3, 4]), ("x", 0, [])],
)
def test_batches_without_a_wanted_tag_are_left_out(
    memory_path: Path, how: str, expression: str, offset: int, taken: list[int]
) -> None:
    store = Store(memory_path, how, *SIX)

    found = store.read(offset, expression)

    assert (bases(found), found.next_offset) == (taken, 8)
    assert found.size == sum(map(len, found.buffers))
    store.opened.close()


@EVERYWHERE
def test_a_tag_of_the_same_hash_is_distinguished_by_its_name(memory_path: Path, how: str) -> None:
    store = Store(memory_path, how, ["BB"], ["Aa"], ["BB", "Aa"])

    assert bases(store.read(0, "Aa")) == [1, 2]
    store.opened.close()


@EVERYWHERE
@pytest.mark.parametrize(("batches_of_room", "taken"), [(0, [0]), (1, [0]), (2, [0, 2]), (3, [0, 2, 4])])
def test_only_what_is_wanted_counts_for_the_room_and_one_is_always_taken(
    memory_path: Path, how: str, batches_of_room: int, taken: list[int]
) -> None:
    store = Store(memory_path, how, ["a"], ["b"], ["a"], ["b"], ["a"], ["b"])
    size = len(b"".join(store.read(0, "a", 1).buffers))

    found = store.read(0, "a", batches_of_room * size)

    assert bases(found) == taken
    assert found.next_offset == min(taken[-1] + 2, 6)  # before the one that had no room
    store.opened.close()


def test_a_read_in_memory_stops_when_the_time_is_over_and_says_where(memory_path: Path) -> None:
    store = Store(memory_path, "memory", *[["b"]] * 9)
    looks = iter([False, False, True])

    found = store.opened.store.read(ORDERS, 0, 1, lambda: next(looks), some("a"))

    assert found == ReadBatches([], 0, 3)
    store.opened.close()


def test_one_read_looks_at_a_bounded_number_of_batches(memory_path: Path) -> None:
    store = Store(memory_path, "memory", *[["b"]] * (MAX_PULL_BATCHES + 10))

    assert store.read(0, "a") == ReadBatches([], 0, MAX_PULL_BATCHES)
    store.opened.close()


def test_what_is_taken_from_a_file_does_not_keep_what_was_passed_in_memory(memory_path: Path) -> None:
    store = Store(memory_path, "a thread", ["b"], ["a"], ["b"])

    (taken,) = store.read(0, "a").buffers

    assert isinstance(taken, bytes)
    assert len(taken) == layout.parse_header(taken).size
    store.opened.close()


@FROM_FILES
@pytest.mark.parametrize(("tag", "is_damaged"), [("a", True), ("b", False)])
def test_a_damaged_body_matters_only_where_the_tag_is_wanted(
    memory_path: Path, how: str, tag: str, is_damaged: bool
) -> None:
    store = Store(memory_path, how, [tag], ["a"])
    header_size = layout.FIXED_HEADER + 8
    store.spoil(0, header_size + 4)

    if is_damaged:
        with pytest.raises(DamagedRange) as damage:
            store.read(0, "a")
        assert damage.value.next_offset == 1
    else:
        assert bases(store.read(0, "a")) == [1]
    store.opened.close()


@FROM_FILES
@pytest.mark.parametrize("at", [12, 24, 100, 112, 119, layout.FIXED_HEADER + 1])
def test_a_damaged_header_may_hide_a_wanted_tag_and_is_always_reported(memory_path: Path, how: str, at: int) -> None:
    store = Store(memory_path, how, ["b"], ["a"])
    store.spoil(0, at)

    with pytest.raises(DamagedRange) as damage:
        store.read(0, "a")

    assert damage.value.next_offset == 1
    store.opened.close()


@FROM_FILES
def test_damage_after_what_is_passed_is_reported_by_the_next_read(memory_path: Path, how: str) -> None:
    store = Store(memory_path, how, ["b"], ["b"], ["a"], ["a"])
    store.spoil(2, 12)

    assert store.read(0, "a") == ReadBatches([], 0, 2)
    with pytest.raises(DamagedRange):
        store.read(2, "a")
    assert bases(store.read(3, "a")) == [3]
    store.opened.close()


def test_an_index_that_leads_nowhere_is_looked_through_for_wanted_tags(memory_path: Path) -> None:
    store = Store(memory_path, "index files", *SIX)
    (index,) = (memory_path / "consumequeue").glob("orders@1/0/*")
    index.write_bytes(bytes(index.stat().st_size))

    found = store.read(0, "b")

    assert (bases(found), found.next_offset) == ([1, 7], 8)
    store.opened.close()


def test_a_tag_hash_of_the_index_that_was_changed_hides_nothing(memory_path: Path) -> None:
    """Entries have no checksum: what they say of tags is not believed."""
    store = Store(memory_path, "index files", ["a"], ["b"])
    (index,) = (memory_path / "consumequeue").glob("orders@1/0/*")
    flip(index, 19)

    assert bases(store.read(0, "a")) == [0]
    store.opened.close()


BATCHES = st.lists(st.lists(st.sampled_from([None, "a", "b", "Aa", "BB", "ü"]), min_size=1, max_size=4), min_size=1)
EXPRESSIONS = st.lists(st.sampled_from(["a", "b", "Aa", "BB", "ü", "x"]), min_size=1, max_size=3).map("||".join)


@given(BATCHES, EXPRESSIONS, st.integers(1, 2000), st.sampled_from(["memory", "page cache", "a thread", "index files"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_reads_one_after_the_other_give_each_wanted_message_once_and_in_order(
    lists: list[Tags], expression: str, max_bytes: int, how: str
) -> None:
    names = set(expression.split("||"))
    flat = [tag for tags in lists for tag in tags]
    with TemporaryDirectory(dir=MEMORY) as folder:
        store = Store(Path(folder), how, *lists)
        offset, got = 0, []
        while offset < len(flat):
            found = store.read(offset, expression, max_bytes)
            assert found.next_offset > offset
            for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1)):
                assert any(message.tag in names for message in batch.messages())
                got += [m.queue_offset for m in batch.messages(offset) if m.tag in names]  # as a member checks again
            assert [place for place in got if place >= found.next_offset] == []
            assert got == [i for i in range(found.next_offset) if flat[i] in names]
            offset = found.next_offset
        store.opened.close()
