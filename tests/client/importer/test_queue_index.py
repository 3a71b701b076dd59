"""Consume queues: entries by number and by place, over files, fillers and what retention has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.importer.queue_index import QueueIndex
from rmq.client.importer.store_files import BadStore

from rigs.rocketmq_store import StoreBuilder


def index_of(root: Path, counts: dict[tuple[str, int], int], first: int = 0) -> tuple[QueueIndex, StoreBuilder]:
    builder = StoreBuilder(root, entries=7, file_size=1 << 16, first_offsets=dict.fromkeys(counts, first))
    for number in range(max(counts.values())):
        for (topic, queue_id), count in counts.items():
            if number < count:
                builder.put(topic, queue_id, b"x")
    builder.write()
    return QueueIndex(root / "consumequeue"), builder


@pytest.mark.parametrize("count", [1, 6, 7, 8, 14, 30])
@pytest.mark.parametrize("first", [0, 3, 7, 12])
def test_every_entry_is_found_by_its_number(tmp_path: Path, count: int, first: int) -> None:
    index, builder = index_of(tmp_path, {("t", 2): count}, first)
    queue = index.queue("t", 2)

    assert queue is not None
    assert (queue.first, queue.end) == (first, first + count)
    assert [queue.entry(n) for n in range(first, first + count)] == builder.queues["t", 2]
    assert queue.entry(first - 1) is None
    assert queue.entry(first + count) is None


def test_places_are_found_by_halving(tmp_path: Path) -> None:
    index, builder = index_of(tmp_path, {("a", 0): 20, ("b", 0): 9, ("b", 1): 9})
    places = sorted((at, queue, n) for queue, rows in builder.queues.items() for n, (at, _, _) in enumerate(rows))

    for position in (0, 1, places[10][0], places[10][0] + 1, places[-1][0], places[-1][0] + 1):
        expected: dict[tuple[str, int], tuple[int, int]] = {}
        for at, queue, n in places:
            if at >= position:
                expected.setdefault(queue, (n, at))
        found = index.at_or_after(position)
        assert {queue.queue: (n, entry.physical_offset) for queue, n, entry in found} == expected
        assert [entry.physical_offset for _, _, entry in found] == sorted(at for _, at in expected.values())


def test_a_store_without_consume_queues(tmp_path: Path) -> None:
    index = QueueIndex(tmp_path / "consumequeue")

    assert not index.exists
    assert index.queue("t", 0) is None
    assert index.at_or_after(0) == []


def test_an_empty_queue_and_strange_names_are_passed(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue" / "t"
    (folder / "0").mkdir(parents=True)
    (folder / "x").mkdir()
    (tmp_path / "consumequeue" / "file").touch()

    (queue,) = QueueIndex(tmp_path / "consumequeue").queues()

    assert (queue.queue, queue.first, queue.end) == (("t", 0), 0, 0)


def test_queues_of_light_topics_are_counted_and_not_used(tmp_path: Path) -> None:
    index, _ = index_of(tmp_path, {("t", 0): 3, ("%LMQ%x", 0): 3})

    assert [queue.queue for queue in index.queues()] == [("t", 0)]
    assert index.light_queues == 1


@pytest.mark.parametrize(
    ("files", "text"),
    [({0: 40, 60: 40}, "the next file begins at 60"), ({0: 41}, "whole entries"), ({10: 40}, "whole entries")],
)
def test_a_queue_with_a_gap_or_half_an_entry_is_refused(tmp_path: Path, files: dict[int, int], text: str) -> None:
    folder = tmp_path / "t" / "0"
    folder.mkdir(parents=True)
    for start, size in files.items():
        (folder / f"{start:020}").write_bytes(bytes(size))

    with pytest.raises(BadStore, match=text):
        QueueIndex(tmp_path)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_halving_agrees_with_looking_at_each(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count, first = data.draw(st.integers(1, 25)), data.draw(st.integers(0, 15))
    index, builder = index_of(tmp_path_factory.mktemp("q"), {("t", 0): count}, first)
    position = data.draw(st.integers(0, 3000))
    queue = index.queue("t", 0)
    assert queue is not None

    before = sum(at < position for at, _, _ in builder.queues["t", 0])
    assert queue.from_position(position) == first + before
