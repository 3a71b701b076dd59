from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.net.limits import BUFFER_OVERHEAD, ENTRY_BYTES, FRACTION, WRITE_OVERHEAD, PeerLimits, Unread

from ..fakes import BIG, ECHO, FakeService, Peer, request

KIB = 1 << 10
LIMIT = 8192 * KIB
HIGH_WATER = 512 * KIB


class Room:
    """Connections with one budget; peers that read when a test says so."""

    def __init__(self) -> None:
        self.service = FakeService(answers=LIMIT)
        self.service.high_water = HIGH_WATER
        self.budget = self.service.answers

    def deaf(self, *sizes: int) -> Peer:
        """A peer that was sent answers of these sizes and has read none of them."""
        peer = Peer(self.service)
        peer.transport.takes = False
        for size in sizes:
            self.ask(peer, size)
        return peer

    def ask(self, peer: Peer, size: int) -> None:
        peer.send(request(1, BIG, [size]))
        peer.answers()


@pytest.fixture
def room() -> Room:
    return Room()


def held(peer: Peer) -> int:
    unread: Unread = peer.connection._answers
    return unread.memory


def test_answers_that_are_taken_at_once_cost_nothing(room: Room) -> None:
    peer = Peer(room.service)

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
    peers: dict[int, Peer] = {}
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
