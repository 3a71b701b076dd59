"""A group has one mode and one subscription; members stay by heartbeat and leave with their session."""

from __future__ import annotations

import pytest

from rmq.broker.state.groups import GroupMode, Membership
from rmq.broker.state.sessions import Session
from rmq.wire.errors import BadName, BadRequest, GroupMismatch

MODE = GroupMode(ordered=True, model="clustering", strategy="evenly")
ORDERS = {"orders": "created || paid"}
EPS = 0.001


def session(name: str) -> Session:
    return Session(name.encode() * 16, f"client#{name}", connection=name, answered_at=0.0)


@pytest.fixture
def table() -> Membership:
    return Membership(expiry_s=120.0)


@pytest.fixture
def a() -> Session:
    return session("a")


@pytest.fixture
def b() -> Session:
    return session("b")


def test_the_first_member_sets_the_mode(table: Membership, a: Session) -> None:
    assert table.mode("g") is None

    assert table.join("g", MODE, ORDERS, a, now=0.0)

    assert table.mode("g") == MODE
    assert table.members("g") == ["client#a"]
    assert table.sessions("g") == [a.id]
    assert table.is_member("g", a.id)
    assert a.groups == {"g"}


def test_members_are_sorted_however_they_came(table: Membership, a: Session, b: Session) -> None:
    assert table.join("g", MODE, ORDERS, b, now=0.0)
    assert table.join("g", MODE, ORDERS, a, now=0.0)

    assert table.members("g") == ["client#a", "client#b"]
    assert table.sessions("g") == [b.id, a.id]


def test_members_that_know_of_retries_and_others_may_be_in_one_group(table: Membership, a: Session, b: Session) -> None:
    """Else the members of a group could not be replaced one by one by those of this version."""
    assert table.join("g", MODE, ORDERS, a, now=0.0)
    assert table.join("g", MODE, {"%RETRY%g": "*", **ORDERS}, b, now=0.0)

    with pytest.raises(GroupMismatch, match="'orders'"):
        table.join("g", MODE, {"%RETRY%g": "*"}, session("c"), now=0.0)
    with pytest.raises(GroupMismatch, match="%RETRY%other"):
        table.join("g", MODE, {"%RETRY%other": "*", **ORDERS}, session("c"), now=0.0)


def test_the_retries_of_a_group_are_none_of_the_topics_a_member_may_have(table: Membership, a: Session) -> None:
    most = {f"t{i}": "*" for i in range(1024)}

    assert table.join("g", MODE, {"%RETRY%g": "*", **most}, a, now=0.0)
    with pytest.raises(BadRequest, match="at most 1024 topics, not 1025"):
        table.join("h", MODE, {"%RETRY%g": "*", **most}, a, now=0.0)


def test_joining_again_is_a_heartbeat_and_changes_nothing(table: Membership, a: Session) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)

    assert not table.join("g", MODE, ORDERS, a, now=30.0)
    assert table.members("g") == ["client#a"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (MODE._replace(ordered=False), "concurrent, clustering, allocation evenly"),
        (MODE._replace(model="broadcasting"), "ordered, broadcasting, allocation evenly"),
        (MODE._replace(strategy="sticky"), "ordered, clustering, allocation sticky"),
    ],
)
def test_another_mode_is_refused_with_both_in_the_sentence(
    table: Membership, a: Session, b: Session, mode: GroupMode, words: str
) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)

    with pytest.raises(GroupMismatch, match=f"'g' is ordered, clustering, allocation evenly; .* asked for {words}"):
        table.join("g", mode, ORDERS, b, now=0.0)

    assert table.members("g") == ["client#a"]
    assert b.groups == set()


@pytest.mark.parametrize(
    ("subscriptions", "words"),
    [
        ({"orders": "*"}, "the expression 'created || paid' for topic 'orders', this member has the expression '*'"),
        ({"payments": "*"}, "the expression 'created || paid' for topic 'orders', this member has no subscription"),
        ({**ORDERS, "payments": "*"}, "no subscription for topic 'payments', this member has the expression '*'"),
        ({}, "the expression 'created || paid' for topic 'orders', this member has no subscription"),
    ],
)
def test_another_subscription_is_refused_with_both_in_the_sentence(
    table: Membership, a: Session, b: Session, subscriptions: dict[str, str], words: str
) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)

    with pytest.raises(GroupMismatch) as refused:
        table.join("g", MODE, subscriptions, b, now=0.0)

    assert f"group 'g' has {words}" in refused.value.text


