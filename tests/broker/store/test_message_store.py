"""Parked batches in the store: placed, not published, and known to wait once they are written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.state.deferred import DeferredBatch, DeliveryMark
from rmq.broker.store.changes import (
    PIECE_CHANGES,
    Attempted,
    Change,
    Committed,
    SnapshotEnded,
    Started,
    TopicMade,
    pack_changes,
)
from rmq.broker.store.consume_queue import ENTRY, FLUSH_BYTES, RECENT_BATCHES
from rmq.broker.store.message_store import (
    FLUSH_EVERY,
    MAX_LISTED_TOPICS,
    MAX_PULL_BATCHES,
    TopicTraffic,
    Traffic,
    keyed_of,
)
from rmq.broker.store.read import ReadBatches
from rmq.broker.store.rebuild import read_head
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.stores import StoreIds

from ..builders import BORN_AT, ORDERS, PAYMENTS, Opened, WallClock, make_batch
from ..delay_rig import delayed
from rigs.disk.faulty import FaultyFiles


def read(opened: Opened, offset: int, max_bytes: int = 1 << 20) -> ReadBatches:
    """Without waiting, as far as that goes."""
    found = opened.store.read(ORDERS, offset, max_bytes)
    assert isinstance(found, ReadBatches)
    return found


def write_indexes(opened: Opened, *, everything: bool = False) -> None:
    """What a thread does from time to time."""
    work = opened.store.take_index_work(everything=everything)
    error: Exception | None = None
    try:
        work.run()
    except OSError as failure:
        error = failure
    opened.store.backlog.done(work, error)


def test_a_batch_gets_the_next_offsets_of_its_queue_and_a_place_in_the_log(memory_path: Path) -> None:
    opened = Opened(memory_path)

    first = opened.stage(b"a", b"b", b"c")
    second = opened.stage(b"d")
    other = opened.stage(b"e", to=PAYMENTS)

    assert [placed.base_offset for placed in (first, second, other)] == [0, 3, 0]
    assert [placed.physical_offset for placed in (first, second, other)] == [0, first.end, second.end]
    assert other.end == opened.store.log.end
    opened.store.write()
    assert opened.store.log.written == other.end
    opened.close()


def test_nothing_is_readable_before_it_is_exposed(memory_path: Path) -> None:
    opened = Opened(memory_path)
    first = opened.stage(b"a")
    opened.stage(b"b", to=PAYMENTS)
    opened.stage(b"c")
    opened.store.write()
    assert opened.store.queue(ORDERS).published == 2
    assert opened.store.queue(ORDERS).readable == 0

    assert opened.store.expose(first.end - 1) == []
    assert opened.store.expose(first.end) == [ORDERS]
    assert opened.store.queue(ORDERS).readable == 1
    assert opened.store.expose(opened.store.log.written) == [PAYMENTS, ORDERS]
    assert opened.store.expose(opened.store.log.written) == []
    assert opened.bodies() == [b"a", b"c"]
    opened.close()


def test_the_batch_around_an_offset_is_given_whole_with_where_to_go_on(memory_path: Path) -> None:
    opened = Opened(memory_path)
    opened.append(b"a", b"b", b"c")
    opened.append(b"d", b"e")

    found = read(opened, 1, 1)

    (batch,) = batches.read_all(b"".join(found.buffers), stores=StoreIds(1))
    assert [message.body for message in batch.messages()] == [b"a", b"b", b"c"]
    assert (found.next_offset, found.size) == (3, sum(map(len, found.buffers)))
    assert read(opened, 4).next_offset == 5
    assert read(opened, 0).next_offset == 5
    opened.close()


def test_a_pull_stops_at_its_number_of_batches(memory_path: Path) -> None:
    opened = Opened(memory_path)
    for i in range(MAX_PULL_BATCHES + 10):
        opened.stage(b"%d" % i)
    opened.store.write()
    opened.sync()

    found = read(opened, 0, 1 << 30)

    assert (len(found.buffers), found.next_offset) == (2 * MAX_PULL_BATCHES, MAX_PULL_BATCHES)
    assert read(opened, found.next_offset, 1 << 30).next_offset == MAX_PULL_BATCHES + 10
    opened.close()


def test_stored_batches_say_who_stored_them_when_and_what_was_durable_then(memory_path: Path) -> None:
    clock = WallClock()
    opened = Opened(memory_path, wall_us=clock)
    first = opened.append(b"a")
    clock.us += 5
    opened.append(b"b")

    found = read(opened, 0)
    one, two = (batch.header for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1)))

    assert (one.durable_before, two.durable_before) == (0, first.end)
    assert (one.stored_at, two.stored_at) == (BORN_AT, BORN_AT + 5)
    assert (one.topic_gen, one.queue_id, one.log_epoch) == (1, 0, opened.store.log_epoch)
    opened.close()


def test_the_time_of_storing_never_falls_also_over_a_restart(memory_path: Path) -> None:
    clock = WallClock()
    opened = Opened(memory_path, wall_us=clock)
    first = opened.append(b"a")
    clock.us -= 1_000_000
    second = opened.append(b"b")
    opened.close()

    again = Opened(memory_path, wall_us=clock)
    third = again.append(b"c")
    clock.us = BORN_AT + 1
    fourth = again.append(b"d")

    assert [placed.stored_at for placed in (first, second, third, fourth)] == [BORN_AT] * 3 + [BORN_AT + 1]
    again.close()


def test_a_failed_write_gives_offsets_and_positions_out_again(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    opened.append(b"kept")
    end = opened.store.log.end

    lost = [opened.stage(b"x", b"y"), opened.stage(b"z", to=PAYMENTS), opened.stage(b"w")]
    files.fail("write", "commitlog", errno.ENOSPC, after=100)
    with pytest.raises(OSError):
        opened.store.write()
    files.heal()

    assert opened.store.expose(1 << 60) == []
    placed = [opened.stage(b"1", b"2"), opened.stage(b"3", to=PAYMENTS), opened.stage(b"4")]
    assert [(p.base_offset, p.physical_offset) for p in placed] == [(p.base_offset, p.physical_offset) for p in lost]
    assert placed[0].physical_offset == end
    opened.store.write()
    opened.sync()
    assert (opened.bodies(ORDERS), opened.bodies(PAYMENTS)) == ([b"kept", b"1", b"2", b"4"], [b"3"])
    opened.close()
    again = Opened(memory_path)
    assert again.bodies(ORDERS) == [b"kept", b"1", b"2", b"4"]
    again.close()


def test_a_full_disk_under_the_index_does_not_fail_a_batch_that_was_written(
    memory_path: Path, logs: list[dict[str, object]]
) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    files.fail("open", "consumequeue", errno.ENOSPC)
    for i in range(2 * RECENT_BATCHES + 1):  # so many that old entries should go to files
        opened.stage(b"%d" % i)

    opened.store.write()
    opened.sync()
    write_indexes(opened)

    assert [entry["event"] for entry in logs] == ["index.write_failed"]
    assert read(opened, 0).next_offset == MAX_PULL_BATCHES
    assert opened.store.queue(ORDERS).readable == 2 * RECENT_BATCHES + 1
    files.heal()
    write_indexes(opened)
    assert len(opened.bodies()) == 2 * RECENT_BATCHES + 1
    assert opened.store.queue(ORDERS).waiting == 0
    opened.close()


def test_neither_a_start_nor_a_stop_writes_the_index_of_a_queue_with_few_messages(memory_path: Path) -> None:
    opened = Opened(memory_path)
    opened.append(b"a")
    write_indexes(opened)
    opened.close()
    again = Opened(memory_path)

    assert again.bodies() == [b"a"]
    again.close()
    assert [path.name for path in (memory_path / "consumequeue").rglob("*")] == []


def index_files(path: Path) -> list[Path]:
    return sorted(file.parent.relative_to(path / "consumequeue") for file in path.glob("consumequeue/*/*/*"))


def test_only_queues_with_enough_waiting_entries_are_written_and_a_failure_is_tried_again(
    memory_path: Path, logs: list[dict[str, object]]
) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    opened.append(b"few", to=PAYMENTS)
    opened.append(*[b"x"] * (FLUSH_BYTES // ENTRY.size + 1))

    files.fail("write", "consumequeue", errno.ENOSPC, times=1, after=50)
    write_indexes(opened)
    assert [entry["event"] for entry in logs] == ["index.write_failed"]
    write_indexes(opened)

    (file,) = memory_path.glob("consumequeue/*/*/*")
    assert index_files(memory_path) == [Path("orders@1") / "0"]
    assert file.stat().st_size >= FLUSH_BYTES
    file.unlink()
    write_indexes(opened)  # nothing waits
    assert index_files(memory_path) == []
    write_indexes(opened, everything=True)
    assert index_files(memory_path) == [Path("payments@1") / "1"]
    opened.close()


def test_a_start_writes_entries_while_it_reads_so_that_they_do_not_fill_the_memory(memory_path: Path) -> None:
    opened = Opened(memory_path)
    for _ in range(FLUSH_EVERY):
        opened.stage(b"x")
    for _ in range(FLUSH_EVERY):
        opened.stage(*[b"y"] * 2, to=PAYMENTS)
    opened.store.write()
    opened.close()

    again = Opened(memory_path)

    assert index_files(memory_path) == [Path("orders@1") / "0", Path("payments@1") / "1"]
    assert again.store.queue(PAYMENTS).waiting < FLUSH_BYTES
    assert len(again.bodies(PAYMENTS)) == 2 * FLUSH_EVERY
    again.close()


def test_changes_come_back_in_order_with_data_between(memory_path: Path) -> None:
    opened = Opened(memory_path)
    made: list[Change] = [Started(opened.store.stores.current, 1), TopicMade("orders", 1, 4, 4, BORN_AT)]
    opened.store.stage_changes(made)
    opened.stage(b"a")
    many: list[Change] = [Committed("g", "orders", i % 4, i) for i in range(2 * PIECE_CHANGES + 1)]
    opened.store.stage_changes(many)
    opened.store.write()
    opened.close()

    again = Opened(memory_path)

    assert again.changes == made + many
    assert (again.recovered.batches, again.recovered.messages) == (1, 1)
    again.close()


def test_changes_that_are_large_together_come_back_too(memory_path: Path) -> None:
    opened = Opened(memory_path)
    runs = [AttemptRun(2 * i, 2 * i + 1, 1 + i) for i in range(1 << 40, (1 << 40) + 1024)]
    many: list[Change] = [Attempted("g", "orders", i, 1 << 41, 1, runs) for i in range(300)]
    assert len(pack_changes(many)) > layout.MAX_BATCH
    opened.store.stage_changes(many)
    opened.store.write()
    opened.close()

    again = Opened(memory_path)

    assert again.changes == many
    again.close()


def test_no_changes_make_no_batch(memory_path: Path) -> None:
    opened = Opened(memory_path)

    opened.store.stage_changes([])
    opened.store.write()

    assert opened.store.log.written == 0
    opened.close()


def test_the_log_epoch_rises_at_every_start(memory_path: Path) -> None:
    epochs = []
    for _ in range(3):
        opened = Opened(memory_path)
        epochs.append(opened.store.log_epoch)
        opened.store.stage_changes([Started(opened.store.stores.current, opened.store.log_epoch)])
        opened.store.write()
        opened.close()

    assert epochs == [1, 2, 3]


def test_without_a_checkpoint_an_index_left_from_before_is_made_again(memory_path: Path) -> None:
    opened = Opened(memory_path)
    bodies = [b"%d" % i for i in range(2 * RECENT_BATCHES + 1)]
    for body in bodies:
        opened.stage(body)
    opened.store.write()
    write_indexes(opened)
    opened.close()
    (file,) = (memory_path / "consumequeue" / "orders@1" / "0").iterdir()
    file.write_bytes(b"\xff" * 2 * file.stat().st_size)
    (memory_path / "consumequeue" / "gone").mkdir()

    again = Opened(memory_path)

    assert again.bodies() == bodies
    assert not (memory_path / "consumequeue" / "gone").exists()
    again.close()


def test_a_new_generation_of_a_topic_begins_at_0_in_files_of_its_own(memory_path: Path) -> None:
    opened = Opened(memory_path)
    opened.append(b"old")
    write_indexes(opened, everything=True)
    opened.store.drop_topic("orders", 1)
    assert opened.store.queue(ORDERS).readable == 0

    data = make_batch(b"new")
    placed = opened.store.stage(ORDERS, 2, data, batches.check(data, stamped=False))
    opened.write()
    opened.sync()
    assert (placed.base_offset, opened.bodies()) == (0, [b"new"])
    write_indexes(opened, everything=True)

    assert index_files(memory_path) == [Path("orders@2") / "0"]  # that of the dead one is gone
    opened.close()


def test_each_later_segment_begins_with_a_snapshot_of_its_place(memory_path: Path) -> None:
    opened = Opened(memory_path, segment_bytes=600)
    for i in range(8):
        opened.append(b"%d" % i * 100)
    first, *later = opened.store.log.segments

    heads = [read_head(opened.store.files, str(segment.path), segment.start) for segment in later]

    assert len(later) > 1
    assert read_head(opened.store.files, str(first.path), first.start) is None
    for segment, head in zip(later, heads, strict=True):
        assert head is not None
        assert head.changes[-1] == SnapshotEnded(segment.start, len(head.changes) - 1, 1)
    opened.close()


def test_a_snapshot_that_is_longer_than_a_segment_does_not_begin_one_after_the_other(memory_path: Path) -> None:
    opened = Opened(memory_path, segment_bytes=100)
    opened.append(b"a" * 100)
    while_idle = len(opened.store.log.segments)
    for _ in range(3):
        opened.store.turn_over()
        opened.store.write()

    assert opened.store.log.segments[-1].size > 100
    assert len(opened.store.log.segments) == while_idle

    opened.append(b"b")
    assert len(opened.store.log.segments) == while_idle + 1
    opened.close()


def test_a_snapshot_that_could_not_be_written_is_written_with_the_next_turn(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, segment_bytes=300, files=files)
    opened.append(b"a" * 300)
    opened.stage(b"b" * 300)
    opened.store.write()
    assert opened.store.turn_over()
    files.fail("write", "commitlog", errno.ENOSPC, after=150)
    with pytest.raises(OSError):
        opened.store.write()
    files.heal()

    assert opened.store.turn_over()
    opened.store.write()
    opened.append(b"c")

    segment = opened.store.log.segments[-1]
    assert read_head(files, str(segment.path), segment.start) is not None
    opened.store.abandon()
    again = Opened(memory_path, segment_bytes=300)
    assert again.bodies() == [b"a" * 300, b"b" * 300, b"c"]
    again.close()


appends = st.lists(
    st.tuples(st.sampled_from([ORDERS, PAYMENTS]), st.lists(st.binary(max_size=30), min_size=1, max_size=4)),
    min_size=1,
    max_size=20,
)


@given(appends, st.integers(200, 2000))
@settings(deadline=None, max_examples=30)
def test_a_restarted_store_holds_what_was_appended(
    appended: list[tuple[MessageQueue, list[bytes]]], segment_bytes: int
) -> None:
    wanted: dict[MessageQueue, list[bytes]] = {ORDERS: [], PAYMENTS: []}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        opened = Opened(Path(folder), segment_bytes=segment_bytes)
        for i, (queue, bodies) in enumerate(appended):
            placed = opened.append(*bodies, to=queue, by=ProducerMark(5, i, 1))
            assert placed.base_offset == len(wanted[queue])
            wanted[queue] += bodies
        assert {queue: opened.bodies(queue) for queue in wanted} == wanted
        ends = {queue: opened.store.queue(queue).readable for queue in wanted}
        opened.close()

        again = Opened(Path(folder), segment_bytes=segment_bytes)

        assert {queue: again.bodies(queue) for queue in wanted} == wanted
        assert {queue: again.store.queue(queue).end for queue in wanted} == ends
        assert [header.sequence for header in again.headers] == list(range(len(appended)))
        again.close()


DUE = BORN_AT + 5_000_000


def stage(opened: Opened, data: bytes, *, due_at: int = DUE, origin: int = 0) -> tuple[int, int, int, int]:
    return opened.store.stage(ORDERS, 1, data, batches.check(data, stamped=False), origin, due_at)


def test_a_parked_batch_has_a_place_and_no_offset(memory_path: Path) -> None:
    opened = Opened(memory_path)
    data, told = delayed(b"a", b"b", level=1, index_keys=[["k"], []]), []
    opened.store.on_deferred = told.append

    placed = stage(opened, data)
    assert opened.store.delays.batches == 0
    opened.store.write()

    assert placed == (-1, 0, BORN_AT, len(data))
    assert opened.store.delays.page(DeliveryMark(), 9) == [DeferredBatch(DUE, 0, len(data), 2)]
    assert told == [DUE]
    assert opened.store.queue(ORDERS).published == 0
    assert opened.store.index_lag == 0
    assert opened.store.batches_written == 1
    opened.close()


def test_recovery_shows_it_with_its_time_and_origin(memory_path: Path) -> None:
    opened = Opened(memory_path)
    stage(opened, delayed(b"a", level=2))
    stage(opened, make_batch(b"a copy for a retry"), due_at=DUE + 1, origin=4096)
    opened.write()
    opened.store.abandon()

    again = Opened(memory_path)

    first, second = again.headers
    assert (first.kind, first.base_offset, first.delay_level, first.origin) == (layout.KIND_PARKED, DUE, 2, 0)
    assert (second.kind, second.base_offset, second.delay_level, second.origin) == (1, DUE + 1, 0, 4096)
    assert again.store.queue(ORDERS).published == 0
    again.close()


def test_a_write_that_fails_leaves_nothing_waiting(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    opened.append(b"before")
    stage(opened, delayed(b"a", level=1))
    files.fail("write", "commitlog", errno.ENOSPC, times=1)

    with pytest.raises(OSError):
        opened.store.write()

    assert opened.store.delays.batches == 0
    opened.append(b"behind")
    assert opened.bodies() == [b"before", b"behind"]
    opened.close()


def test_nothing_is_parked_before_what_was_delivered_last(memory_path: Path) -> None:
    """It would be taken for delivered."""
    opened = Opened(memory_path)
    opened.store.delays.reach(DeliveryMark(DUE, 0))
    opened.append(b"something")

    stage(opened, delayed(b"a", level=1), due_at=DUE - 1)
    opened.store.write()

    (entry,) = opened.store.delays.page(DeliveryMark(), 9)
    assert entry.due_at == DUE
    assert entry[:2] > opened.store.delays.reached
    opened.close()


def test_the_key_index_notes_batches_with_keys_only() -> None:
    keyed, plain = (batches.check(make_batch(b"a", index_keys=keys), stamped=False) for keys in ([["k"]], None))

    assert keyed_of(8, 9, plain.columns) is None
    noted = keyed_of(8, 9, keyed.columns)
    assert noted is not None
    assert (noted.position, noted.stored_at, len(noted.hashes)) == (8, 9, 1)


def test_what_goes_in_and_out_is_counted_by_topic() -> None:
    traffic = Traffic()
    traffic.took("orders", 3, 300)
    traffic.took("orders", 1, 50)
    traffic.gave("orders", 4, 350)
    traffic.gave("audit", 7, 70)

    assert traffic.busiest(10) == {"orders": TopicTraffic(4, 350, 4, 350), "audit": TopicTraffic(0, 0, 7, 70)}
    assert traffic.total() == TopicTraffic(4, 350, 11, 420)


def test_without_traffic_there_are_zeros() -> None:
    assert Traffic().total() == TopicTraffic()
    assert Traffic().busiest(10) == {}


def test_the_sum_does_not_fall_when_a_topic_is_gone() -> None:
    traffic = Traffic()
    traffic.took("orders", 3, 300)
    traffic.forget("orders")
    traffic.forget("orders")
    traffic.took("orders", 1, 10)

    assert traffic.busiest(10) == {"orders": TopicTraffic(1, 10)}
    assert traffic.total() == TopicTraffic(4, 310)


def test_only_the_busiest_are_reported_and_never_too_many() -> None:
    traffic = Traffic()
    for i in range(MAX_LISTED_TOPICS + 10):
        traffic.took(f"t{i}", i + 1, 1)

    assert list(traffic.busiest(2)) == [f"t{MAX_LISTED_TOPICS + 9}", f"t{MAX_LISTED_TOPICS + 8}"]
    assert len(traffic.busiest(1 << 40)) == MAX_LISTED_TOPICS
    assert traffic.busiest(-1) == {}
