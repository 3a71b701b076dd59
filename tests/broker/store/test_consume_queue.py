from __future__ import annotations

import tempfile
import tracemalloc
from array import array
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.store.consume_queue import ENTRY, FLUSH_BYTES, RECENT_BATCHES, ConsumeQueue, Location, entries
from rmq.wire.columns import TagColumn
from rmq.wire.hashing import tag_hash

from ..builders import files_limited_to

WIDE = {"max_bytes": 1 << 30, "max_batches": 1000, "max_entries": 1000}


class Run(NamedTuple):
    """A batch of the model."""

    position: int
    size: int
    codes: tuple[int, ...]


TAGS = ["created", "paid", "größe"]
runs = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(0, 3), min_size=1, max_size=7).map(tuple)),
    min_size=1,
    max_size=25,
)


def model_of(drawn: list[tuple[int, tuple[int, ...]]]) -> list[Run]:
    model, position = [], 800
    for size, codes in drawn:
        model.append(Run(position, 8 * size, codes))
        position += 8 * size + 64  # state batches and other queues lie between
    return model


def fill(queue: ConsumeQueue, model: list[Run]) -> None:
    for position, size, codes in model:
        tags = TagColumn(TAGS, array("H", codes)) if any(codes) else None
        queue.add(position, size, len(codes), tags)
        queue.end = queue.published
    queue.readable = queue.published


def expected(model: list[Run], offset: int, max_bytes: int, max_batches: int, max_entries: int) -> list[Location]:
    found: list[Location] = []
    total, base = 0, 0
    for position, size, codes in model:
        base, first = base + len(codes), base
        if base <= offset:
            continue
        total += size
        if found and (total > max_bytes or len(found) >= max_batches or base - offset > max_entries):
            break
        found.append((position, size))
        assert first <= base
    return found


@given(runs, st.data())
@settings(deadline=None, max_examples=60)
def test_memory_files_and_a_plain_list_agree_on_where_batches_lie(
    drawn: list[tuple[int, tuple[int, ...]]], data: st.DataObject
) -> None:
    model = model_of(drawn)
    with tempfile.TemporaryDirectory() as folder:
        in_memory = ConsumeQueue(Path(folder) / "memory")
        in_files = ConsumeQueue(Path(folder) / "files", entries_per_file=data.draw(st.integers(1, 9)), recent_batches=1)
        fill(in_memory, model)
        fill(in_files, model)
        in_files.flush()

        offset = data.draw(st.integers(0, in_memory.readable - 1))
        limits = {
            "max_bytes": data.draw(st.integers(1, 300)),
            "max_batches": data.draw(st.integers(1, 6)),
            "max_entries": data.draw(st.integers(1, 12)),
        }
        wanted = expected(model, offset, **limits)

        assert in_memory.locate(offset, **limits) == wanted
        assert in_files.locate(offset, **limits) == wanted