def test_a_member_that_changes_its_mind_beside_others_is_refused_and_stays_as_it_was(
    table: Membership, a: Session, b: Session
) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.join("g", MODE, ORDERS, b, now=0.0)

    with pytest.raises(GroupMismatch):
        table.join("g", MODE, {"payments": "*"}, a, now=1.0)

    assert table.members("g") == ["client#a", "client#b"]
    assert table.subscribers("payments") == set()


def test_a_member_that_is_alone_may_change_its_mind(table: Membership, a: Session) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    concurrent = MODE._replace(ordered=False)

    assert not table.join("g", concurrent, {"payments": "*"}, a, now=1.0)
    assert table.mode("g") == concurrent
    assert table.subscribers("orders") == set()
    assert table.subscribers("payments") == {a.id}


@pytest.mark.parametrize("expression", ["a | b", "||", "* || a", "a b"])
def test_an_expression_that_is_none_is_refused_and_nobody_joins(table: Membership, a: Session, expression: str) -> None:
    with pytest.raises(BadRequest, match="is not '\\*' or tags joined by"):
        table.join("g", MODE, {"orders": expression}, a, now=0.0)

    assert table.members("g") == []


def test_what_a_member_wants_of_a_topic_is_known_while_it_is_one(table: Membership, a: Session, b: Session) -> None:
    assert (table.wanted("g", a.id, "orders"), table.subscriptions("g", a.id)) == (None, None)
    table.restore("g", a, now=0.0)
    assert (table.wanted("g", a.id, "orders"), table.subscriptions("g", a.id)) == (None, {})

    table.join("g", MODE, {"orders": "created || paid", "payments": "*"}, a, now=0.0)
    some = table.wanted("g", a.id, "orders")
    assert some is not None
    assert some.tags == {"created", "paid"}
    assert table.subscriptions("g", a.id) == {"orders": "created || paid", "payments": "*"}
    assert table.wanted("g", a.id, "payments") is table.wanted("g", a.id, "others") is None
    assert table.wanted("g", b.id, "orders") is table.wanted("h", a.id, "orders") is None

    table.join("g", MODE, {"orders": "*"}, a, now=1.0)
    assert table.wanted("g", a.id, "orders") is None


def test_a_group_that_everybody_left_may_begin_in_another_mode(table: Membership, a: Session, b: Session) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.leave("g", a.id)

    assert table.mode("g") is None
    assert table.join("g", MODE._replace(model="broadcasting"), {}, b, now=0.0)


@pytest.mark.parametrize("group", ["", "a b", "%DLQ%g", "x" * 128])
def test_illegal_group_names_are_refused(table: Membership, a: Session, group: str) -> None:
    with pytest.raises(BadName, match="group"):
        table.join(group, MODE, ORDERS, a, now=0.0)


def test_illegal_topic_names_are_refused(table: Membership, a: Session) -> None:
    with pytest.raises(BadName, match="topic"):
        table.join("g", MODE, {"a/b": "*"}, a, now=0.0)

    assert table.mode("g") is None


def test_members_that_are_assigned_their_queues_subscribe_to_what_they_like(
    table: Membership, a: Session, b: Session
) -> None:
    assigned = MODE._replace(model="assigned")
    table.join("g", assigned, ORDERS, a, now=0.0)

    assert table.join("g", assigned, {"payments": "*"}, b, now=0.0)
    with pytest.raises(GroupMismatch, match="ordered, assigned, allocation evenly"):
        table.join("g", MODE, ORDERS, b, now=0.0)
    assert table.subscribing("payments") == ["g"]
    assert table.subscribed("g") == {**ORDERS, "payments": "*"}


