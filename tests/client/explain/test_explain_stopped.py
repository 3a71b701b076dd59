"""What is said of queues that nobody works on, word by word where people copy it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq.client.explain.facts import QueueFacts
from rmq.client.explain.rules import explain

from ..explain_builders import EPOCH, OTHER, OWNER, SILENT, facts, found, held, told

RESET = "`rmq-admin group reset-offset g --topic t --queue 3 --to"


@pytest.mark.parametrize(
    ("of", "reason", "urgency"),
    [
        (held(stopped_code="DAMAGED", stopped_from=10, stopped_to=10), "DAMAGED", "ACT"),
        (held(stopped_code="MESSAGES_LOST", stopped_from=3, stopped_to=9), "MESSAGES_LOST", "ACT"),
        (held(stopped_code="CRASH_LOOP", stopped_from=10, abandoned=5), "CRASH_LOOP", "ACT"),
        (replace(held(), abandoned=2, suspect_offset=10), "CRASH_LOOP", "WATCH"),
        (facts(None, connected=0), "NO_MEMBER", "ACT"),
        (facts(None, connected=0, lag=0), "NO_MEMBER", "WATCH"),
        (facts(None, connected=0, broker_up_s=9.9), "NO_MEMBER", "WATCH"),
        (facts(None, connected=0, broker_up_s=10.0), "NO_MEMBER", "ACT"),
        (facts(connected=0, in_grace=True, broker_up_s=1.0), "NO_MEMBER", "WATCH"),
        (facts(None, connected=0, silenced=SILENT), "MEMBER_SILENT", "ACT"),
        (facts(None, connected=0, silenced=SILENT, lag=0), "MEMBER_SILENT", "WATCH"),
        (facts(None, connected=0, silenced=SILENT._replace(answers=True)), "WAITING_FOR_LOCK", "WATCH"),
        (facts(None, silenced=SILENT), "WAITING_FOR_LOCK", "WATCH"),  # the others share it out
        (facts(None, silenced=SILENT, strategy="config"), "MEMBER_SILENT", "ACT"),
        (facts(None, silenced=SILENT, model="assigned"), "MEMBER_SILENT", "ACT"),
        (facts(None, subscribed=False), "NOT_SUBSCRIBED", "WATCH"),
        (facts(None, subscribed=False, lag=0), "NOT_SUBSCRIBED", "WELL"),
        (facts(None, model="assigned"), "NOT_ALLOCATED", "ACT"),
        (facts(None, strategy="config"), "NOT_ALLOCATED", "ACT"),
        (facts(None, strategy="machine_room", lag=0), "NOT_ALLOCATED", "WATCH"),
        (facts(None), "WAITING_FOR_LOCK", "WATCH"),
        (facts(None, strategy="consistent_hash"), "WAITING_FOR_LOCK", "WATCH"),
        (facts(in_grace=True), "WAITING_FOR_LOCK", "WATCH"),
        (facts(answers=False), "MEMBER_SILENT", "ACT"),
        (facts(answers=False, lag=0), "MEMBER_SILENT", "WATCH"),
        (facts(), "WAITING_FOR_LOCK", "WATCH"),
        (held(dropped=True), "WAITING_FOR_LOCK", "WATCH"),
        (held(dropped=True, called_for_s=59.9), "WAITING_FOR_LOCK", "WATCH"),
        (held(dropped=True, called_for_s=60.0), "WAITING_FOR_LOCK", "ACT"),
        (held(lost=True), "WAITING_FOR_LOCK", "WATCH"),
    ],
)
def test_reason_and_urgency(of: QueueFacts, reason: str, urgency: str) -> None:
    assert found(of) == (reason, urgency)


def test_who_waits_for_the_lock_of_whom_and_for_how_long_is_told() -> None:
    grace = explain(facts(in_grace=True, lease_left_s=3.2, waiting=(OTHER,)))
    leaving = explain(replace(held(dropped=True, called_for_s=8.0), waiting=(OTHER,)))
    reset = explain(facts(says=told(epoch=EPOCH - 1, dropped=True, called_for_s=8.0)))

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

    assert lost.advice.startswith(f"to go on behind that: {RESET} 10`.")
    assert f"when those before are done, to go on behind that: {RESET} 13`." in before.advice
    assert f"then try again: {RESET} 10`, or skip it: --to 11." in crash.advice
    assert "`rmq-admin message get 00ff`" in crash.advice


def test_a_broadcasting_member_has_no_progress_to_reset_and_no_lock_to_wait_for() -> None:
    alone = {"model": "broadcasting", "epoch": 0, "lease_left_s": None}
    stopped = explain(facts(says=told(epoch=0, stopped_code="DAMAGED", stopped_from=3, stopped_to=9), **alone))
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
        f"{OTHER} is connected, but has been silent for 75 s and lost its queues; nobody else is in the group. "
        "Its event loop is blocked, or it is stopped, or its machine is gone."
    )
    assert alone.advice == (
        "see where it is (on pay-2: `py-spy dump --pid 52`, or loop.blocked in its log); "
        "a listener that blocks must be a plain def. Restart it if need be."
    )
    assert "lost its queues; no other member gets this queue." in among.sentence


def test_what_retention_took_from_a_group_that_is_away_is_told() -> None:
    story = explain(facts(None, connected=0, min_offset=12))

    assert story.sentence == "nobody is in the group 'g'. Retention has removed messages 10 to 11 meanwhile."


def test_a_member_of_another_version_may_stop_for_a_reason_that_is_not_known_here() -> None:
    assert found(held(stopped_code="NEWER")) == ("STANDING_STILL", "ACT")


def test_that_nobody_is_back_from_a_restart_of_the_broker_is_told_as_that() -> None:
    story = explain(facts(connected=0, in_grace=True, broker_up_s=1.0))

    assert story.sentence == "the broker started 1.0 s ago, and no member of the group is back yet."
    assert story.advice == "ask again in 10 s; if it stays so, start a consumer of this group."
