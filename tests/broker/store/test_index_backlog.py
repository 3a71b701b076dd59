from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from rmq.broker.store.commitlog import Extent
from rmq.broker.store.consume_queue import ConsumeQueue
from rmq.broker.store.files import Files, IndexFaults
from rmq.broker.store.index_backlog import IndexBacklog, KeyedBatch, KeyWork
from rmq.broker.store.key_index import Hit, KeyIndex, KeySearch

from rigs.disk.faulty import FaultyFiles

EXTENTS = (Extent(0, "0"),)
ALL = 1 << 50


@pytest.fixture
def backlog(memory_path: Path) -> IndexBacklog:
    files = Files()
    faults = IndexFaults()
    return IndexBacklog(files, KeyIndex(files, memory_path / "index", faults=faults), faults)


def a_queue(path: Path) -> ConsumeQueue:
    queue = ConsumeQueue()
    queue.belong(1, str(path / "orders@1" / "0"))
    queue.add(0, 200, 3, None)
    return queue


def test_small_work_waits_until_everything_is_wanted(backlog: IndexBacklog, memory_path: Path) -> None:
    queue = a_queue(memory_path)
    backlog.add(queue, worth_it=False)

    assert backlog.take(EXTENTS, everything=False, durable=ALL).runs == []
    work = backlog.take(EXTENTS, everything=True, durable=ALL)

    assert [of for of, _ in work.runs] == [queue]


def test_what_was_done_is_not_done_again(backlog: IndexBacklog, memory_path: Path) -> None:
    backlog.add(a_queue(memory_path), worth_it=True)
    work = backlog.take(EXTENTS, everything=False, durable=ALL)
    work.run()
    backlog.done(work, None)

    assert backlog.take(EXTENTS, everything=True, durable=ALL).runs == []


def test_what_could_not_be_done_waits_on(backlog: IndexBacklog, memory_path: Path) -> None:
    queue = a_queue(memory_path)
    backlog.add(queue, worth_it=False)
    backlog.add_keys(KeyedBatch(0, 1, array("I", [7])))
    backlog.discard("old")
    backlog.reach(200)
    work = backlog.take(EXTENTS, everything=True, durable=ALL)

    backlog.done(work, OSError("full"))
    again = backlog.take(EXTENTS, everything=False, durable=ALL)

    assert [of for of, _ in again.runs] == [queue]
    assert (again.keys, again.garbage) == (work.keys, [(200, "old")])


def test_a_range_without_keys_is_reported_with_the_next_work_that_has_some(backlog: IndexBacklog) -> None:
    """A range that nobody tells the key index of would be a gap that queries look up in the log."""
    backlog.reach(200)
    work = backlog.take(EXTENTS, everything=False, durable=ALL)
    backlog.done(work, None)
    backlog.add_keys(KeyedBatch(200, 1, array("I", [7])))
    backlog.reach(400)

    keys = backlog.take(EXTENTS, everything=False, durable=ALL).keys

    assert (keys.first, keys.end) == (0, 400)


def test_keys_lag_until_they_are_indexed_and_nothing_else_counts(backlog: IndexBacklog) -> None:
    backlog.reach(200)
    assert backlog.lag == 0
    backlog.add_keys(KeyedBatch(0, 1, array("I", [7])))
    assert backlog.lag == 200

    work = backlog.take(EXTENTS, everything=False, durable=ALL)
    assert backlog.lag == 200  # on its way
    work.run()
    backlog.done(work, None)

    assert backlog.lag == 0


def test_the_entries_of_a_queue_that_is_gone_are_not_written(backlog: IndexBacklog, memory_path: Path) -> None:
    queue = a_queue(memory_path)
    backlog.add(queue, worth_it=True)
    backlog.drop(queue)

    assert backlog.take(EXTENTS, everything=True, durable=ALL).runs == []


def test_a_folder_goes_when_its_end_is_durable(backlog: IndexBacklog) -> None:
    """A crash may take that end from the log again: then its index is needed."""
    backlog.reach(100)
    backlog.discard("old")
    assert backlog.take(EXTENTS, everything=True, durable=100).garbage == []
    backlog.reach(200)

    assert backlog.take(EXTENTS, everything=True, durable=199).garbage == []
    assert backlog.take(EXTENTS, everything=True, durable=200).garbage == [(200, "old")]
    assert backlog.take(EXTENTS, everything=True, durable=300).garbage == []


def test_keys_go_to_the_file_of_their_segment(tmp_path: Path) -> None:
    files = FaultyFiles()
    index = KeyIndex(files, tmp_path)
    extents = [Extent(0, "a"), Extent(100, "b"), Extent(300, "c")]
    batches = [KeyedBatch(at, at, array("I", [7])) for at in (0, 96, 100, 200, 304)]

    KeyWork(0, 400, batches).run(index, extents)
    index.flush()

    assert index.segments() == [0, 100, 300]
    wanted = KeySearch(7, 0, 1 << 60, 1 << 60)
    ranges = [(0, 100), (100, 300), (300, 400)]
    assert list(index.search(wanted, ranges)) == [Hit(at) for at in (304, 200, 100, 96, 0)]
    KeyWork(0, 400, batches).run(index, extents)  # once more says nothing new
    assert list(index.search(wanted, ranges)) == [Hit(at) for at in (304, 200, 100, 96, 0)]