def test_an_unknown_model_is_refused(table: Membership, a: Session) -> None:
    with pytest.raises(
        BadRequest, match="model 'sharing' is unknown: it is one of 'clustering', 'broadcasting', 'assigned'"
    ):
        table.join("g", MODE._replace(model="sharing"), ORDERS, a, now=0.0)


def test_a_member_brings_texts_of_bounded_length(table: Membership, a: Session) -> None:
    longest = MODE._replace(strategy="s" * 64)
    assert table.join("g", longest, {"orders": "x" * 1024}, a, now=0.0)

    with pytest.raises(BadRequest, match="the strategy has 65 characters, at most 64 are allowed"):
        table.join("g", MODE._replace(strategy="s" * 65), ORDERS, a, now=0.0)
    with pytest.raises(BadRequest, match="the tag expression for 'orders' has 1025 characters, at most 1024"):
        table.join("g", MODE, {"orders": "x" * 1025}, a, now=0.0)
    with pytest.raises(BadRequest, match=f"the model '{'m' * 40}' is unknown"):
        table.join("g", MODE._replace(model="m" * 65), ORDERS, a, now=0.0)
    assert table.mode("g") == longest


def test_a_member_subscribes_to_at_most_1024_topics(table: Membership, a: Session) -> None:
    topics = {f"t{i}": "*" for i in range(1024)}
    assert table.join("g", MODE, topics, a, now=0.0)

    with pytest.raises(BadRequest, match="a member subscribes to at most 1024 topics, not 1025"):
        table.join("g", MODE, {**topics, "more": "*"}, a, now=0.0)


def test_a_session_is_in_at_most_256_groups(table: Membership, a: Session, b: Session) -> None:
    for i in range(256):
        assert table.join(f"g{i}", MODE, ORDERS, a, now=0.0)

    with pytest.raises(BadRequest, match="a session can be in 256 groups at once: leave one first"):
        table.join("more", MODE, ORDERS, a, now=0.0)
    assert not table.join("g7", MODE, ORDERS, a, now=1.0)  # a heartbeat is no new group
    assert table.join("more", MODE, ORDERS, b, now=1.0)
    table.leave("g7", a.id)
    assert table.join("more", MODE, ORDERS, a, now=2.0)


def test_leaving_is_idempotent_and_touches_one_group(table: Membership, a: Session) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.join("h", MODE, ORDERS, a, now=0.0)

    assert table.leave("g", a.id)
    assert not table.leave("g", a.id)
    assert not table.leave("unknown", a.id)
    assert a.groups == {"h"}
    assert not table.is_member("g", a.id)
    assert table.members("g") == []
    assert table.sessions("g") == []


def test_a_session_leaves_all_its_groups_at_once(table: Membership, a: Session, b: Session) -> None:
    for group in ("h", "g"):
        table.join(group, MODE, ORDERS, a, now=0.0)
        table.join(group, MODE, ORDERS, b, now=0.0)

    assert table.remove_session(a.id) == ["g", "h"]
    assert table.remove_session(a.id) == []
    assert table.members("g") == table.members("h") == ["client#b"]


@pytest.mark.parametrize(("age", "gone"), [(120.0 - EPS, False), (120.0, False), (120.0 + EPS, True)])
def test_a_member_is_removed_when_it_was_silent_for_more_than_120_s(
    table: Membership, a: Session, age: float, gone: bool
) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.join("g", MODE, ORDERS, a, now=30.0)

    assert table.expire(now=30.0 + age) == ([("g", a.id)] if gone else [])
    assert table.is_member("g", a.id) is not gone
    assert a.groups == (set() if gone else {"g"})


def test_the_longest_silent_are_removed_first_and_those_that_beat_stay(
    table: Membership, a: Session, b: Session
) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.join("h", MODE, ORDERS, b, now=1.0)
    table.join("h", MODE, ORDERS, a, now=2.0)
    table.join("g", MODE, ORDERS, a, now=100.0)

    assert table.expire(now=200.0) == [("h", b.id), ("h", a.id)]
    assert table.members("g") == ["client#a"]


