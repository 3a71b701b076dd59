"""Which cause is reported where several coincide, the limits of each, and the sentences that users copy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.explain.facts import DeferredMessages, OwnerReport, QueueFacts
from rmq.client.explain.rules import RULES, explain, worst_first
from rmq.client.explain.wording import Reason, Urgency

from ..explain_builders import EPOCH, OTHER, OWNER, SILENT, facts, found, held, report

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


def test_what_requires_action_is_told_first_then_by_reason_then_by_queue() -> None:
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
any_report = st.builds(
    OwnerReport, epoch=st.sampled_from([0, EPOCH]), head_offset=st.none() | numbers, attempt=st.integers(1, 9),
    retry_in_s=maybe, called_for_s=maybe, flow_control=st.sampled_from(["", "full"]), paused=yes_or_no,
    loop_lag_s=st.floats(0, 99), stopped_code=codes, stopped_to=st.none() | numbers, dropped=yes_or_no,
    lost=yes_or_no, slots_busy=yes_or_no, polled_ago_s=maybe, cached_messages=numbers,
)  # fmt: skip
any_facts = st.builds(
    QueueFacts, group=st.just("g"), topic=st.sampled_from(["t", "%RETRY%g"]), queue_id=st.just(0),
    lag=st.integers(0, 20), max_offset=st.just(20), committed=numbers, attempts=st.integers(0, 9),
    retry_offset=numbers, suspect_offset=numbers, abandoned=st.integers(0, 9), epoch=st.just(EPOCH),
    owner=st.sampled_from([None, OWNER, "odd"]), lease_left_s=maybe, in_grace=yes_or_no, answers=yes_or_no,
    report=st.none() | any_report, reported_all=yes_or_no, connected=st.integers(0, 3), subscribed=yes_or_no,
    model=st.sampled_from([None, "clustering", "broadcasting", "assigned"]),
    strategy=st.sampled_from([None, "average", "config"]), moved=st.none() | st.integers(0, 9),
    watched_s=st.sampled_from([0.0, 1.0]), deferred=st.builds(DeferredMessages, st.integers(0, 9), st.floats(0, 99)),
    silenced=st.sampled_from([None, SILENT, SILENT._replace(answers=True)]),
).map(lambda of: replace(of, report=None) if of.owner is None else replace(of, silenced=None))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(any_facts)
def test_whatever_is_known_there_is_a_story_and_advice_where_somebody_may_have_to_act(of: QueueFacts) -> None:
    story = explain(of)

    assert story.sentence.endswith((".", ")"))
    assert "None" not in story.sentence
    assert story.advice or story.urgency is Urgency.OK
    assert "None" not in story.advice or of.owner is None


@settings(max_examples=40, deadline=None)
@given(any_facts)
def test_a_queue_with_nothing_before_it_never_requires_action_unless_it_is_stopped(of: QueueFacts) -> None:
    story = explain(replace(of, lag=0, report=of.report and of.report._replace(head_offset=20, called_for_s=None)))

    is_stopped = of.report is not None and of.report.stopped_code
    assert story.urgency is not Urgency.ACTION_REQUIRED or story.reason is Reason.CRASH_LOOP or is_stopped


def test_what_is_told_of_an_owner_counts_for_its_epoch_only() -> None:
    assert found(facts(says=report(epoch=EPOCH - 1))) == ("WAITING_FOR_LOCK", "WATCH")


def watched(moved: int | None, **says: object) -> QueueFacts:
    return replace(held(**says), moved=moved, watched_s=1.0)


RESET = "`rmq-admin group reset-offset g --topic t --queue 3 --to"


@pytest.mark.parametrize(
    ("of", "reason", "urgency"),
    [
        (held(stopped_code="DAMAGED", stopped_from=10, stopped_to=10), "DAMAGED", "ACTION_REQUIRED"),
        (held(stopped_code="MESSAGES_LOST", stopped_from=3, stopped_to=9), "MESSAGES_LOST", "ACTION_REQUIRED"),
        (held(stopped_code="CRASH_LOOP", stopped_from=10, abandoned=5), "CRASH_LOOP", "ACTION_REQUIRED"),
        (replace(held(), abandoned=2, suspect_offset=10), "CRASH_LOOP", "WATCH"),
        (facts(None, connected=0), "NO_MEMBER", "ACTION_REQUIRED"),
        (facts(None, connected=0, lag=0), "NO_MEMBER", "WATCH"),
        (facts(None, connected=0, broker_up_s=9.9), "NO_MEMBER", "WATCH"),
        (facts(None, connected=0, broker_up_s=10.0), "NO_MEMBER", "ACTION_REQUIRED"),
        (facts(connected=0, in_grace=True, broker_up_s=1.0), "NO_MEMBER", "WATCH"),
        (facts(None, connected=0, silenced=SILENT), "MEMBER_SILENT", "ACTION_REQUIRED"),
        (facts(None, connected=0, silenced=SILENT, lag=0), "MEMBER_SILENT", "WATCH"),
        (facts(None, connected=0, silenced=SILENT._replace(answers=True)), "WAITING_FOR_LOCK", "WATCH"),
        (facts(None, silenced=SILENT), "WAITING_FOR_LOCK", "WATCH"),  # the others share it out
        (facts(None, silenced=SILENT, strategy="config"), "MEMBER_SILENT", "ACTION_REQUIRED"),
        (facts(None, silenced=SILENT, model="assigned"), "MEMBER_SILENT", "ACTION_REQUIRED"),
        (facts(None, subscribed=False), "NOT_SUBSCRIBED", "WATCH"),
        (facts(None, subscribed=False, lag=0), "NOT_SUBSCRIBED", "OK"),
        (facts(None, model="assigned"), "NOT_ALLOCATED", "ACTION_REQUIRED"),
        (facts(None, strategy="config"), "NOT_ALLOCATED", "ACTION_REQUIRED"),
        (facts(None, strategy="machine_room", lag=0), "NOT_ALLOCATED", "WATCH"),
        (facts(None), "WAITING_FOR_LOCK", "WATCH"),
        (facts(None, strategy="consistent_hash"), "WAITING_FOR_LOCK", "WATCH"),
        (facts(in_grace=True), "WAITING_FOR_LOCK", "WATCH"),
        (facts(answers=False), "MEMBER_SILENT", "ACTION_REQUIRED"),
        (facts(answers=False, lag=0), "MEMBER_SILENT", "WATCH"),
        (facts(), "WAITING_FOR_LOCK", "WATCH"),
        (held(dropped=True), "WAITING_FOR_LOCK", "WATCH"),
        (held(dropped=True, called_for_s=59.9), "WAITING_FOR_LOCK", "WATCH"),
        (held(dropped=True, called_for_s=60.0), "WAITING_FOR_LOCK", "ACTION_REQUIRED"),
        (held(lost=True), "WAITING_FOR_LOCK", "WATCH"),
        (held(paused=True), "PAUSED", "ACTION_REQUIRED"),
        (replace(held(paused=True), lag=0), "PAUSED", "WATCH"),
        (replace(held(), lag=0), "NO_NEW_MESSAGES", "OK"),
        (held(head_offset=15), "NO_NEW_MESSAGES", "OK"),
        (held(head_offset=14), "STANDING_STILL", "WATCH"),
        (held(called_for_s=5.0), "CONSUMING", "OK"),
        (held(called_for_s=5.1), "LISTENER_RUNNING", "WATCH"),
        (held(called_for_s=59.9), "LISTENER_RUNNING", "WATCH"),
        (held(called_for_s=60.0), "LISTENER_RUNNING", "ACTION_REQUIRED"),
        (held(called_for_s=20.0, consume_timeout_s=20.0), "LISTENER_RUNNING", "ACTION_REQUIRED"),
        (held(attempt=2), "RETRYING", "WATCH"),
        (held(attempt=3), "RETRYING", "WATCH"),
        (held(attempt=4), "RETRYING", "ACTION_REQUIRED"),
        (replace(held(), attempts=3, retry_offset=10), "RETRYING", "ACTION_REQUIRED"),
        (replace(held(), attempts=3, retry_offset=9), "STANDING_STILL", "WATCH"),
        (watched(1), "CONSUMING", "OK"),
        (watched(0), "STANDING_STILL", "WATCH"),
        (watched(0, called_for_s=2.0), "CONSUMING", "OK"),
        (held(polled_ago_s=5.0), "STANDING_STILL", "WATCH"),
        (held(polled_ago_s=5.1), "NOT_POLLED", "WATCH"),
        (held(polled_ago_s=60.0), "NOT_POLLED", "ACTION_REQUIRED"),
        (held(loop_lag_s=1.0), "STANDING_STILL", "WATCH"),
        (held(loop_lag_s=1.1), "LOOP_LATE", "ACTION_REQUIRED"),
        (held(flow_control="full"), "FLOW_CONTROL", "WATCH"),
        (held(slots_busy=True, cached_messages=1), "SLOTS_BUSY", "WATCH"),
        (facts(reported_all=False, moved=3, watched_s=1.0), "CONSUMING", "OK"),
        (facts(reported_all=False, moved=0, watched_s=1.0), "STANDING_STILL", "WATCH"),
    ],
)
def test_reason_and_urgency(of: QueueFacts, reason: str, urgency: str) -> None:
    assert found(of) == (reason, urgency)


def test_who_waits_for_the_lock_of_whom_and_for_how_long_is_told() -> None:
    grace = explain(facts(in_grace=True, lease_left_s=3.2, waiting=(OTHER,)))
    leaving = explain(replace(held(dropped=True, called_for_s=8.0), waiting=(OTHER,)))
    reset = explain(facts(says=report(epoch=EPOCH - 1, dropped=True, called_for_s=8.0)))

    assert (
        grace.sentence == f"its owner {OWNER} lost its connection; if it is not back in 3.2 s, {OTHER} gets the lock."
    )
    assert leaving.sentence == (
        f"{OWNER} gives it up when its running call ends, which began 8.0 s ago; {OTHER} waits for the lock."
    )
    assert reset.sentence.startswith(f"{OWNER} lost it by a reset of the offset when its running call ends")


def test_a_stopped_queue_goes_on_by_a_command_that_can_be_copied() -> None:
    lost = explain(held(stopped_code="MESSAGES_LOST", stopped_from=3, stopped_to=9))
    before = explain(held(stopped_code="DAMAGED", stopped_from=12, stopped_to=12, cached_messages=2))
    crash = explain(held(stopped_code="CRASH_LOOP", stopped_from=10, stopped_to=10, abandoned=5))

    assert lost.advice.startswith(f"to continue after that: {RESET} 10`.")
    assert f"when those before are done, to continue after that: {RESET} 13`." in before.advice
    assert f"then try again: {RESET} 10`, or skip it: --to 11." in crash.advice
    assert "`rmq-admin message get 00ff`" in crash.advice


def test_a_broadcasting_member_has_no_progress_to_reset_and_no_lock_to_wait_for() -> None:
    alone = {"model": "broadcasting", "epoch": 0, "lease_left_s": None}
    stopped = explain(facts(says=report(epoch=0, stopped_code="DAMAGED", stopped_from=3, stopped_to=9), **alone))
    away = explain(facts(in_grace=True, **alone))
    silent = explain(facts(answers=False, **alone))

    assert "reset-offset" not in stopped.advice
    assert 'on_gap = "skip"' in stopped.advice
    assert (away.reason.value, away.sentence) == (
        "MEMBER_SILENT", f"{OWNER} lost its connection; it goes on when it is back.",
    )  # fmt: skip
    assert "Its lock" not in silent.sentence


def test_a_member_that_lost_its_queues_by_silence_is_named_with_how_long_and_where_to_look() -> None:
    alone = explain(facts(None, connected=0, silenced=SILENT))
    among = explain(facts(None, silenced=SILENT, strategy="config"))

    assert alone.sentence == (
        f"{OTHER} is connected, but has been silent for 75 s and lost its queues; the group has no other member. "
        "Its event loop is blocked, or it is stopped, or its machine is gone."
    )
    assert alone.advice == (
        "see where it is (on pay-2: `py-spy dump --pid 52`, or loop.blocked in its log); "
        "a listener that blocks must be a plain def. Restart it if need be."
    )
    assert "lost its queues; no other member gets this queue." in among.sentence


def test_what_retention_took_from_a_group_that_is_away_is_told() -> None:
    story = explain(facts(None, connected=0, min_offset=12))

    assert story.sentence == "the group 'g' has no members. Retention has removed messages 10 to 11 meanwhile."


def test_a_member_of_another_version_may_stop_for_a_reason_that_is_not_known_here() -> None:
    assert found(held(stopped_code="NEWER")) == ("STANDING_STILL", "ACTION_REQUIRED")


def test_that_nobody_is_back_from_a_restart_of_the_broker_is_told_as_that() -> None:
    story = explain(facts(connected=0, in_grace=True, broker_up_s=1.0))

    assert story.sentence == "the broker started 1.0 s ago, and no member of the group is back yet."
    assert story.advice == "ask again in 10 s; if it stays so, start a consumer of this group."


@pytest.mark.parametrize(
    ("of", "sentence"),
    [
        (watched(1240), "1,240 messages/s; at this rate it is through in 0.0 s."),
        (replace(watched(2), lag=500), "2.0 messages/s; at this rate it is through in 4 min 10 s."),
        (held(called_for_s=1.5), "message 10 is with the listener for 1.5 s."),
        (
            held(called_for_s=900.0),
            "the listener has had message 10 for 15 min 00 s, longer than consume_timeout_s (15 min 00 s).",
        ),
        (held(called_for_s=8.0, attempt=2), "the listener has had message 10 for 8.0 s; it is delivery 2."),
        (
            held(called_for_s=8.0, flow_control="1001 messages are held"),
            "the listener has had message 10 for 8.0 s. Nothing more is fetched meanwhile: 1001 messages are held.",
        ),
        (held(called_for_s=70.0, polled_ago_s=70.0), "the program has had message 10 for 70 s."),
        (held(attempt=2, called_for_s=0.1), "message 10 failed once; delivery 2 is being tried now."),
        (held(attempt=2), "message 10 failed once; delivery 2 comes next."),
        (
            held(attempt=3, retry_in_s=2.0, last_error="E: no.", failed_offset=10),
            "message 10 failed 2 times; delivery 3 comes in 2.0 s. The error: E: no.",
        ),
        (
            held(attempt=3, last_error="E: of another", failed_offset=9),
            "message 10 failed 2 times; delivery 3 comes next.",
        ),
        (replace(held(), lag=0, expression="a || b"), "all messages are done (of those with the tags a || b)."),
        (
            replace(held(), lag=0, deferred=DeferredMessages(1, 9.0)),
            "all messages are done; 1 message waits for its delivery time, the next in 9.0 s.",
        ),
        (
            replace(held(), lag=0, deferred=DeferredMessages(2, 9.0, True), topic="%RETRY%g"),
            "2+ messages wait for another try after a failure, the next in 9.0 s.",
        ),
        (held(polled_ago_s=7.0), f"the program {OWNER} has not polled for 7.0 s."),
        (watched(0), "messages wait and nothing moved within 1.0 s, for no reason that can be seen from here."),
    ],
)  # fmt: skip
def test_sentences(of: QueueFacts, sentence: str) -> None:
    assert explain(of).sentence == sentence


def test_a_failing_message_is_skipped_by_a_command_that_can_be_copied() -> None:
    ordered = explain(held(attempt=3))
    broadcast = explain(facts(says=report(epoch=0, attempt=3), model="broadcasting", epoch=0))

    assert ordered.advice == (
        "look at the message (`rmq-admin message get 00ff`) and fix the listener, or skip it: "
        "`rmq-admin group reset-offset g --topic t --queue 3 --to 11`; with max_attempts it would become a dead letter."
    )
    assert broadcast.advice.endswith("and fix the listener; with max_attempts it would be passed.")


def test_the_retries_of_a_group_are_not_retried_in_place() -> None:
    assert found(replace(held(attempt=3, called_for_s=1.0), topic="%RETRY%g")) == ("CONSUMING", "OK")


@pytest.mark.parametrize(
    ("attempt", "max_attempts", "end"),
    [
        (3, 5, "when delivery 5 fails it becomes a dead letter (max_attempts)."),
        (5, 5, "when delivery 5 fails it becomes a dead letter (max_attempts)."),
        (7, 5, "when delivery 7 fails it becomes a dead letter (max_attempts)."),  # the broker refused it before
        (3, None, "with max_attempts it would become a dead letter."),
    ],
)
def test_the_advice_tells_when_a_failing_message_is_given_up(attempt: int, max_attempts: int | None, end: str) -> None:
    assert explain(held(attempt=attempt, max_attempts=max_attempts)).advice.endswith(f"; {end}")


def test_a_broadcast_message_that_is_given_up_is_passed() -> None:
    broadcast = facts(says=report(epoch=0, attempt=3, max_attempts=4), model="broadcasting", epoch=0)

    assert explain(broadcast).advice.endswith("fix the listener; when delivery 4 fails it is passed (max_attempts).")


FULL = "the disk has 1 MiB free, 256 MiB are needed"


@pytest.mark.parametrize(
    "of",
    [
        replace(held(attempt=2, failed_offset=14, last_error="E: no"), ordered=False, refuses_sends=FULL),
        replace(held(attempt=2, failed_offset=10, last_error="E: no", max_attempts=1), refuses_sends=FULL),
    ],
)
def test_a_failed_message_whose_copy_is_refused_tells_that_first(of: QueueFacts) -> None:
    story = explain(of)

    assert found(of) == ("RETRYING", "ACTION_REQUIRED")
    assert story.sentence == (
        "message 10 failed once, and the broker refuses the copy of it that would let others pass: "
        "the disk has 1 MiB free, 256 MiB are needed. The error: E: no."
    )
    assert story.advice.startswith("fix that, and the queue continues by itself; look at the message (")


def test_a_failed_message_that_needs_no_copy_yet_is_told_as_ever_while_the_broker_refuses_sends() -> None:
    of = replace(held(attempt=2, max_attempts=3, retry_in_s=2.0), refuses_sends=FULL)

    assert explain(of).sentence == "message 10 failed once; delivery 2 comes in 2.0 s."


def test_a_message_that_a_concurrent_group_cannot_put_aside_is_not_to_be_skipped() -> None:
    story = explain(replace(held(attempt=2, retry_in_s=2.0), ordered=False))

    assert story.sentence == "message 10 failed once and could not be put aside; delivery 2 comes in 2.0 s."
    assert story.advice.startswith(f"see why in the log of {OWNER} (send_back.refused); look at the message (")


def overtaken(**says: object) -> QueueFacts:
    """Message 11 is the next one, those up to 13 are held by the owner, and the log begins at 20."""
    says = {"head_offset": 11, "end_offset": 14, "cached_messages": 3, **says}
    return replace(held(**says), committed=10, min_offset=20, max_offset=25)


def test_what_the_owner_still_holds_of_removed_messages_is_where_the_queue_is() -> None:
    assert overtaken().head_offset == 11
    assert replace(overtaken(), report=None).head_offset == 20
    assert replace(overtaken(), committed=-1).head_offset == 20
    assert overtaken(cached_messages=0).head_offset == 20


def test_messages_that_retention_removes_before_they_are_fetched_are_told_while_the_queue_still_moves() -> None:
    of = replace(overtaken(), moved=5, watched_s=1.0)

    assert found(of) == ("MESSAGES_LOST", "ACTION_REQUIRED")
    assert explain(of).sentence.startswith("retention removed messages 14 to 19 before the group got to them; ")
    assert explain(of).advice.endswith("`rmq-admin group reset-offset g --topic t --queue 3 --to 20`.")
    assert found(replace(of, min_offset=14)) == ("CONSUMING", "OK"), "all that was removed is held"


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({"paused": True}, "PAUSED"),
        ({"called_for_s": 70.0}, "LISTENER_RUNNING"),
        ({"attempt": 2, "retry_in_s": 1.0}, "RETRYING"),
    ],
)
def test_what_keeps_a_queue_is_told_before_the_loss_that_comes_of_it(says: dict[str, object], reason: str) -> None:
    story = explain(overtaken(**says))

    assert story.reason.value == reason
    assert story.sentence.endswith(" Retention has removed messages 14 to 19 meanwhile.")


FILTERED = {"left_out": 1234}


def filtered(expression: str = "piad", **more: object) -> QueueFacts:
    """A queue of which the filter has left out everything that was read."""
    return replace(held(head_offset=15, **FILTERED), **{"lag": 0, "expression": expression, **more})


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (filtered(), "FILTER_MATCHES_NOTHING"),
        (filtered(report=report(head_offset=15)), "NO_NEW_MESSAGES"),
        (filtered(selected=1), "NO_NEW_MESSAGES"),
        (filtered(has_past=True, left_out=99), "NO_NEW_MESSAGES"),
        (filtered(has_past=True, left_out=100), "FILTER_MATCHES_NOTHING"),
        (filtered("*"), "NO_NEW_MESSAGES"),
        (filtered(reported_all=False), "NO_NEW_MESSAGES"),
        (filtered(report=report(paused=True, **FILTERED)), "PAUSED"),
        (filtered(report=report(stopped_code="DAMAGED", **FILTERED)), "DAMAGED"),
        (filtered(report=report(**FILTERED), lag=5), "FILTER_MATCHES_NOTHING"),
        (filtered(report=report(**FILTERED), lag=5, moved=5, watched_s=1.0), "FILTER_MATCHES_NOTHING"),
        (filtered(report=report(loop_lag_s=9.0, **FILTERED), lag=5), "LOOP_LATE"),
        (filtered(report=report(end_offset=10, **FILTERED), lag=3, min_offset=12), "MESSAGES_LOST"),
        (filtered(report=report(), lag=5), "STANDING_STILL"),
    ],
    ids=[
        "messages were read past and none matched", "a queue that is only empty is well",
        "another queue of the topic had a match", "of earlier messages some may have matched",
        "many without a match are worth a look", "a subscription to everything has no filter",
        "an owner that does not tell of all its queues may have had a match", "a pause comes first",
        "and so does damage", "messages wait in a pull that has not ended", "it reads past more and more",
        "a loop that is late comes first", "and so do lost messages", "nothing was read past yet",
    ],
)  # fmt: skip
def test_a_filter_that_matched_nothing_is_a_reason_where_nothing_else_is_wrong(of: QueueFacts, reason: str) -> None:
    assert found(of)[0] == reason


@pytest.mark.parametrize(
    ("newest", "told_of_it"),
    [(None, ""), ("", " The newest has no tag."), ("paid", " The newest has the tag 'paid'.")],
)
def test_a_filter_that_matched_nothing_is_named_with_how_many_it_left_out(newest: str | None, told_of_it: str) -> None:
    story = explain(filtered(newest_tag=newest))

    assert story.urgency.name == "WATCH"
    assert story.sentence == (
        "the tag filter 'piad' has matched no message of the topic since the members have their queues; "
        f"{OWNER} read past 1,234 messages here.{told_of_it}"
    )
    assert "`rmq-admin message tail t`" in story.advice
    assert "read past 1 message here." in explain(filtered(report=report(head_offset=15, left_out=1))).sentence


def test_why_a_filtered_queue_may_stand_still_is_told() -> None:
    assert explain(filtered(report=report(), lag=5)).sentence.endswith(
        "A member reads past messages that its tag filter leaves out every 15 s (pull_wait_s)."
    )
