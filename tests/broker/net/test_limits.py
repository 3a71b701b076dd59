"""How long a peer may keep the broker waiting, as a table."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rmq.broker.net.connection import Connection
from rmq.broker.net.limits import (
    BUFFER_OVERHEAD,
    ENTRY_BYTES,
    FRACTION,
    MAX_TURNED_AWAY,
    WRITE_OVERHEAD,
    Admission,
    Peer,
    PeerLimits,
    PeerTimeouts,
    ReceiveBudget,
    Unread,
)
from rmq.wire.errors import FrameStalled, HelloTimeout, SlowReader, TooManyConnections

from ..fakes import BIG, ECHO, FakeService, request
from ..fakes import Peer as FakePeer

LIMITS = PeerLimits(hello_s=10.0, stall_s=30.0)


IDLE = Peer(greeted=True, unfinished=None, contended=False, unread=0, taken=0)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("peer", "waited_s", "verdict"),
    [
        (IDLE, 1e9, None),
        (IDLE._replace(greeted=False), 10.0, None),
        (IDLE._replace(greeted=False), 10.001, HelloTimeout),
        (IDLE._replace(unread=1), 30.0, None),
        (IDLE._replace(unread=1), 30.001, SlowReader),
        (IDLE._replace(unread=1, taken=1), 30.001, None),
        (IDLE._replace(unfinished=0), 30.0, None),
        (IDLE._replace(unfinished=0), 30.001, FrameStalled),
        (IDLE._replace(unfinished=16 * MIB), 46.0, None),
        (IDLE._replace(unfinished=16 * MIB), 46.001, FrameStalled),
        (IDLE._replace(unfinished=16 * MIB, contended=True), 21.0, None),
        (IDLE._replace(unfinished=16 * MIB, contended=True), 21.001, FrameStalled),
    ],
)
def test_patience_ends_strictly_after_its_time(peer: Peer, waited_s: float, verdict: type[Exception] | None) -> None:
    found = PeerTimeouts(100.0).judge(100.0 + waited_s, peer, LIMITS)

    assert (found is None) if verdict is None else isinstance(found, verdict)


def test_another_frame_has_its_own_time_and_reading_a_little_is_progress() -> None:
    patience = PeerTimeouts(0.0)
    patience.frame_began(20.0)

    assert patience.judge(45.0, IDLE._replace(unfinished=0, unread=5, taken=1), LIMITS) is None
    assert isinstance(patience.judge(80.0, IDLE._replace(unread=5, taken=1), LIMITS), SlowReader)


def test_while_others_wait_for_memory_no_peer_has_more_time_than_otherwise() -> None:
    contended = IDLE._replace(unfinished=0, contended=True)

    assert PeerTimeouts(0.0).judge(2.0, contended, PeerLimits(10.0, 2.0)) is None
    assert isinstance(PeerTimeouts(0.0).judge(2.001, contended, PeerLimits(10.0, 2.0)), FrameStalled)


# ---- how many connections may stay, and that those beyond that neither pile up nor take anybody's place


class PeerAdmission:
    """A connection, as far as admission looks at it."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def come(admission: Admission, count: int) -> tuple[list[PeerAdmission], list[TooManyConnections | None]]:
    peers = [PeerAdmission() for _ in range(count)]
    return peers, [admission.opened(cast(Connection, peer)) for peer in peers]


def test_one_beyond_the_limit_gets_the_reason_and_gets_in_when_another_has_left() -> None:
    admission = Admission(2)
    peers, (*taken, refused) = come(admission, 3)

    assert taken == [None, None]
    assert isinstance(refused, TooManyConnections)
    assert refused.text == "the broker has 2 connections, as many as it may"
    assert admission.connections == set(peers[:2])

    admission.closed(cast(Connection, peers[0]))
    assert come(admission, 1)[1] == [None]


def test_one_that_was_turned_away_and_ends_frees_no_place() -> None:
    admission = Admission(1)
    peers, _ = come(admission, 2)

    admission.closed(cast(Connection, peers[1]))

    assert come(admission, 1)[1] != [None]


def test_the_eldest_refused_connection_makes_room() -> None:
    admission = Admission(1)
    peers, _ = come(admission, 1 + MAX_TURNED_AWAY)
    assert not any(peer.aborted for peer in peers)

    come(admission, 2)

    assert [peer.aborted for peer in peers] == [False, True, True] + [False] * (MAX_TURNED_AWAY - 2)


KIB = 1 << 10


LIMIT = 8192 * KIB


HIGH_WATER = 512 * KIB


