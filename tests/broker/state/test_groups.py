"""
A group has one mode and one subscription; members stay by heartbeat and leave with their session.

A member that goes silent is taken out of its group, and remembered for people while its connection stands.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq.broker.state.groups import MAX_SILENT, GroupMode, Membership
from rmq.broker.state.sessions import Session
from rmq.wire.errors import BadName, BadRequest, GroupMismatch

MODE_PLAIN = GroupMode(ordered=True, model="clustering", strategy="evenly")
ORDERS_PLAIN = {"orders": "created || paid"}
EPS_PLAIN = 0.001


def session_plain(name: str) -> Session:
    return Session(name.encode() * 16, f"client#{name}", connection=name, answered_at=0.0)


@pytest.fixture
def table_plain() -> Membership:
    return Membership(expiry_s=120.0)


@pytest.fixture
def a() -> Session:
    return session_plain("a")


@pytest.fixture
def b() -> Session:
    return session_plain("b")


def test_the_first_member_sets_the_mode(table_plain: Membership, a: Session) -> None:
    assert table_plain.mode("g") is None

    assert table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    assert table_plain.mode("g") == MODE_PLAIN
    assert table_plain.members("g") == ["client#a"]
    assert table_plain.sessions("g") == [a.id]
    assert table_plain.is_member("g", a.id)
    assert a.groups == {"g"}


def test_members_are_sorted_however_they_came(table_plain: Membership, a: Session, b: Session) -> None:
    assert table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)
    assert table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    assert table_plain.members("g") == ["client#a", "client#b"]
    assert table_plain.sessions("g") == [b.id, a.id]


def test_members_that_know_of_retries_and_others_may_be_in_one_group(
    table_plain: Membership, a: Session, b: Session
) -> None:
    """Else the members of a group could not be replaced one by one by those of this version."""
    assert table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    assert table_plain.join("g", MODE_PLAIN, {"%RETRY%g": "*", **ORDERS_PLAIN}, b, now=0.0)

    with pytest.raises(GroupMismatch, match="'orders'"):
        table_plain.join("g", MODE_PLAIN, {"%RETRY%g": "*"}, session_plain("c"), now=0.0)
    with pytest.raises(GroupMismatch, match="%RETRY%other"):
        table_plain.join("g", MODE_PLAIN, {"%RETRY%other": "*", **ORDERS_PLAIN}, session_plain("c"), now=0.0)


def test_the_retries_of_a_group_are_none_of_the_topics_a_member_may_have(table_plain: Membership, a: Session) -> None:
    most = {f"t{i}": "*" for i in range(1024)}

    assert table_plain.join("g", MODE_PLAIN, {"%RETRY%g": "*", **most}, a, now=0.0)
    with pytest.raises(BadRequest, match="at most 1024 topics, not 1025"):
        table_plain.join("h", MODE_PLAIN, {"%RETRY%g": "*", **most}, a, now=0.0)


def test_joining_again_is_a_heartbeat_and_changes_nothing(table_plain: Membership, a: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    assert not table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=30.0)
    assert table_plain.members("g") == ["client#a"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (MODE_PLAIN._replace(ordered=False), "concurrent, clustering, allocation evenly"),
        (MODE_PLAIN._replace(model="broadcasting"), "ordered, broadcasting, allocation evenly"),
        (MODE_PLAIN._replace(strategy="sticky"), "ordered, clustering, allocation sticky"),
    ],
)
def test_another_mode_is_refused_with_both_in_the_sentence(
    table_plain: Membership, a: Session, b: Session, mode: GroupMode, words: str
) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    with pytest.raises(GroupMismatch, match=f"'g' is ordered, clustering, allocation evenly; .* asked for {words}"):
        table_plain.join("g", mode, ORDERS_PLAIN, b, now=0.0)

    assert table_plain.members("g") == ["client#a"]
    assert b.groups == set()


@pytest.mark.parametrize(
    ("subscriptions", "words"),
    [
        ({"orders": "*"}, "the expression 'created || paid' for topic 'orders', this member has the expression '*'"),
        ({"payments": "*"}, "the expression 'created || paid' for topic 'orders', this member has no subscription"),
        ({**ORDERS_PLAIN, "payments": "*"}, "no subscription for topic 'payments', this member has the expression '*'"),
        ({}, "the expression 'created || paid' for topic 'orders', this member has no subscription"),
    ],
)
def test_another_subscription_is_refused_with_both_in_the_sentence(
    table_plain: Membership, a: Session, b: Session, subscriptions: dict[str, str], words: str
) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    with pytest.raises(GroupMismatch) as refused:
        table_plain.join("g", MODE_PLAIN, subscriptions, b, now=0.0)

    assert f"group 'g' has {words}" in refused.value.text


def test_a_member_among_others_cannot_change_its_mode(table_plain: Membership, a: Session, b: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)

    with pytest.raises(GroupMismatch):
        table_plain.join("g", MODE_PLAIN, {"payments": "*"}, a, now=1.0)

    assert table_plain.members("g") == ["client#a", "client#b"]
    assert table_plain.subscribers("payments") == set()


def test_a_member_that_is_alone_may_change_its_mind(table_plain: Membership, a: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    concurrent = MODE_PLAIN._replace(ordered=False)

    assert not table_plain.join("g", concurrent, {"payments": "*"}, a, now=1.0)
    assert table_plain.mode("g") == concurrent
    assert table_plain.subscribers("orders") == set()
    assert table_plain.subscribers("payments") == {a.id}


@pytest.mark.parametrize("expression", ["a | b", "||", "* || a", "a b"])
def test_an_invalid_expression_is_refused_without_a_join(table_plain: Membership, a: Session, expression: str) -> None:
    with pytest.raises(BadRequest, match="is not '\\*' or tags joined by"):
        table_plain.join("g", MODE_PLAIN, {"orders": expression}, a, now=0.0)

    assert table_plain.members("g") == []


def test_what_a_member_wants_of_a_topic_is_known_while_it_is_one(
    table_plain: Membership, a: Session, b: Session
) -> None:
    assert (table_plain.wanted("g", a.id, "orders"), table_plain.subscriptions("g", a.id)) == (None, None)
    table_plain.restore("g", a, now=0.0)
    assert (table_plain.wanted("g", a.id, "orders"), table_plain.subscriptions("g", a.id)) == (None, {})

    table_plain.join("g", MODE_PLAIN, {"orders": "created || paid", "payments": "*"}, a, now=0.0)
    some = table_plain.wanted("g", a.id, "orders")
    assert some is not None
    assert some.tags == {"created", "paid"}
    assert table_plain.subscriptions("g", a.id) == {"orders": "created || paid", "payments": "*"}
    assert table_plain.wanted("g", a.id, "payments") is table_plain.wanted("g", a.id, "others") is None
    assert table_plain.wanted("g", b.id, "orders") is table_plain.wanted("h", a.id, "orders") is None

    table_plain.join("g", MODE_PLAIN, {"orders": "*"}, a, now=1.0)
    assert table_plain.wanted("g", a.id, "orders") is None


def test_a_group_that_everybody_left_may_begin_in_another_mode(table_plain: Membership, a: Session, b: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.leave("g", a.id)

    assert table_plain.mode("g") is None
    assert table_plain.join("g", MODE_PLAIN._replace(model="broadcasting"), {}, b, now=0.0)


@pytest.mark.parametrize("group", ["", "a b", "%DLQ%g", "x" * 128])
def test_illegal_group_names_are_refused(table_plain: Membership, a: Session, group: str) -> None:
    with pytest.raises(BadName, match="group"):
        table_plain.join(group, MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)


def test_illegal_topic_names_are_refused(table_plain: Membership, a: Session) -> None:
    with pytest.raises(BadName, match="topic"):
        table_plain.join("g", MODE_PLAIN, {"a/b": "*"}, a, now=0.0)

    assert table_plain.mode("g") is None


def test_members_that_are_assigned_their_queues_subscribe_to_what_they_like(
    table_plain: Membership, a: Session, b: Session
) -> None:
    assigned = MODE_PLAIN._replace(model="assigned")
    table_plain.join("g", assigned, ORDERS_PLAIN, a, now=0.0)

    assert table_plain.join("g", assigned, {"payments": "*"}, b, now=0.0)
    with pytest.raises(GroupMismatch, match="ordered, assigned, allocation evenly"):
        table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)
    assert table_plain.subscribing("payments") == ["g"]
    assert table_plain.subscribed("g") == {**ORDERS_PLAIN, "payments": "*"}


def test_an_unknown_model_is_refused(table_plain: Membership, a: Session) -> None:
    with pytest.raises(
        BadRequest, match="model 'sharing' is unknown: it is one of 'clustering', 'broadcasting', 'assigned'"
    ):
        table_plain.join("g", MODE_PLAIN._replace(model="sharing"), ORDERS_PLAIN, a, now=0.0)


def test_a_member_brings_texts_of_bounded_length(table_plain: Membership, a: Session) -> None:
    longest = MODE_PLAIN._replace(strategy="s" * 64)
    assert table_plain.join("g", longest, {"orders": "x" * 1024}, a, now=0.0)

    with pytest.raises(BadRequest, match="the strategy has 65 characters, at most 64 are allowed"):
        table_plain.join("g", MODE_PLAIN._replace(strategy="s" * 65), ORDERS_PLAIN, a, now=0.0)
    with pytest.raises(BadRequest, match="the tag expression for 'orders' has 1025 characters, at most 1024"):
        table_plain.join("g", MODE_PLAIN, {"orders": "x" * 1025}, a, now=0.0)
    with pytest.raises(BadRequest, match=f"the model '{'m' * 40}' is unknown"):
        table_plain.join("g", MODE_PLAIN._replace(model="m" * 65), ORDERS_PLAIN, a, now=0.0)
    assert table_plain.mode("g") == longest


def test_a_member_subscribes_to_at_most_1024_topics(table_plain: Membership, a: Session) -> None:
    topics = {f"t{i}": "*" for i in range(1024)}
    assert table_plain.join("g", MODE_PLAIN, topics, a, now=0.0)

    with pytest.raises(BadRequest, match="a member subscribes to at most 1024 topics, not 1025"):
        table_plain.join("g", MODE_PLAIN, {**topics, "more": "*"}, a, now=0.0)


def test_a_session_is_in_at_most_256_groups(table_plain: Membership, a: Session, b: Session) -> None:
    for i in range(256):
        assert table_plain.join(f"g{i}", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    with pytest.raises(BadRequest, match="a session can be in 256 groups at once: leave one first"):
        table_plain.join("more", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    assert not table_plain.join("g7", MODE_PLAIN, ORDERS_PLAIN, a, now=1.0)  # a heartbeat is no new group
    assert table_plain.join("more", MODE_PLAIN, ORDERS_PLAIN, b, now=1.0)
    table_plain.leave("g7", a.id)
    assert table_plain.join("more", MODE_PLAIN, ORDERS_PLAIN, a, now=2.0)


def test_leaving_is_idempotent_and_touches_one_group(table_plain: Membership, a: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.join("h", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    assert table_plain.leave("g", a.id)
    assert not table_plain.leave("g", a.id)
    assert not table_plain.leave("unknown", a.id)
    assert a.groups == {"h"}
    assert not table_plain.is_member("g", a.id)
    assert table_plain.members("g") == []
    assert table_plain.sessions("g") == []


def test_a_session_leaves_all_its_groups_at_once(table_plain: Membership, a: Session, b: Session) -> None:
    for group in ("h", "g"):
        table_plain.join(group, MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
        table_plain.join(group, MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)

    assert table_plain.remove_session(a.id) == ["g", "h"]
    assert table_plain.remove_session(a.id) == []
    assert table_plain.members("g") == table_plain.members("h") == ["client#b"]


@pytest.mark.parametrize(("age", "gone"), [(120.0 - EPS_PLAIN, False), (120.0, False), (120.0 + EPS_PLAIN, True)])
def test_a_member_is_removed_when_it_was_silent_for_more_than_120_s(
    table_plain: Membership, a: Session, age: float, gone: bool
) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=30.0)

    assert table_plain.expire(now=30.0 + age) == ([("g", a.id)] if gone else [])
    assert table_plain.is_member("g", a.id) is not gone
    assert a.groups == (set() if gone else {"g"})


def test_the_longest_silent_are_removed_first_and_those_that_beat_stay(
    table_plain: Membership, a: Session, b: Session
) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.join("h", MODE_PLAIN, ORDERS_PLAIN, b, now=1.0)
    table_plain.join("h", MODE_PLAIN, ORDERS_PLAIN, a, now=2.0)
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=100.0)

    assert table_plain.expire(now=200.0) == [("h", b.id), ("h", a.id)]
    assert table_plain.members("g") == ["client#a"]


def test_subscribers_of_a_topic_come_from_all_groups_once(table_plain: Membership, a: Session, b: Session) -> None:
    table_plain.join("g", MODE_PLAIN, {"orders": "*", "payments": "*"}, a, now=0.0)
    table_plain.join("h", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.join("h", MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)

    assert table_plain.subscribers("orders") == {a.id, b.id}
    assert table_plain.subscribers("payments") == {a.id}
    assert table_plain.subscribers("unknown") == set()


# ---- members known by a lease from before the start


def test_a_restored_member_is_listed_but_sets_no_mode(table_plain: Membership, a: Session, b: Session) -> None:
    table_plain.restore("g", a, now=0.0)

    assert table_plain.members("g") == ["client#a"]
    assert table_plain.mode("g") is None
    assert not table_plain.is_member("g", a.id)
    assert table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)
    assert table_plain.mode("g") == MODE_PLAIN
    assert table_plain.members("g") == ["client#a", "client#b"]


def test_a_restored_member_that_joins_changes_no_list_and_must_agree(
    table_plain: Membership, a: Session, b: Session
) -> None:
    table_plain.restore("g", a, now=0.0)
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=0.0)

    with pytest.raises(GroupMismatch):
        table_plain.join("g", MODE_PLAIN._replace(ordered=False), ORDERS_PLAIN, a, now=1.0)
    assert not table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=1.0)
    assert table_plain.is_member("g", a.id)


def test_restoring_who_has_joined_changes_nothing(table_plain: Membership, a: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.restore("g", a, now=0.0)

    assert table_plain.mode("g") == MODE_PLAIN


def test_a_restored_member_goes_with_its_session_or_its_silence(
    table_plain: Membership, a: Session, b: Session
) -> None:
    table_plain.restore("g", a, now=0.0)
    table_plain.restore("h", a, now=0.0)
    table_plain.restore("g", b, now=0.0)

    assert table_plain.remove_session(a.id) == ["g", "h"]
    assert table_plain.expire(now=120.0) == []
    assert table_plain.expire(now=120.0 + EPS_PLAIN) == [("g", b.id)]
    assert table_plain.members("g") == []


def test_a_heartbeat_missed_through_no_fault_of_the_member_is_forgiven(table_plain: Membership, a: Session) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    table_plain.forgive(100.0, now=110.0)

    assert table_plain.expire(now=220.0) == []
    assert table_plain.expire(now=220.0 + EPS_PLAIN) == [("g", a.id)]


def test_who_shares_a_topic_out_and_who_else_of_a_group_subscribes_to_it(
    table_plain: Membership, a: Session, b: Session
) -> None:
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table_plain.join("h", MODE_PLAIN, {"payments": "*"}, a, now=0.0)
    table_plain.join("all", MODE_PLAIN._replace(model="broadcasting"), ORDERS_PLAIN, b, now=0.0)

    assert table_plain.subscribing("orders") == ["g"]
    assert table_plain.subscribing("unheard-of") == []
    assert table_plain.subscribes("g", "orders", but=b.id)
    assert not table_plain.subscribes("g", "orders", but=a.id)
    assert not table_plain.subscribes("g", "payments", but=b.id)


def test_a_group_reports_what_its_joined_members_have(table_plain: Membership, a: Session, b: Session) -> None:
    table_plain.restore("g", a, now=0.0)
    assert (table_plain.groups(), table_plain.subscribed("g"), table_plain.subscribed("other")) == (["g"], {}, {})

    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=1.0)

    assert table_plain.subscribed("g") == ORDERS_PLAIN
    assert [member.mode for member in table_plain.of_group("g")] == [None, MODE_PLAIN]
    assert table_plain.of_group("other") == []


def test_every_change_of_a_list_of_members_has_a_higher_version_also_after_a_restart(
    table_plain: Membership, a: Session, b: Session
) -> None:
    table_plain.start(3)
    versions = [table_plain.version]
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    versions.append(table_plain.version)
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=30.0)
    assert table_plain.version == versions[-1], "a heartbeat changes nothing"
    table_plain.join("g", MODE_PLAIN, ORDERS_PLAIN, b, now=30.0)
    versions.append(table_plain.version)
    table_plain.leave("g", a.id)
    versions.append(table_plain.version)
    table_plain.expire(now=1000.0)
    versions.append(table_plain.version)
    table_plain.start(4)
    versions.append(table_plain.version)

    assert versions == sorted(set(versions))


def silenced(table: Membership, group: str = "g") -> list[str]:
    return [member.session.member for member in table.silent(group)]


@pytest.mark.parametrize("how", ["its leases expired", "no heartbeat came"])
def test_a_member_that_goes_silent_is_out_of_the_group_and_remembered(how: str) -> None:
    table, a = Membership(), session_plain("a")
    table.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)

    if how == "no heartbeat came":
        assert table.expire(now=120.0 + EPS_PLAIN) == [("g", a.id)]
    else:
        assert table.silence("g", a.id)

    assert (table.members("g"), table.mode("g"), table.groups()) == ([], None, ["g"])
    assert [(member.mode, member.subscriptions) for member in table.silent("g")] == [(MODE_PLAIN, ORDERS_PLAIN)]
    assert (table.silent_count, silenced(table, "other")) == (1, [])
    assert not table.silence("g", a.id)  # it is out


@pytest.mark.parametrize(
    "end",
    [
        lambda table, a: table.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=1.0),
        lambda table, a: table.leave("g", a.id),
        lambda table, a: table.remove_session(a.id),
        lambda table, a: setattr(a, "connection", None),
    ],
    ids=["it joins again", "it leaves", "its session ends", "its connection ends"],
)
def test_a_silent_member_is_forgotten_when(end: Callable[[Membership, Session], object]) -> None:
    table, a, b = Membership(), session_plain("a"), session_plain("b")
    for each in (a, b):
        table.join("g", MODE_PLAIN, ORDERS_PLAIN, each, now=0.0)
        table.silence("g", each.id)

    end(table, a)

    assert silenced(table) == [b.member]
    assert table.silent_count == 1


def test_a_bounded_number_of_silent_members_is_remembered_the_latest_ones() -> None:
    table = Membership()
    for i in range(MAX_SILENT + 2):
        each = Session(i.to_bytes(16), f"m{i}", connection=i, answered_at=0.0)
        table.join("g", MODE_PLAIN, ORDERS_PLAIN, each, now=0.0)
        table.silence("g", each.id)

    assert silenced(table) == [f"m{i}" for i in range(2, MAX_SILENT + 2)]


def test_a_silent_member_sets_no_mode() -> None:
    table, a, b = Membership(), session_plain("a"), session_plain("b")
    table.join("g", MODE_PLAIN, ORDERS_PLAIN, a, now=0.0)
    table.silence("g", a.id)

    assert table.join("g", MODE_PLAIN._replace(ordered=False), {"other": "*"}, b, now=1.0)
