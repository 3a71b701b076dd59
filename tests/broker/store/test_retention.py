from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq.broker.store.changes import QueueBounds
from rmq.broker.store.read import DamagedRange
from rmq.broker.store.retention import Expired, Removal, RetentionSearch

from ..builders import BORN_AT, ORDERS, PAYMENTS, Opened, WallClock, segment_files
from .small_log import pull, rest
from rigs.disk.faulty import Done, FaultyFiles, flip

HOUR = 3_600_000_000


class Crash(Exception):
    """The process ends here."""


def build(path: Path, files: FaultyFiles | None = None) -> Opened:
    """Twelve messages, one an hour, in segments of three or so; the last ones are behind the checkpoint."""
    clock = WallClock()
    opened = Opened(path, segment_bytes=700, entries_per_file=2, wall_us=clock, files=files)
    for i in range(12):
        clock.us = BORN_AT + i * HOUR
        opened.append(b"%d" % i * 30)
        if i == 9:
            opened.append(b"other", to=PAYMENTS)
            opened.checkpoint()
    return opened


def search(
    opened: Opened, *, before_us: int = 0, max_bytes: int = 0, needed_from: int | None = None,
    now_us: int = BORN_AT + 20_000 * HOUR, old_before: int = 0,
) -> Expired | None:  # fmt: skip
    log = opened.store.log
    needed = log.durable if needed_from is None else needed_from
    return RetentionSearch(
        opened.store.files, log.extents(), log.written, before_us, max_bytes, needed, now_us, old_before
    ).run()


def held_at(found: Expired) -> int:
    """How far the queue was when the segment began that the log is to begin with."""
    return next(change.end_offset for change in found.head if isinstance(change, QueueBounds))


def forget(opened: Opened, found: Expired) -> Removal:
    store = opened.store
    segments, index_files = store.forget_before(found.start, found.head)
    paths = [segment.path for segment in segments]
    return Removal(store.files, store.directory.commitlog, paths, index_files, store.keys, store.faults)


# ---- which segments may go


def test_segments_go_when_all_in_them_is_too_old(memory_path: Path) -> None:
    opened = build(memory_path)
    starts = [segment.start for segment in opened.store.log.segments]
    assert len(starts) >= 4

    assert search(opened, before_us=BORN_AT) is None
    found = search(opened, before_us=BORN_AT + 6 * HOUR + 1)

    assert found is not None
    assert found.start in starts[1:-1]
    assert held_at(found) <= 7  # message 6 was stored before that time, 7 was not
    following = starts[starts.index(found.start) + 1]
    later = search(opened, before_us=BORN_AT + 100 * HOUR, needed_from=following)
    assert later is not None
    assert held_at(later) >= held_at(found)
    opened.close()


DAY = 24 * HOUR


def begin(opened: Opened, clock: WallClock, *hours: int) -> None:
    """Store a message at each of these hours, by what the clock shows, and begin the next segment then."""
    for hour in hours:
        clock.us = BORN_AT + hour * HOUR
        opened.append(b"%d" % hour * 300)
    opened.checkpoint()


@pytest.mark.parametrize(
    ("now_h", "before_h", "gone"),
    [
        (6, 2, 2),  # what lies before the segment that began at 1
        (6, 3, 2),  # the one that began at "240" tells nothing of its time
        (6, 4, 4),  # the one that began at 3 bounds all before it
        (6, 6, 6),
        (239, 6, 6),
        (241, 6, 2),  # from here on a clock that was ahead cannot be told from one that was right
        (241, 240, 2),
        (242, 241, 6),
    ],
)
def test_a_clock_that_was_ahead_keeps_only_what_no_later_segment_bounds(
    memory_path: Path, now_h: int, before_h: int, gone: int
) -> None:
    clock = WallClock()
    opened = Opened(memory_path, segment_bytes=300, wall_us=clock)
    begin(opened, clock, 0, 1, 240, 3, 4, 5)  # hours, of which the third should be 2
    starts = [segment.start for segment in opened.store.log.segments]

    found = search(opened, before_us=BORN_AT + before_h * HOUR, now_us=BORN_AT + now_h * HOUR)

    assert (0 if found is None else starts.index(found.start)) == gone
    opened.close()


def test_a_clock_that_was_set_back_removes_nothing(memory_path: Path) -> None:
    clock = WallClock()
    opened = Opened(memory_path, segment_bytes=300, wall_us=clock)
    begin(opened, clock, 100, 101, 2, 3)
    opened.close()
    opened = Opened(memory_path, segment_bytes=300, wall_us=clock)

    behind = search(opened, before_us=BORN_AT + 2 * HOUR - DAY, now_us=BORN_AT + 4 * HOUR)
    right_again = search(opened, before_us=BORN_AT + 104 * HOUR - DAY, now_us=BORN_AT + 104 * HOUR)

    assert (behind, right_again) == (None, None)
    opened.close()