@given(runs, st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_files_hold_one_entry_a_message_with_position_size_and_tag_hash(
    drawn: list[tuple[int, tuple[int, ...]]], per_file: int
) -> None:
    model = model_of(drawn)
    with tempfile.TemporaryDirectory() as folder:
        queue = ConsumeQueue(Path(folder), entries_per_file=per_file, recent_batches=2)
        fill(queue, model)
        queue.flush()

        files = sorted(Path(folder).iterdir())
        whole = b"".join(file.read_bytes() for file in files)
        rows = [(run.position, run.size, [0, *map(tag_hash, TAGS)][code]) for run in model for code in run.codes]
        assert list(ENTRY.iter_unpack(whole)) == rows
        assert [int(file.name) for file in files] == [i * per_file * ENTRY.size for i in range(len(files))]
        assert all(file.stat().st_size == per_file * ENTRY.size for file in files[:-1])


def test_entries_without_tags_have_the_hash_0() -> None:
    assert entries(800, 64, 2, None) == ENTRY.pack(800, 64, 0) * 2


@pytest.mark.parametrize("in_files", [False, True])
def test_an_offset_inside_a_batch_finds_that_batch(tmp_path: Path, in_files: bool) -> None:
    queue = ConsumeQueue(tmp_path, recent_batches=1 if in_files else 100)
    fill(queue, [Run(0, 80, (0,) * 10), Run(80, 40, (0,) * 5), Run(120, 8, (0,)), Run(128, 8, (0,))])
    queue.flush()

    assert queue.locate(9, **WIDE)[0] == (0, 80)
    assert queue.locate(10, **WIDE)[0] == (80, 40)
    assert queue.locate(14, **WIDE) == [(80, 40), (120, 8), (128, 8)]


@pytest.mark.parametrize("in_files", [False, True])
def test_nothing_behind_the_readable_end_is_found(tmp_path: Path, in_files: bool) -> None:
    queue = ConsumeQueue(tmp_path, recent_batches=1 if in_files else 100)
    fill(queue, [Run(0, 80, (0,) * 10), Run(80, 40, (0,) * 5), Run(120, 40, (0,) * 5), Run(160, 8, (0,))])
    queue.flush()
    queue.readable = 15

    assert queue.locate(0, **WIDE) == [(0, 80), (80, 40)]
    assert queue.locate(12, **WIDE) == [(80, 40)]


@pytest.mark.parametrize("in_files", [False, True])
def test_one_batch_is_found_however_small_the_limits(tmp_path: Path, in_files: bool) -> None:
    queue = ConsumeQueue(tmp_path, recent_batches=1 if in_files else 100)
    fill(queue, [Run(at, 80, (0,) * 10) for at in range(0, 800, 80)])
    queue.flush()

    assert queue.locate(3, max_bytes=1, max_batches=1, max_entries=1) == [(0, 80)]


def test_a_batch_over_a_file_boundary_is_found_from_both_sides(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path, entries_per_file=4, recent_batches=1)
    fill(queue, [Run(0, 24, (0,) * 3), Run(24, 80, (0,) * 10), Run(104, 8, (0,)), Run(112, 8, (0,))])
    queue.flush()

    assert [queue.locate(offset, **WIDE)[0] for offset in (3, 4, 7, 8, 12)] == [(24, 80)] * 5
    assert queue.locate(0, **WIDE)[2] == (104, 8)


def test_entries_are_flushed_when_enough_wait(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path)
    enough = FLUSH_BYTES // ENTRY.size

    assert not queue.add(0, 80, 10, None)
    assert not queue.add(80, 80, enough - 10, None)
    assert queue.add(160, 80, 1, None)
    queue.flush()

    assert not queue.add(240, 80, 1, None)
    assert (tmp_path / f"{0:020d}").stat().st_size == (enough + 1) * ENTRY.size


def test_a_queue_has_no_folder_before_it_has_something_to_write(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path / "orders" / "0")
    fill(queue, [Run(0, 8, (0,))])

    assert queue.locate(0, **WIDE) == [(0, 8)]
    assert not list(tmp_path.iterdir())


def test_a_busy_queue_of_small_batches_takes_at_most_40_kib(tmp_path: Path) -> None:
    def most(batches: int) -> int:
        queue, most = ConsumeQueue(tmp_path / "busy"), 0
        for i in range(batches):
            queue.add((1 << 40) + 200 * i, 200, 1, None)
            most = max(most, tracemalloc.get_traced_memory()[0])
        return most

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert most(3 * RECENT_BATCHES) - before < 40 << 10
    finally:
        tracemalloc.stop()


def test_a_failed_flush_keeps_the_entries_for_the_next(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path, recent_batches=1)
    queue.add(0, 8, 1, None)
    queue.flush()

    with files_limited_to(30):
        for i in range(1, 6):
            queue.add(8 * i, 8, 1, None)  # must not raise: the batch exists
        with pytest.raises(OSError):
            queue.flush()
    queue.readable = queue.published
    assert queue.locate(0, **WIDE) == [(8 * i, 8) for i in range(6)]
    queue.flush()

    assert (tmp_path / f"{0:020d}").read_bytes() == b"".join(ENTRY.pack(8 * i, 8, 0) for i in range(6))
    queue.add(48, 8, 1, None)
    queue.add(56, 8, 1, None)
    queue.readable = queue.published
    assert queue.locate(2, **WIDE) == [(8 * i, 8) for i in range(2, 8)]