class Room:
    """Connections with one budget; peers that read when a test says so."""

    def __init__(self) -> None:
        self.service = FakeService(answers=LIMIT)
        self.service.high_water = HIGH_WATER
        self.budget = self.service.answers

    def deaf(self, *sizes: int) -> FakePeer:
        """A peer that was sent answers of these sizes and has read none of them."""
        peer = FakePeer(self.service)
        peer.transport.takes = False
        for size in sizes:
            self.ask(peer, size)
        return peer

    def ask(self, peer: FakePeer, size: int) -> None:
        peer.send(request(1, BIG, [size]))
        peer.answers()


@pytest.fixture
def room() -> Room:
    return Room()


def held(peer: FakePeer) -> int:
    unread: Unread = peer.connection._answers
    return unread.memory


def test_answers_that_are_taken_at_once_cost_nothing(room: Room) -> None:
    peer = FakePeer(room.service)

    room.ask(peer, 100 * KIB)

    assert (held(peer), room.budget.used) == (0, 0)


def test_a_write_counts_until_its_last_byte_is_taken(room: Room) -> None:
    peer = room.deaf(100 * KIB)
    cost = room.budget.used
    assert 100 * KIB + WRITE_OVERHEAD + BUFFER_OVERHEAD <= cost < 101 * KIB

    peer.transport.take(99 * KIB)
    peer.connection.check_timeouts(1.0, PeerLimits(10.0, 30.0))
    assert room.budget.used == cost
    peer.transport.take(2 * KIB)
    peer.connection.check_timeouts(2.0, PeerLimits(10.0, 30.0))

    assert room.budget.used == 0


def test_small_writes_count_with_what_they_take_besides_and_are_remembered_together(room: Room) -> None:
    peer = room.deaf(*[20] * 1000)

    assert room.budget.used >= 1000 * (20 + WRITE_OVERHEAD + BUFFER_OVERHEAD)
    assert len(peer.connection._answers._writes) <= room.budget.used // ENTRY_BYTES + 1


def test_memory_that_an_answer_keeps_besides_its_bytes_counts(room: Room) -> None:
    peer = room.deaf()

    peer.connection.reply_parts(1, [b"x" * KIB], 300 * KIB)
    peer.answers()

    assert 301 * KIB <= room.budget.used < 302 * KIB


def test_a_connection_that_ends_gives_its_memory_back(room: Room) -> None:
    peer = room.deaf(100 * KIB)

    peer.connection.abort()

    assert room.budget.used == 0


def test_a_connection_is_blocked_above_its_share_of_what_is_free_and_unblocked_when_it_reads(room: Room) -> None:
    others = [room.deaf(500 * KIB) for _ in range(14)]
    assert room.budget.share < 200 * KIB

    peer = room.deaf(200 * KIB)
    assert peer.connection.blocked
    room.ask(peer, 1)
    assert peer.transport.reading  # acks still go out
    peer.transport.take(300 * KIB)

    assert not peer.connection.blocked
    assert room.service.unblocked_calls == [peer.connection]
    for other in others:
        other.connection.abort()
    room.ask(peer, 400 * KIB)
    assert not peer.connection.blocked  # the mark is what it was


def test_no_more_requests_are_read_of_a_connection_above_four_times_its_share(room: Room) -> None:
    peers = [room.deaf(500 * KIB) for _ in range(15)]

    assert not peers[-1].transport.reading
    peers[-1].transport.take(500 * KIB)

    assert peers[-1].transport.reading


def test_more_connections_than_the_mark_alone_would_allow_fit_and_none_is_aborted(room: Room) -> None:
    count = 24
    assert count * HIGH_WATER > LIMIT
    for _ in range(count):
        peer = room.deaf()
        while not peer.connection.blocked:  # pulls are answered
            room.ask(peer, min(room.budget.share, 16 * KIB))

    assert room.budget.evicted == 0
    assert room.budget.used < LIMIT


@pytest.mark.parametrize(
    ("first", "second", "evicted"),
    [  # (KiB, seconds without progress) of two connections
        ((3000, 10.0), (3000, 5.0), 0),
        ((3000, 5.0), (3000, 10.0), 1),
        ((1000, 10.0), (5000, 9.0), 1),
        ((2500, 20.0), (4000, 9.0), 0),
        ((3000, 0.0), (3100, 0.0), 1),
    ],
)
def test_over_the_limit_the_most_bytes_for_the_longest_time_without_progress_go_first(
    room: Room, first: tuple[int, float], second: tuple[int, float], evicted: int
) -> None:
    peers: dict[int, FakePeer] = {}
    for i, (size, waits_s) in sorted(enumerate((first, second)), key=lambda one: -one[1][1]):
        room.service.time = 100.0 - waits_s
        peers[i] = room.deaf(size * KIB)
    room.service.time = 100.0

    new = room.deaf(2500 * KIB)

    assert [peers[0].transport.ended, peers[1].transport.ended] == [evicted == 0, evicted == 1]
    assert not new.transport.ended
    assert room.budget.evicted == 1


