"""The line of pulls and the sweep, with arrivals, turns and time by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.handlers.pull import PullHandler
from rmq.broker.jobs.read_pool import ReadPool
from rmq.broker.state.parked_pulls import HoldTable
from rmq.broker.state.topics import TopicTable
from rmq.broker.store.message_store import MessageStore
from rmq.broker.store.read import ColdRead, Found
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import Internal, TooManyInFlight, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullQueue

from ..builders import ORDERS, Opened
from ..fakes import BIG, ECHO, FakeService, HeldPool, Peer, Turns, request


class NoFence:
    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        pass

    def wanted(self, session: bytes, group: str, topic: str) -> Wanted | None:
        return None

    def ride(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        pass

    def fetched(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        pass


class HookedStore:
    """The store, with something that happens before each read."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.before_read: Callable[[], None] = lambda: None

    def read(self, *args: Any) -> Found | ColdRead:
        self.before_read()
        return self._store.read(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Rig:
    """A pull handler over a real store, and peers of a fake service that use it."""

    def __init__(self, path: Path) -> None:
        self.opened = Opened(path)
        self.store = HookedStore(self.opened.store)
        self.service, self.turns, self.holds = FakeService(), Turns(), HoldTable()
        self.pool = HeldPool()
        self.topics = topics = TopicTable()
        topics.create("orders", 4, created_at=0)
        self.pulls = PullHandler(
            cast(MessageStore, self.store), topics, self.holds, NoFence(), now=self.service.now,
            clock=lambda: self.clock(), call_soon=self.turns.call_soon, max_hold_s=30.0,
            pool=cast(ReadPool, self.pool), answers=self.service.answers,
        )  # fmt: skip
        self.clock = self.service.clock
        self.service.handlers[Op.PULL] = self.pulls.pull
        self.service.unblocked = self.pulls.unblocked  # type: ignore[method-assign]
        self.peer = Peer(self.service, self.turns)

    def arrive(self, *, told: bool = True) -> None:
        """A message becomes readable; ``told`` says whether the handler hears of it."""
        self.opened.append(b"x" * 100)
        if told:
            self.pulls.arrived([ORDERS])

    def make_anew(self) -> None:
        """The topic is deleted, and made again before anything else can happen."""
        gone = self.topics.delete("orders")
        self.opened.store.drop_topic("orders", gone.generation)
        self.pulls.topic_ended("orders", gone.queues)
        self.topics.create("orders", 4, created_at=0)

    def statuses(self, peer: Peer | None = None) -> list[tuple[int, int]]:
        return [(answer[1], answer[3][0][1]) for answer in (peer or self.peer).answers()]


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path)
    yield rig
    rig.opened.close()


def pull(request_id: int, offset: int = 0, wait_ms: int = 15_000) -> bytes:
    return request(request_id, Op.PULL, Pull(None, wait_ms, 1 << 20, [PullQueue(*ORDERS, offset)]))


def test_an_arrival_before_the_pull_is_found_and_one_after_it_wakes_it(rig: Rig) -> None:
    rig.arrive()
    rig.peer.send(pull(1))
    assert rig.statuses() == [(1, 0)]

    rig.peer.send(pull(2, offset=1))
    assert (rig.statuses(), len(rig.holds)) == ([], 1)
    rig.arrive()
    assert rig.statuses() == [(2, 0)]


def test_a_pull_of_several_queues_shares_its_bytes(rig: Rig) -> None:
    for queue_id in range(3):
        rig.opened.append(b"x" * 1000, to=MessageQueue("orders", queue_id))
    queues = [PullQueue("orders", queue_id, 0) for queue_id in range(3)]

    rig.peer.send(request(1, Op.PULL, Pull(None, 0, 2000, queues)))

    ((_, _, _, parts),) = rig.peer.answers()
    assert [part[0] for part in parts] == [0, 1]


def test_answers_are_smaller_while_little_memory_is_free_and_hold_at_least_one_batch(rig: Rig) -> None:
    for _ in range(3):
        rig.opened.append(b"x" * 60_000)
    rig.peer.send(pull(1))
    rig.service.answers.used = 1 << 40  # so that the share of a connection is the smallest, 64 KiB

    rig.peer.send(pull(2))
    rig.opened.append(b"x" * 100_000)
    rig.peer.send(pull(3, offset=3))

    assert [answer[3][0][2] for answer in rig.peer.answers()] == [3, 1, 4]


def test_an_arrival_that_is_withheld_is_found_and_counted_by_the_sweep(rig: Rig, logs: list[dict[str, Any]]) -> None:
    rig.peer.send(pull(1))
    rig.pulls.sweep()
    assert (rig.pulls.rescued, rig.statuses()) == (0, [])

    rig.arrive(told=False)
    assert rig.statuses() == []
    rig.pulls.sweep()

    assert rig.statuses() == [(1, 0)]
    assert rig.pulls.rescued == 1
    assert [entry["total"] for entry in logs if entry["event"] == "pull.rescued"] == [1]
    rig.pulls.sweep()
    assert rig.pulls.rescued == 1


