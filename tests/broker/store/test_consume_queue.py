"""T.broker.store.test_consume_queue"""

from __future__ import annotations

import os
import sys
import tempfile
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.store.consume_queue import (
    ENTRIES_PER_FILE,
    ENTRY,
    FLUSH_BYTES,
    MAX_EPOCHS,
    MESSAGES_A_TAG,
    RECENT_BATCHES,
    Bounds,
    ConsumeQueue,
    Location,
    WaitingTags,
    Window,
    entries,
    file_of,
)
from rmq.broker.store.files import Files
from rmq.wire.batch.columns import TagColumn
from rmq.wire.batch.hashing import tag_hash

from ..builders import files_limited_to

WIDE = Bounds(1 << 30, 1000, 1000)


class Run(NamedTuple):
    """A batch of the model."""

    position: int
    size: int
    codes: tuple[int, ...]


TAGS = ["created", "paid", "größe"]
runs = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=7).map(tuple)),
    min_size=1,
    max_size=25,
)


def model_of(drawn: list[tuple[int, tuple[int, ...]]]) -> list[Run]:
    model, position = [], 800
    for size, codes in drawn:
        model.append(Run(position, 8 * size, codes))
        position += 8 * size + 64  # state batches and other queues lie between
    return model


def make(directory: Path, *, entries_per_file: int = 300_000, recent_batches: int = 512) -> ConsumeQueue:
    queue = ConsumeQueue(entries_per_file=entries_per_file, recent_batches=recent_batches)
    queue.belong(1, str(directory))
    return queue


def fill(queue: ConsumeQueue, model: list[Run]) -> None:
    for position, size, codes in model:
        if not size:  # stands for damage
            queue.add_gap(position, queue.published + len(codes))
        else:
            tags = TagColumn(TAGS, array("H", codes)) if any(codes) else None
            queue.add(position, size, len(codes), tags)
        queue.end = queue.published
    queue.readable = queue.published


def flush(queue: ConsumeQueue) -> None:
    waiting = queue.take_waiting()
    if waiting is not None:
        try:
            waiting.write(Files())
        except OSError:
            queue.not_written()
            raise
        queue.written()


def read(path: str, size: int, at: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, size, at)
    finally:
        os.close(fd)


def locate(queue: ConsumeQueue, offset: int, bounds: Bounds = WIDE) -> list[Location]:
    """From wherever the offset is."""
    window = queue.window(offset)
    return queue.locate(offset, bounds) if window is None else window.locate(bounds, read)


def places(queue: ConsumeQueue, offset: int, bounds: Bounds = WIDE) -> list[tuple[int, int]]:
    return [(location.position, location.size) for location in locate(queue, offset, bounds)]


def expected(model: list[Run], offset: int, bounds: Bounds) -> list[Location]:
    found: list[Location] = []
    total, base = 0, 0
    for position, size, codes in model:
        base += len(codes)
        if base <= offset:
            continue
        total += size
        is_over = total > bounds.max_bytes or len(found) >= bounds.max_batches or base - offset > bounds.max_entries
        if found and (is_over or not size):
            break
        found.append(Location(position, size, base))
        if not size:
            break
    return found


@given(runs, st.data())
@settings(deadline=None, max_examples=100)
def test_memory_files_and_a_plain_list_agree_on_where_batches_lie(
    drawn: list[tuple[int, tuple[int, ...]]], data: st.DataObject
) -> None:
    model = model_of(drawn)
    with tempfile.TemporaryDirectory() as folder:
        in_memory = make(Path(folder) / "memory")
        in_files = make(Path(folder) / "files", entries_per_file=data.draw(st.integers(1, 9)), recent_batches=1)
        fill(in_memory, model)
        fill(in_files, model)
        flush(in_files)
        from_checkpoint = make(Path(folder) / "files", entries_per_file=in_files._per_file)
        from_checkpoint.restore(0, in_files.published, [])

        offset = data.draw(st.integers(0, in_memory.readable - 1))
        bounds = Bounds(*(data.draw(st.integers(1, most)) for most in (300, 6, 12)))
        wanted = expected(model, offset, bounds)

        assert locate(in_memory, offset, bounds) == wanted
        if offset < in_files._bases[0]:  # files are read no further than the limit of entries
            wanted[0] = wanted[0]._replace(end_offset=min(wanted[0].end_offset, offset + bounds.max_entries + 1))
        assert locate(in_files, offset, bounds) == wanted
        wanted[0] = wanted[0]._replace(end_offset=min(wanted[0].end_offset, offset + bounds.max_entries + 1))
        assert locate(from_checkpoint, offset, bounds) == wanted
        for queue in (in_memory, in_files, from_checkpoint):
            for locator in (queue.locator(Files()), queue.locator(Files(), offset)):
                assert locator.position_of(offset) == wanted[0][:2]


