"""Send-backs and dead letters with threads, turns and the disk by hand: whatever comes between request and copies."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.store.rebuild import read_head
from rmq.wire.batch import layout
from rmq.wire.errors import (
    OK,
    Damaged,
    DiskFull,
    Fenced,
    Internal,
    MessagesLost,
    StoreFailed,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import SendBack

from ..builders import ORDERS, segment_files
from ..copy_rig import DEAD, RETRIES, SESSION, Rig, found_by_a_start
from ..fakes import Peer, request
from rigs.disk.faulty import flip

KINDS = ("dead", "back")


@pytest.fixture(params=KINDS)
def rig_running(memory_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:  # pytest's own
    rig_running = Rig(memory_path, kind=request.param)
    rig_running.begin()
    yield rig_running
    rig_running.close()


def test_nothing_is_appended_before_a_thread_has_made_the_copies(rig_running: Rig) -> None:
    rig_running.ask(1, 2, 3, commit=4)
    assert (rig_running.answers(), rig_running.copies(), rig_running.committed, len(rig_running.pool)) == (
        [],
        [],
        -1,
        1,
    )

    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]
    assert (rig_running.copies(), rig_running.committed) == (["2", "3"], 4)


def lose(rig_running: Rig) -> None:
    rig_running.tables.locks.release_session(SESSION)


def outlive(rig_running: Rig) -> None:
    rig_running.service.time += rig_running.tables.locks.lease_s + 0.001


def move_on(rig_running: Rig) -> None:
    rig_running.tables.locks.acquire("g", ORDERS, SESSION, "m", now=rig_running.service.time)


def delete(rig_running: Rig) -> None:
    rig_running.tables.topics.delete("orders")
    rig_running.store.drop_topic("orders", 1)


def make_anew(rig_running: Rig) -> None:
    delete(rig_running)
    rig_running.tables.topics.create("orders", 1, created_at=1)


@pytest.mark.parametrize(
    ("event", "code"),
    [(lose, Fenced), (outlive, Fenced), (move_on, Fenced), (delete, TopicNotFound), (make_anew, TopicNotFound)],
)
def test_what_ends_while_messages_are_read_ends_the_request_too(
    rig_running: Rig, event: Callable[[Rig], None], code: type[Exception]
) -> None:
    rig_running.ask(1, 2, commit=3)
    event(rig_running)
    written = rig_running.store.log.written

    rig_running.pool.run()

    assert rig_running.answers() == [(1, code.code)]  # type: ignore[attr-defined]
    assert (rig_running.copies(), rig_running.committed, rig_running.store.log.written) == ([], -1, written)


def test_a_lease_that_lasts_exactly_until_then_is_enough(rig_running: Rig) -> None:
    rig_running.ask(1, 2, commit=3)
    rig_running.service.time += rig_running.tables.locks.lease_s

    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]


def test_a_commit_that_came_meanwhile_is_not_undone(rig_running: Rig) -> None:
    rig_running.ask(1, 2, 3, commit=4)
    rig_running.progress.commit_one(SESSION, "g", ORDERS, rig_running.epoch, 5)

    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]
    assert rig_running.committed == 5


def test_the_next_request_waits_and_sees_what_was_done(rig_running: Rig) -> None:
    other = Peer(rig_running.service, rig_running.turns)
    rig_running.ask(1, 2, 3)
    rig_running.ask(2, 3, 4)
    rig_running.ask(3, 2, 3, peer=other)
    assert len(rig_running.pool) == 1

    while rig_running.pool.run():
        pass

    assert rig_running.answers() == [(1, OK), (2, OK)]
    assert rig_running.answers(other) == [(3, OK)]
    assert rig_running.copies() == ["2", "3", "4"]


def test_a_request_without_the_lease_is_not_queued(rig_running: Rig) -> None:
    rig_running.ask(1, 1)
    epoch, rig_running.epoch = rig_running.epoch, rig_running.epoch + 1
    rig_running.ask(2, 2)
    rig_running.epoch = epoch

    assert rig_running.answers() == [(2, Fenced.code)]
    rig_running.pool.run()
    assert rig_running.answers() == [(1, OK)]


def test_a_request_whose_asker_is_gone_copies_nothing_and_holds_up_nobody(rig_running: Rig) -> None:
    gone = Peer(rig_running.service, rig_running.turns)
    rig_running.ask(1, 1, peer=gone)
    rig_running.ask(2, 2, peer=gone)
    rig_running.ask(3, 3)
    gone.transport.abort()

    while rig_running.pool.run():
        pass

    assert rig_running.answers() == [(3, OK)]
    assert rig_running.copies() == ["3"]


def test_a_full_pool_refuses_and_the_next_request_is_served(rig_running: Rig) -> None:
    rig_running.pool.full = True
    rig_running.ask(1, 1)
    rig_running.pool.full = False
    rig_running.ask(2, 2)
    rig_running.pool.run()

    assert rig_running.answers() == [(1, TooManyInFlight.code), (2, OK)]


def test_a_damaged_message_is_refused_by_name(rig_running: Rig) -> None:
    place = rig_running.store.locator(ORDERS).position_of(3)
    assert place is not None
    flip(segment_files(rig_running.path)[0], place[0] + place[1] - 20)

    for request_id, offsets in enumerate(((2, 3), (3,), (2,))):
        rig_running.ask(request_id, *offsets, commit=3)
        rig_running.pool.run()

    assert rig_running.answers() == [(0, Damaged.code), (1, Damaged.code), (2, OK)]
    assert rig_running.copies() == ["2"]


def test_a_disk_that_cannot_be_read_is_told(rig_running: Rig) -> None:
    rig_running.files.fail("open_to_read", "commitlog")
    rig_running.ask(1, 2, commit=3)
    rig_running.pool.run()

    assert (rig_running.answers(), rig_running.committed) == ([(1, StoreFailed.code)], -1)


def test_a_defect_is_told_and_the_next_request_is_served(rig_running: Rig) -> None:
    rig_running.ask(1, 2)
    ((_, done),) = rig_running.pool.jobs
    rig_running.pool.jobs.clear()
    done(ZeroDivisionError("a defect"))
    rig_running.ask(2, 2)
    rig_running.pool.run()

    assert rig_running.answers() == [(1, Internal.code), (2, OK)]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, DiskFull), (errno.EIO, StoreFailed)])
def test_a_failed_write_takes_letters_and_progress_back_and_keeps_other_changes(
    rig_running: Rig, number: int, code: type[Exception]
) -> None:
    rig_running.ask(1, 2, commit=3)
    rig_running.progress.commit_one(SESSION, "g", ORDERS, rig_running.epoch, 1)  # in the same turn
    rig_running.files.fail("write", "commitlog", number, after=200)

    rig_running.pool.run()

    assert rig_running.answers() == [(1, code.code)]  # type: ignore[attr-defined]
    assert (rig_running.copies(), rig_running.committed) == ([], 1)
    rig_running.files.heal()
    rig_running.ask(2, 2, commit=3)
    rig_running.pool.run()
    assert rig_running.answers() == [(2, OK)]
    assert (rig_running.copies(), rig_running.committed) == (["2"], 3)
    again = found_by_a_start(rig_running)
    assert again.ledger.offsets.get("g", ORDERS) == 3
    assert again.topics.get((DEAD if rig_running.kind == "dead" else RETRIES).topic) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_retention_that_was_faster_is_told_as_lost(memory_path: Path, kind: str) -> None:
    rig_running = Rig(memory_path, segment_bytes=700, kind=kind)
    rig_running.begin()
    rig_running.ask(1, 0, commit=1)
    rig_running.store.log.sync()
    segment = rig_running.store.log.segments[-1]
    head = read_head(rig_running.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig_running.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()

    rig_running.pool.run()
    rig_running.ask(2, 0)

    assert rig_running.answers() == [(1, MessagesLost.code), (2, MessagesLost.code)]
    rig_running.close()


def cut_at(path: Path, data: bytes, size: int) -> None:
    """The power went in the middle of a write: so much of the log is there."""
    (segment,) = segment_files(path)
    segment.write_bytes(data[:size])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("another", [False, True])
def test_a_copy_whose_change_was_torn_off_is_not_made_again(
    memory_path: Path, kind: str, starts: int, another: bool
) -> None:
    rig_running = Rig(memory_path, kind=kind)
    rig_running.begin()
    before = rig_running.store.log.written
    rig_running.ask(1, 2, commit=3)
    rig_running.pool.run()
    rig_running.store.log.sync()
    rig_running.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()
    cut_at(memory_path, data, copy_end(data, before))
    for _ in range(starts):
        rig_running = Rig(memory_path, kind=kind)
        if another:  # its change must not pass for the one that was torn off
            rig_running.acquire()
            rig_running.ask(1, 5)
            rig_running.pool.run()
        rig_running.turn()
        rig_running.store.log.sync()
        rig_running.close()

    rig_running = Rig(memory_path, kind=kind)
    found = ["2", "5"] if another else ["2"]
    assert (rig_running.copies(), rig_running.committed) == (found, -1)
    rig_running.acquire()
    rig_running.ask(1, 2, 3, commit=4)
    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]
    assert (rig_running.copies(), rig_running.committed) == ([*found, "3"], 4)
    rig_running.close()


def copy_end(data: bytes, at: int) -> int:
    """Where the first copy behind a place of the log ends."""
    while True:
        header = layout.parse_header(data, at)
        at += header.size
        if header.origin:
            return at


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_write_is_torn_asking_again_loses_nothing_and_copies_nothing_twice(
    memory_path: Path, kind: str
) -> None:
    """Also if the whole write is there and only its answer was lost."""
    rig_running = Rig(memory_path, kind=kind)
    rig_running.begin()
    before = rig_running.store.log.written
    rig_running.ask(1, 1, 2, 4, commit=3)
    rig_running.pool.run()
    assert rig_running.answers() == [(1, OK)]
    end = rig_running.store.log.written
    rig_running.store.log.sync()
    rig_running.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()
    steps = {before, end, copy_end(data, before), *range(before, end, 56)}
    for size in sorted(steps):
        cut_at(memory_path, data, size)
        rig_running = Rig(memory_path, kind=kind)
        rig_running.acquire()

        rig_running.ask(1, 1, 2, 4, commit=3)
        rig_running.pool.run()

        assert rig_running.answers() == [(1, OK)]
        assert (rig_running.copies(), rig_running.committed) == (["1", "2", "4"], 3), size
        rig_running.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_torn_write_whose_original_the_disk_cannot_read_refuses_the_start(memory_path: Path, number: int) -> None:
    """A start without its name would copy it once more when the disk is sound."""
    rig_running = Rig(memory_path)
    rig_running.begin()
    rig_running.ask(1, 2)
    rig_running.pool.run()
    data = rig_running.store.reader().batch(copy_start(segment_files(memory_path)[0].read_bytes()))
    assert data is not None
    replay = rig_running.tables.replay()
    replay.batch(layout.parse_header(data))
    rig_running.files.fail("read", "commitlog", number)

    with pytest.raises(OSError) as failure:
        replay.name_copies(rig_running.store.reader())
    assert failure.value.errno == number
    rig_running.files.heal()
    rig_running.close()


def copy_start(data: bytes) -> int:
    """Where the first copy of a log lies."""
    at = 0
    while not (header := layout.parse_header(data, at)).origin:
        at += header.size
    return at


# ---- send-backs and dead letters of one request


def send_back(rig_running: Rig, attempts: list[int], **more: Any) -> list[int]:
    """Have the first messages of the queue sent back; what became of them."""
    offsets = list(range(len(attempts)))
    rig_running.peer.send(
        request(7, Op.SEND_BACK, SendBack("g", *ORDERS, rig_running.epoch, offsets, attempts, **more))
    )
    rig_running.run()
    ((_, _, status, payload),) = rig_running.peer.answers()
    assert status == OK
    (fates,) = payload
    return list(fates)


def test_each_message_waits_for_the_level_of_its_deliveries_or_is_dead(rig_running: Rig) -> None:
    assert send_back(rig_running, [1, 2, 3, 16, 17, 18]) == [3, 4, 5, 5, -1, -1]  # there are five levels

    assert [(due_s, message.body[:1]) for due_s, message in rig_running.deferred()] == [
        (10, b"0"), (30, b"1"), (60, b"2"), (60, b"3"),
    ]  # fmt: skip
    assert [message.body[:1] for message in rig_running.stored(DEAD)] == [b"4", b"5"]
    assert send_back(rig_running, [1, 2, 3, 16, 17, 18]) == [0] * 6


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_a_write_of_both_kinds_that_is_torn_is_completed_by_asking_again(memory_path: Path, size: int) -> None:
    rig_running = Rig(memory_path)
    rig_running.begin()
    ends = [rig_running.store.log.written]
    send_back(rig_running, [1, 17, 2])
    rig_running.store.log.sync()
    rig_running.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()
    for _ in range(3):
        ends.append(copy_end(data, ends[-1]))
    cut_at(memory_path, data, ends[size])
    rig_running = Rig(memory_path)
    rig_running.acquire()

    assert send_back(rig_running, [1, 17, 2]) == [0] * size + [3, -1, 4][size:]

    assert [message.body[:1] for _, message in rig_running.deferred()] == [b"0", b"2"]
    assert [message.body[:1] for message in rig_running.stored(DEAD)] == [b"1"]
    rig_running.close()


def test_groups_take_turns(rig_running: Rig) -> None:
    """A stream of send-backs of one group does not starve another, and large requests are done in portions."""
    for i in range(4):
        rig_running.ask(i, i)
    assert len(rig_running.copy_queue) == 3
    lease = rig_running.tables.locks.acquire("h", ORDERS, SESSION, "m", now=rig_running.service.time)
    assert lease is not None
    payload = SendBack("h", *ORDERS, lease.epoch, [5], [1])
    rig_running.peer.send(request(9, Op.SEND_BACK, payload))

    rig_running.run()

    assert [request_id for request_id, _ in rig_running.answers()] == [0, 1, 9, 2, 3]
