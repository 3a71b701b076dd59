"""Pulls that wait for the disk, with threads, turns and time by hand."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.handlers.pull import PullHandler
from rmq.broker.jobs.read_pool import ReadPool
from rmq.broker.state.parked_pulls import HoldTable
from rmq.broker.state.topics import TopicTable
from rmq.broker.store.rebuild import read_head
from rmq.wire.batch import batch as batches
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import Damaged, Fenced, LogTruncated, MessagesLost, OffsetOutOfRange, StoreFailed, TooManyInFlight
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, Pull, PullQueue
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, Opened, segment_files
from ..fakes import FakeService, HeldPool, Peer, Turns, request
from ..faulty_files import FaultyFiles, flip

OTHER = MessageQueue("orders", 1)


class Fence:
    """Refuses what is under another epoch than the newest."""

    epoch = 7

    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        if epoch != self.epoch:
            raise Fenced(f"epoch {epoch} is not {self.epoch}")

    def wanted(self, session: bytes, group: str, topic: str) -> Wanted | None:
        return None

    def ride(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        pass

    def fetched(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        pass


class Rig:
    """A pull handler over a store of which nothing is in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = FaultyFiles()
        self.opened = Opened(path, files=self.files, recent_bytes=0, segment_bytes=700, entries_per_file=3)
        self.store = self.opened.store
        self.service, self.turns, self.pool, self.fence = FakeService(), Turns(), HeldPool(), Fence()
        self.topics = TopicTable()
        self.topics.create("orders", 4, created_at=0)
        self.pulls = PullHandler(
            self.store, self.topics, HoldTable(), self.fence, now=self.service.now, clock=self.service.clock,
            call_soon=self.turns.call_soon, max_hold_s=30.0,
            pool=cast(ReadPool, self.pool), answers=self.service.answers,
        )  # fmt: skip
        self.service.handlers[Op.PULL] = self.pulls.pull
        self.service.unblocked = self.pulls.unblocked  # type: ignore[method-assign]
        self.peer = Peer(self.service, self.turns)
        for i in range(9):
            self.opened.append(b"%d" % i * 50)
        self.opened.append(b"other", to=OTHER)
        self.files.cold = True

    def pull(self, request_id: int, *queues: PullQueue, group: str | None = None, wait_ms: int = 0) -> None:
        self.peer.send(request(request_id, Op.PULL, Pull(group, wait_ms, 1 << 20, list(queues))))

    def results(self, peer: Peer | None = None) -> list[tuple[Any, ...]]:
        """(request, status, next offset, bodies) of each part of all answers."""
        found = []
        for _, request_id, status, parts in (peer or self.peer).answers():
            if status:
                found.append((request_id, status))
                continue
            for _, code, following, *_, data, _ in parts:
                bodies = [m.body for batch in batches.read_all(data, stores=StoreIds(1)) for m in batch.messages()]
                found.append((request_id, code, following, bodies))
        return found


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path)
    yield rig
    rig.store.abandon()


def orders(offset: int, *, epoch: int | None = None, log_epoch: int = 0) -> PullQueue:
    return PullQueue(*ORDERS, offset, epoch, NO_OFFSET, log_epoch)


