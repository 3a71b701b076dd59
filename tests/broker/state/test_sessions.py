"""A session outlives its connection by the grace, counted from the last answer it was given."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.broker.state.sessions import Session, SessionTable
from rmq.wire.errors import BadRequest

A, B = b"A" * 16, b"B" * 16
EPS = 0.001


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(grace_s=5.0)


def test_a_new_session_is_named_after_its_client(table: SessionTable) -> None:
    session, replaced = table.hello(bytes(range(16)), "billing", "c1", now=3.0)

    assert session.member == "billing#00010203"
    assert (session.connection, session.answered_at, session.lost_at, session.groups) == ("c1", 3.0, None, set())
    assert replaced is None
    assert table.get(session.id) is session
    assert len(table) == 1


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_session_that_is_not_16_bytes_is_refused(table: SessionTable, length: int) -> None:
    with pytest.raises(BadRequest, match=f"16 random bytes, not {length}"):
        table.hello(bytes(length), "billing", "c1", now=0.0)


def test_a_known_session_goes_on_and_its_older_connection_is_handed_out(table: SessionTable) -> None:
    session, _ = table.hello(A, "billing", "c1", now=0.0)

    again, replaced = table.hello(A, "renamed", "c2", now=1.0)

    assert again is session
    assert replaced == "c1"
    assert (session.member, session.connection, session.answered_at) == ("billing#41414141", "c2", 1.0)


def test_a_second_hello_on_the_same_connection_replaces_nothing(table: SessionTable) -> None:
    table.hello(A, "billing", "c1", now=0.0)

    assert table.hello(A, "billing", "c1", now=1.0)[1] is None


def test_the_end_of_a_replaced_connection_does_not_touch_the_session(table: SessionTable) -> None:
    session, _ = table.hello(A, "billing", "c1", now=0.0)
    table.hello(A, "billing", "c2", now=1.0)

    assert not table.lost(A, "c1", now=2.0)
    assert session.connection == "c2"


def test_the_end_of_an_unknown_connection_is_ignored(table: SessionTable) -> None:
    assert not table.lost(A, "c1", now=0.0)


@pytest.mark.parametrize(("age", "over"), [(5.0 - EPS, False), (5.0, False), (5.0 + EPS, True)])
def test_the_grace_is_5_s_from_the_last_answer(table: SessionTable, age: float, over: bool) -> None:
    session, _ = table.hello(A, "billing", "c1", now=0.0)
    session.answered_at = 100.0
    table.lost(A, "c1", now=102.0)

    gone = table.expire(now=100.0 + age)

    assert gone == ([session] if over else [])
    assert (table.get(A) is None) is over


def test_a_session_that_was_silent_for_the_grace_ends_with_its_connection(table: SessionTable) -> None:
    session, _ = table.hello(A, "billing", "c1", now=0.0)
    table.lost(A, "c1", now=60.0)

    assert table.expire(now=60.0) == [session]


def test_a_connected_session_never_ends_however_silent(table: SessionTable) -> None:
    table.hello(A, "billing", "c1", now=0.0)

    assert table.expire(now=1e6) == []


def test_a_session_that_comes_back_within_the_grace_has_a_new_one(table: SessionTable) -> None:
    session, _ = table.hello(A, "billing", "c1", now=0.0)
    table.lost(A, "c1", now=1.0)

    assert table.hello(A, "billing", "c2", now=4.0) == (session, None)
    assert session.lost_at is None
    assert table.expire(now=100.0) == []

    table.lost(A, "c2", now=100.0)
    session.answered_at = 99.0  # an answer that was on its way is noted late
    assert table.expire(now=104.0) == []
    assert table.expire(now=104.001) == [session]


@pytest.mark.parametrize(("age", "over"), [(5.0 - EPS, False), (5.0, False), (5.0 + EPS, True)])
def test_a_restored_session_has_the_grace_from_its_restoration(table: SessionTable, age: float, over: bool) -> None:
    session = table.restore(A, "billing#41414141", now=50.0)

    assert (session.connection, session.lost_at) == (None, 50.0)
    assert table.restore(A, "billing#41414141", now=52.0) is session
    assert table.expire(now=50.0 + age) == ([session] if over else [])


def test_a_restored_session_keeps_its_member_id_when_it_says_hello(table: SessionTable) -> None:
    table.restore(A, "billing#41414141", now=0.0)

    session, replaced = table.hello(A, "other", "c1", now=1.0)

    assert (session.member, replaced) == ("billing#41414141", None)
    assert table.expire(now=100.0) == []


def test_the_one_that_waited_longest_ends_first(table: SessionTable) -> None:
    for session_id, answered_at in ((A, 2.0), (B, 1.0)):
        session, _ = table.hello(session_id, "billing", session_id, now=0.0)
        session.answered_at = answered_at
        table.lost(session_id, session_id, now=3.0)

    assert [session.id for session in table.expire(now=10.0)] == [B, A]


def test_one_that_was_lost_before_and_came_back_does_not_hold_up_another(table: SessionTable) -> None:
    table.hello(A, "billing", "a1", now=0.0)
    table.lost(A, "a1", now=0.0)
    b, _ = table.hello(B, "billing", "b1", now=1.0)
    table.lost(B, "b1", now=1.0)
    table.hello(A, "billing", "a2", now=4.0)
    table.lost(A, "a2", now=4.0)

    assert table.expire(now=6.5) == [b]


def test_a_session_that_comes_and_goes_leaves_nothing(table: SessionTable) -> None:
    for turn in range(100):
        table.hello(A, "billing", turn, now=turn * 0.01)
        table.lost(A, turn, now=turn * 0.01)

    assert len(table._heap) == 1


def test_a_session_that_ended_and_begins_again_ends_again(table: SessionTable) -> None:
    for now in (0.0, 100.0):
        session, _ = table.hello(A, "billing", "c1", now=now)
        table.lost(A, "c1", now=now)

        assert table.expire(now=now + 6.0) == [session]


class Sessions(RuleBasedStateMachine):
    """Clients come, answer, break and come back at random; a dictionary of three facts knows who must be there."""

    ids = st.sampled_from([A, B, b"C" * 16])
    grace = 5.0

    def __init__(self) -> None:
        super().__init__()
        self.table = SessionTable(self.grace)
        self.now = 0.0
        self.connections = 0
        self.model: dict[bytes, tuple[int | None, float]] = {}  # connection, last answer

    @rule(step=st.sampled_from([0.0, 0.001, 0.5, 1.0, 4.0, 5.0, 7.0]))
    def tick(self, step: float) -> None:
        self.now += step

    @rule(session_id=ids)
    def hello(self, session_id: bytes) -> None:
        self.connections += 1
        _, replaced = self.table.hello(session_id, "c", self.connections, now=self.now)
        assert replaced == self.model.get(session_id, (None, 0))[0]
        self.model[session_id] = (self.connections, self.now)

    @rule(session_id=ids)
    def answer(self, session_id: bytes) -> None:
        if self.model.get(session_id, (None, 0))[0] is not None:
            session = self.table.get(session_id)
            assert session is not None
            session.answered_at = self.now
            self.model[session_id] = (self.model[session_id][0], self.now)

    @rule(session_id=ids, back=st.integers(0, 2))
    def lose(self, session_id: bytes, back: int) -> None:
        connection, answered_at = self.model.get(session_id, (None, 0.0))
        ended = max(self.connections - back, 1)
        assert self.table.lost(session_id, ended, now=self.now) is (connection == ended)
        if connection == ended:
            self.model[session_id] = (None, answered_at)

    @rule()
    def expire(self) -> None:
        gone = {session.id for session in self.table.expire(now=self.now)}
        assert gone == {
            session_id
            for session_id, (connection, answered_at) in self.model.items()
            if connection is None and self.now - answered_at > self.grace
        }
        for session_id in gone:
            del self.model[session_id]

    @precondition(lambda self: any(connection is None for connection, _ in self.model.values()))
    @rule()
    def the_first_deadline_is_when_something_ends(self) -> None:
        answered_at = min(at for connection, at in self.model.values() if connection is None)
        self.now = max(self.now, answered_at + self.grace + EPS)
        before = len(self.model)
        self.expire()
        assert len(self.model) < before

    @invariant()
    def the_same_sessions_are_known(self) -> None:
        assert {session_id for session_id in self.model if self.table.get(session_id)} == set(self.model)
        assert len(self.table) == len(self.model)


TestSessions = Sessions.TestCase


def test_sessions_are_distinguished_by_identity() -> None:
    assert Session(A, "m", None, 0.0) != Session(A, "m", None, 0.0)


def test_all_sessions_have_the_full_grace_after_time_without_answers(table: SessionTable) -> None:
    table.hello(A, "a", "connection a", now=0.0)
    table.hello(B, "b", "connection b", now=0.0)
    table.lost(A, "connection a", now=1.0)

    table.forgive(now=100.0)
    table.lost(B, "connection b", now=100.0)

    assert table.expire(now=105.0) == []
    assert {session.id for session in table.expire(now=105.001)} == {A, B}
