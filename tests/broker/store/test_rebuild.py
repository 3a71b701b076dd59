from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store.changes import Committed, LeaseGranted, SnapshotEnded, Started, TopicDeleted, TopicMade
from rmq.broker.store.commitlog import Extent
from rmq.broker.store.files import Files
from rmq.broker.store.read import DamagedRange
from rmq.broker.store.rebuild import first_store_id, read_head
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.model import MessageQueue

from ..builders import ORDERS, PAYMENTS, Opened, segment_files
from .small_log import pull, rest
from rigs.batches import settings_of
from rigs.disk.faulty import flip

QUEUES = [ORDERS, PAYMENTS, MessageQueue("orders", 3)]


class Stored(NamedTuple):
    """What the model knows of a batch."""

    queue: MessageQueue
    base_offset: int
    position: int
    bodies: list[bytes]


# ---- the model: whatever is done in whatever order, a start gives back what was durable

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.lists(st.binary(max_size=60), min_size=1, max_size=4)),
        st.tuples(st.just("many"), st.integers(0, 2), st.integers(1, 20)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("indexes"), st.booleans()),
        st.tuples(st.just("crash")),
        st.tuples(st.just("unsynced"), st.integers(0, 2), st.integers(1, 400)),
    ),
    max_size=25,
)


@settings_of(80)
@given(steps, st.integers(200, 3000), st.integers(1, 9), st.sampled_from([0, 500, 1 << 20]))
def test_whatever_was_done_a_start_gives_back_what_was_durable(
    drawn: list[tuple[object, ...]], segment_bytes: int, per_file: int, recent_bytes: int
) -> None:
    settings = {"segment_bytes": segment_bytes, "entries_per_file": per_file, "recent_bytes": recent_bytes}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        run = Modelled(Path(folder) / "0", settings)
        for step in drawn:
            getattr(run, str(step[0]))(*step[1:])
            run.check_ends()
        run.crash()
        run.check_all()
        run.opened.store.abandon()
        (run.path / "checkpoint").unlink(missing_ok=True)  # the log alone says the same
        run.open()
        run.check_all()
        run.opened.close()


class Modelled:
    """A store, and a plain list of what it must hold."""

    def __init__(self, path: Path, settings: dict[str, int]) -> None:
        self.path = path
        self.settings = settings
        self.stored: list[Stored] = []
        self.ends = dict.fromkeys(QUEUES, 0)
        self.starts = 0
        self.open()

    def open(self) -> None:
        self.opened = Opened(self.path, **self.settings)  # type: ignore[arg-type]
        assert self.opened.recovered.damages == []
        self.starts += 1
        store = self.opened.store
        store.turn_over()
        store.stage_changes([Started(store.stores.current, store.log_epoch)])
        self.opened.write()
        self.opened.sync()

    def append(self, index: int, bodies: list[bytes]) -> None:
        queue = QUEUES[index]
        placed = self.opened.append(*bodies, to=queue, by=ProducerMark(9, len(self.stored), 1))
        assert placed.base_offset == self.ends[queue]
        self.stored.append(Stored(queue, placed.base_offset, placed.physical_offset, bodies))
        self.ends[queue] += len(bodies)

    def many(self, index: int, count: int) -> None:
        for i in range(count):
            self.append(index, [b"%d" % i])

    def checkpoint(self) -> None:
        self.opened.checkpoint()

    def indexes(self, everything: bool) -> None:
        work = self.opened.store.take_index_work(everything=everything)
        work.run()
        self.opened.store.backlog.done(work, None)

    def crash(self) -> None:
        self.opened.store.abandon()
        self.open()

    def unsynced(self, index: int, torn: int) -> None:
        """A batch that was written and not synced, of which the disk has lost the end."""
        self.opened.stage(b"never acknowledged" * 30, to=QUEUES[index])
        self.opened.store.write()
        self.opened.store.abandon()
        last = segment_files(self.path)[-1]
        os.truncate(last, max(last.stat().st_size - torn, 0))
        self.open()

    def check_ends(self) -> None:
        for queue, end in self.ends.items():
            found = self.opened.store.queue(queue)
            assert (found.min_offset, found.end, found.published, found.readable) == (0, end, end, end)

    def check_all(self) -> None:
        self.check_ends()
        for queue in QUEUES:
            wanted = [body for batch in self.stored if batch.queue == queue for body in batch.bodies]
            assert self.opened.bodies(queue) == wanted
        for queue, base_offset, position, bodies in self.stored:
            found = self.opened.store.read(queue, base_offset, 1)
            found = found.run(self.opened.store.files) if not hasattr(found, "buffers") else found
            header = layout.parse_header(b"".join(found.buffers))
            assert (header.physical_offset, header.base_offset, header.count) == (position, base_offset, len(bodies))


# ---- heads