def test_the_sweep_looks_for_2_ms_a_turn_and_comes_to_an_end(rig: Rig) -> None:
    for i in range(10):
        rig.peer.send(pull(i))
    rig.arrive(told=False)
    looked = []

    def costly() -> float:
        rig.service.fine += 0.0006
        return rig.service.fine

    rig.clock = costly
    rig.pulls.sweep()
    while len(rig.holds):
        looked.append(10 - len(rig.holds))
        rig.pulls._sweep_on()

    assert looked == [3, 6, 9]
    rig.clock = rig.service.clock
    assert len(rig.peer.answers()) == 10
    assert rig.pulls.rescued == 10


def test_what_arrives_is_answered_before_pulls_whose_time_is_up(rig: Rig) -> None:
    for i in range(3):
        rig.peer.send(request(i, Op.PULL, Pull(None, 15_000, 1 << 20, [PullQueue("orders", 1, 0)])))
    rig.peer.send(pull(9, wait_ms=20_000))

    rig.service.time = 16.0
    rig.pulls.expire()
    rig.arrive()

    assert rig.statuses() == [(9, 0), (0, EMPTY), (1, EMPTY), (2, EMPTY)]


def test_pulls_whose_time_is_up_are_answered_although_the_line_does_not_end(rig: Rig) -> None:
    woken = [Peer(rig.service, rig.turns) for _ in range(6)]
    for i in range(3):
        rig.peer.send(request(i, Op.PULL, Pull(None, 15_000, 1 << 20, [PullQueue("orders", 1, 0)])))
    for peer in woken:
        peer.send(pull(9, wait_ms=20_000))

    def costly() -> None:
        rig.service.fine += 0.003

    rig.store.before_read = costly
    rig.service.time = 16.0
    rig.pulls.expire()
    rig.arrive()
    rig.turns.turn()

    assert rig.peer.connection not in rig.pulls._waiting
    assert [peer.connection in rig.pulls._waiting for peer in woken] == [False] + [True] * 5


def wide(request_id: int, *, wait_ms: int = 15_000) -> bytes:
    queues = [PullQueue("orders", i % 4, 0) for i in range(1024)]
    return request(request_id, Op.PULL, Pull(None, wait_ms, 1 << 20, queues))


def test_the_unanswered_pulls_of_a_connection_name_at_most_16384_queues(rig: Rig) -> None:
    other = Peer(rig.service, rig.turns)
    for i in range(16):
        rig.peer.send(wide(i))
    assert rig.peer.answers() == []

    rig.peer.send(pull(16) + wide(17, wait_ms=0))
    refused = rig.peer.answers()
    other.send(wide(1))

    assert [answer[1:3] for answer in refused] == [[16, TooManyInFlight.code], [17, TooManyInFlight.code]]
    assert "more than 16384 queues" in refused[0][3][0]
    assert (other.answers(), len(rig.holds)) == ([], 17)
    rig.arrive()
    assert {answer[2] for answer in rig.peer.answers()} == {0}
    assert rig.pulls._waiting == {}


