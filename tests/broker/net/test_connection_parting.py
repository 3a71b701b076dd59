"""How a connection ends: the reason arrives, whatever the peer was about to send."""

from __future__ import annotations

import pytest

from rmq.broker.net.connection import PARTING_BYTES
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadFrame, BadRequest, TooManyConnections
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op, Push

from ..fakes import BIG, COSTLY, ECHO, LATER, FakeService, Peer, Turns, ok, request
from ..harness import Client

GARBAGE = frames.LENGTH.pack(1) + b"\xc1"


def staying(service: FakeService, *, greet: bool = True) -> Peer:
    """A peer that does not close when it is told to go."""
    peer = Peer(service, greet=greet)
    peer.transport.leaves = False
    return peer


def test_what_comes_behind_the_end_is_dropped_until_the_peer_has_closed() -> None:
    service = FakeService()
    peer = staying(service)

    peer.send(GARBAGE)
    for _ in range(10):
        peer.send(request(1, ECHO, [b"late"]))

    ((_, _, push, (code, _)),) = peer.answers()
    assert (push, code) == (Push.CLOSING, BadFrame.code)
    assert (service.served, peer.transport.half_closed, peer.transport.ended) == ([], True, False)
    assert not peer.connection.eof_received()
    peer.transport.close()
    assert service.open == []
    assert all(timer.cancelled for timer in peer.turns.later)


def test_a_peer_that_does_not_go_is_closed_after_a_moment() -> None:
    service = FakeService()
    peer = staying(service)
    peer.send(GARBAGE)

    (timer,) = peer.turns.later
    timer.run()

    assert peer.transport.ended
    assert len(peer.answers()) == 1


def test_a_peer_that_does_not_go_and_floods_is_closed_at_once() -> None:
    service = FakeService()
    peer = staying(service)
    peer.send(GARBAGE)

    for _ in range(1 + PARTING_BYTES // (1 << 20)):
        peer.send(bytes(1 << 20))

    assert peer.transport.ended


def test_a_connection_too_many_is_told_so_also_while_its_hello_comes() -> None:
    service = FakeService()
    service.refusal = TooManyConnections("enough")

    peer = staying(service, greet=False)
    peer.send(request(0, Op.HELLO, {}))

    assert peer.answers() == [[frames.PUSH, 0, Push.CLOSING, [TooManyConnections.code, "enough"]]]
    (timer,) = peer.turns.later
    timer.run()
    assert peer.transport.ended


def test_the_end_gives_back_the_memory_of_what_was_unfinished() -> None:
    service, turns = FakeService(), Turns()
    peer, other = staying(service), Peer(service, turns)
    peer.send(b"".join(request(i, COSTLY, [b"x" * 100]) for i in range(8)) + request(9, ECHO, [b"x" * 1000])[:50])
    assert service.budget.used > 0

    peer.connection.fail(BadFrame("enough"))

    assert service.budget.used == 0
    assert peer.transport.reading  # so that what it sends is taken
    peer.answers()
    assert len(service.served) == 3
    other.send(request(1, ECHO, ["on"]))
    assert other.answers() == [ok(1, ["on"])]


def test_answers_that_are_due_when_the_end_comes_go_first() -> None:
    service = FakeService()
    peer = Peer(service)

    peer.send(request(1, ECHO, ["a"]) + request(2, LATER, []) + GARBAGE)
    peer.connection.reply(2, "late")

    first, last = peer.answers()
    assert first == ok(1, ["a"])
    assert last[2] == Push.CLOSING


def test_an_answer_that_no_client_would_take_is_refused_instead() -> None:
    peer = Peer(FakeService())

    peer.send(request(1, BIG, [frames.MAX_FRAME]) + request(2, ECHO, ["on"]))

    refused, after = peer.answers()
    assert refused[:3] == [frames.REPLY, 1, BadRequest.code]
    assert "over the limit: ask for less" in refused[3][0]
    assert after == ok(2, ["on"])
    assert peer.connection.in_flight == 0


@pytest.mark.virtual_time
async def test_of_many_connections_too_many_only_a_few_are_kept_while_they_are_told() -> None:
    async with InMemoryBroker(max_connections=1) as broker, Client(broker) as client:
        peers = []
        for _ in range(100):
            peer = Peer(broker.broker, Turns(), greet=False, leaves=False)
            peers.append(peer)

        assert all(peer.answers()[0][3][0] == TooManyConnections.code for peer in peers)
        assert sum(not peer.transport.ended for peer in peers) == 16
        assert await client.request(Op.PING, []) == []
        for peer in peers:
            peer.transport.abort()
