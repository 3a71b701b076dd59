"""A member that goes silent is taken out of its group, and remembered for people while its connection stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq.broker.state.groups import MAX_SILENT, Membership
from rmq.broker.state.sessions import Session

from .test_groups import EPS, MODE, ORDERS, session


def silenced(table: Membership, group: str = "g") -> list[str]:
    return [member.session.member for member in table.silent(group)]


@pytest.mark.parametrize("how", ["its leases expired", "no heartbeat came"])
def test_a_member_that_goes_silent_is_out_of_the_group_and_remembered(how: str) -> None:
    table, a = Membership(), session("a")
    table.join("g", MODE, ORDERS, a, now=0.0)

    if how == "no heartbeat came":
        assert table.expire(now=120.0 + EPS) == [("g", a.id)]
    else:
        assert table.silence("g", a.id)

    assert (table.members("g"), table.mode("g"), table.groups()) == ([], None, ["g"])
    assert [(member.mode, member.subscriptions) for member in table.silent("g")] == [(MODE, ORDERS)]
    assert (table.silent_count, silenced(table, "other")) == (1, [])
    assert not table.silence("g", a.id)  # it is out


@pytest.mark.parametrize(
    "end",
    [
        lambda table, a: table.join("g", MODE, ORDERS, a, now=1.0),
        lambda table, a: table.leave("g", a.id),
        lambda table, a: table.remove_session(a.id),
        lambda table, a: setattr(a, "connection", None),
    ],
    ids=["it joins again", "it leaves", "its session ends", "its connection ends"],
)
def test_a_silent_member_is_forgotten_when(end: Callable[[Membership, Session], object]) -> None:
    table, a, b = Membership(), session("a"), session("b")
    for each in (a, b):
        table.join("g", MODE, ORDERS, each, now=0.0)
        table.silence("g", each.id)

    end(table, a)

    assert silenced(table) == [b.member]
    assert table.silent_count == 1


def test_a_bounded_number_of_silent_members_is_remembered_the_latest_ones() -> None:
    table = Membership()
    for i in range(MAX_SILENT + 2):
        each = Session(i.to_bytes(16), f"m{i}", connection=i, answered_at=0.0)
        table.join("g", MODE, ORDERS, each, now=0.0)
        table.silence("g", each.id)

    assert silenced(table) == [f"m{i}" for i in range(2, MAX_SILENT + 2)]


def test_a_silent_member_holds_nobody_to_its_mode() -> None:
    table, a, b = Membership(), session("a"), session("b")
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.silence("g", a.id)

    assert table.join("g", MODE._replace(ordered=False), {"other": "*"}, b, now=1.0)
