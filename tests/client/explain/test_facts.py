"""What is read from the answers of a broker and of members, whatever those say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.explain.facts import MAX_TEXT, DeferredMessages, Members, QueueFacts, of_broadcast, of_group
from rmq.client.explain.rules import explain
from rmq.wire.errors import BadRequest, MemberNotFound, MemberSilent
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue, MemberReport, MemberState

A, B = "a@1#00000001", "b@2#00000002"
QUEUE = MessageQueue("t", 0)
HELD = GroupQueue("t", 0, 2, 10, 4, 6, A, 7, 30.0, "held, retrying offset 4 (attempt 3)", 4, 2, 4, 1)


def report(member: str = A, **queue: Any) -> MemberReport:
    return MemberReport(0, member, None, {"queues": [{"topic": "t", "queue_id": 0, "epoch": 7, **queue}]})


def described(*queues: GroupQueue, model: str = "clustering", **more: Any) -> GroupDescription:
    members = [MemberState(name, "0", "x:1", "connected", 0.1, 1) for name in (A, B)]
    fields = {"subscriptions": {"t": "*"}, "members": members, "more_members": 0, "more_queues": 0, **more}
    return GroupDescription("g", True, model, "average", queues=list(queues), **fields)


def one(of: GroupQueue, *reports: MemberReport, **more: Any) -> QueueFacts:
    (facts,) = of_group(described(of, **more), Members(reports))
    return facts


def test_the_word_of_the_broker_and_of_the_owner_are_put_together() -> None:
    facts = one(HELD, report(head_offset=4, attempt=3, retry_in_s=1.5))

    assert (facts.owner, facts.epoch, facts.lease_left_s, facts.in_grace) == (A, 7, 30.0, False)
    assert (facts.lag, facts.head_offset, facts.attempt, facts.connected) == (6, 4, 3, 2)
    assert facts.report is not None
    assert (facts.report.retry_in_s, facts.answers, facts.reported_all, facts.subscribed) == (1.5, True, True, True)


def test_the_head_is_further_on_than_the_progress_if_the_owner_says_so() -> None:
    assert one(HELD, report(head_offset=8)).head_offset == 8
    assert one(HELD, report(head_offset=10)).head_offset is None
    assert one(HELD).head_offset == 4


def test_the_attempts_that_the_broker_knows_count_for_their_message_only() -> None:
    assert one(HELD).attempt == 3
    assert one(HELD, report(head_offset=5, attempt=1)).attempt == 1


@pytest.mark.parametrize(
    ("queue", "states", "silenced"),
    [
        (HELD._replace(owner=None, former=B), "connected silent", B),
        (HELD._replace(owner=None, former="gone"), "connected silent", None),
        (HELD._replace(owner=None, former=None), "silent silent", B),  # nobody else is there; B is silent for longer
        (HELD._replace(owner=None, former=A), "silent silent", A),
        (HELD, "silent silent", None),
        (HELD._replace(owner=None, former=B), "connected connected", None),
    ],
)
def test_a_queue_without_an_owner_is_that_of_the_silent_member_that_lost_it(
    queue: GroupQueue, states: str, silenced: str | None
) -> None:
    members = [
        MemberState(name, "0", "x:1", state, heard, 0)
        for name, state, heard in zip((A, B), states.split(), (61.0, 75.0), strict=True)
    ]

    found = one(queue, members=members).silenced

    assert (None if found is None else found.member) == silenced
    back = one(queue, report(B), members=members).silenced
    assert back is None or back.answers is (back.member == B)


def test_what_a_filter_selected_and_left_out_counts_for_all_queues_of_the_topic() -> None:
    other = report(B, queue_id=1, selected=2, left_out=5)
    facts = one(HELD, report(selected=0, left_out=7), other)

    assert facts.report is not None
    assert (facts.report.left_out, facts.selected, facts.left_out) == (7, 2, 12)
    assert one(HELD, report(left_out=7)).selected == 0


@pytest.mark.parametrize(
    ("committed", "counted", "has_past"),
    [
        (-1, {}, False),  # it has read nothing yet
        (7, {"end_offset": 7, "left_out": 7}, False),
        (5, {"end_offset": 9, "selected": 2, "left_out": 7}, False),  # the others are not done yet
        (7, {"end_offset": 7}, True),  # it took the queue over at 7
        (7, {"end_offset": 17, "left_out": 10}, True),
        (7, None, True),  # its owner tells nothing
        (-1, None, False),
    ],
)
def test_a_group_has_a_past_where_it_got_further_than_its_owner_has_read(
    committed: int, counted: dict[str, int] | None, has_past: bool
) -> None:
    queue = HELD._replace(committed=committed)

    assert one(queue, *([] if counted is None else [report(**counted)])).has_past is has_past


def test_a_past_in_one_queue_is_one_of_the_topic() -> None:
    other = HELD._replace(queue_id=1, owner=None, committed=3)
    found = of_group(described(HELD._replace(committed=-1), other), Members([report()]))

    assert [each.has_past for each in found] == [True, True]


def test_who_does_not_answer_is_silent_and_who_has_no_connection_is_not() -> None:
    members = Members([MemberReport(MemberSilent.code, A, "silent"), MemberReport(MemberNotFound.code, B, "away")])

    assert (members.answers(A), members.answers(B), members.answers("c")) == (False, True, True)
    assert members.silent() == [A]


def test_who_waits_for_which_lock_is_known_from_those_who_wait() -> None:
    waits = MemberReport(0, B, None, {"queues": [], "waits_for": [["t", 0, f"held by {A}"], ["t"], "x", [1, 2], None]})

    assert one(HELD, report(), waits).waiting == (B,)


def test_a_member_with_more_queues_than_it_tells_of_may_have_this_one() -> None:
    many = MemberReport(0, A, None, {"queues": [], "more_queues": 3})

    assert (one(HELD, many).report, one(HELD, many).reported_all) == (None, False)
    assert one(HELD, MemberReport(0, A, None, {"queues": []})).reported_all
    assert not one(HELD, MemberReport(BadRequest.code, A, "its answer is too long")).reported_all
    assert not one(HELD).reported_all


def test_a_member_of_an_older_version_stops_in_words() -> None:
    facts = one(HELD, report(stopped="MESSAGES_LOST: offsets 4 to 5"))

    assert facts.report is not None
    assert facts.report.stopped_code == "MESSAGES_LOST"
    assert explain(facts).reason.value == "MESSAGES_LOST"


def test_all_slots_are_taken_when_there_are_as_many_turns() -> None:
    def busy(turns: Any, slots: Any) -> bool:
        info = {"queues": [{"topic": "t", "queue_id": 0}], "turns": turns, "slots": slots}
        told = Members([MemberReport(0, A, None, info)]).report_of(A, QUEUE)
        assert told is not None
        return told.slots_busy

    assert [busy(20, 20), busy(19, 20), busy(0, 0), busy(None, 20)] == [True, False, False, False]


@pytest.mark.parametrize(("settings_told", "limit_s"), [({}, 900.0), ({"consume_timeout_s": 5.0}, 5.0), (7, 900.0)])
def test_how_long_a_call_may_take_is_told_where_it_is_not_the_default(settings_told: Any, limit_s: float) -> None:
    info = {"queues": [{"topic": "t", "queue_id": 0}], "settings": settings_told}
    told = Members([MemberReport(0, A, None, info)]).report_of(A, QUEUE)

    assert told is not None
    assert told.consume_timeout_s == limit_s


@pytest.mark.parametrize(
    ("settings_told", "most"), [({}, None), ({"max_attempts": 5}, 5), ({"max_attempts": -1}, None), ("x", None)]
)
def test_how_often_a_message_may_fail_is_told_where_there_is_a_limit(settings_told: Any, most: int | None) -> None:
    info = {"queues": [{"topic": "t", "queue_id": 0}], "settings": settings_told}
    told = Members([MemberReport(0, A, None, info)]).report_of(A, QUEUE)

    assert told is not None
    assert told.max_attempts == most


def test_each_broadcasting_member_has_each_queue_with_its_own_lag() -> None:
    queues = (GroupQueue("t", 0, 2, 10, -1, 8), GroupQueue("t", 1, 0, 0, -1, 0))
    members = Members([report(A, head_offset=9), report(B, head_offset=1)])
    delayed = {QUEUE: DeferredMessages(3, 1.0)}

    facts = of_broadcast(described(*queues, model="broadcasting"), members, deferred=delayed)

    assert [(each.owner, each.queue_id, each.lag) for each in facts] == [(A, 0, 1), (A, 1, 0), (B, 0, 8), (B, 1, 0)]
    assert [each.deferred.messages for each in facts] == [3, 0, 3, 0]
    assert {each.lease_left_s for each in facts} == {None}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["head_offset", "attempt", "retry_in_s", "called_for_s", "stopped", "stopped_code", "stopped_to", "last_error",
     "failed_offset", "paused", "flow_control", "epoch", "dropped", "cached_messages"]
)  # fmt: skip
member_names = st.sampled_from(["waits_for", "polled_ago_s", "turns", "slots", "settings", "more_queues", "loop_lag_s"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, anything, max_size=6), st.dictionaries(member_names, anything, max_size=4), anything)
def test_whatever_a_member_tells_there_is_a_story(queue: Any, member: Any, queues: Any) -> None:
    told = [{"topic": "t", "queue_id": 0, "epoch": 7, **queue}, queues]
    facts = one(
        HELD, MemberReport(0, A, None, {**member, "queues": told}), MemberReport(0, B, None, {"queues": queues})
    )

    story = explain(facts)

    assert len(story.sentence) < 5 * MAX_TEXT