@given(runs, st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_files_hold_one_entry_a_message_with_position_size_and_tag_hash(
    drawn: list[tuple[int, tuple[int, ...]]], per_file: int
) -> None:
    model = [run for run in model_of(drawn) if run.size] or [Run(0, 8, (0,))]
    with tempfile.TemporaryDirectory() as folder:
        queue = make(Path(folder), entries_per_file=per_file, recent_batches=2)
        fill(queue, model)
        flush(queue)

        files = sorted(Path(folder).iterdir())
        whole = b"".join(file.read_bytes() for file in files)
        rows = [(run.position, run.size, [0, *map(tag_hash, TAGS)][code]) for run in model for code in run.codes]
        assert list(ENTRY.iter_unpack(whole)) == rows
        assert [int(file.name) for file in files] == [i * per_file * ENTRY.size for i in range(len(files))]
        assert all(file.stat().st_size == per_file * ENTRY.size for file in files[:-1])


def test_a_file_holds_300_000_entries_of_20_bytes() -> None:
    assert (ENTRIES_PER_FILE, ENTRY.size) == (300_000, 20)


def test_entries_without_tags_have_the_hash_0() -> None:
    assert entries(800, 64, 2, None) == ENTRY.pack(800, 64, 0) * 2


@pytest.mark.parametrize("in_files", [False, True])
def test_an_offset_inside_a_batch_finds_that_batch(tmp_path: Path, in_files: bool) -> None:
    queue = make(tmp_path, recent_batches=1 if in_files else 100)
    fill(queue, [Run(0, 80, (0,) * 10), Run(80, 40, (0,) * 5), Run(120, 8, (0,)), Run(128, 8, (0,))])
    flush(queue)

    assert locate(queue, 9)[0] == (0, 80, 10)
    assert locate(queue, 10)[0] == (80, 40, 15)
    assert locate(queue, 14) == [(80, 40, 15), (120, 8, 16), (128, 8, 17)]


@pytest.mark.parametrize("in_files", [False, True])
def test_nothing_after_the_readable_end_is_found(tmp_path: Path, in_files: bool) -> None:
    queue = make(tmp_path, recent_batches=1 if in_files else 100)
    fill(queue, [Run(0, 80, (0,) * 10), Run(80, 40, (0,) * 5), Run(120, 40, (0,) * 5), Run(160, 8, (0,))])
    flush(queue)
    queue.readable = 15

    assert places(queue, 0) == [(0, 80), (80, 40)]
    assert places(queue, 12) == [(80, 40)]


@pytest.mark.parametrize("in_files", [False, True])
def test_one_batch_is_found_however_small_the_limits(tmp_path: Path, in_files: bool) -> None:
    queue = make(tmp_path, recent_batches=1 if in_files else 100)
    fill(queue, [Run(at, 80, (0,) * 10) for at in range(0, 800, 80)])
    flush(queue)

    assert places(queue, 3, Bounds(1, 1, 1)) == [(0, 80)]


def test_a_batch_over_a_file_boundary_is_found_from_both_sides(tmp_path: Path) -> None:
    queue = make(tmp_path, entries_per_file=4, recent_batches=1)
    fill(queue, [Run(0, 24, (0,) * 3), Run(24, 80, (0,) * 10), Run(104, 8, (0,)), Run(112, 8, (0,))])
    flush(queue)

    assert [places(queue, offset)[0] for offset in (3, 4, 7, 8, 12)] == [(24, 80)] * 5
    assert places(queue, 0)[2] == (104, 8)


def test_entries_are_worth_writing_when_enough_wait(tmp_path: Path) -> None:
    queue = make(tmp_path)
    enough = FLUSH_BYTES // ENTRY.size

    assert not queue.add(0, 80, 10, None)
    assert not queue.add(80, 80, enough - 10, None)
    assert queue.add(160, 80, 1, None)
    flush(queue)

    assert (queue.waiting, queue.take_waiting()) == (0, None)
    assert not queue.add(240, 80, 1, None)
    assert (tmp_path / f"{0:020d}").stat().st_size == (enough + 1) * ENTRY.size


def test_entries_on_their_way_are_readable_and_not_taken_twice(tmp_path: Path) -> None:
    queue = make(tmp_path, recent_batches=1)
    fill(queue, [Run(0, 8, (0,)), Run(8, 8, (0,))])
    waiting = queue.take_waiting()
    assert waiting is not None
    assert queue.take_waiting() is None

    fill(queue, [Run(16, 8, (0,))])
    assert places(queue, 0) == [(0, 8), (8, 8), (16, 8)]
    waiting.write(Files())
    queue.written()

    assert queue.waiting == ENTRY.size
    flush(queue)
    assert places(queue, 0) == [(0, 8), (8, 8), (16, 8)]
    assert (tmp_path / f"{0:020d}").stat().st_size == 3 * ENTRY.size


def test_more_than_one_piece_of_entries_is_written_whole_with_the_tags_that_came_meanwhile(tmp_path: Path) -> None:
    queue, paid = make(tmp_path), TagColumn(["paid"], array("H", [1]))
    queue.add(0, 800, 20_000, None)
    queue.add(800, 8, 1, paid)
    taken = queue.take_waiting()
    assert taken is not None
    queue.add(808, 8, 1, paid)
    taken.write(Files())
    queue.written()
    flush(queue)
    rows = list(ENTRY.iter_unpack((tmp_path / f"{0:020d}").read_bytes()))
    assert rows == [(0, 800, 0)] * 20_000 + [(800, 8, tag_hash("paid")), (808, 8, tag_hash("paid"))]
    assert queue._tags is None


def test_a_batch_that_waits_takes_no_more_memory_than_one_that_is_written(tmp_path: Path) -> None:
    queue = make(tmp_path)
    tracemalloc.start()
    try:
        for i in range(100):
            queue.add(50_000 * i, 50_000, 500, None)
        assert tracemalloc.get_traced_memory()[0] < 100 * 40 + (4 << 10)
    finally:
        tracemalloc.stop()
    assert queue.waiting == 100 * 500 * ENTRY.size


def test_a_queue_has_no_folder_before_it_has_something_to_write(tmp_path: Path) -> None:
    queue = make(tmp_path / "orders@1" / "0")
    fill(queue, [Run(0, 8, (0,))])

    assert places(queue, 0) == [(0, 8)]
    assert not list(tmp_path.iterdir())
    flush(queue)
    assert [path.name for path in tmp_path.glob("orders@1/0/*")] == [f"{0:020d}"]


@pytest.mark.parametrize("names", [[], ["paid"]])
def test_a_busy_queue_of_small_batches_takes_at_most_60_kib(tmp_path: Path, names: list[str]) -> None:
    def most(batches: int) -> int:
        queue, most = make(tmp_path / "busy"), 0
        for i in range(batches):
            if queue.add((1 << 40) + 200 * i, 200, 1, TagColumn(names[:], array("H", [1])) if names else None):
                flush(queue)
            most = max(most, tracemalloc.get_traced_memory()[0])
        return most

    tracemalloc.start()
    try:
        most(10)
        before = tracemalloc.get_traced_memory()[0]
        assert most(8 * RECENT_BATCHES) - before < 60 << 10
    finally:
        tracemalloc.stop()


def test_a_locator_of_one_offset_does_not_grow_with_the_queue(tmp_path: Path) -> None:
    queue = make(tmp_path)
    for i in range(20_000):
        queue.add(200 * i, 200, 1, None)
    queue.readable = queue.published

    tracemalloc.start()
    try:
        locators = [queue.locator(Files(), offset) for offset in range(0, 20_000, 100)]
        assert tracemalloc.get_traced_memory()[0] < len(locators) * (2 << 10)
    finally:
        tracemalloc.stop()
    assert [locator.position_of(100 * i) for i, locator in enumerate(locators)] == [
        (20_000 * i, 200) for i in range(200)
    ]
    assert queue.locator(Files(), -1).position_of(0) == (0, 200)


def test_a_failed_write_keeps_the_entries_for_the_next(tmp_path: Path) -> None:
    queue = make(tmp_path, recent_batches=1)
    queue.add(0, 8, 1, None)
    flush(queue)

    with files_limited_to(30):
        for i in range(1, 6):
            queue.add(8 * i, 8, 1, None)  # must not raise: the batch exists
        with pytest.raises(OSError):
            flush(queue)
    queue.readable = queue.published
    assert places(queue, 0)[0] == (0, 8)
    assert places(queue, 1) == [(8 * i, 8) for i in range(1, 6)]
    flush(queue)

    assert (tmp_path / f"{0:020d}").read_bytes() == b"".join(ENTRY.pack(8 * i, 8, 0) for i in range(6))
    queue.add(48, 8, 1, None)
    queue.add(56, 8, 1, None)
    queue.readable = queue.published
    assert places(queue, 6) == [(48, 8), (56, 8)]


def test_damaged_messages_have_offsets_and_no_place(tmp_path: Path) -> None:
    queue = make(tmp_path)
    fill(queue, [Run(0, 8, (0,)), Run(8, 0, (0, 0, 0)), Run(40, 8, (0,))])

    assert [queue.published, queue.end] == [5, 5]
    assert locate(queue, 0) == [(0, 8, 1)]
    assert locate(queue, 2) == [(8, 0, 4)]
    assert locate(queue, 4) == [(40, 8, 5)]


# ---- retention


def test_what_the_log_lost_raises_the_first_offset_and_frees_whole_files(tmp_path: Path) -> None:
    queue = make(tmp_path, entries_per_file=4, recent_batches=1)
    fill(queue, [Run(8 * i, 8, (0,)) for i in range(11)])
    flush(queue)

    assert queue.raise_min(3) == []
    assert queue.raise_min(9) == [file_of(str(tmp_path), 4, offset) for offset in (0, 4)]
    assert queue.raise_min(5) == []

    assert queue.min_offset == 9
    assert places(queue, 9) == [(72, 8), (80, 8)]


def test_files_that_are_not_written_yet_are_not_removed(tmp_path: Path) -> None:
    queue = make(tmp_path, entries_per_file=4)
    fill(queue, [Run(8 * i, 8, (0,)) for i in range(11)])

    assert queue.raise_min(9) == []
    assert queue.min_offset == 9


# ---- epochs


def test_a_queue_remembers_its_last_epochs(tmp_path: Path) -> None:
    queue = make(tmp_path)
    for epoch in range(1, 100):
        queue.note_epoch(epoch)
        queue.add(8 * epoch, 8, 1, None)

    assert queue.epochs[0] == 100 - MAX_EPOCHS
    assert len(queue.epochs) == 2 * MAX_EPOCHS


@pytest.mark.parametrize("written", [False, True])
def test_a_queue_that_goes_back_has_others_in_place_of_its_newest(tmp_path: Path, written: bool) -> None:
    queue = make(tmp_path)
    for position, count in ((0, 2), (8, 3), (16, 1)):
        queue.note_epoch(1)
        queue.add(position, 8, count, None)
    if written:
        waiting = queue.take_waiting()
        assert waiting is not None
        waiting.write(Files())
        queue.written()

    assert not queue.go_back(3)  # in the middle of a batch
    assert queue.go_back(2)
    queue.note_epoch(2)
    queue.add(24, 8, 1, None)

    queue.readable = queue.published
    assert queue.locate(0, Bounds(1 << 20, 10, 10)) == [Location(0, 8, 2), Location(24, 8, 3)]
    assert (queue.epochs, queue.published) == ([1, 0, 2, 2], 3)
    waiting = queue.take_waiting()
    assert waiting is not None
    waiting.write(Files())
    found = Window(str(tmp_path), 300_000, 0, 3).locate(
        Bounds(1 << 20, 10, 10), lambda path, size, at: Path(path).read_bytes()[at : at + size]
    )
    assert found == [Location(0, 8, 2), Location(24, 8, 3)]


NAMES = ["new", "paid", "sent"]


def column(codes: Sequence[int], names: list[str] | None = None) -> TagColumn:
    return TagColumn(NAMES if names is None else names, array("H", codes))


def hashes_of(tags: TagColumn | array[int] | None) -> list[int] | None:
    if isinstance(tags, TagColumn):
        return [tags.hashes()[code] for code in tags.codes]
    return None if tags is None else list(tags)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 95, 96, 200]), st.integers(0, 3), st.booleans()), max_size=12),
    st.data(),
)
@settings(deadline=None, max_examples=100)
def test_short_and_long_batches_have_the_tags_that_they_came_with(
    drawn: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    waiting, model, base = WaitingTags(), [], 0
    for count, first, has_tags in drawn:
        codes = [(first + i) % 4 for i in range(count)]
        if has_tags:
            waiting.add(base, column(codes))
        wanted = [[0, *map(tag_hash, NAMES)][code] for code in codes]
        model.append((base, base + count, wanted if has_tags else None))
        base += count
    bounds = sorted(data.draw(st.sampled_from([first for first, _, _ in model] + [base])) for _ in range(2))

    part = waiting.part(*bounds)

    for first, end, wanted in model:
        assert hashes_of(waiting.of(first, end)) == wanted
        assert hashes_of(part.of(first, end)) == (wanted if bounds[0] <= first < bounds[1] else None)
    assert bool(part) == any(wanted and bounds[0] <= first < bounds[1] for first, _, wanted in model)


def test_what_is_added_later_is_not_in_a_part() -> None:
    waiting = WaitingTags()
    waiting.add(0, column([1]))
    part = waiting.part(0, 1)
    waiting.add(1, column([2]))

    assert part.of(1, 2) is None
    assert waiting.of(1, 2) == array("q", [tag_hash("paid")])


def test_tags_take_no_more_bytes_than_the_entries_of_their_messages() -> None:
    waiting = WaitingTags()
    for base in range(4000):
        waiting.add(base, column([1], ["paid"]))
    assert not waiting._columns
    size = sum(map(sys.getsizeof, (waiting._offsets, waiting._hashes)))
    assert size < 4000 * ENTRY.size

    waiting.add(4000, column([1] * MESSAGES_A_TAG, ["paid"]))
    assert list(waiting._columns) == [4000]
    assert sum(map(sys.getsizeof, (waiting._offsets, waiting._hashes))) == size