@pytest.mark.parametrize("end", ["answered", "expired", "defect", "closed"])
def test_a_pull_that_ended_counts_no_longer(rig: Rig, end: str) -> None:
    rig.service.closed = rig.pulls.closed  # type: ignore[method-assign]
    rig.peer.send(wide(1))
    assert rig.pulls._waiting == {rig.peer.connection: 1024}

    if end == "closed":
        rig.peer.transport.abort()
    elif end == "expired":
        rig.service.time = 16.0
        rig.pulls.expire()
    else:
        rig.store.before_read = (lambda: 1 // 0) if end == "defect" else rig.store.before_read  # type: ignore[assignment, return-value]
        rig.arrive()
    rig.peer.answers()

    assert rig.pulls._waiting == {}


def test_parked_pulls_do_not_count_as_requests_in_flight(rig: Rig) -> None:
    rig.service.max_in_flight = 2
    for i in range(5):
        rig.peer.send(pull(i))
    rig.peer.send(request(9, ECHO, ["still served"]))

    assert [answer[1:3] for answer in rig.peer.answers()] == [[9, 0]]
    rig.arrive()
    assert rig.statuses() == [(i, 0) for i in range(5)]
    assert rig.peer.connection.in_flight == 0


@pytest.mark.parametrize("defect", [False, True])
def test_a_pull_that_is_refused_in_line_leaves_nothing_in_flight(rig: Rig, defect: bool) -> None:
    rig.peer.send(pull(1))
    rig.store.before_read = (lambda: 1 // 0) if defect else rig.store.before_read  # type: ignore[assignment, return-value]
    rig.arrive()
    rig.peer.answers()
    rig.peer.send(request(2, Op.PULL, []))  # not even admitted
    rig.peer.answers()

    assert rig.peer.connection.in_flight == 0


def test_a_pull_that_an_arrival_and_its_time_both_end_is_answered_once(rig: Rig) -> None:
    rig.peer.send(pull(1, wait_ms=1000))
    rig.service.time = 1.0

    rig.arrive()
    rig.pulls.expire()

    assert rig.statuses() == [(1, 0)]
    assert (len(rig.holds), rig.peer.connection.in_flight) == (0, 0)


@pytest.mark.parametrize(("now", "answered"), [(0.999, []), (1.0, [(1, EMPTY)])])
def test_a_parked_pull_ends_at_its_time(rig: Rig, now: float, answered: list[tuple[int, int]]) -> None:
    rig.peer.send(pull(1, wait_ms=1000))
    rig.service.time = now

    rig.pulls.expire()

    assert rig.statuses() == answered


def test_pulls_of_a_blocked_connection_wait_in_line_and_acks_go_out(rig: Rig) -> None:
    rig.arrive()
    rig.peer.transport.takes = False
    rig.peer.send(request(1, BIG, [2000]))
    rig.peer.answers()
    assert rig.peer.connection.blocked

    rig.peer.send(pull(2) + request(3, ECHO, ["ack"]))
    rig.peer.answers()
    rig.peer.transport.takes = True
    rig.peer.transport.take(1 << 20)

    assert [answer[1] for answer in rig.peer.answers()] == [1, 3, 2]


def test_a_parked_pull_that_is_woken_while_its_connection_is_blocked_waits(rig: Rig) -> None:
    rig.peer.send(pull(1))
    rig.peer.transport.takes = False
    rig.peer.send(request(2, BIG, [5000]))
    rig.peer.answers()

    rig.arrive()
    rig.peer.answers()
    rig.peer.transport.takes = True
    rig.peer.transport.take(1 << 20)

    assert [answer[1] for answer in rig.peer.answers()] == [2, 1]


def test_a_parked_pull_of_a_topic_that_is_made_anew_is_told_so(rig: Rig) -> None:
    rig.peer.send(pull(1))
    rig.peer.answers()

    rig.make_anew()
    rig.arrive()

    assert rig.statuses() == [(1, TopicNotFound.code)]
    assert len(rig.holds) == 0
    rig.peer.send(pull(2))
    assert rig.statuses() == [(2, 0)]


def test_a_pull_of_a_slow_reader_is_not_answered_from_another_topic_of_the_name(rig: Rig) -> None:
    rig.arrive()
    rig.peer.transport.takes = False
    rig.peer.send(request(1, BIG, [2000]))
    rig.peer.answers()
    rig.peer.send(pull(2, offset=1))

    rig.make_anew()
    rig.arrive()
    rig.arrive()
    rig.peer.answers()
    rig.peer.transport.takes = True
    rig.peer.transport.take(1 << 20)

    (big, answer) = rig.peer.answers()
    assert (big[1], answer[1]) == (1, 2)
    assert answer[3] == [[0, TopicNotFound.code, 1, 0, 0, b"", "the topic 'orders' was deleted"]]


def test_the_line_is_worked_off_for_2_ms_a_turn(rig: Rig) -> None:
    peers = [Peer(rig.service, rig.turns) for _ in range(6)]
    for i, peer in enumerate(peers):
        peer.send(pull(i))

    def costly() -> None:
        rig.service.fine += 0.0015

    rig.store.before_read = costly
    rig.arrive()
    served = []
    for _ in range(3):
        rig.turns.turn()
        served.append(sum(peer.connection not in rig.pulls._waiting for peer in peers))

    assert served == [2, 4, 6]


def test_a_defect_in_one_woken_pull_does_not_hold_the_others_back(rig: Rig) -> None:
    other = Peer(rig.service, rig.turns)
    rig.peer.send(pull(1))
    other.send(pull(2))

    def broken_once() -> None:
        rig.store.before_read = lambda: None
        raise ZeroDivisionError("a defect")

    rig.store.before_read = broken_once
    rig.arrive()

    assert [answer[1:3] for answer in rig.peer.answers()] == [[1, Internal.code]]
    assert rig.statuses(other) == [(2, 0)]


def test_a_woken_pull_of_a_connection_that_is_gone_is_dropped(rig: Rig) -> None:
    rig.peer.send(pull(1))
    rig.arrive()
    rig.peer.transport.abort()
    rig.pulls.closed(rig.peer.connection)

    assert rig.peer.answers() == []


def test_a_pull_stops_after_2_ms_and_says_where_to_go_on(rig: Rig) -> None:
    for _ in range(10):
        rig.arrive()
    began = []

    def reads_slowly() -> float:
        began.append(rig.service.fine)
        rig.service.fine += 0.0009
        return began[-1]

    rig.clock = reads_slowly
    rig.peer.send(pull(1))
    ((_, _, _, ((_, status, next_offset, *_),)),) = rig.peer.answers()

    assert (status, 0 < next_offset < 10) == (0, True)
