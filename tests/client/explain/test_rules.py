"""Which story is told of a queue where several causes come together, and in which order stories are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.explain.facts import Delayed, QueueFacts, Told
from rmq.client.explain.rules import RULES, explain, worst_first
from rmq.client.explain.wording import Reason, Urgency

from ..explain_builders import EPOCH, OWNER, SILENT, facts, found, held, told

GAP = {"stopped_code": "MESSAGES_LOST", "stopped_from": 10, "stopped_to": 12}
FAILS = {"attempt": 5, "retry_in_s": 3.0, "last_error": "E: x", "failed_offset": 10}

CONFLICTS: list[tuple[str, QueueFacts, str]] = [
    # why it wins, the facts, what is told
    ("somebody has to act before it is resumed or not", held(**GAP, paused=True), "MESSAGES_LOST"),
    ("what is before the gap may fail: the gap stays", held(**GAP, **FAILS), "MESSAGES_LOST"),
    ("also while the queue leaves, its next owner stops there", held(**GAP, dropped=True), "MESSAGES_LOST"),
    (
        "that nobody is there comes of the message",
        facts(None, connected=0, abandoned=3, suspect_offset=10), "CRASH_LOOP",
    ),
    (
        "who is lost for now was lost with that message before",
        facts(in_grace=True, abandoned=2, suspect_offset=10), "CRASH_LOOP",
    ),
    (
        "who lost it by silence is there to be looked at",
        facts(None, connected=0, silenced=SILENT, abandoned=3, suspect_offset=10), "MEMBER_SILENT",
    ),
    (
        "a silent member is known since the broker started",
        facts(None, connected=0, silenced=SILENT, broker_up_s=5.0), "MEMBER_SILENT",
    ),
    ("a message that all got over is past", facts(None, connected=0, abandoned=3, suspect_offset=9), "NO_MEMBER"),
    ("one lost owner is an accident", facts(None, connected=0, abandoned=1, suspect_offset=10), "NO_MEMBER"),
    ("with nobody there, nobody can subscribe", facts(None, connected=0, subscribed=False), "NO_MEMBER"),
    ("a lock in grace with nobody else waits for nobody", facts(connected=0, in_grace=True), "NO_MEMBER"),
    ("while it is held it is not unsubscribed", replace(held(), subscribed=False), "STANDING_STILL"),
    ("who is cut off cannot answer", facts(in_grace=True, answers=False), "WAITING_FOR_LOCK"),
    ("who is silent retries nothing", facts(answers=False, attempts=3, retry_offset=10), "MEMBER_SILENT"),
    ("a queue that leaves is not its owner's to resume", held(dropped=True, paused=True), "WAITING_FOR_LOCK"),
    ("nothing is retried before it is resumed", held(paused=True, **FAILS), "PAUSED"),
    ("a pause is told also with nothing to do", replace(held(paused=True), lag=0), "PAUSED"),
    ("a delivery that hangs is worse than one that fails", held(called_for_s=61.0, attempt=5), "LISTENER_RUNNING"),
    ("one that has just begun is not", held(called_for_s=1.0, attempt=5), "RETRYING"),
    ("its turn comes when the call ends", held(called_for_s=6.0, flow_control="full"), "LISTENER_RUNNING"),
    ("so is a backlog worked off", replace(held(flow_control="full"), moved=9, watched_s=1.0), "CONSUMING"),
    ("a slow listener", replace(held(flow_control="full", called_for_s=2.0), moved=0, watched_s=1.0), "FLOW_CONTROL"),
    ("nobody takes from a cache that is full", held(flow_control="full", polled_ago_s=20.0), "NOT_POLLED"),
    ("a loop that is late proves no lock", held(lost=True, loop_lag_s=6.0), "LOOP_LATE"),
    ("without that, the lock is in doubt", held(lost=True), "WAITING_FOR_LOCK"),
    ("what moves is well, late or not", replace(held(loop_lag_s=6.0), moved=5, watched_s=1.0), "CONSUMING"),
    ("a running call needs no slot", held(slots_busy=True, cached_messages=5, called_for_s=1.0), "CONSUMING"),
    ("its messages wait for a slot", held(slots_busy=True, cached_messages=5), "SLOTS_BUSY"),
    ("it has nothing that needs one", held(slots_busy=True), "STANDING_STILL"),
    ("with nothing to do nobody minds", replace(held(flow_control="full", loop_lag_s=9.0), lag=0), "NO_NEW_MESSAGES"),
    ("nothing is known against it", held(), "STANDING_STILL"),
]  # fmt: skip


@pytest.mark.parametrize(("of", "reason"), [row[1:] for row in CONFLICTS], ids=[row[0] for row in CONFLICTS])
def test_where_causes_come_together_the_one_that_has_to_go_first_is_told(of: QueueFacts, reason: str) -> None:
    assert found(of)[0] == reason


def test_a_story_has_the_lock_and_the_head_of_its_queue() -> None:
    story = explain(held(attempt=5, retry_in_s=3.0))

    assert (story.topic, story.queue_id, story.lag, story.owner, story.epoch) == ("t", 3, 5, OWNER, EPOCH)
    assert (story.lease_left_s, story.attempt, story.retry_in_s) == (42.0, 5, 3.0)
    assert (story.head_offset, story.head_id, story.head_age_s) == (10, "00ff", 7.0)


def test_a_queue_without_a_message_before_it_has_no_head() -> None:
    story = explain(replace(held(head_offset=15), lag=0))

    assert (story.head_offset, story.head_id, story.head_age_s, story.attempt) == (None, None, None, 1)


def test_a_queue_that_nobody_has_has_no_lock() -> None:
    story = explain(facts(None, connected=0))

    assert (story.owner, story.epoch, story.lease_left_s) == (None, None, None)


def test_what_needs_somebody_is_told_first_then_by_reason_then_by_queue() -> None:
    stories = [
        explain(replace(held(), queue_id=0, lag=0)),
        explain(replace(held(attempt=2), queue_id=1)),
        explain(replace(held(attempt=9), queue_id=2)),
        explain(replace(held(**GAP), queue_id=3)),
        explain(replace(held(paused=True), queue_id=12)),
        explain(replace(held(paused=True), queue_id=5)),
    ]

    assert [story.queue_id for story in worst_first(stories)] == [3, 5, 12, 2, 1, 0]


def test_the_last_rule_always_fits() -> None:
    assert RULES[-1](facts()) is not None


numbers, maybe, yes_or_no = st.integers(-1, 20), st.none() | st.floats(0, 1e6), st.booleans()
codes = st.sampled_from(["", "", "CRASH_LOOP", "DAMAGED", "MESSAGES_LOST", "NEWER"])
any_told = st.builds(
    Told, epoch=st.sampled_from([0, EPOCH]), head_offset=st.none() | numbers, attempt=st.integers(1, 9),
    retry_in_s=maybe, called_for_s=maybe, flow_control=st.sampled_from(["", "full"]), paused=yes_or_no,
    loop_lag_s=st.floats(0, 99), stopped_code=codes, stopped_to=st.none() | numbers, dropped=yes_or_no,
    lost=yes_or_no, slots_busy=yes_or_no, polled_ago_s=maybe, cached_messages=numbers,
)  # fmt: skip
any_facts = st.builds(
    QueueFacts, group=st.just("g"), topic=st.sampled_from(["t", "%RETRY%g"]), queue_id=st.just(0),
    lag=st.integers(0, 20), max_offset=st.just(20), committed=numbers, attempts=st.integers(0, 9),
    retry_offset=numbers, suspect_offset=numbers, abandoned=st.integers(0, 9), epoch=st.just(EPOCH),
    owner=st.sampled_from([None, OWNER, "odd"]), lease_left_s=maybe, in_grace=yes_or_no, answers=yes_or_no,
    told=st.none() | any_told, told_of_all=yes_or_no, connected=st.integers(0, 3), subscribed=yes_or_no,
    model=st.sampled_from([None, "clustering", "broadcasting", "assigned"]),
    strategy=st.sampled_from([None, "average", "config"]), moved=st.none() | st.integers(0, 9),
    watched_s=st.sampled_from([0.0, 1.0]), delayed=st.builds(Delayed, st.integers(0, 9), st.floats(0, 99)),
    silenced=st.sampled_from([None, SILENT, SILENT._replace(answers=True)]),
).map(lambda of: replace(of, told=None) if of.owner is None else replace(of, silenced=None))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(any_facts)
def test_whatever_is_known_there_is_a_story_and_advice_where_somebody_may_have_to_act(of: QueueFacts) -> None:
    story = explain(of)

    assert story.sentence.endswith((".", ")"))
    assert "None" not in story.sentence
    assert story.advice or story.urgency is Urgency.WELL
    assert "None" not in story.advice or of.owner is None


@settings(max_examples=40, deadline=None)
@given(any_facts)
def test_a_queue_with_nothing_before_it_never_needs_somebody_unless_it_is_stopped(of: QueueFacts) -> None:
    story = explain(replace(of, lag=0, told=of.told and of.told._replace(head_offset=20, called_for_s=None)))

    is_stopped = of.told is not None and of.told.stopped_code
    assert story.urgency is not Urgency.ACT or story.reason is Reason.CRASH_LOOP or is_stopped


def test_what_is_told_of_an_owner_counts_for_its_epoch_only() -> None:
    assert found(facts(says=told(epoch=EPOCH - 1))) == ("WAITING_FOR_LOCK", "WATCH")
