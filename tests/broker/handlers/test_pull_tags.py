"""Pulls of members that want some tags: what is sent, what wakes, and changes while they wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.wire.errors import BadRequest, Fenced, Internal, TopicNotFound
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullQueue

from ..builders import ORDERS
from ..fakes import BIG, Peer, request
from ..tag_rig import OTHER, Rig


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = Rig(memory_path)
    yield rig
    rig.opened.close()


# ---- what is sent


def test_a_member_gets_the_batches_with_a_tag_that_it_wants_and_passes_the_others(rig: Rig) -> None:
    for some in ("b", "a", "b", "a", "b"):
        rig.arrive(some)

    rig.pull(1, 0)

    assert rig.results() == [(1, 0, 0, 5, [b"a", b"a"])]


@pytest.mark.parametrize(("group", "expression"), [(None, "a"), ("g", None), ("g", "*")])
def test_a_reader_without_a_group_or_an_expression_gets_everything(
    rig: Rig, group: str | None, expression: str | None
) -> None:
    rig.member.expression = expression
    for some in ("b", None, "a"):
        rig.arrive(some)

    rig.pull(1, 0, group=group)

    assert rig.results() == [(1, 0, 0, 3, [b"b", b"-", b"a"])]


def test_a_batch_that_has_a_wanted_tag_is_sent_as_it_is(rig: Rig) -> None:
    rig.arrive("b", "a", None)

    rig.pull(1, 0)

    assert rig.results() == [(1, 0, 0, 3, [b"b", b"a", b"-"])]


# ---- a free read for some tags


def test_a_reader_without_a_group_names_its_tags_with_the_pull(rig: Rig) -> None:
    for some in ("b", "a", "b", None, "a", "b"):
        rig.arrive(some)

    rig.pull(1, 0, group=None, expression="a")
    rig.pull(2, 0, group=None, expression="b || c")
    rig.pull(3, 0, group=None, expression="*")

    assert rig.results() == [
        (1, 0, 0, 6, [b"a", b"a"]),
        (2, 0, 0, 6, [b"b", b"b", b"b"]),
        (3, 0, 0, 6, [b"b", b"a", b"b", b"-", b"a", b"b"]),
    ]


def test_a_free_read_that_does_not_wait_is_told_how_far_nothing_was_wanted(rig: Rig) -> None:
    rig.arrive("b")
    rig.arrive("c")

    rig.pull(1, 0, wait_ms=0, group=None, expression="a")

    assert rig.results() == [(1, 0, EMPTY, 2, [])]


def test_a_parked_free_read_is_woken_by_what_it_wants_alone(rig: Rig) -> None:
    rig.pull(1, 0, group=None, expression="a")
    rig.arrive("b")
    assert (rig.results(), len(rig.holds)) == ([], 1)

    rig.arrive("a")

    assert rig.results() == [(1, 0, 0, 2, [b"a"])]


@pytest.mark.parametrize(
    ("group", "expression"), [("g", "a"), (None, "a |b"), (None, "a || *"), (None, "||"), (None, "x" * 1025)]
)
def test_an_expression_that_is_none_or_that_a_member_sends_is_refused(
    rig: Rig, group: str | None, expression: str
) -> None:
    rig.pull(1, 0, group=group, expression=expression)

    assert rig.results() == [(1, BadRequest.code)]
    assert (len(rig.holds), rig.peer.connection.in_flight) == (0, 0)


# ---- the park


def test_what_is_not_wanted_leaves_a_pull_parked_and_what_is_wanted_wakes_it(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.arrive("b", "c")
    assert (rig.results(), len(rig.holds)) == ([], 1)

    rig.arrive("a")

    assert rig.results() == [(1, 0, 0, 4, [b"a"])]
    assert (len(rig.holds), rig.peer.connection.in_flight) == (0, 0)


@pytest.mark.parametrize(("now", "answered"), [(0.999, []), (1.0, [(1, 0, EMPTY, 2, [])])])
def test_at_the_end_of_its_wait_it_is_told_how_far_nothing_was_wanted(
    rig: Rig, now: float, answered: list[tuple[Any, ...]]
) -> None:
    rig.pull(1, 0, wait_ms=1000)
    rig.arrive("b")
    rig.arrive("c")

    rig.expire(now)

    assert rig.results() == answered


def test_what_arrived_is_looked_at_once(rig: Rig) -> None:
    rig.pull(1, 0)
    for _ in range(5):
        rig.arrive("b")
        rig.peer.answers()

    assert rig.store.reads == 5
    rig.expire(15.0)
    assert rig.results() == [(1, 0, EMPTY, 5, [])]
    assert rig.store.reads == 5


def test_an_arrival_between_the_look_and_the_end_of_the_wait_is_given(rig: Rig) -> None:
    rig.pull(1, 0, wait_ms=1000)
    rig.arrive("b")
    rig.arrive("a")
    rig.expire(1.0)  # before the line was worked off

    assert rig.results() == [(1, 0, 0, 2, [b"a"])]
    assert (len(rig.holds), rig.peer.connection.in_flight) == (0, 0)


def test_only_the_queues_that_grew_are_looked_at(rig: Rig) -> None:
    rig.pull(1, 0, 0, 0, 0)
    rig.arrive("b", to=OTHER)
    rig.arrive("b")
    rig.arrive("b", to=OTHER)
    assert rig.results() == []
    assert rig.store.reads <= 3

    rig.arrive("a", to=OTHER)

    assert sorted(rig.results()) == [(1, 0, EMPTY, 1, []), (1, 1, 0, 3, [b"a"])]


def test_a_pull_may_name_a_queue_twice(rig: Rig) -> None:
    queues = [PullQueue(*ORDERS, 0), PullQueue(*ORDERS, 0)]
    rig.peer.send(request(1, Op.PULL, Pull("g", 1000, 1 << 20, queues)))
    rig.arrive("b")
    rig.expire(1.0)

    assert rig.results() == [(1, 0, EMPTY, 1, []), (1, 1, EMPTY, 1, [])]


def test_the_sweep_does_not_count_what_is_not_wanted_and_still_finds_what_was_overlooked(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.pulls.sweep()  # it is in line
    rig.peer.answers()
    rig.pulls.sweep()  # it was looked at
    assert (rig.pulls.rescued, rig.results()) == (0, [])

    rig.arrive("a", told=False)
    rig.pulls.sweep()

    assert rig.results() == [(1, 0, 0, 2, [b"a"])]
    assert rig.pulls.rescued == 1


def test_a_defect_in_a_look_ends_that_pull_and_no_other(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")

    def broken_once() -> None:
        rig.store.before_read = lambda: None
        raise ZeroDivisionError("a defect")

    rig.store.before_read = broken_once
    assert rig.results() == [(1, Internal.code)]

    assert (len(rig.holds), rig.peer.connection.in_flight) == (0, 0)
    rig.arrive("a")
    rig.expire(20.0)
    assert rig.results() == []


def test_a_parked_pull_whose_connection_is_gone_is_not_looked_at(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("a")
    rig.peer.transport.abort()
    rig.pulls.closed(rig.peer.connection)

    assert rig.peer.answers() == []
    assert rig.store.reads == 0


def test_a_woken_pull_of_a_slow_reader_keeps_its_place(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    assert rig.results() == []
    rig.peer.transport.takes = False
    rig.peer.send(request(2, BIG, [5000]))
    rig.peer.answers()

    rig.arrive("a")
    rig.peer.answers()
    rig.peer.transport.takes = True
    rig.peer.transport.take(1 << 20)

    assert [answer[1:3] for answer in rig.peer.answers()] == [[2, 0], [1, 0]]


# ---- changes while it waits


@pytest.mark.parametrize(("now_wants", "bodies"), [("b", [b"b"]), ("a||c", [b"c"]), ("*", [b"b", b"c"])])
def test_a_parked_pull_of_a_member_that_wants_other_tags_looks_again_from_where_it_asked(
    rig: Rig, now_wants: str, bodies: list[bytes]
) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.arrive("c")
    assert rig.results() == []

    rig.member.expression = now_wants
    rig.pulls.resubscribed(rig.peer.connection, "g")

    assert rig.results() == [(1, 0, 0, 2, bodies)]


def test_a_parked_pull_for_everything_waits_for_less_after_a_change(rig: Rig) -> None:
    rig.member.expression = "*"
    rig.pull(1, 0)
    rig.member.expression = "a"
    rig.pulls.resubscribed(rig.peer.connection, "g")
    rig.peer.answers()

    rig.arrive("b")
    assert rig.results() == []
    rig.arrive("a")
    assert rig.results() == [(1, 0, 0, 2, [b"a"])]


def test_a_change_of_another_group_or_connection_moves_nothing(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.peer.answers()
    reads = rig.store.reads

    rig.pulls.resubscribed(rig.peer.connection, "other")
    rig.pulls.resubscribed(Peer(rig.service, rig.turns).connection, "g")

    assert (rig.results(), rig.store.reads, len(rig.holds)) == ([], reads, 1)


def test_a_change_between_an_arrival_and_the_look_at_it_counts_for_the_look(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.member.expression = "b"

    assert rig.results() == [(1, 0, 0, 1, [b"b"])]


def test_a_lost_lease_is_told_whatever_arrived(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.peer.answers()

    rig.member.is_fenced = True
    rig.pulls.lease_changed("g", ORDERS)

    assert rig.results() == [(1, 0, Fenced.code, 0, [])]


def test_a_look_at_a_lost_lease_tells_so(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.member.is_fenced = True

    assert rig.results() == [(1, 0, Fenced.code, 0, [])]


def test_a_deleted_topic_is_told_to_a_pull_for_some_tags(rig: Rig) -> None:
    rig.pull(1, 0)
    rig.arrive("b")
    rig.peer.answers()

    gone = rig.topics.delete("orders")
    rig.opened.store.drop_topic("orders", gone.generation)
    rig.pulls.topic_ended("orders", gone.queues)

    assert rig.results() == [(1, 0, TopicNotFound.code, 0, [])]
