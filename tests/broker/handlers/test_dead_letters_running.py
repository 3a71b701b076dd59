"""Dead letters with threads, turns and the disk by hand: whatever comes between the request and its copies."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.committer import Committer
from rmq.broker.handlers.dead_letters import DeadLetterHandler
from rmq.broker.handlers.progress import ProgressHandler
from rmq.broker.replay import Replay
from rmq.broker.services.ledger import Ledger
from rmq.broker.services.lock_table import LockTable
from rmq.broker.services.membership import Membership
from rmq.broker.services.parked_log import ParkedLog
from rmq.broker.services.producers import ProducerTable
from rmq.broker.services.state import Change, SnapshotEnded, Started
from rmq.broker.services.topics import Topic, TopicTable
from rmq.broker.store.directory import DataDirectory
from rmq.broker.store.message_store import MessageStore
from rmq.broker.store.rebuild import read_head
from rmq.wire import batch as batches
from rmq.wire.errors import (
    Damaged,
    DiskFull,
    Fenced,
    Internal,
    MessagesLost,
    StoreFailed,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.ops import DeadLetter, Op

from ..builders import ORDERS, WallClock, make_batch, segment_files
from ..fakes import FakeService, HeldPool, Peer, Turns, request
from ..faulty_files import FaultyFiles, flip

DEAD = MessageQueue("%DLQ%g", 0)
SESSION = b"s" * 16
DONE = (0, [0, None])


class Tables:
    """All that a log brings back."""

    def __init__(self) -> None:
        self.topics, self.ledger, self.locks, self.producers = TopicTable(), Ledger(), LockTable(), ProducerTable()

    def replay(self) -> Replay:
        return Replay(self.topics, self.ledger, self.locks, self.producers, ParkedLog(), now=0.0)


class Rig:
    """A handler over a real store, with a lease of orders/0 for the group g."""

    def __init__(self, path: Path, *, segment_bytes: int = 1 << 30) -> None:
        self.path = path
        self.files = FaultyFiles()
        self.tables = tables = Tables()
        self.store = MessageStore(
            DataDirectory(path, self.files), segment_bytes=segment_bytes, wall_us=WallClock(), recent_bytes=0
        )
        replay = tables.replay()
        self.store.recover(replay)
        self.store.stage_changes(replay.name_copies(self.store.reader()))
        self.store.snapshot = self.snapshot
        tables.locks.start(self.store.log_epoch)
        self.service, self.turns, self.pool = FakeService(), Turns(), HeldPool()
        self.committer = Committer(self.store, self.turns, sync=False, exposed=lambda queues: None)
        self.committer.turn_over = self.turn_over
        self.progress = ProgressHandler(
            topics=tables.topics, members=Membership(), locks=tables.locks, ledger=tables.ledger,
            committer=self.committer, now=self.service.now, holds=self.store.readable_range,
        )  # fmt: skip
        self.refusal: str | None = None
        self.dead = DeadLetterHandler(
            self.store, topics=tables.topics, locks=tables.locks, ledger=tables.ledger, progress=self.progress,
            committer=self.committer, pool=self.pool, make_topic=self.make_topic, refusal=lambda: self.refusal,
            now=self.service.now,
        )  # fmt: skip
        self.service.handlers[Op.DEAD_LETTER] = self.dead.dead_letter
        self.peer = Peer(self.service, self.turns)
        self.epoch = 0
        self.is_closed = False

    def begin(self) -> None:
        """The topic, six messages and the lease."""
        self.committer.record(self.tables.topics.create("orders", 1, created_at=0)[0].made())
        self.committer.before_send()
        for i in range(6):
            data = make_batch(b"%d" % i * 50)
            self.store.stage(ORDERS, 1, data, batches.check(data, stamped=False))
            self.turn()
        self.acquire()
        self.files.cold = True

    def acquire(self) -> None:
        lease = self.tables.locks.acquire("g", ORDERS, SESSION, "m", now=self.service.time)
        assert lease is not None
        self.committer.record(lease.granted())
        self.turn()
        self.epoch = lease.epoch

    def make_topic(self, name: str) -> Topic:
        topic, made = self.tables.topics.make_own(name, created_at=0)
        if made:
            self.committer.record(topic.made())
        return topic

    def snapshot(self) -> list[Change]:
        told: list[Change] = [Started(self.store.store_id, self.store.log_epoch), *self.tables.topics.rows()]
        told += [*self.store.holds(), *self.tables.ledger.rows()]
        return [*told, SnapshotEnded(self.store.log.written, len(told), self.tables.topics.last_generation)]

    def turn_over(self) -> None:
        if self.store.turn_over():
            self.committer.schedule()

    def turn(self) -> None:
        while self.turns.soon:
            self.turns.turn()
        self.committer.commit()

    def ask(self, request_id: int, *offsets: int, commit: int = -1, peer: Peer | None = None) -> None:
        payload = DeadLetter("g", *ORDERS, self.epoch, list(offsets), commit, "poison")
        (peer or self.peer).send(request(request_id, Op.DEAD_LETTER, payload))

    def answers(self, peer: Peer | None = None) -> list[tuple[Any, ...]]:
        """(request, status, payload or nothing) of each answer, in their order."""
        found = (peer or self.peer).answers()
        return [
            (request_id, status, payload) if not status else (request_id, status)
            for _, request_id, status, payload in found
        ]

    def letters(self) -> list[str]:
        """The offsets of the copies, in their order."""
        found = []
        for offset in range(self.store.queue(DEAD).readable):
            place = self.store.locator(DEAD).position_of(offset)
            assert place is not None
            with self.store.reader() as reader:
                data = reader.batch(place[0])
            assert data is not None
            (message,) = batches.read(data, store_id=1).messages()
            found.append(message.properties["RMQ_ORIGIN_OFFSET"])
        return found

    @property
    def committed(self) -> int:
        return self.tables.ledger.offsets.get("g", ORDERS)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.store.abandon()


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path)
    rig.begin()
    yield rig
    rig.close()


def test_nothing_is_appended_before_a_thread_has_made_the_copies(rig: Rig) -> None:
    rig.ask(1, 2, 3, commit=4)
    assert (rig.answers(), rig.letters(), rig.committed, len(rig.pool)) == ([], [], -1, 1)

    rig.pool.run()

    assert rig.answers() == [(1, *DONE)]
    assert (rig.letters(), rig.committed) == (["2", "3"], 4)


def lose(rig: Rig) -> None:
    rig.tables.locks.release_session(SESSION)


def outlive(rig: Rig) -> None:
    rig.service.time += rig.tables.locks.lease_s + 0.001


def move_on(rig: Rig) -> None:
    rig.tables.locks.acquire("g", ORDERS, SESSION, "m", now=rig.service.time)


def delete(rig: Rig) -> None:
    rig.tables.topics.delete("orders")
    rig.store.drop_topic("orders", 1)


def make_anew(rig: Rig) -> None:
    delete(rig)
    rig.tables.topics.create("orders", 1, created_at=1)


@pytest.mark.parametrize(
    ("event", "code"),
    [(lose, Fenced), (outlive, Fenced), (move_on, Fenced), (delete, TopicNotFound), (make_anew, TopicNotFound)],
)
def test_what_ends_while_messages_are_read_ends_the_request_too(
    rig: Rig, event: Callable[[Rig], None], code: type[Exception]
) -> None:
    rig.ask(1, 2, commit=3)
    event(rig)
    written = rig.store.log.written

    rig.pool.run()

    assert rig.answers() == [(1, code.code)]  # type: ignore[attr-defined]
    assert (rig.letters(), rig.committed, rig.store.log.written) == ([], -1, written)


def test_a_lease_that_lasts_exactly_until_then_is_enough(rig: Rig) -> None:
    rig.ask(1, 2, commit=3)
    rig.service.time += rig.tables.locks.lease_s

    rig.pool.run()

    assert rig.answers() == [(1, *DONE)]


def test_a_commit_that_came_meanwhile_is_not_undone(rig: Rig) -> None:
    rig.ask(1, 2, 3, commit=4)
    rig.progress.commit_one(SESSION, "g", ORDERS, rig.epoch, 5)

    rig.pool.run()

    assert rig.answers() == [(1, *DONE)]
    assert rig.committed == 5


def test_the_next_request_waits_and_sees_what_was_done(rig: Rig) -> None:
    other = Peer(rig.service, rig.turns)
    rig.ask(1, 2, 3)
    rig.ask(2, 3, 4)
    rig.ask(3, 2, 3, peer=other)
    assert len(rig.pool) == 1

    while rig.pool.run():
        pass

    assert rig.answers() == [(1, *DONE), (2, *DONE)]
    assert rig.answers(other) == [(3, *DONE)]
    assert rig.letters() == ["2", "3", "4"]


def test_who_may_not_ask_stands_in_no_line(rig: Rig) -> None:
    rig.ask(1, 1)
    epoch, rig.epoch = rig.epoch, rig.epoch + 1
    rig.ask(2, 2)
    rig.epoch = epoch

    assert rig.answers() == [(2, Fenced.code)]
    rig.pool.run()
    assert rig.answers() == [(1, *DONE)]


def test_a_request_whose_asker_is_gone_copies_nothing_and_holds_up_nobody(rig: Rig) -> None:
    gone = Peer(rig.service, rig.turns)
    rig.ask(1, 1, peer=gone)
    rig.ask(2, 2, peer=gone)
    rig.ask(3, 3)
    gone.transport.abort()

    while rig.pool.run():
        pass

    assert rig.answers() == [(3, *DONE)]
    assert rig.letters() == ["3"]


def test_a_full_pool_refuses_and_the_next_request_is_served(rig: Rig) -> None:
    rig.pool.full = True
    rig.ask(1, 1)
    rig.pool.full = False
    rig.ask(2, 2)
    rig.pool.run()

    assert rig.answers() == [(1, TooManyInFlight.code), (2, *DONE)]


def test_a_damaged_message_is_refused_by_name(rig: Rig) -> None:
    place = rig.store.locator(ORDERS).position_of(3)
    assert place is not None
    flip(segment_files(rig.path)[0], place[0] + place[1] - 20)

    for request_id, offsets in enumerate(((2, 3), (3,), (2,))):
        rig.ask(request_id, *offsets, commit=3)
        rig.pool.run()

    assert rig.answers() == [(0, Damaged.code), (1, Damaged.code), (2, *DONE)]
    assert rig.letters() == ["2"]


def test_a_disk_that_cannot_be_read_is_told(rig: Rig) -> None:
    rig.files.fail("open_to_read", "commitlog")
    rig.ask(1, 2, commit=3)
    rig.pool.run()

    assert (rig.answers(), rig.committed) == ([(1, StoreFailed.code)], -1)


def test_a_defect_is_told_and_the_next_request_is_served(rig: Rig) -> None:
    rig.ask(1, 2)
    ((_, done),) = rig.pool.jobs
    rig.pool.jobs.clear()
    done(ZeroDivisionError("a defect"))
    rig.ask(2, 2)
    rig.pool.run()

    assert rig.answers() == [(1, Internal.code), (2, *DONE)]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, DiskFull), (errno.EIO, StoreFailed)])
def test_a_failed_write_takes_letters_and_progress_back_and_keeps_other_changes(
    rig: Rig, number: int, code: type[Exception]
) -> None:
    rig.ask(1, 2, commit=3)
    rig.progress.commit_one(SESSION, "g", ORDERS, rig.epoch, 1)  # in the same turn
    rig.files.fail("write", "commitlog", number, after=200)

    rig.pool.run()

    assert rig.answers() == [(1, code.code)]  # type: ignore[attr-defined]
    assert (rig.letters(), rig.committed) == ([], 1)
    rig.files.heal()
    rig.ask(2, 2, commit=3)
    rig.pool.run()
    assert rig.answers() == [(2, *DONE)]
    assert (rig.letters(), rig.committed) == (["2"], 3)
    again = found_by_a_start(rig)
    assert again.ledger.offsets.get("g", ORDERS) == 3
    assert again.topics.get("%DLQ%g") is not None


def test_retention_that_was_faster_is_told_as_lost(memory_path: Path) -> None:
    rig = Rig(memory_path, segment_bytes=700)
    rig.begin()
    rig.ask(1, 0, commit=1)
    rig.store.log.sync()
    segment = rig.store.log.segments[-1]
    head = read_head(rig.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()

    rig.pool.run()
    rig.ask(2, 0)

    assert rig.answers() == [(1, MessagesLost.code), (2, MessagesLost.code)]
    rig.close()


def found_by_a_start(rig: Rig) -> Tables:
    """The tables as a start finds them; the directory is given back."""
    rig.store.log.sync()
    rig.close()
    tables = Tables()
    store = MessageStore(DataDirectory(rig.path), segment_bytes=1 << 30, wall_us=WallClock())
    store.recover(tables.replay())
    store.abandon()
    return tables


def torn(path: Path) -> None:
    """The power went in the middle of a write: a copy of offset 2 is there, what belongs behind it is not."""
    rig = Rig(path)
    rig.begin()
    rig.ask(1, 2, commit=3)
    rig.pool.run()
    place = rig.store.locator(DEAD).position_of(0)
    assert place is not None
    rig.store.log.sync()
    rig.close()
    (segment,) = segment_files(path)
    with segment.open("r+b") as file:
        file.truncate(sum(place))


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("another", [False, True])
def test_a_copy_whose_change_was_torn_off_is_not_made_again(memory_path: Path, starts: int, another: bool) -> None:
    torn(memory_path)
    for _ in range(starts):
        rig = Rig(memory_path)
        if another:  # its change must not pass for the one that was torn off
            rig.acquire()
            rig.ask(1, 5)
            rig.pool.run()
        rig.turn()
        rig.store.log.sync()
        rig.close()

    rig = Rig(memory_path)
    found = ["2", "5"] if another else ["2"]
    assert (rig.letters(), rig.committed) == (found, -1)
    rig.acquire()
    rig.ask(1, 2, 3, commit=4)
    rig.pool.run()

    assert rig.answers() == [(1, *DONE)]
    assert (rig.letters(), rig.committed) == ([*found, "3"], 4)
    rig.close()