def test_subscribers_of_a_topic_come_from_all_groups_once(table: Membership, a: Session, b: Session) -> None:
    table.join("g", MODE, {"orders": "*", "payments": "*"}, a, now=0.0)
    table.join("h", MODE, ORDERS, a, now=0.0)
    table.join("h", MODE, ORDERS, b, now=0.0)

    assert table.subscribers("orders") == {a.id, b.id}
    assert table.subscribers("payments") == {a.id}
    assert table.subscribers("unknown") == set()


# ---- members known by a lease from before the start


def test_a_restored_member_is_listed_but_sets_no_mode(table: Membership, a: Session, b: Session) -> None:
    table.restore("g", a, now=0.0)

    assert table.members("g") == ["client#a"]
    assert table.mode("g") is None
    assert not table.is_member("g", a.id)
    assert table.join("g", MODE, ORDERS, b, now=0.0)
    assert table.mode("g") == MODE
    assert table.members("g") == ["client#a", "client#b"]


def test_a_restored_member_that_joins_changes_no_list_and_must_agree(table: Membership, a: Session, b: Session) -> None:
    table.restore("g", a, now=0.0)
    table.join("g", MODE, ORDERS, b, now=0.0)

    with pytest.raises(GroupMismatch):
        table.join("g", MODE._replace(ordered=False), ORDERS, a, now=1.0)
    assert not table.join("g", MODE, ORDERS, a, now=1.0)
    assert table.is_member("g", a.id)


def test_restoring_who_has_joined_changes_nothing(table: Membership, a: Session) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.restore("g", a, now=0.0)

    assert table.mode("g") == MODE


def test_a_restored_member_goes_with_its_session_or_its_silence(table: Membership, a: Session, b: Session) -> None:
    table.restore("g", a, now=0.0)
    table.restore("h", a, now=0.0)
    table.restore("g", b, now=0.0)

    assert table.remove_session(a.id) == ["g", "h"]
    assert table.expire(now=120.0) == []
    assert table.expire(now=120.0 + EPS) == [("g", b.id)]
    assert table.members("g") == []


def test_a_heartbeat_missed_through_no_fault_of_the_member_is_forgiven(table: Membership, a: Session) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)

    table.forgive(100.0, now=110.0)

    assert table.expire(now=220.0) == []
    assert table.expire(now=220.0 + EPS) == [("g", a.id)]


def test_who_shares_a_topic_out_and_who_else_of_a_group_subscribes_to_it(
    table: Membership, a: Session, b: Session
) -> None:
    table.join("g", MODE, ORDERS, a, now=0.0)
    table.join("h", MODE, {"payments": "*"}, a, now=0.0)
    table.join("all", MODE._replace(model="broadcasting"), ORDERS, b, now=0.0)

    assert table.subscribing("orders") == ["g"]
    assert table.subscribing("unheard-of") == []
    assert table.subscribes("g", "orders", but=b.id)
    assert not table.subscribes("g", "orders", but=a.id)
    assert not table.subscribes("g", "payments", but=b.id)


def test_what_a_group_has_is_told_and_who_has_not_joined_sets_nothing(
    table: Membership, a: Session, b: Session
) -> None:
    table.restore("g", a, now=0.0)
    assert (table.groups(), table.subscribed("g"), table.subscribed("other")) == (["g"], {}, {})

    table.join("g", MODE, ORDERS, b, now=1.0)

    assert table.subscribed("g") == ORDERS
    assert [member.mode for member in table.of_group("g")] == [None, MODE]
    assert table.of_group("other") == []


def test_every_change_of_a_list_of_members_has_a_higher_version_also_after_a_restart(
    table: Membership, a: Session, b: Session
) -> None:
    table.start(3)
    versions = [table.version]
    table.join("g", MODE, ORDERS, a, now=0.0)
    versions.append(table.version)
    table.join("g", MODE, ORDERS, a, now=30.0)
    assert table.version == versions[-1], "a heartbeat changes nothing"
    table.join("g", MODE, ORDERS, b, now=30.0)
    versions.append(table.version)
    table.leave("g", a.id)
    versions.append(table.version)
    table.expire(now=1000.0)
    versions.append(table.version)
    table.start(4)
    versions.append(table.version)

    assert versions == sorted(set(versions))