def shorten(rig: Rig) -> int:
    """Retention removes all that it may; the first offset that is left."""
    segment = rig.store.log.segments[-2]
    head = read_head(rig.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()
    return rig.store.queue(ORDERS).min_offset


def test_what_is_not_in_memory_is_answered_when_a_thread_has_read_it(rig: Rig) -> None:
    rig.pull(1, orders(0))
    assert (rig.results(), len(rig.pool)) == ([], 1)

    rig.pool.run()

    assert rig.results() == [(1, 0, 9, [b"%d" % i * 50 for i in range(9)])]
    assert rig.pulls.cold_reads == 1


def test_a_pull_of_several_cold_queues_is_answered_whole(rig: Rig) -> None:
    rig.pull(1, orders(5), PullQueue(*OTHER, 0))
    while rig.pool.run():
        assert rig.peer.turns.turn() is None

    assert rig.results() == [(1, 0, 9, [b"%d" % i * 50 for i in range(5, 9)]), (1, 0, 1, [b"other"])]


def test_others_are_served_while_one_waits_for_the_disk(rig: Rig) -> None:
    rig.pull(1, orders(0))
    rig.pull(2, orders(9))
    rig.files.cold = False
    rig.pull(3, orders(8))

    assert rig.results() == [(2, EMPTY, 9, []), (3, 0, 9, [b"8" * 50])]


def test_a_connection_reads_one_after_the_other(rig: Rig) -> None:
    for i in range(4):
        rig.pull(i, orders(8))
    other = Peer(rig.service, rig.turns)
    other.send(request(9, Op.PULL, Pull(None, 0, 1 << 20, [orders(8)])))
    assert len(rig.pool) == 2  # one for each connection

    answered = []
    while rig.pool.run(1):
        answered += [result[0] for result in rig.results()]
    assert answered == [0, 1, 2, 3]
    assert [result[0] for result in rig.results(other)] == [9]


def test_a_lease_that_was_lost_meanwhile_gets_nothing(rig: Rig) -> None:
    rig.pull(1, orders(0, epoch=7), group="g")
    rig.fence.epoch = 8

    rig.pool.run()

    assert rig.results() == [(1, Fenced.code, 0, [])]


def test_a_topic_that_was_made_again_meanwhile_is_read_anew(rig: Rig) -> None:
    rig.pull(1, orders(0))
    rig.store.drop_topic("orders", 1)
    rig.opened.generation = 2
    rig.opened.append(b"new")

    rig.pool.run()
    rig.turns.turn()
    rig.pool.run()

    assert rig.results() == [(1, 0, 1, [b"new"])]


def test_a_topic_that_is_gone_meanwhile_has_no_such_offset(rig: Rig) -> None:
    rig.pull(1, orders(3))
    rig.store.drop_topic("orders", 1)

    rig.pool.run()

    assert rig.results() == [(1, OffsetOutOfRange.code, 3, [])]


@pytest.mark.parametrize("when", ["before the thread reads", "before the loop is told", "before the pull"])
def test_what_retention_took_is_told_as_lost_with_where_to_go_on(rig: Rig, when: str) -> None:
    if when == "before the pull":
        first = shorten(rig)
        rig.pull(1, orders(0))
    else:
        rig.pull(1, orders(0))
        ((job, done),) = rig.pool.jobs
        rig.pool.jobs.clear()
        result: Any = job() if when == "before the loop is told" else None
        first = shorten(rig)
        if result is None:
            with pytest.raises(FileNotFoundError) as failure:
                job()
            result = failure.value
        done(result)

    assert first > 0
    assert rig.results() == [(1, MessagesLost.code, first, [])]


def test_what_the_disk_cannot_read_is_damaged_with_where_to_go_on(rig: Rig) -> None:
    rig.files.fail("read", "commitlog", errno.EIO)
    rig.pull(1, orders(0))
    rig.pool.run()
    assert rig.results() == [(1, Damaged.code, 1, [])]

    rig.files.heal()
    rig.pull(2, orders(1))
    rig.pool.run()
    assert rig.results()[0][:3] == (2, 0, 9)


def test_a_flipped_byte_is_damaged_and_the_following_batches_are_read(rig: Rig) -> None:
    first = segment_files(rig.path)[0]
    flip(first, first.read_bytes().index(b"1" * 50))

    answers = []
    for i, offset in enumerate((0, 1, 2)):
        rig.pull(i, orders(offset))
        rig.pool.run()
        answers += rig.results()

    assert answers == [
        (0, 0, 1, [b"0" * 50]), (1, Damaged.code, 2, []), (2, 0, 9, [b"%d" % i * 50 for i in range(2, 9)]),
    ]  # fmt: skip


def test_a_disk_that_fails_otherwise_is_no_damage(rig: Rig) -> None:
    rig.files.fail("open_to_read", "commitlog", errno.EMFILE)
    rig.pull(1, orders(0))
    rig.pool.run()

    assert rig.results() == [(1, StoreFailed.code, 0, [])]


def test_a_connection_that_closed_meanwhile_is_forgotten(rig: Rig) -> None:
    rig.pull(1, orders(0))
    rig.pull(2, orders(0))
    rig.peer.connection.abort()
    rig.pulls.closed(rig.peer.connection)

    rig.pool.run()
    rig.turns.turn()

    assert (rig.peer.taken(), len(rig.pool), rig.pulls._reads) == ([], 0, {})


def test_more_cold_pulls_than_may_wait_are_refused(rig: Rig) -> None:
    rig.pool.full = True
    rig.pull(1, orders(0))
    assert rig.results() == [(1, TooManyInFlight.code)]
    rig.pool.full = False

    rig.pull(2, orders(8))
    rig.pool.run()
    assert [result[0] for result in rig.results()] == [2]


def test_what_a_blocked_reader_does_not_take_is_read_again_when_it_does(rig: Rig) -> None:
    rig.pull(1, orders(0))
    rig.peer.connection.pause_writing()
    rig.pool.run()
    rig.turns.turn()
    assert (rig.results(), len(rig.pool)) == ([], 0)

    rig.peer.connection.resume_writing()
    rig.turns.turn()
    assert rig.pool.run() == 1

    assert rig.results()[0][:3] == (1, 0, 9)


@pytest.mark.parametrize(
    ("offset", "log_epoch", "status", "following"),
    [(0, 0, 0, 9), (9, 1, EMPTY, 9), (10, 1, OffsetOutOfRange.code, 10), (3, 1, 0, 9)],
)
def test_a_reader_that_agrees_with_the_log_is_served(
    rig: Rig, offset: int, log_epoch: int, status: int, following: int
) -> None:
    rig.files.cold = False
    rig.pull(1, orders(offset, log_epoch=log_epoch))

    answer = rig.results()
    assert [result[1:3] for result in answer] == [(status, following)]


def test_a_reader_that_has_more_than_the_log_is_told_where_they_agree(rig: Rig) -> None:
    rig.files.cold = False
    rig.store.abandon()
    rig.store.history = rig.store.history._replace(log_epoch=2)  # a start that found nine messages

    for offset in (10, 100):
        rig.pull(offset, orders(offset, log_epoch=1))
        assert rig.results() == [(offset, LogTruncated.code, 9, [])]
    rig.store.queue(ORDERS).epochs = [1, 0, 2, 6]  # 6, 7 and 8 were stored after it
    rig.pull(1, orders(8, log_epoch=1))
    assert rig.results() == [(1, LogTruncated.code, 6, [])]
    rig.pull(2, orders(6, log_epoch=1))
    assert rig.results()[0][:3] == (2, 0, 9)
    rig.opened = Opened(rig.path)
    rig.store = rig.opened.store


def test_many_large_answers_of_one_turn_stop_when_the_peer_takes_no_more(rig: Rig) -> None:
    """They cost no time to make, so the pause between two read callbacks does not bound them."""
    rig.files.cold = False
    rig.peer.transport.takes = False
    pull = Pull(None, 0, 1 << 20, [orders(0)])
    rig.peer.send(b"".join(request(i, Op.PULL, pull) for i in range(20)))
    one = 9 * 250
    assert 1000 < len(rig.peer.transport.unsent) < 2 * one

    rig.peer.transport.takes = True
    answered = []
    for _ in range(100):
        rig.peer.transport.take(1 << 20)
        answered += [result[0] for result in rig.results()]

    assert answered == list(range(20))