def test_over_the_limit_a_connection_that_has_read_since_is_spared(room: Room) -> None:
    reads, reads_not = room.deaf(4000 * KIB), room.deaf(1000 * KIB)
    room.service.time = 20.0
    reads.transport.take(1)

    room.deaf(4000 * KIB)

    assert (reads.transport.ended, reads_not.transport.ended) == (False, True)


def test_over_the_limit_connections_go_until_a_part_is_free_and_each_is_logged(
    room: Room, logs: list[dict[str, Any]]
) -> None:
    for i in range(16):
        room.service.time = float(i)
        room.deaf(500 * KIB)
    assert room.budget.evicted == 0
    room.service.time = 20.0

    room.deaf(500 * KIB)

    assert room.budget.used <= LIMIT - LIMIT // FRACTION
    evictions = [entry for entry in logs if entry["event"] == "connection.evicted"]
    assert len(evictions) == room.budget.evicted == 3
    assert [entry["waited_s"] for entry in evictions] == [20.0, 19.0, 18.0]


def test_memory_that_was_read_meanwhile_is_noticed_before_anyone_is_aborted(room: Room) -> None:
    peers = [room.deaf(500 * KIB) for _ in range(16)]
    for peer in peers:
        peer.transport.take(1000 * KIB)

    room.deaf(500 * KIB)

    assert room.budget.evicted == 0
    assert room.budget.used < 600 * KIB


def test_the_only_holder_may_have_more_than_the_whole_budget(room: Room) -> None:
    peer = room.deaf(LIMIT + KIB)

    assert not peer.transport.ended
    peer.transport.takes = True
    peer.transport.take(2 * LIMIT)
    peer.send(request(2, ECHO, ["still here"]))

    assert [answer[1] for answer in peer.answers()] == [1, 2]
    assert room.budget.used == 0


def test_a_connection_that_is_aborted_while_it_is_answered_ends_without_a_defect(room: Room) -> None:
    room.deaf(LIMIT // 2)

    peer = room.deaf(LIMIT - KIB)

    assert peer.transport.ended
    assert room.service.open.count(peer.connection) == 0


class Holder:
    """Somebody who wants ``needed`` bytes and tries again when told to."""

    def __init__(self, budget: ReceiveBudget, needed: int = 0) -> None:
        self.budget = budget
        self.needed = needed
        self.held = 0
        self.tries = 0

    def want(self, needed: int) -> bool:
        self.needed = needed
        granted = self.budget.charge(self, self.held, needed)
        if granted:
            self.held = needed
        return granted

    def budget_freed(self) -> None:
        self.tries += 1
        self.want(self.needed)


def test_charges_are_granted_up_to_the_limit() -> None:
    budget = ReceiveBudget(100)
    one, two, three = (Holder(budget) for _ in range(3))

    assert one.want(60)
    assert two.want(40)
    assert not three.want(1)

    assert budget.used == 100
    assert three.held == 0


def test_the_only_holder_gets_more_than_the_limit() -> None:
    budget = ReceiveBudget(100)
    one = Holder(budget)

    assert one.want(500)
    assert one.want(900)
    assert budget.used == 900


def test_who_waits_is_served_in_order_when_room_is_given_back() -> None:
    budget = ReceiveBudget(100)
    one, two, three, four = (Holder(budget) for _ in range(4))
    one.want(100)
    assert not two.want(50)
    assert not three.want(50)
    assert not four.want(50)

    one.want(0)

    assert (two.held, three.held, four.held) == (50, 50, 0)
    budget.give_back(two, two.held)
    assert four.held == 50
    assert budget.used == 100


def test_a_waiting_connection_is_never_overtaken() -> None:
    budget = ReceiveBudget(100)
    small, large, late = (Holder(budget) for _ in range(3))
    small.want(50)
    assert not large.want(80)

    assert not late.want(10)  # would fit, but then small frames could keep a large one out for ever
    assert late.tries == 0
    small.want(0)

    assert (large.held, late.held) == (80, 10)


def test_who_needs_less_than_it_holds_always_gets_it_and_leaves_the_line() -> None:
    budget = ReceiveBudget(100)
    one, two, three = (Holder(budget) for _ in range(3))
    one.want(90)
    two.want(10)
    assert not two.want(60)
    assert not three.want(5)

    assert two.want(0)

    assert three.held == 5
    assert budget.used == 95


def test_a_waiting_connection_that_closes_does_not_block_later_ones() -> None:
    budget = ReceiveBudget(100)
    one, two, three = (Holder(budget) for _ in range(3))
    one.want(50)
    two.want(90)
    three.want(40)

    budget.give_back(two, 0)

    assert three.held == 40
