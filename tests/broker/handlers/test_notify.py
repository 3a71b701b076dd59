"""Pushes to members: gathered, packed once, and never the last one lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq.broker.handlers.notify import MAX_FREE, QUIET_S, Notices
from rmq.broker.state.groups import GroupMode, Membership
from rmq.broker.state.sessions import Session, SessionTable
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Push, QueueInfo, TopicInfo
from rmq.wire.protocol.ops.topics import DeletedTopic

from ..fakes import BIG, FakeService, Peer, Turns, request

MODE = GroupMode(ordered=True, model="clustering", strategy="evenly")
MEMBERS, FREE, TOPIC = Push.MEMBERS_CHANGED, Push.LEASE_FREE, Push.TOPIC_CHANGED


class Rig:
    """Members with a connection each; turns and timers by hand."""

    def __init__(self) -> None:
        self.service, self.turns = FakeService(), Turns()
        self.members, self.sessions = Membership(), SessionTable()
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.notices = Notices(self.members, self.sessions, call_soon=self.turns.call_soon, call_later=self._call_later)
        self.peers: dict[str, Peer] = {}
        for name in "abcdefgh":  # at first, since greeting takes turns
            self.session(name)

    def _call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        self.timers.append((delay, lambda: callback(*args)))

    def fire(self) -> list[float]:
        """Let all timers run; how long each had waited."""
        timers, self.timers = self.timers, []
        for _, callback in timers:
            callback()
        return [delay for delay, _ in timers]

    def session(self, name: str) -> Session:
        session_id = name.ljust(16, ".").encode()
        known = self.sessions.get(session_id)
        if known is not None:
            return known
        self.peers[name] = Peer(self.service, self.turns)
        return self.sessions.hello(session_id, name, self.peers[name].connection, now=0.0)[0]

    def join(self, name: str, group: str = "g") -> None:
        session = self.session(name)
        self.members.join(group, MODE, {"orders": "*"}, session, now=0.0)
        self.notices.members_changed(group, but=session.id)

    def leave(self, name: str, group: str = "g") -> None:
        self.members.leave(group, self.session(name).id)
        self.notices.members_changed(group)

    def ids(self, *names: str) -> list[str]:
        return [self.session(name).member for name in names]

    def told(self, name: str) -> list[tuple[int, Any]]:
        """The pushes that a member got since it was last asked for; lists of members without their versions."""
        pushes = [(frame[2], frame[3]) for frame in self.peers[name].answers() if frame[0] == frames.PUSH]
        return [(push, payload[:2] if push == MEMBERS else payload) for push, payload in pushes]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def group(rig: Rig) -> Rig:
    """A group of a, b and c that has been told all, long ago."""
    for name in "abc":
        rig.join(name)
    rig.turns.turn()
    rig.fire()
    for name in "abc":
        rig.told(name)
    return rig


def test_joins_of_one_turn_are_pushed_once_and_not_to_the_last_whose_reply_has_them(rig: Rig) -> None:
    for name in "abc":
        rig.join(name)

    everybody = ["g", rig.ids("a", "b", "c")]
    assert [rig.told(name) for name in "abc"] == [[(MEMBERS, everybody)], [(MEMBERS, everybody)], []]


def test_a_member_is_notified_of_every_later_join_and_leave(group: Rig) -> None:
    group.join("d")
    group.leave("a")

    assert group.told("d") == group.told("b") == [(MEMBERS, ["g", group.ids("b", "c", "d")])]
    assert group.told("a") == []


def test_a_group_is_notified_once_in_50_ms_and_of_the_last_change_always(group: Rig) -> None:
    group.join("d")
    assert len(group.told("a")) == 1
    for name in "efgh":
        group.join(name)
        assert group.told("a") == []
    group.leave("e")
    (delay,) = group.fire()

    assert QUIET_S <= delay < QUIET_S + 0.001
    expected = [(MEMBERS, ["g", group.ids("a", "b", "c", "d", "f", "g", "h")])]
    assert group.told("a") == group.told("h") == expected
    assert len(group.fire()) == 1
    assert group.told("a") == group.fire() == []


def test_groups_are_quiet_on_their_own(group: Rig) -> None:
    group.join("d")
    group.told("a")
    group.join("a", "other")
    group.join("b", "other")

    assert group.told("a") == [(MEMBERS, ["other", group.ids("a", "b")])]


def test_the_more_a_list_costs_the_longer_a_group_is_quiet(rig: Rig) -> None:
    for i in range(200):
        rig.members.join("g", MODE, {}, rig.session(f"member-{i}"), now=0.0)
    rig.notices.members_changed("g")
    rig.turns.turn()

    (delay,) = rig.fire()
    assert delay > 1.05 * QUIET_S


def test_freed_leases_are_pushed_at_once_also_to_a_quiet_group(group: Rig) -> None:
    group.join("d")
    for name in "abcd":
        group.told(name)

    for queue_id in (2, 1, 2):
        group.notices.lease_free("g", MessageQueue("orders", queue_id))

    for name in "abcd":
        assert group.told(name) == [(FREE, ["g", "orders", 2]), (FREE, ["g", "orders", 1])]


@pytest.mark.parametrize(("leases", "pushes"), [(MAX_FREE, [FREE] * MAX_FREE), (MAX_FREE + 1, [MEMBERS])])
def test_very_many_freed_leases_are_pushed_as_one_list_of_members(group: Rig, leases: int, pushes: list[int]) -> None:
    for queue_id in range(leases):
        group.notices.lease_free("g", MessageQueue("orders", queue_id))

    for name in "abc":
        assert [push for push, _ in group.told(name)] == pushes


def test_leases_freed_in_a_quiet_group_are_pushed_to_all_afterwards(group: Rig) -> None:
    group.join("d")
    group.told("a")
    for queue_id in range(MAX_FREE + 1):
        group.notices.lease_free("g", MessageQueue("orders", queue_id))
    assert group.told("a") == group.told("d") == []

    group.fire()

    assert group.told("a") == group.told("d") == [(MEMBERS, ["g", group.ids("a", "b", "c", "d")])]


def test_to_a_member_that_does_not_read_nothing_piles_up(group: Rig) -> None:
    slow = group.peers["b"]
    slow.transport.takes = False
    slow.send(request(1, BIG, [5000]))
    slow.answers()
    assert slow.connection.blocked
    waiting = len(slow.transport.unsent)

    for i in range(100):
        group.notices.lease_free("g", MessageQueue("orders", i % 4))
        group.notices.members_changed("g")
        group.notices.topic_changed(TopicInfo("orders", 1, 1, [QueueInfo(0, "rmq")]))
        group.turns.turn()
        group.fire()
        slow.answers()
    assert len(slow.transport.unsent) == waiting
    slow.transport.takes = True
    slow.transport.take(1 << 20)

    pushes = group.told("b")
    assert (MEMBERS, ["g", group.ids("a", "b", "c")]) in pushes
    assert sorted(push for push, _ in pushes) == [MEMBERS, TOPIC]
    assert [push for push, _ in group.told("a")].count(FREE) == 100


def test_to_one_that_does_not_read_the_last_word_on_a_topic_says_all(group: Rig) -> None:
    slow = group.peers["b"]
    slow.transport.takes = False
    slow.send(request(1, BIG, [2000]))
    slow.answers()

    for generation in (1, 2):
        group.notices.topic_changed(TopicInfo("orders", generation, 1, [QueueInfo(0, "rmq")]))
        group.notices.topic_deleted(DeletedTopic("orders", generation))
    slow.transport.takes = True
    slow.transport.take(1 << 20)

    last = (Push.TOPIC_DELETED, ["orders", 2])
    assert [told for told in group.told("b") if told[0] != MEMBERS] == [last]
    assert [push for push, _ in group.told("a") if push != MEMBERS] == [TOPIC, last[0]] * 2


def test_a_frame_is_packed_once_for_all(group: Rig) -> None:
    written: list[bytes] = []
    for peer in group.peers.values():
        peer.connection.push_frame = lambda frame, key=None: written.append(frame)  # type: ignore[method-assign]
    group.notices.lease_free("g", MessageQueue("orders", 0))
    group.notices.members_changed("g")
    group.turns.turn()

    assert len(written) == 6
    assert len({id(frame) for frame in written}) == 2


def test_members_without_a_connection_get_no_push(group: Rig) -> None:
    session = group.session("b")
    group.sessions.lost(session.id, session.connection, now=1.0)

    group.notices.members_changed("g")

    assert len(group.told("a")) == 1
    assert group.told("b") == []


def test_an_empty_group_gets_no_push_and_is_forgotten(group: Rig) -> None:
    for name in "abc":
        group.leave(name)
    group.turns.turn()

    assert group.fire() == []
    assert [group.told(name) for name in "abc"] == [[], [], []]
    assert not group.notices._changed