def test_a_clock_that_was_ahead_and_then_set_back_removes_nothing_young(memory_path: Path) -> None:
    clock = WallClock()
    opened = Opened(memory_path, segment_bytes=300, wall_us=clock)
    begin(opened, clock, 340, 100, 101, 2, 102)  # "340" should be 100, and 2 should be 101

    starts = [segment.start for segment in opened.store.log.segments]
    found = [search(opened, before_us=BORN_AT + hour * HOUR, now_us=BORN_AT + 104 * HOUR) for hour in (99, 102, 103)]

    # The one that began at "2" may hold what was stored at any time up to 102.
    assert [one and one.start for one in found] == [None, starts[3], starts[5]]
    opened.close()


def test_a_head_that_cannot_be_read_keeps_its_segment_and_no_other_one(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = build(memory_path, files)
    found = search(opened, before_us=BORN_AT + 6 * HOUR + 1)
    assert found is not None
    starts = [segment.start for segment in opened.store.log.segments]
    before = starts[starts.index(found.start) - 1]

    files.fail("read", f"{before:020d}", errno.EIO)
    assert search(opened, before_us=BORN_AT + 6 * HOUR + 1) == found
    files.fail("read", f"{found.start:020d}", errno.EIO)
    assert search(opened, before_us=BORN_AT + 6 * HOUR + 1) is None
    opened.store.abandon()


def test_what_is_known_to_be_old_goes_whatever_the_clocks_showed(memory_path: Path) -> None:
    clock = WallClock()
    opened = Opened(memory_path, segment_bytes=300, wall_us=clock)
    begin(opened, clock, 240, 241, 242)
    starts = [segment.start for segment in opened.store.log.segments]

    found = search(opened, before_us=BORN_AT, now_us=BORN_AT + HOUR, old_before=starts[2])

    assert found is not None
    assert found.start == starts[2]
    assert search(opened, before_us=0, now_us=BORN_AT + HOUR, old_before=starts[2]) is None, "nothing goes by age"
    opened.close()


@pytest.mark.parametrize("at", [0, 8, 60, 100, 130, 150])
def test_a_damaged_head_tells_no_time(memory_path: Path, at: int) -> None:
    clock = WallClock()
    opened = Opened(memory_path, segment_bytes=300, wall_us=clock)
    begin(opened, clock, 240, 241)
    newest = opened.store.log.segments[-1].path
    data = bytearray(newest.read_bytes())
    data[at : at + 40] = b"\xff" * 40
    newest.write_bytes(data)

    found = search(opened, before_us=BORN_AT + DAY, now_us=BORN_AT + 2 * DAY)

    assert found is None or found.start < opened.store.log.segments[-1].start
    opened.store.abandon()


def test_the_newest_segment_never_goes(memory_path: Path) -> None:
    opened = build(memory_path)
    newest = opened.store.log.segments[-1].start

    found = search(opened, before_us=BORN_AT + 10_000 * HOUR, max_bytes=1)

    assert found is not None
    assert found.start == newest
    opened.close()


def test_nothing_goes_that_a_start_from_the_checkpoint_needs(memory_path: Path) -> None:
    opened = build(memory_path)
    log = opened.store.log
    for needed in range(0, log.written + 1, 8):
        found = search(opened, before_us=BORN_AT + 10_000 * HOUR, needed_from=needed)
        assert found is None or found.start < needed
    opened.close()


def test_a_snapshot_that_is_not_durable_yet_lets_nothing_go(memory_path: Path) -> None:
    opened = build(memory_path)
    newest = opened.store.log.segments[-1].start

    found = search(opened, before_us=BORN_AT + 10_000 * HOUR, needed_from=newest)

    assert found is not None
    assert found.start < newest
    opened.close()


def test_the_oldest_segments_go_when_the_log_is_too_large(memory_path: Path) -> None:
    opened = build(memory_path)
    log = opened.store.log
    for kept in range(log.written - log.segments[-1].start + 1, log.written, 100):
        found = search(opened, max_bytes=kept)
        assert found is None or log.written - found.start >= kept
    assert search(opened, max_bytes=log.written) is None
    assert search(opened) is None
    opened.close()


def test_a_segment_without_a_whole_snapshot_cannot_be_the_first(memory_path: Path) -> None:
    opened = build(memory_path)
    before = search(opened, before_us=BORN_AT + 6 * HOUR + 1)
    assert before is not None
    flip(memory_path / "commitlog" / f"{before.start:020d}", 150)

    found = search(opened, before_us=BORN_AT + 6 * HOUR + 1)

    assert found is None or found.start < before.start
    opened.close()


# ---- and how they go


def check_shortened(opened: Opened, first: int) -> None:
    queue = opened.store.queue(ORDERS)
    assert (queue.min_offset, queue.readable) == (first, 12)
    assert rest(opened, first) == [b"%d" % i * 30 for i in range(first, 12)]
    assert opened.bodies(PAYMENTS) == [b"other"]


def index_files(path: Path) -> list[int]:
    return sorted(int(file.name) // 40 * 2 for file in (path / "consumequeue" / "orders@1" / "0").iterdir())


def test_queues_begin_where_the_first_snapshot_says_and_files_below_are_gone(memory_path: Path) -> None:
    opened = build(memory_path)
    found = search(opened, before_us=BORN_AT + 7 * HOUR)
    assert found is not None
    first = held_at(found)
    assert 2 < first < 10
    opened.store.keys.flush()

    forget(opened, found).run()

    check_shortened(opened, first)
    assert int(segment_files(memory_path)[0].name) == found.start == opened.store.log.start
    assert index_files(memory_path)[0] == first // 2 * 2
    assert all(segment >= found.start for segment in opened.store.keys.segments())
    opened.store.abandon()
    again = Opened(memory_path, entries_per_file=2)
    check_shortened(again, first)
    assert again.append(b"next").base_offset == 12
    again.close()


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_crash_between_any_two_removals_recovers(memory_path: Path, with_checkpoint: bool) -> None:
    steps = 0
    while True:
        files = FaultyFiles()
        path = memory_path / str(steps)
        opened = build(path, files)
        found = search(opened, before_us=BORN_AT + 7 * HOUR)
        assert found is not None
        first = held_at(found)
        removal = forget(opened, found)
        files.before = crash_after(steps)
        try:
            removal.run()
            crashed = False
        except Crash:
            crashed = True
        opened.store.abandon()
        if not with_checkpoint:
            (path / "checkpoint").unlink()

        again = Opened(path, segment_bytes=700, entries_per_file=2)

        queue = again.store.queue(ORDERS)
        assert queue.min_offset <= first
        assert rest(again, queue.min_offset) == [b"%d" % i * 30 for i in range(queue.min_offset, 12)]
        assert again.bodies(PAYMENTS) == [b"other"]
        again.checkpoint()
        wanted = search(again, before_us=BORN_AT + 7 * HOUR)
        if wanted is not None:
            forget(again, wanted).run()
        check_shortened(again, first)
        assert index_files(path)[0] >= first // 2 * 2
        again.close()
        shutil.rmtree(path)
        if not crashed:
            break
        steps += 1
    assert steps > 5


def crash_after(steps: int) -> Callable[[Done], None]:
    left = [steps]

    def before(done: Done) -> None:
        if done.op in ("unlink", "sync_directory"):
            left[0] -= 1
            if left[0] < 0:
                raise Crash

    return before


def test_segments_go_from_the_oldest_on_each_durably_before_the_next(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = build(memory_path, files)
    found = search(opened, before_us=BORN_AT + 7 * HOUR)
    assert found is not None
    removal = forget(opened, found)
    files.done.clear()

    removal.run()

    ops = [(done.op, Path(done.path).name) for done in files.done if "commitlog" in done.path]
    names = [path.name for path in removal.segments]
    assert names == sorted(names)
    assert ops == [entry for name in names for entry in (("unlink", name), ("sync_directory", "commitlog"))]
    opened.close()


def test_what_could_not_be_removed_is_removed_by_doing_it_again(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = build(memory_path, files)
    found = search(opened, before_us=BORN_AT + 7 * HOUR)
    assert found is not None
    removal = forget(opened, found)
    files.fail("unlink", removal.segments[-1].name, errno.EIO, times=1)

    with pytest.raises(OSError):
        removal.run()
    removal.run()

    check_shortened(opened, held_at(found))
    assert not any(path.exists() for path in removal.segments)
    opened.close()


def test_a_topic_made_again_is_not_touched_by_what_an_older_snapshot_says(memory_path: Path) -> None:
    opened = build(memory_path)
    found = search(opened, before_us=BORN_AT + 7 * HOUR)
    assert found is not None
    opened.store.drop_topic("orders", 1)
    opened.generation = 2
    opened.append(b"new")
    opened.checkpoint()

    forget(opened, found).run()
    assert opened.bodies() == [b"new"]
    opened.store.abandon()

    again = Opened(memory_path, entries_per_file=2)
    assert (again.store.queue(ORDERS).min_offset, again.bodies()) == (0, [b"new"])
    again.close()


def test_damage_in_the_head_of_a_log_that_was_shortened_is_damage_of_what_lay_before(memory_path: Path) -> None:
    """The checkpoint still knows what the head would say of the rest."""
    opened = build(memory_path)
    found = search(opened, before_us=BORN_AT + 7 * HOUR)
    assert found is not None
    forget(opened, found).run()
    opened.store.abandon()
    flip(segment_files(memory_path)[0], 150)

    again = Opened(memory_path, entries_per_file=2)

    with pytest.raises(DamagedRange) as failure:
        pull(again, 0)
    following = failure.value.next_offset
    assert rest(again, following) == [b"%d" % i * 30 for i in range(following, 12)]
    again.close()
