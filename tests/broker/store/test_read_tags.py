"""Reads for some tags: what is passed, what is taken, and that damage never hides a wanted message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.broker.store.message_store import MAX_PULL_BATCHES
from rmq.broker.store.read import ColdRead, DamagedRange, Found
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.tags import Wanted, wanted
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, Opened, segment_files
from ..faulty_files import FaultyFiles, flip

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

    def read(self, offset: int, expression: str, max_bytes: int = 1 << 20) -> Found:
        found = self.opened.store.read(ORDERS, offset, max_bytes, lambda: False, some(expression))
        assert isinstance(found, ColdRead) == (self.how in ("a thread", "index files"))
        return found.run(self.files) if isinstance(found, ColdRead) else found

    def spoil(self, batch: int, at: int) -> None:
        """Flip a byte of a batch, ``at`` bytes behind its beginning."""
        position = self.placed[batch].physical_offset + at
        path = max((p for p in segment_files(self.opened.directory.path) if int(p.name) <= position), key=str)
        flip(path, position - int(path.name))


def bases(found: Found) -> list[int]:
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
def test_a_tag_of_the_same_hash_is_told_apart_by_its_name(memory_path: Path, how: str) -> None:
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

    assert found == Found([], 0, 3)
    store.opened.close()


def test_one_read_looks_at_a_bounded_number_of_batches(memory_path: Path) -> None:
    store = Store(memory_path, "memory", *[["b"]] * (MAX_PULL_BATCHES + 10))

    assert store.read(0, "a") == Found([], 0, MAX_PULL_BATCHES)
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
def test_a_damaged_header_may_hide_a_wanted_tag_and_is_always_told(memory_path: Path, how: str, at: int) -> None:
    store = Store(memory_path, how, ["b"], ["a"])
    store.spoil(0, at)

    with pytest.raises(DamagedRange) as damage:
        store.read(0, "a")

    assert damage.value.next_offset == 1
    store.opened.close()


@FROM_FILES
def test_damage_behind_what_is_passed_is_told_by_the_next_read(memory_path: Path, how: str) -> None:
    store = Store(memory_path, how, ["b"], ["b"], ["a"], ["a"])
    store.spoil(2, 12)

    assert store.read(0, "a") == Found([], 0, 2)
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
