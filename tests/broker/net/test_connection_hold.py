"""A request that must be answered before anything behind it is served."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.net.connection import DEFERRED, Connection

from ..fakes import COSTLY, ECHO, FakeService, Peer, ok, request

FIRST = 60


@pytest.fixture
def service() -> FakeService:
    made = FakeService()

    def first(connection: Connection, request_id: int, _payload: Any) -> object:
        connection.hold()
        made.later.append((connection, request_id))
        return DEFERRED

    made.handlers[FIRST] = first
    return made


def answer(service: FakeService) -> None:
    connection, request_id = service.later.pop()
    connection.reply(request_id, "first")
    connection.go_on()


def test_what_came_in_the_same_read_is_served_behind_the_answer(service: FakeService) -> None:
    peer = Peer(service)

    peer.send(request(1, FIRST, []) + request(2, ECHO, "a") + request(3, ECHO, "b"))
    assert (peer.answers(), service.served) == ([], [])
    answer(service)

    assert peer.answers() == [ok(1, "first"), ok(2, "a"), ok(3, "b")]


def test_what_comes_later_stays_unread(service: FakeService) -> None:
    peer = Peer(service)
    peer.send(request(1, FIRST, []))

    peer.send(request(2, ECHO, "a"))
    assert not peer.transport.reading
    assert (peer.answers(), len(peer.transport.incoming)) == ([], len(request(2, ECHO, "a")))
    answer(service)

    assert peer.answers() == [ok(1, "first"), ok(2, "a")]


def test_a_request_from_the_backlog_can_hold_up_the_rest_of_it(service: FakeService) -> None:
    peer = Peer(service)

    peer.send(b"".join(request(n, COSTLY, n) for n in range(1, 6)) + request(6, FIRST, []) + request(7, ECHO, "a"))
    assert peer.answers() == [ok(n, n) for n in range(1, 6)]
    answer(service)

    assert peer.answers() == [ok(6, "first"), ok(7, "a")]
    peer.send(request(8, ECHO, "b"))
    assert peer.answers() == [ok(8, "b")]


def test_a_full_read_behind_it_is_not_read_on(service: FakeService) -> None:
    peer = Peer(service)
    much = request(2, ECHO, bytes(300 << 10))

    peer.send(request(1, FIRST, []) + much)
    assert peer.answers() == []
    answer(service)

    assert peer.answers() == [ok(1, "first"), ok(2, bytes(300 << 10))]


def test_the_end_of_the_connection_lets_go_of_what_waits(service: FakeService) -> None:
    peer = Peer(service)
    peer.send(request(1, FIRST, []) + request(2, ECHO, "a"))
    assert service.budget.used > 0

    peer.transport.abort()
    answer(service)

    assert (peer.answers(), service.served, service.budget.used) == ([], [], 0)


def test_a_broker_that_stops_answers_it_and_serves_nothing_behind_it(service: FakeService) -> None:
    peer = Peer(service)
    peer.send(request(1, FIRST, []) + request(2, ECHO, "a"))

    peer.connection.quiesce()
    answer(service)

    assert peer.answers() == [ok(1, "first")]
    assert not peer.transport.reading