def test_the_head_of_a_segment_is_its_snapshot_and_where_that_ends(memory_path: Path) -> None:
    opened = Opened(memory_path, segment_bytes=300)
    for i in range(4):
        opened.append(b"%d" % i * 200)
    first, second, *_ = opened.store.log.segments

    head = read_head(Files(), str(second.path), second.start)

    assert head is not None
    assert isinstance(head.changes[0], Started)
    assert isinstance(head.changes[-1], SnapshotEnded)
    assert second.start < head.end <= second.end
    assert read_head(Files(), str(first.path), 0) is None
    assert read_head(Files(), str(second.path), second.start + 8) is None
    whole = second.path.read_bytes()
    for at in range(head.end - second.start):
        flip(second.path, at)
        assert read_head(Files(), str(second.path), second.start) is None
        second.path.write_bytes(whole)
    second.path.write_bytes(whole[: head.end - second.start - 1])
    assert read_head(Files(), str(second.path), second.start) is None
    opened.store.abandon()


def test_a_log_names_its_store_in_its_first_batch(memory_path: Path) -> None:
    opened = Opened(memory_path)
    extent = opened.store.log.extents()[0]
    assert first_store_id(Files(), extent) is None
    opened.store.stage_changes([Started(77, 1), Committed("g", "orders", 0, 1)])
    opened.write()
    opened.append(b"a")

    assert first_store_id(Files(), extent) == 77
    flip(Path(extent.path), 20)
    assert first_store_id(Files(), Extent(0, extent.path)) is None
    opened.store.abandon()


def test_a_snapshot_within_the_walk_says_nothing_new(memory_path: Path) -> None:
    opened = Opened(memory_path, segment_bytes=300)
    for i in range(6):
        opened.append(b"%d" % i * 100)
    opened.store.abandon()

    again = Opened(memory_path)

    assert again.recovered.damages == []
    assert again.bodies() == [b"%d" % i * 100 for i in range(6)]
    assert again.recovered.messages == 6
    again.close()


def test_a_snapshot_tells_of_messages_that_were_lost_before_it(memory_path: Path) -> None:
    """The batch of a queue that nothing else came to: only the snapshot knows how far the queue was."""
    opened = Opened(memory_path, segment_bytes=600)
    opened.append(b"p", to=PAYMENTS)
    position = opened.append(b"a", b"b").physical_offset
    while len(opened.store.log.segments) == 1:
        opened.append(b"p", to=PAYMENTS)
    opened.append(b"p", to=PAYMENTS)
    opened.store.abandon()
    flip(segment_files(memory_path)[0], position + 20)  # its header

    again = Opened(memory_path)

    assert again.store.queue(ORDERS).end == 2
    with pytest.raises(DamagedRange) as failure:
        pull(again, 0)
    assert failure.value.next_offset == 2
    assert again.append(b"c").base_offset == 2
    assert rest(again, 2) == [b"c"]
    again.close()


# ---- generations


def test_messages_of_a_deleted_topic_do_not_come_back_with_its_name(memory_path: Path) -> None:
    opened = Opened(memory_path)
    opened.store.stage_changes([TopicMade("orders", 1, 4, 4, 0)])
    opened.append(b"old", b"older")
    opened.store.drop_topic("orders", 1)
    opened.store.stage_changes([TopicDeleted("orders", 1), TopicMade("orders", 2, 4, 4, 0)])
    opened.generation = 2
    opened.append(b"new")
    opened.store.abandon()

    class Live(Opened):
        def is_live(self, header: layout.Header) -> bool:
            made = [change.generation for change in self.changes if isinstance(change, TopicMade)]
            return header.topic_gen == made[-1]

    again = Live(memory_path)

    assert again.bodies() == [b"new"]
    assert again.store.queue(ORDERS).generation == 2
    again.close()


def test_changes_are_shown_in_order_and_queue_bounds_are_the_stores_own(memory_path: Path) -> None:
    opened = Opened(memory_path)
    made = [TopicMade("orders", 1, 4, 4, 0), LeaseGranted("g", "orders", 0, b"s" * 16, "m", 5)]
    opened.store.stage_changes([*made, *opened.store.queue_bounds()])
    opened.append(b"a")
    opened.checkpoint()
    opened.store.abandon()

    again = Opened(memory_path)

    assert again.changes == [*opened.snapshot()[:1], SnapshotEnded(opened.store.log.written, 2, 1)]
    assert again.bodies() == [b"a"]
    again.close()


def test_epochs_of_a_queue_survive_with_and_without_a_checkpoint(memory_path: Path) -> None:
    for _ in range(3):
        opened = Opened(memory_path)
        opened.append(b"a")
        opened.append(b"b")
        opened.checkpoint()
        opened.store.abandon()
    wanted = [1, 0, 2, 2, 3, 4]
    copy = memory_path.with_name(f"{memory_path.name}-{random.randrange(1 << 60)}")
    shutil.copytree(memory_path, copy)
    (copy / "checkpoint").unlink()

    for path in (memory_path, copy):
        again = Opened(path)
        assert again.store.queue(ORDERS).epochs == wanted
        again.close()
    shutil.rmtree(copy)
