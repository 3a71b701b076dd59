"""What is said of queues whose owner works on them, with each limit at and beside its edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq.client.explain.facts import Delayed, QueueFacts
from rmq.client.explain.rules import explain

from ..explain_builders import OWNER, facts, found, held, told


def watched(moved: int | None, **says: object) -> QueueFacts:
    return replace(held(**says), moved=moved, watched_s=1.0)


@pytest.mark.parametrize(
    ("of", "reason", "urgency"),
    [
        (held(paused=True), "PAUSED", "ACT"),
        (replace(held(paused=True), lag=0), "PAUSED", "WATCH"),
        (replace(held(), lag=0), "NO_NEW_MESSAGES", "WELL"),
        (held(head_offset=15), "NO_NEW_MESSAGES", "WELL"),
        (held(head_offset=14), "STANDING_STILL", "WATCH"),
        (held(called_for_s=5.0), "CONSUMING", "WELL"),
        (held(called_for_s=5.1), "LISTENER_RUNNING", "WATCH"),
        (held(called_for_s=59.9), "LISTENER_RUNNING", "WATCH"),
        (held(called_for_s=60.0), "LISTENER_RUNNING", "ACT"),
        (held(called_for_s=20.0, consume_timeout_s=20.0), "LISTENER_RUNNING", "ACT"),
        (held(attempt=2), "RETRYING", "WATCH"),
        (held(attempt=3), "RETRYING", "WATCH"),
        (held(attempt=4), "RETRYING", "ACT"),
        (replace(held(), attempts=3, retry_offset=10), "RETRYING", "ACT"),
        (replace(held(), attempts=3, retry_offset=9), "STANDING_STILL", "WATCH"),
        (watched(1), "CONSUMING", "WELL"),
        (watched(0), "STANDING_STILL", "WATCH"),
        (watched(0, called_for_s=2.0), "CONSUMING", "WELL"),
        (held(polled_ago_s=5.0), "STANDING_STILL", "WATCH"),
        (held(polled_ago_s=5.1), "NOT_POLLED", "WATCH"),
        (held(polled_ago_s=60.0), "NOT_POLLED", "ACT"),
        (held(loop_lag_s=1.0), "STANDING_STILL", "WATCH"),
        (held(loop_lag_s=1.1), "LOOP_LATE", "ACT"),
        (held(flow_control="full"), "FLOW_CONTROL", "WATCH"),
        (held(slots_busy=True, cached_messages=1), "SLOTS_BUSY", "WATCH"),
        (facts(told_of_all=False, moved=3, watched_s=1.0), "CONSUMING", "WELL"),
        (facts(told_of_all=False, moved=0, watched_s=1.0), "STANDING_STILL", "WATCH"),
    ],
)
def test_reason_and_urgency(of: QueueFacts, reason: str, urgency: str) -> None:
    assert found(of) == (reason, urgency)


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
            replace(held(), lag=0, delayed=Delayed(1, 9.0)),
            "all messages are done; 1 message waits for its delivery time, the next in 9.0 s.",
        ),
        (
            replace(held(), lag=0, delayed=Delayed(2, 9.0, True), topic="%RETRY%g"),
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
    broadcast = explain(facts(says=told(epoch=0, attempt=3), model="broadcasting", epoch=0))

    assert ordered.advice == (
        "look at the message (`rmq-admin message get 00ff`) and mend the listener, or skip it: "
        "`rmq-admin group reset-offset g --topic t --queue 3 --to 11`; with max_attempts it would become a dead letter."
    )
    assert broadcast.advice.endswith("and mend the listener; with max_attempts it would be passed.")


def test_the_retries_of_a_group_are_not_retried_in_place() -> None:
    assert found(replace(held(attempt=3, called_for_s=1.0), topic="%RETRY%g")) == ("CONSUMING", "WELL")


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
    broadcast = facts(says=told(epoch=0, attempt=3, max_attempts=4), model="broadcasting", epoch=0)

    assert explain(broadcast).advice.endswith("mend the listener; when delivery 4 fails it is passed (max_attempts).")


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

    assert found(of) == ("RETRYING", "ACT")
    assert story.sentence == (
        "message 10 failed once, and the broker refuses the copy of it that would let others pass: "
        "the disk has 1 MiB free, 256 MiB are needed. The error: E: no."
    )
    assert story.advice.startswith("mend that, and it goes on by itself; look at the message (")


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
    assert replace(overtaken(), told=None).head_offset == 20
    assert replace(overtaken(), committed=-1).head_offset == 20
    assert overtaken(cached_messages=0).head_offset == 20


def test_messages_that_retention_removes_before_they_are_fetched_are_told_while_the_queue_still_moves() -> None:
    of = replace(overtaken(), moved=5, watched_s=1.0)

    assert found(of) == ("MESSAGES_LOST", "ACT")
    assert explain(of).sentence.startswith("retention removed messages 14 to 19 before the group got to them; ")
    assert explain(of).advice.endswith("`rmq-admin group reset-offset g --topic t --queue 3 --to 20`.")
    assert found(replace(of, min_offset=14)) == ("CONSUMING", "WELL"), "all that was removed is held"


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
        (filtered(told=told(head_offset=15)), "NO_NEW_MESSAGES"),
        (filtered(selected=1), "NO_NEW_MESSAGES"),
        (filtered(has_past=True, left_out=99), "NO_NEW_MESSAGES"),
        (filtered(has_past=True, left_out=100), "FILTER_MATCHES_NOTHING"),
        (filtered("*"), "NO_NEW_MESSAGES"),
        (filtered(told_of_all=False), "NO_NEW_MESSAGES"),
        (filtered(told=told(paused=True, **FILTERED)), "PAUSED"),
        (filtered(told=told(stopped_code="DAMAGED", **FILTERED)), "DAMAGED"),
        (filtered(told=told(**FILTERED), lag=5), "FILTER_MATCHES_NOTHING"),
        (filtered(told=told(**FILTERED), lag=5, moved=5, watched_s=1.0), "FILTER_MATCHES_NOTHING"),
        (filtered(told=told(loop_lag_s=9.0, **FILTERED), lag=5), "LOOP_LATE"),
        (filtered(told=told(end_offset=10, **FILTERED), lag=3, min_offset=12), "MESSAGES_LOST"),
        (filtered(told=told(), lag=5), "STANDING_STILL"),
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
    assert "read past 1 message here." in explain(filtered(told=told(head_offset=15, left_out=1))).sentence


def test_why_a_filtered_queue_may_stand_still_is_told() -> None:
    assert explain(filtered(told=told(), lag=5)).sentence.endswith(
        "A member reads past messages that its tag filter leaves out every 15 s (pull_wait_s)."
    )
