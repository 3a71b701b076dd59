"""Where the messages of a stopped log lie: all of it in memory, and as much of it as a reader elsewhere needs."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.offline.index import StoppedIndex, StoppedQueue, log_files
from rmq.broker.store.changes import Committed, TopicMade
from rmq.broker.store.consume_queue import Bounds
from rmq.broker.store.directory import StoreError
from rmq.broker.store.files import Files
from rmq.wire.batch.columns import TagColumn
from rmq.wire.errors import BadRequest

from ..builders import ORDERS, Opened, segment_files

ALL = Bounds(1 << 40, 1 << 20, 1 << 40)

batches = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=20)


def queue_of(made: list[tuple[int, int, int]], first: int = 0) -> StoppedQueue:
    """Batches of so many messages, some of them damaged, with some of the log between them."""
    queue, position = StoppedQueue(), 0
    queue.belong(3, "")
    queue.restore(first, first, [])
    for count, size, between in made:
        position += 8 * between
        if size:
            queue.add(position, size * 8, count, None)
        else:
            queue.add_gap(position, queue.published + count)
        position += size * 8 + 8
    queue.end = queue.readable = queue.published
    return queue


@given(batches, st.data())
def test_a_part_of_a_queue_says_the_same_elsewhere(made: list[tuple[int, int, int]], data: st.DataObject) -> None:
    queue = queue_of(made, first=7)
    start = data.draw(st.integers(7, queue.readable - 1))
    end = data.draw(st.integers(start + 1, queue.readable))

    part = StoppedQueue.unpack(queue.pack(start, end))

    assert (part.generation, part.min_offset, part.readable) == (3, 7, queue.readable)
    for offset in range(start, end):
        assert part.locate(offset, ALL)[0] == queue.locate(offset, ALL)[0]


def test_an_empty_range_needs_nothing() -> None:
    queue = queue_of([(2, 1, 0)])

    assert StoppedQueue.unpack(queue.pack(2, 2)).readable == 2
    assert StoppedQueue.unpack(StoppedQueue().pack(0, 0)).readable == 0


@pytest.mark.parametrize("hint", [b"x", b"", StoppedQueue().pack(0, 0)[:-2]])
def test_what_is_no_hint_is_refused(hint: bytes) -> None:
    with pytest.raises(BadRequest, match="the hint of this scan cannot be used"):
        StoppedQueue.unpack(hint)


@pytest.mark.parametrize(("position", "offset"), [(0, 0), (8, 3), (16, 3), (17, 6), (32, 6), (33, 9), (1000, 9)])
def test_the_first_offset_after_a_position_is_known(position: int, offset: int) -> None:
    queue = queue_of([(3, 1, 0), (3, 1, 0), (3, 1, 0)])  # at 0, 16 and 32

    assert queue.first_after(position) == offset


def test_memory_holds_a_batch_in_twenty_bytes_and_never_forgets_one() -> None:
    queue = queue_of([(1, 1, 0)] * 5000)

    queue.add(1 << 20, 8, 1, TagColumn(["paid"], array("H", [1])))
    queue.readable = queue.published

    assert len(queue.locate(0, ALL)) == 5001
    assert sum(column.itemsize for column in (queue._bases, queue._positions, queue._sizes)) == 20
    assert not queue._tags


def test_a_directory_without_a_log_is_refused(memory_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{memory_path} holds no log: name the data directory of a broker"):
        log_files(Files(), memory_path)


def made(path: Path, *, checkpoint: bool) -> None:
    opened = Opened(path, segment_bytes=900)
    opened.store.stage_changes([TopicMade("orders", 1, 1, 1, 0)])
    for i in range(6):
        opened.append(b"%d" % i, b"more")
    if checkpoint:
        opened.checkpoint()
    opened.close()


@pytest.mark.parametrize("checkpoint", [True, False])
def test_with_a_checkpoint_and_without_the_same_is_found(memory_path: Path, checkpoint: bool) -> None:
    made(memory_path, checkpoint=checkpoint)

    queue = StoppedIndex(Files(), memory_path).queue(ORDERS)

    assert (queue.min_offset, queue.readable) == (0, 12)
    assert [location.end_offset for location in queue.locate(0, ALL)] == [2, 4, 6, 8, 10, 12]


def test_a_checkpoint_of_another_log_says_nothing(memory_path: Path) -> None:
    for name in ("one", "two"):
        made(memory_path / name, checkpoint=True)
    (memory_path / "two" / "checkpoint").replace(memory_path / "one" / "checkpoint")

    assert StoppedIndex(Files(), memory_path / "one").queue(ORDERS).readable == 12


def test_a_checkpoint_that_is_damaged_says_nothing(memory_path: Path) -> None:
    made(memory_path, checkpoint=True)
    (memory_path / "checkpoint").write_bytes(b"x")

    assert StoppedIndex(Files(), memory_path).queue(ORDERS).readable == 12


def test_offsets_that_were_committed_before_the_end_was_damaged_are_damaged_and_not_free(memory_path: Path) -> None:
    opened = Opened(memory_path)
    opened.store.stage_changes([TopicMade("orders", 1, 1, 1, 0)])
    for i in range(3):
        last = opened.append(b"%d" % i)
    opened.store.stage_changes([Committed("g", "orders", 0, 3)])
    opened.write()
    opened.sync()
    opened.close()
    (segment,) = segment_files(memory_path)
    whole = segment.read_bytes()
    at = last.physical_offset
    segment.write_bytes(whole[:at] + bytes(100) + whole[at + 100 :])

    queue = StoppedIndex(Files(), memory_path).queue(ORDERS)

    assert (queue.readable, [location.size for location in queue.locate(2, ALL)]) == (3, [0])
