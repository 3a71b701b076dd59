"""
Retention by age beside a wall clock that is set: a clock that is never set says what is certainly old.

Retention and what waits: the log is kept from the oldest batch on that a crash would have to deliver.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.jobs.maintenance import EXPORT_S, MAX_BATCHES, RETENTION_S, DiskWatch, Maintenance, Schedule
from rmq.broker.jobs.read_pool import ReadPool
from rmq.broker.state.deferred import DeliveryMark
from rmq.broker.store import checkpoint as checkpoints
from rmq.wire.batch import batch as batches

from ..builders import BORN_AT, ORDERS, Opened, WallClock, segment_files
from ..delay_rig import delayed
from ..fakes import HeldPool
from rigs.disk.faulty import FaultyFiles

SCHEDULE_PLAIN = Schedule(checkpoint_bytes=10_000, checkpoint_s=60.0, retention_s=3600.0, retention_bytes=0)


class Rig_plain:
    """Upkeep over a real store, with threads, turns and time by hand."""

    def __init__(self, path: Path, schedule: Schedule = SCHEDULE_PLAIN, **settings: int) -> None:
        self.path = path
        self.files = FaultyFiles()
        self.wall = WallClock()
        self.opened = Opened(path, files=self.files, wall_us=self.wall, **settings)
        self.store = self.opened.store
        self.pool = HeldPool()
        self.time = 0.0
        self.turns = 0
        self.rings: list[bool] = []
        self.maintenance = Maintenance(
            self.store, cast(ReadPool, self.pool), schedule, snapshot=self.snapshot, next_turn=self.next_turn,
            now=lambda: self.time, wall_us=self.wall, checkpoint_position=self.opened.recovered.read_from,
            for_export=self.opened.snapshot,
        )  # fmt: skip

    def snapshot(self, rings: bool) -> list[Any]:
        self.rings.append(rings)
        return self.opened.snapshot()

    def next_turn(self) -> None:
        self.turns += 1

    def turn(self) -> None:
        """A turn ends as the committer ends it."""
        self.store.write()
        self.turns = 0
        self.maintenance.turn_over()
        if self.turns:
            self.store.write()

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.wall.us += int(seconds * 1_000_000)
        self.maintenance.each_second()

    def work(self) -> int:
        """All that the thread has to do, and what follows of it."""
        done = 0
        while self.pool.jobs:
            done += self.pool.run()
        return done

    @property
    def checkpoint(self) -> int | None:
        known = checkpoints.load(self.files, self.path)
        return None if known is None else known.position


@pytest.fixture
def rig_plain(memory_path: Path) -> Iterator[Rig_plain]:
    rig_plain = Rig_plain(memory_path)
    yield rig_plain
    rig_plain.opened.store.abandon()


def take_checkpoint_plain(rig_plain: Rig_plain) -> None:
    rig_plain.maintenance.want_checkpoint()
    rig_plain.turn()
    rig_plain.maintenance.synced(rig_plain.store.log.sync())
    rig_plain.work()


# ---- checkpoints


def test_a_checkpoint_is_due_after_its_time_if_anything_was_written(rig_plain: Rig_plain) -> None:
    rig_plain.pass_time(61.0)
    assert rig_plain.turns == 0
    rig_plain.work()
    rig_plain.opened.append(b"a")

    rig_plain.pass_time(1.0)

    assert rig_plain.turns == 1
    rig_plain.turn()
    assert rig_plain.work() == 1
    assert rig_plain.checkpoint == rig_plain.maintenance.checkpoint_position == rig_plain.store.log.written
    assert rig_plain.rings == [True]
    rig_plain.pass_time(59.0)
    rig_plain.pass_time(0.5)
    assert rig_plain.turns == 0


def test_a_checkpoint_is_due_when_the_log_has_grown_enough(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"x" * 9000)
    rig_plain.pass_time(1.0)
    assert rig_plain.turns == 0

    rig_plain.opened.append(b"x" * 1000)
    rig_plain.pass_time(1.0)

    assert rig_plain.turns == 1


def test_a_checkpoint_is_due_after_many_batches(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"a")
    rig_plain.store.batches_written += MAX_BATCHES - 2
    rig_plain.pass_time(1.0)
    assert rig_plain.turns == 0

    rig_plain.store.batches_written += 1
    rig_plain.pass_time(1.0)

    assert rig_plain.turns == 1


def test_a_checkpoint_waits_until_the_log_is_durable_up_to_it(rig_plain: Rig_plain) -> None:
    rig_plain.opened.stage(b"a")
    rig_plain.maintenance.want_checkpoint()
    rig_plain.turn()
    position = rig_plain.store.log.written
    assert len(rig_plain.pool) == 0

    rig_plain.maintenance.synced(position - 8)
    assert len(rig_plain.pool) == 0
    rig_plain.opened.append(b"later")  # is not in it
    rig_plain.maintenance.synced(position)
    rig_plain.work()

    assert rig_plain.checkpoint == position


def test_a_checkpoint_waits_for_changes_that_are_not_in_the_log(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"x")
    rig_plain.maintenance.want_checkpoint()
    rig_plain.maintenance.has_unwritten = lambda: True
    rig_plain.turn()
    assert (rig_plain.work(), rig_plain.checkpoint) == (0, None)

    rig_plain.maintenance.has_unwritten = lambda: False
    rig_plain.turn()
    rig_plain.work()

    assert rig_plain.checkpoint == rig_plain.store.log.written


def test_a_checkpoint_makes_its_indexes_durable_before_it_is_written(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"a")
    rig_plain.files.done.clear()

    take_checkpoint_plain(rig_plain)

    names = [done.op for done in rig_plain.files.done if "consumequeue" in done.path or done.op == "sync_filesystem"]
    assert "write" in names
    assert names[-1] == "sync_filesystem"
    ops = [done.op for done in rig_plain.files.done]
    assert ops.index("sync_filesystem") < ops.index("rename")


def test_the_age_of_a_checkpoint_goes_on_while_new_ones_fail(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"a")
    take_checkpoint_plain(rig_plain)
    rig_plain.opened.append(b"b")
    rig_plain.files.fail("rename", "checkpoint", errno.ENOSPC)
    rig_plain.pass_time(1000.0)

    take_checkpoint_plain(rig_plain)

    assert (rig_plain.maintenance.failures, rig_plain.maintenance.stats()["checkpoint_age_s"]) == (
        1,
        pytest.approx(1000, abs=120),
    )


@pytest.mark.parametrize(
    ("op", "part"),
    [
        ("open", "consumequeue"), ("write", "consumequeue"), ("sync_filesystem", ""), ("write", "checkpoint"),
        ("sync", "checkpoint"), ("rename", "checkpoint"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_fails_leaves_the_old_one_and_is_tried_again(
    rig_plain: Rig_plain, op: str, part: str
) -> None:
    rig_plain.opened.append(b"a")
    take_checkpoint_plain(rig_plain)
    first = rig_plain.checkpoint
    rig_plain.opened.append(b"b")

    rig_plain.files.fail(op, part, errno.ENOSPC, after=3)
    take_checkpoint_plain(rig_plain)
    assert (rig_plain.checkpoint, rig_plain.maintenance.checkpoint_position, rig_plain.maintenance.failures) == (
        first,
        first,
        1,
    )
    assert rig_plain.maintenance.idle
    assert rig_plain.opened.bodies() == [b"a", b"b"]
    rig_plain.files.heal()
    rig_plain.pass_time(61.0)
    rig_plain.turn()
    rig_plain.work()

    assert rig_plain.checkpoint == rig_plain.store.log.written
    rig_plain.opened.store.abandon()
    again = Opened(rig_plain.path)
    assert (again.recovered.batches, again.bodies()) == (0, [b"a", b"b"])
    again.close()
    rig_plain.opened = Opened(rig_plain.path)


# ---- segments


def test_a_new_segment_gets_its_snapshot_in_the_next_turn(memory_path: Path) -> None:
    rig_plain = Rig_plain(memory_path, segment_bytes=300)
    rig_plain.opened.stage(b"a" * 300)
    rig_plain.store.write()
    rig_plain.maintenance.turn_over()

    assert rig_plain.turns == 1
    assert rig_plain.store.log.begins_segment is False  # it is staged
    rig_plain.store.write()
    rig_plain.maintenance.turn_over()
    assert rig_plain.turns == 1
    rig_plain.opened.store.abandon()


def test_a_segment_that_cannot_be_made_lets_the_old_one_grow(memory_path: Path, logs: list[dict[str, Any]]) -> None:
    rig_plain = Rig_plain(memory_path, segment_bytes=300)
    rig_plain.files.fail("open", "commitlog", errno.ENOSPC)

    for body in (b"a" * 300, b"b" * 300):
        rig_plain.opened.stage(body)
        rig_plain.turn()
    assert len(segment_files(memory_path)) == 1
    assert [entry["event"] for entry in logs] == ["log.roll_failed"]
    rig_plain.files.heal()
    rig_plain.turn()

    assert len(segment_files(memory_path)) == 2
    rig_plain.opened.sync()
    assert rig_plain.opened.bodies() == [b"a" * 300, b"b" * 300]
    rig_plain.opened.store.abandon()


# ---- retention


def fill_plain(rig_plain: Rig_plain, hours: int) -> None:
    """A message every hour, each in a segment of its own, all in a checkpoint."""
    for i in range(hours):
        rig_plain.opened.stage(b"%d" % i * 300)
        rig_plain.turn()
        rig_plain.opened.sync()
        rig_plain.time += 3600.0
        rig_plain.wall.us += 3_600_000_000
    take_checkpoint_plain(rig_plain)


def shorten_plain(rig_plain: Rig_plain) -> None:
    rig_plain.pass_time(RETENTION_S)
    if rig_plain.turns:  # a checkpoint was due first
        rig_plain.turn()
        rig_plain.maintenance.synced(rig_plain.store.log.sync())
        rig_plain.work()
        rig_plain.pass_time(RETENTION_S)
    rig_plain.work()


def test_segments_older_than_the_retention_go(memory_path: Path) -> None:
    rig_plain = Rig_plain(memory_path, SCHEDULE_PLAIN._replace(retention_s=4 * 3600.0), segment_bytes=300)
    fill_plain(rig_plain, 10)

    shorten_plain(rig_plain)

    queue = rig_plain.store.queue(ORDERS)
    assert queue.min_offset == 7  # the one before is four hours and some seconds old
    assert int(segment_files(memory_path)[0].name) == rig_plain.store.log.start > 0
    rig_plain.opened.store.abandon()


def test_retention_may_be_by_size(memory_path: Path) -> None:
    rig_plain = Rig_plain(
        memory_path, SCHEDULE_PLAIN._replace(retention_s=0.0, retention_bytes=2000), segment_bytes=300
    )
    fill_plain(rig_plain, 10)

    shorten_plain(rig_plain)

    assert 2000 <= rig_plain.store.log.written - rig_plain.store.log.start < 3200
    rig_plain.opened.store.abandon()


def test_without_retention_everything_stays(memory_path: Path) -> None:
    rig_plain = Rig_plain(memory_path, SCHEDULE_PLAIN._replace(retention_s=0.0), segment_bytes=300)
    fill_plain(rig_plain, 10)

    shorten_plain(rig_plain)

    assert rig_plain.store.queue(ORDERS).min_offset == 0
    rig_plain.opened.store.abandon()


def test_what_no_checkpoint_covers_stays(memory_path: Path) -> None:
    rig_plain = Rig_plain(
        memory_path, SCHEDULE_PLAIN._replace(checkpoint_s=1e9, checkpoint_bytes=1 << 40), segment_bytes=300
    )
    fill_plain(rig_plain, 3)
    covered = rig_plain.maintenance.checkpoint_position
    for i in range(5):
        rig_plain.opened.stage(b"%d" % i * 300)
        rig_plain.turn()
        rig_plain.opened.sync()

    rig_plain.pass_time(100 * 3600.0)
    rig_plain.work()

    assert 0 < rig_plain.store.log.start <= covered
    rig_plain.opened.store.abandon()


def test_segments_go_also_while_a_checkpoint_is_due_all_the_time(memory_path: Path) -> None:
    rig_plain = Rig_plain(memory_path, SCHEDULE_PLAIN._replace(checkpoint_bytes=1), segment_bytes=300)
    fill_plain(rig_plain, 6)
    rig_plain.opened.append(b"more")

    rig_plain.pass_time(RETENTION_S)
    rig_plain.work()

    assert rig_plain.store.log.start > 0
    rig_plain.opened.store.abandon()


def test_a_retention_that_fails_is_tried_again(memory_path: Path) -> None:
    rig_plain = Rig_plain(memory_path, segment_bytes=300)
    fill_plain(rig_plain, 6)
    rig_plain.files.fail("open_to_read", "commitlog", errno.EMFILE)
    shorten_plain(rig_plain)
    assert (rig_plain.store.log.start, rig_plain.maintenance.failures, rig_plain.maintenance.idle) == (0, 1, True)
    rig_plain.files.heal()

    shorten_plain(rig_plain)

    assert rig_plain.store.log.start > 0
    rig_plain.opened.store.abandon()


def test_retention_removes_nothing_from_another_directory_of_the_same_name(memory_path: Path) -> None:
    data = memory_path / "data"
    rig_plain = Rig_plain(data, segment_bytes=300)
    fill_plain(rig_plain, 6)
    data.rename(memory_path / "moved")
    shutil.copytree(memory_path / "moved", data)
    before = sorted(data.rglob("*"))

    shorten_plain(rig_plain)

    assert (rig_plain.store.log.start, rig_plain.maintenance.failures, rig_plain.maintenance.idle) == (0, 1, True)
    assert sorted(data.rglob("*")) == before
    rig_plain.opened.store.abandon()


# ---- indexes, and files for people


def test_one_thing_is_done_after_the_other(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"a")
    rig_plain.pass_time(EXPORT_S)
    assert len(rig_plain.pool) == 1

    for _ in range(100):
        rig_plain.pass_time(1.0)
    rig_plain.maintenance.want_checkpoint()
    rig_plain.turn()

    assert len(rig_plain.pool) == 1
    rig_plain.work()
    rig_plain.pass_time(1.0)
    rig_plain.turn()
    assert rig_plain.work() == 1
    assert rig_plain.checkpoint is not None


def test_the_exported_files_follow_changes(rig_plain: Rig_plain) -> None:
    rig_plain.opened.append(b"a")
    rig_plain.pass_time(EXPORT_S)
    rig_plain.work()
    topics = rig_plain.path / "config" / "topics.json"
    assert json.loads(topics.read_text())["position"] == rig_plain.store.log.written
    topics.unlink()

    rig_plain.pass_time(EXPORT_S)
    rig_plain.work()

    assert not topics.exists()


def test_a_callback_for_the_key_index_runs_when_it_is_there(rig_plain: Rig_plain) -> None:
    told: list[str] = []
    rig_plain.maintenance.index_now(lambda: told.append("nothing to do"))
    assert told == ["nothing to do"]

    append_keyed(rig_plain, "k1")
    rig_plain.maintenance.index_now(lambda: told.append("first"))
    rig_plain.maintenance.index_now(lambda: told.append("second"))
    assert told == ["nothing to do"]
    rig_plain.work()

    assert told == ["nothing to do", "first", "second"]
    assert rig_plain.store.index_lag == 0


def test_a_callback_for_the_key_index_runs_also_when_it_cannot_be_written(rig_plain: Rig_plain) -> None:
    told: list[str] = []
    append_keyed(rig_plain, "k1")
    rig_plain.store.keys._block_hashes = 1
    rig_plain.files.fail("open", "/index/", errno.ENOSPC)
    append_keyed(rig_plain, "k2")

    rig_plain.maintenance.index_now(lambda: told.append("done"))
    rig_plain.work()

    assert told == ["done"]
    assert rig_plain.store.index_lag > 0
    rig_plain.files.heal()
    rig_plain.maintenance.index_now(lambda: told.append("again"))
    rig_plain.work()
    assert (told, rig_plain.store.index_lag) == (["done", "again"], 0)


def test_a_callback_during_a_write_of_the_index_waits_for_the_next_work(rig_plain: Rig_plain) -> None:
    told: list[str] = []
    append_keyed(rig_plain, "k1")
    rig_plain.maintenance.index_now(lambda: told.append("first"))
    append_keyed(rig_plain, "k2")
    rig_plain.maintenance.index_now(lambda: told.append("second"))

    rig_plain.pool.run(1)
    assert told == ["first"]
    rig_plain.pool.run(1)

    assert (told, rig_plain.store.index_lag) == (["first", "second"], 0)


def test_a_callback_for_the_key_index_is_served_right_after_other_work(rig_plain: Rig_plain) -> None:
    told: list[str] = []
    append_keyed(rig_plain, "k1")
    rig_plain.pass_time(EXPORT_S)
    rig_plain.maintenance.index_now(lambda: told.append("done"))
    assert len(rig_plain.pool) == 1

    rig_plain.work()

    assert told == ["done"]


def append_keyed(rig_plain: Rig_plain, key: str) -> None:
    data = bytes(batches.encode("orders", 0, batches.Rows([b"x"], BORN_AT, index_keys=[(key,)])))
    rig_plain.store.stage(ORDERS, 1, data, batches.check(data, stamped=False))
    rig_plain.store.write()
    rig_plain.opened.sync()


MIB = 1 << 20


def test_sends_are_refused_below_the_limit_and_come_again_by_themselves() -> None:
    watch = DiskWatch(Path(), 256 * MIB)

    watch.judge(256 * MIB - 1)
    assert watch.refusal == "the disk has 255 MiB free, 256 MiB are needed: free some space"

    watch.judge(256 * MIB)
    assert (watch.refusal, watch.free_bytes) == (None, 256 * MIB)


def test_room_is_scarce_below_half_of_the_limit() -> None:
    watch = DiskWatch(Path(), 256 * MIB)

    watch.judge(128 * MIB)
    assert not watch.is_scarce
    watch.judge(128 * MIB - 1)
    assert watch.is_scarce
    watch.judge(256 * MIB)
    assert not watch.is_scarce


def test_it_asks_the_file_system_of_its_folder(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 0)

    watch.look()

    assert watch.free_bytes > 0
    assert watch.refusal is None


def test_a_burst_is_looked_at_after_a_quarter_of_the_reserve_not_after_a_second(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 256 * MIB)
    watch.look(1000 * MIB)

    assert not watch.is_due(1064 * MIB)
    assert watch.is_due(1064 * MIB + 1)

    watch.look(1064 * MIB + 1)
    assert not watch.is_due(1064 * MIB + 1)


def test_without_a_reserve_not_every_write_is_followed_by_a_look(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 0)

    assert not watch.is_due(MIB)
    assert watch.is_due(MIB + 1)


HOUR_S = 3600.0
DAY_US = 24 * 3_600_000_000


def test_what_the_broker_saw_for_as_long_as_the_log_is_kept_goes_whatever_the_wall_clock_shows(
    memory_path: Path,
) -> None:
    rig = Rig_plain(memory_path, SCHEDULE_PLAIN._replace(retention_s=100 * HOUR_S), segment_bytes=300)
    rig.wall.us += DAY_US
    fill_plain(rig, 3)
    rig.wall.us -= DAY_US
    shorten_plain(rig)
    newest = rig.store.log.segments[-1].start

    rig.pass_time(100 * HOUR_S - RETENTION_S)
    shorten_plain(rig)
    assert rig.store.log.start == 0, "it is a moment too young"
    shorten_plain(rig)

    assert rig.store.log.start == newest
    rig.opened.store.abandon()


DUE = BORN_AT + 100 * 3_600_000_000


def park(rig: Rig_plain) -> None:
    data = delayed(b"waits", level=1)
    rig.store.stage(ORDERS, 1, data, batches.check(data, stamped=False), 0, DUE)


def short(path: Path) -> Rig_plain:
    return Rig_plain(path, SCHEDULE_PLAIN._replace(retention_s=4 * 3600.0), segment_bytes=300)


@pytest.mark.parametrize("parked_first", [True, False])
def test_a_segment_with_a_waiting_batch_stays_and_all_after_it(memory_path: Path, parked_first: bool) -> None:
    rig = short(memory_path)
    if not parked_first:
        fill_plain(rig, 2)
    park(rig)
    fill_plain(rig, 10)
    (entry,) = rig.store.delays.page(DeliveryMark(), 9)

    shorten_plain(rig)

    assert rig.store.log.start <= entry.position
    assert (rig.store.log.start > 0) is not parked_first
    rig.opened.store.abandon()


def test_a_segment_goes_only_when_a_checkpoint_knows_that_nothing_of_it_waits(memory_path: Path) -> None:
    """The copy may not be durable yet: a crash that takes it must find the parked batch."""
    rig = short(memory_path)
    park(rig)
    fill_plain(rig, 10)
    rig.store.delays.reach(DeliveryMark(DUE, 1 << 40))

    rig.pass_time(RETENTION_S)
    rig.work()
    assert rig.store.log.start == 0

    take_checkpoint_plain(rig)
    shorten_plain(rig)
    assert rig.store.log.start > 0
    rig.opened.store.abandon()
