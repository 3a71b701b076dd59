from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.jobs.maintenance import MAX_BATCHES, PEOPLE_S, RETENTION_S, Schedule, Upkeep
from rmq.broker.jobs.read_pool import ReadPool
from rmq.broker.store import checkpoint as checkpoints
from rmq.wire.batch import batch as batches

from ..builders import BORN_AT, ORDERS, Opened, WallClock, segment_files
from ..fakes import HeldPool
from ..faulty_files import FaultyFiles

SCHEDULE = Schedule(checkpoint_bytes=10_000, checkpoint_s=60.0, retention_s=3600.0, retention_bytes=0)


class Rig:
    """Upkeep over a real store, with threads, turns and time by hand."""

    def __init__(self, path: Path, schedule: Schedule = SCHEDULE, **settings: int) -> None:
        self.path = path
        self.files = FaultyFiles()
        self.wall = WallClock()
        self.opened = Opened(path, files=self.files, wall_us=self.wall, **settings)
        self.store = self.opened.store
        self.pool = HeldPool()
        self.time = 0.0
        self.turns = 0
        self.rings: list[bool] = []
        self.upkeep = Upkeep(
            self.store, cast(ReadPool, self.pool), schedule, snapshot=self.snapshot, next_turn=self.next_turn,
            now=lambda: self.time, wall_us=self.wall, checkpoint_position=self.opened.recovered.read_from,
            for_people=self.opened.snapshot,
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
        self.upkeep.turn_over()
        if self.turns:
            self.store.write()

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.wall.us += int(seconds * 1_000_000)
        self.upkeep.each_second()

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
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path)
    yield rig
    rig.opened.store.abandon()


def take_checkpoint(rig: Rig) -> None:
    rig.upkeep.want_checkpoint()
    rig.turn()
    rig.upkeep.synced(rig.store.log.sync())
    rig.work()


# ---- checkpoints


def test_a_checkpoint_is_due_after_its_time_if_anything_was_written(rig: Rig) -> None:
    rig.pass_time(61.0)
    assert rig.turns == 0
    rig.work()
    rig.opened.append(b"a")

    rig.pass_time(1.0)

    assert rig.turns == 1
    rig.turn()
    assert rig.work() == 1
    assert rig.checkpoint == rig.upkeep.checkpoint_position == rig.store.log.written
    assert rig.rings == [True]
    rig.pass_time(59.0)
    rig.pass_time(0.5)
    assert rig.turns == 0


def test_a_checkpoint_is_due_when_the_log_has_grown_enough(rig: Rig) -> None:
    rig.opened.append(b"x" * 9000)
    rig.pass_time(1.0)
    assert rig.turns == 0

    rig.opened.append(b"x" * 1000)
    rig.pass_time(1.0)

    assert rig.turns == 1


def test_a_checkpoint_is_due_after_many_batches(rig: Rig) -> None:
    rig.opened.append(b"a")
    rig.store.batches_written += MAX_BATCHES - 2
    rig.pass_time(1.0)
    assert rig.turns == 0

    rig.store.batches_written += 1
    rig.pass_time(1.0)

    assert rig.turns == 1


def test_a_checkpoint_waits_until_the_log_is_durable_up_to_it(rig: Rig) -> None:
    rig.opened.stage(b"a")
    rig.upkeep.want_checkpoint()
    rig.turn()
    position = rig.store.log.written
    assert len(rig.pool) == 0

    rig.upkeep.synced(position - 8)
    assert len(rig.pool) == 0
    rig.opened.append(b"later")  # is not in it
    rig.upkeep.synced(position)
    rig.work()

    assert rig.checkpoint == position


def test_a_checkpoint_waits_for_changes_that_are_not_in_the_log(rig: Rig) -> None:
    rig.opened.append(b"x")
    rig.upkeep.want_checkpoint()
    rig.upkeep.is_behind = lambda: True
    rig.turn()
    assert (rig.work(), rig.checkpoint) == (0, None)

    rig.upkeep.is_behind = lambda: False
    rig.turn()
    rig.work()

    assert rig.checkpoint == rig.store.log.written


def test_a_checkpoint_makes_its_indexes_durable_before_it_is_written(rig: Rig) -> None:
    rig.opened.append(b"a")
    rig.files.done.clear()

    take_checkpoint(rig)

    names = [done.op for done in rig.files.done if "consumequeue" in done.path or done.op == "sync_filesystem"]
    assert "write" in names
    assert names[-1] == "sync_filesystem"
    ops = [done.op for done in rig.files.done]
    assert ops.index("sync_filesystem") < ops.index("rename")


def test_the_age_of_a_checkpoint_goes_on_while_new_ones_fail(rig: Rig) -> None:
    rig.opened.append(b"a")
    take_checkpoint(rig)
    rig.opened.append(b"b")
    rig.files.fail("rename", "checkpoint", errno.ENOSPC)
    rig.pass_time(1000.0)

    take_checkpoint(rig)

    assert (rig.upkeep.failures, rig.upkeep.stats()["checkpoint_age_s"]) == (1, pytest.approx(1000, abs=120))


