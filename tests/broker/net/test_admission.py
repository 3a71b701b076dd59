"""How many connections may stay, and that those beyond that neither pile up nor take anybody's place."""

from __future__ import annotations

from typing import cast

from rmq.broker.net.connection import Connection
from rmq.broker.net.limits import MAX_TURNED_AWAY, Admission
from rmq.wire.errors import TooManyConnections


class PeerAdmission:
    """A connection, as far as admission looks at it."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def come(admission: Admission, count: int) -> tuple[list[PeerAdmission], list[TooManyConnections | None]]:
    peers = [PeerAdmission() for _ in range(count)]
    return peers, [admission.opened(cast(Connection, peer)) for peer in peers]


def test_one_beyond_the_limit_is_told_why_and_gets_in_when_another_has_left() -> None:
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


def test_of_those_that_are_being_told_why_the_eldest_makes_room() -> None:
    admission = Admission(1)
    peers, _ = come(admission, 1 + MAX_TURNED_AWAY)
    assert not any(peer.aborted for peer in peers)

    come(admission, 2)

    assert [peer.aborted for peer in peers] == [False, True, True] + [False] * (MAX_TURNED_AWAY - 2)