@pytest.mark.parametrize(
    ("op", "part"),
    [
        ("open", "consumequeue"), ("write", "consumequeue"), ("sync_filesystem", ""), ("write", "checkpoint"),
        ("sync", "checkpoint"), ("rename", "checkpoint"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_fails_leaves_the_old_one_and_is_tried_again(rig: Rig, op: str, part: str) -> None:
    rig.opened.append(b"a")
    take_checkpoint(rig)
    first = rig.checkpoint
    rig.opened.append(b"b")

    rig.files.fail(op, part, errno.ENOSPC, after=3)
    take_checkpoint(rig)
    assert (rig.checkpoint, rig.upkeep.checkpoint_position, rig.upkeep.failures) == (first, first, 1)
    assert rig.upkeep.idle
    assert rig.opened.bodies() == [b"a", b"b"]
    rig.files.heal()
    rig.pass_time(61.0)
    rig.turn()
    rig.work()

    assert rig.checkpoint == rig.store.log.written
    rig.opened.store.abandon()
    again = Opened(rig.path)
    assert (again.recovered.batches, again.bodies()) == (0, [b"a", b"b"])
    again.close()
    rig.opened = Opened(rig.path)


# ---- segments


def test_a_new_segment_gets_its_snapshot_in_the_next_turn(memory_path: Path) -> None:
    rig = Rig(memory_path, segment_bytes=300)
    rig.opened.stage(b"a" * 300)
    rig.store.write()
    rig.upkeep.turn_over()

    assert rig.turns == 1
    assert rig.store.log.begins_segment is False  # it is staged
    rig.store.write()
    rig.upkeep.turn_over()
    assert rig.turns == 1
    rig.opened.store.abandon()


def test_a_segment_that_cannot_be_made_lets_the_old_one_grow(memory_path: Path, logs: list[dict[str, Any]]) -> None:
    rig = Rig(memory_path, segment_bytes=300)
    rig.files.fail("open", "commitlog", errno.ENOSPC)

    for body in (b"a" * 300, b"b" * 300):
        rig.opened.stage(body)
        rig.turn()
    assert len(segment_files(memory_path)) == 1
    assert [entry["event"] for entry in logs] == ["log.roll_failed"]
    rig.files.heal()
    rig.turn()

    assert len(segment_files(memory_path)) == 2
    rig.opened.sync()
    assert rig.opened.bodies() == [b"a" * 300, b"b" * 300]
    rig.opened.store.abandon()


# ---- retention


def fill(rig: Rig, hours: int) -> None:
    """A message every hour, each in a segment of its own, all in a checkpoint."""
    for i in range(hours):
        rig.opened.stage(b"%d" % i * 300)
        rig.turn()
        rig.opened.sync()
        rig.time += 3600.0
        rig.wall.us += 3_600_000_000
    take_checkpoint(rig)


def shorten(rig: Rig) -> None:
    rig.pass_time(RETENTION_S)
    if rig.turns:  # a checkpoint was due first
        rig.turn()
        rig.upkeep.synced(rig.store.log.sync())
        rig.work()
        rig.pass_time(RETENTION_S)
    rig.work()


def test_segments_older_than_the_retention_go(memory_path: Path) -> None:
    rig = Rig(memory_path, SCHEDULE._replace(retention_s=4 * 3600.0), segment_bytes=300)
    fill(rig, 10)

    shorten(rig)

    queue = rig.store.queue(ORDERS)
    assert queue.min_offset == 7  # the one before is four hours and some seconds old
    assert int(segment_files(memory_path)[0].name) == rig.store.log.start > 0
    rig.opened.store.abandon()


def test_retention_may_be_by_size(memory_path: Path) -> None:
    rig = Rig(memory_path, SCHEDULE._replace(retention_s=0.0, retention_bytes=2000), segment_bytes=300)
    fill(rig, 10)

    shorten(rig)

    assert 2000 <= rig.store.log.written - rig.store.log.start < 3200
    rig.opened.store.abandon()


def test_without_retention_everything_stays(memory_path: Path) -> None:
    rig = Rig(memory_path, SCHEDULE._replace(retention_s=0.0), segment_bytes=300)
    fill(rig, 10)

    shorten(rig)

    assert rig.store.queue(ORDERS).min_offset == 0
    rig.opened.store.abandon()


def test_what_no_checkpoint_covers_stays(memory_path: Path) -> None:
    rig = Rig(memory_path, SCHEDULE._replace(checkpoint_s=1e9, checkpoint_bytes=1 << 40), segment_bytes=300)
    fill(rig, 3)
    covered = rig.upkeep.checkpoint_position
    for i in range(5):
        rig.opened.stage(b"%d" % i * 300)
        rig.turn()
        rig.opened.sync()

    rig.pass_time(100 * 3600.0)
    rig.work()

    assert 0 < rig.store.log.start <= covered
    rig.opened.store.abandon()


def test_segments_go_also_while_a_checkpoint_is_due_all_the_time(memory_path: Path) -> None:
    rig = Rig(memory_path, SCHEDULE._replace(checkpoint_bytes=1), segment_bytes=300)
    fill(rig, 6)
    rig.opened.append(b"more")

    rig.pass_time(RETENTION_S)
    rig.work()

    assert rig.store.log.start > 0
    rig.opened.store.abandon()


def test_a_retention_that_fails_is_tried_again(memory_path: Path) -> None:
    rig = Rig(memory_path, segment_bytes=300)
    fill(rig, 6)
    rig.files.fail("open_to_read", "commitlog", errno.EMFILE)
    shorten(rig)
    assert (rig.store.log.start, rig.upkeep.failures, rig.upkeep.idle) == (0, 1, True)
    rig.files.heal()

    shorten(rig)

    assert rig.store.log.start > 0
    rig.opened.store.abandon()


def test_retention_removes_nothing_from_another_directory_of_the_same_name(memory_path: Path) -> None:
    data = memory_path / "data"
    rig = Rig(data, segment_bytes=300)
    fill(rig, 6)
    data.rename(memory_path / "moved")
    shutil.copytree(memory_path / "moved", data)
    before = sorted(data.rglob("*"))

    shorten(rig)

    assert (rig.store.log.start, rig.upkeep.failures, rig.upkeep.idle) == (0, 1, True)
    assert sorted(data.rglob("*")) == before
    rig.opened.store.abandon()


# ---- indexes, and files for people


def test_one_thing_is_done_after_the_other(rig: Rig) -> None:
    rig.opened.append(b"a")
    rig.pass_time(PEOPLE_S)
    assert len(rig.pool) == 1

    for _ in range(100):
        rig.pass_time(1.0)
    rig.upkeep.want_checkpoint()
    rig.turn()

    assert len(rig.pool) == 1
    rig.work()
    rig.pass_time(1.0)
    rig.turn()
    assert rig.work() == 1
    assert rig.checkpoint is not None


def test_people_are_told_when_something_changed(rig: Rig) -> None:
    rig.opened.append(b"a")
    rig.pass_time(PEOPLE_S)
    rig.work()
    topics = rig.path / "config" / "topics.json"
    assert json.loads(topics.read_text())["position"] == rig.store.log.written
    topics.unlink()

    rig.pass_time(PEOPLE_S)
    rig.work()

    assert not topics.exists()


def test_whoever_waits_for_the_key_index_is_told_when_it_is_there(rig: Rig) -> None:
    told: list[str] = []
    rig.upkeep.index_now(lambda: told.append("nothing to do"))
    assert told == ["nothing to do"]

    append_keyed(rig, "k1")
    rig.upkeep.index_now(lambda: told.append("first"))
    rig.upkeep.index_now(lambda: told.append("second"))
    assert told == ["nothing to do"]
    rig.work()

    assert told == ["nothing to do", "first", "second"]
    assert rig.store.index_lag == 0


def test_whoever_waits_for_the_key_index_is_told_also_when_it_cannot_be_written(rig: Rig) -> None:
    told: list[str] = []
    append_keyed(rig, "k1")
    rig.store.keys._block_hashes = 1
    rig.files.fail("open", "/index/", errno.ENOSPC)
    append_keyed(rig, "k2")

    rig.upkeep.index_now(lambda: told.append("done"))
    rig.work()

    assert told == ["done"]
    assert rig.store.index_lag > 0
    rig.files.heal()
    rig.upkeep.index_now(lambda: told.append("again"))
    rig.work()
    assert (told, rig.store.index_lag) == (["done", "again"], 0)


def test_whoever_comes_while_the_index_is_written_waits_for_what_the_next_work_brings(rig: Rig) -> None:
    told: list[str] = []
    append_keyed(rig, "k1")
    rig.upkeep.index_now(lambda: told.append("first"))
    append_keyed(rig, "k2")
    rig.upkeep.index_now(lambda: told.append("second"))

    rig.pool.run(1)
    assert told == ["first"]
    rig.pool.run(1)

    assert (told, rig.store.index_lag) == (["first", "second"], 0)


def test_whoever_waits_for_the_key_index_is_served_after_other_work_at_once(rig: Rig) -> None:
    told: list[str] = []
    append_keyed(rig, "k1")
    rig.pass_time(PEOPLE_S)
    rig.upkeep.index_now(lambda: told.append("done"))
    assert len(rig.pool) == 1

    rig.work()

    assert told == ["done"]


def append_keyed(rig: Rig, key: str) -> None:
    data = bytes(batches.encode("orders", 0, batches.Rows([b"x"], BORN_AT, keys=[(key,)])))
    rig.store.stage(ORDERS, 1, data, batches.check(data, stamped=False))
    rig.store.write()
    rig.opened.sync()
