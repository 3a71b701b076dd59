"""Each state of a group, made with the real broker and real consumers: the reason, the sentence, and what to do."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from rmq.cli.admin.explain import text as printed
from rmq.client import Admin, Explanation, Reason, Urgency
from rmq.wire.errors import GroupNotFound, TopicNotFound
from rmq.wire.model import MessageQueue

import rigs.explain.stuck_groups  # noqa: F401  # enters the causes
from rigs.explain.staging import CAUSES, GROUP, explained, scene

pytestmark = pytest.mark.virtual_time

ACT, WATCH, WELL = Urgency.ACTION_REQUIRED, Urgency.WATCH, Urgency.OK
ID = "[0-9a-f]{32}"
PAY_1, PAY_2 = "pay-1@4711#[0-9a-f]{8}", "pay-2@52#[0-9a-f]{8}"
RESET = "`rmq-admin group reset-offset billing --topic orders --queue 0 --to"
LOOK = f"look at the message \\(`rmq-admin message get {ID}`\\)"

# The worst queue of each cause: where, why, how urgent, and patterns of the sentence and of what to do.
WORST: dict[str, tuple[str, Reason, Urgency, str, str]] = {
    "no_new_messages": ("orders/0", Reason.NO_NEW_MESSAGES, WELL, r"all messages are done\.", ""),
    "no_new_messages_but_delayed_ones": (
        "orders/0", Reason.NO_NEW_MESSAGES, WELL,
        r"all messages are done; 3 messages wait for their delivery time, the next in 60 s\.", "",
    ),
    "consuming": (
        "orders/0", Reason.CONSUMING, WELL,
        r"(9\.0|10\.0|10) messages/s; at this rate it is through in (8|9)\.\d s\.", "",
    ),
    "no_new_messages_for_who_pulls": (
        "orders/0", Reason.NO_NEW_MESSAGES, WELL,
        r"all messages are done; the last 5 are not committed yet\.", "",
    ),
    "no_member": (
        "orders/0", Reason.NO_MEMBER, ACT,
        r"the group 'billing' has no members\.", "start a consumer of this group; .*",
    ),
    "no_member_in_its_grace": (
        "orders/0", Reason.NO_MEMBER, ACT,
        rf"its owner {PAY_1} lost its connection, has \d\.\d s to come back, and the group has no other member\.",
        "see why that process ended, and start a consumer of this group.",
    ),
    "no_member_after_the_start_of_the_broker": (
        "orders/0", Reason.NO_MEMBER, WATCH,
        r"the broker started \d\.\d s ago, and no member of the group is back yet\.", "ask again in 10 s; .*",
    ),
    "not_polled_for_so_long_that_it_left": (
        "orders/0", Reason.NO_MEMBER, ACT,
        "the group .* has no members.*", r".* does not poll has left it \(poll\.overdue .*",
    ),
    "no_member_and_messages_lost": (
        "orders/0", Reason.NO_MEMBER, ACT,
        r"the group 'billing' has no members. Retention has removed messages 2 to \d+ meanwhile\.",
        "start a consumer.*",
    ),
    "not_subscribed": (
        "orders/0", Reason.NOT_SUBSCRIBED, WATCH,
        "the group has progress here, but none of its members subscribes to 'orders' any more.", "if .*again.*",
    ),
    "not_allocated": (
        "orders/1", Reason.NOT_ALLOCATED, ACT,
        "the strategy 'config' gives it to none of the members that are there.", "start a member that gets it .*",
    ),
    "not_assigned": (
        "orders/0", Reason.NOT_ALLOCATED, ACT, "members of this group are assigned .* none was given this one.",
        "assign it to a consumer.",
    ),
    "waiting_for_a_lock_in_grace": (
        "orders/0", Reason.WAITING_FOR_LOCK, WATCH,
        rf"its owner {PAY_1} lost its connection; if it is not back in \d\.\d s, another member gets the lock\.",
        "wait; see why that process ended or cannot reach the broker.",
    ),
    "waiting_for_a_lock_of_a_running_call": (
        "orders/1", Reason.WAITING_FOR_LOCK, WATCH,
        rf"{PAY_1} gives it up when its running call ends, which began \d\.\d s ago; {PAY_2} waits for the lock\.",
        "wait for the call; if it never ends, restart that process: .*",
    ),
    "member_silent": (
        "orders/0", Reason.MEMBER_SILENT, ACT,
        rf"{PAY_1} is connected but does not answer: .* Its lock is free in \d+ s if it is not renewed\.",
        r"see where it is \(on pay-1: `py-spy dump --pid 4711`, or loop\.blocked in its log\); .*",
    ),
    "member_silent_for_so_long_that_it_lost_its_queues": (
        "orders/0", Reason.MEMBER_SILENT, ACT,
        rf"{PAY_1} is connected, but has been silent for 7\d s and lost its queues; the group has no other member\. "
        r"Its event loop is blocked, or it is stopped, or its machine is gone\.",
        r"see where it is \(on pay-1: `py-spy dump --pid 4711`, or loop\.blocked in its log\); .* a plain def\. .*",
    ),
    "member_silent_while_others_go_on": ("orders/0", Reason.NO_NEW_MESSAGES, WELL, r"all messages are done\.", ""),
    "other_history": (
        "orders/0", Reason.OTHER_HISTORY, ACT,
        rf"the store is a copy, and messages 2 to 4 of it are others than those that {PAY_1} has read\. It stopped\.",
        r"to continue at 2: `rmq-admin broker accept-history`\. .*",
    ),
    "crash_loop": (
        "orders/0", Reason.CRASH_LOOP, ACT,
        "5 owners in a row were lost while they processed message 3. The queue stopped there.",
        f"{LOOK} and fix the listener; then try again: {RESET} 3`, or skip it: --to 4. .*",
    ),
    "crash_loop_that_is_not_over": (
        "orders/0", Reason.CRASH_LOOP, ACT,
        "2 owners in a row were lost while they processed message 3, and no member has taken it since.",
        rf"see why they ended .*, and {LOOK}; then start a consumer\.",
    ),
    "messages_lost": (
        "orders/0", Reason.MESSAGES_LOST, ACT,
        r"retention removed messages 2 to \d+ before the group got to them\. The queue stopped there\.",
        rf"to continue after that: {RESET} \d+`\. Keep messages longer .*",
    ),
    "damaged": (
        "orders/0", Reason.DAMAGED, ACT,
        "message 4 cannot be read: a part of the log is damaged. The queue stopped there.",
        f"restore a backup .* to continue after that: {RESET} 5`.",
    ),
    "paused": (
        "orders/0", Reason.PAUSED, ACT, rf"the program {PAY_1} has paused it\.",
        r"have the program call resume\(\), or restart it\.",
    ),
    "retrying": (
        "orders/0", Reason.RETRYING, ACT,
        r"message 2 failed 4 times; delivery 5 comes in \d\.\d s\. The error: LookupError: no such customer: 17\.",
        f"{LOOK} and fix the listener, or skip it: {RESET} 3`; with max_attempts it would become a dead letter.",
    ),
    "retrying_for_the_first_time": (
        "orders/0", Reason.RETRYING, WATCH, r"message 0 failed once; delivery 2 comes in 3\.5 s\. .*", f"{LOOK} and .*",
    ),
    "retrying_concurrently": (
        "%RETRY%billing/0", Reason.RETRYING, WATCH,
        r"2 messages wait for another try after a failure, the next in 8\.5 s\. The error: LookupError: .* 17\.",
        r"look at them \(`rmq-admin delay list --topic '%RETRY%billing'`\) .*",
    ),
    "listener_running": (
        "orders/0", Reason.LISTENER_RUNNING, ACT, r"the listener has had message 0 for 70 s\.",
        rf"see what it waits for \(on pay-1: `py-spy dump --pid 4711`\) and {LOOK}; suspicious from 60 s on\.",
    ),
    "listener_running_for_a_while": (
        "orders/0", Reason.LISTENER_RUNNING, WATCH, r"the listener has had message 0 for 10 s\.", "see what .*",
    ),
    "batch_in_hand": (
        "orders/0", Reason.LISTENER_RUNNING, ACT, r"the program has had message 0 for 70 s\.", "see what it waits .*",
    ),
    "not_polled": (
        "orders/0", Reason.NOT_POLLED, WATCH, rf"the program {PAY_1} has not polled for 2\d s\.",
        r"see what keeps it from calling poll\(\); after 15 min 00 s its queues go to others\.",
    ),
    "slots_busy": (
        "orders/1", Reason.SLOTS_BUSY, WATCH, f"it waits for its turn: all slots of {PAY_1} are taken by .*",
        "see which calls take long; give the consumer more slots, .*",
    ),
    "loop_late": (
        "orders/0", Reason.LOOP_LATE, ACT, rf"the event loop of {PAY_1} is late by \d+(\.\d)? s: something there .*",
        "a listener that blocks must be a plain def, which runs in a thread.",
    ),
    "filter_matches_nothing": (
        "orders/0", Reason.FILTER_MATCHES_NOTHING, WATCH,
        r"the tag filter 'piad \|\| refunded' has matched no message of the topic since the members have their queues; "
        rf"{PAY_1} read past 3 messages here\. The newest has the tag 'paid'\.",
        r"compare it with the tags that are sent: `rmq-admin message tail orders`\. .*",
    ),
    "flow_control": (
        "orders/0", Reason.FLOW_CONTROL, WATCH,
        rf"{PAY_1} fetches no more .*, and finished none in 1\.0 s: \d+ messages are held, more than 20\.",
        "the listener is the bottleneck: .*",
    ),
    "idle_members_and_dead_letters": ("orders/0", Reason.NO_NEW_MESSAGES, WELL, r"all messages are done\.", ""),
    "sends_refused": ("orders/0", Reason.NO_NEW_MESSAGES, WELL, r"all messages are done\.", ""),
    "broadcasting": (
        "orders/0", Reason.RETRYING, ACT, "message 2 failed 4 times; delivery 5 comes .*LookupError.*",
        f"{LOOK} and fix the listener; with max_attempts it would be passed.",
    ),
}  # fmt: skip


TOLD: dict[str, Explanation] = {}


async def told_of(cause: str) -> Explanation:
    """What is said of a cause, which is brought about once."""
    if cause not in TOLD:
        TOLD[cause] = await explained(cause)
    return TOLD[cause]


def test_each_cause_is_told_apart_and_each_reason_is_caused() -> None:
    assert set(WORST) == set(CAUSES)
    assert {reason for _, reason, *_ in WORST.values()} == set(Reason) - {Reason.STANDING_STILL}


@pytest.mark.parametrize("cause", WORST)
async def test_the_worst_queue_of_a_group_is_told_first_with_what_to_do(cause: str) -> None:
    queue, reason, urgency, sentence, advice = WORST[cause]

    told = await told_of(cause)

    worst = told.queues[0]
    assert (f"{worst.topic}/{worst.queue_id}", worst.reason, worst.urgency) == (queue, reason, urgency)
    assert re.fullmatch(sentence, worst.sentence), worst.sentence
    assert re.fullmatch(advice, worst.advice), worst.advice
    assert told.requires_action is (urgency is ACT)


async def test_a_failing_queue_is_told_with_its_owner_lock_and_head() -> None:
    worst = (await told_of("retrying")).queues[0]

    assert (worst.head_offset, worst.attempt, worst.lag) == (2, 5, 4)
    assert worst.head_id is not None
    assert worst.owner is not None
    assert worst.epoch is not None
    assert worst.lease_left_s == pytest.approx(52.5, abs=10.0)
    assert worst.head_age_s == pytest.approx(8.5, abs=0.1)
    assert worst.retry_in_s == pytest.approx(6.5, abs=0.1)


async def test_the_id_that_is_told_is_that_of_the_message() -> None:
    async with scene("retrying") as made, Admin(made.broker.address) as admin:
        worst = (await made.explain()).queues[0]
        assert worst.head_id is not None
        found = await admin.message(worst.head_id)

    assert (found.queue_offset, found.body) == (2, b"bad")


@pytest.mark.parametrize("cause", ["messages_lost", "damaged", "retrying", "crash_loop"])
async def test_a_queue_goes_on_behind_what_it_stands_at_when_the_command_that_is_told_was_run(cause: str) -> None:
    async with scene(cause) as made, Admin(made.broker.address) as admin:
        worst = (await made.explain()).queues[0]
        *_, advised = re.findall(r"--to (\d+)", worst.advice)  # the last one is that which skips
        await admin.reset_offsets(GROUP, {MessageQueue(worst.topic, worst.queue_id): int(advised)})
        await asyncio.sleep(30.0)
        told = await made.explain()

    assert {story.reason for story in told.queues} == {Reason.NO_NEW_MESSAGES}


@pytest.mark.parametrize(
    ("cause", "notes"),
    [
        ("idle_members_and_dead_letters", ["IDLE_MEMBERS", "DEAD_LETTERS"]),
        ("not_subscribed", ["TOPIC_MISSING"]),
        ("member_silent_while_others_go_on", ["MEMBER_SILENT"]),
        ("member_silent_for_so_long_that_it_lost_its_queues", []),
        ("no_new_messages_but_delayed_ones", ["DELAYED"]),
        ("broadcasting", ["BROADCASTING"]),
        ("sends_refused", ["SENDS_REFUSED"]),
        ("waiting_for_a_lock_of_a_running_call", []),
        ("retrying_concurrently", []),
    ],
)
async def test_what_is_about_no_single_queue_is_noted(cause: str, notes: list[str]) -> None:
    assert [note.code for note in (await told_of(cause)).notes] == notes


async def test_each_member_of_a_broadcasting_group_has_its_own_story() -> None:
    told = await told_of("broadcasting")

    assert [(story.owner or "")[:6] for story in told.queues] == ["pay-2@", "pay-1@", "pay-1@", "pay-2@"]
    assert [story.reason.value for story in told.queues] == ["RETRYING"] + ["NO_NEW_MESSAGES"] * 3


async def test_the_retries_of_a_concurrent_group_are_told_with_any_of_its_topics() -> None:
    async with scene("retrying_concurrently") as made:
        told = await made.explain(topic="orders")

    assert [(story.topic, story.reason.value) for story in told.queues] == [
        ("%RETRY%billing", "RETRYING"), ("orders", "NO_NEW_MESSAGES"), ("orders", "NO_NEW_MESSAGES"),
    ]  # fmt: skip


async def test_a_group_a_topic_or_a_pair_that_does_not_exist_is_refused_by_name() -> None:
    async with scene("no_new_messages") as made, Admin(made.broker.address) as admin:
        await admin.create_topic("invoices", 1)
        with pytest.raises(GroupNotFound, match="there is no group 'billings'"):
            await admin.explain("billings")
        with pytest.raises(TopicNotFound, match="there is no topic 'order'"):
            await admin.explain(GROUP, "order")
        with pytest.raises(TopicNotFound, match=r"'billing' has nothing to do with the topic 'invoices'.*orders"):
            await admin.explain(GROUP, "invoices")


async def test_a_group_without_lag_is_asked_once_and_one_that_moves_twice() -> None:
    loop_time = {}
    for cause in ("no_new_messages", "retrying", "consuming"):
        async with scene(cause) as made:
            began = asyncio.get_running_loop().time()
            await made.explain()
            loop_time[cause] = asyncio.get_running_loop().time() - began

    assert loop_time["no_new_messages"] < 0.5
    assert loop_time["retrying"] < 0.5
    assert 1.0 <= loop_time["consuming"] < 1.5


# ---- the page for people

PAGE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()


def plain(text: str) -> str:
    """The words alone: ids and numbers are others each time, and lines break elsewhere."""
    return " ".join(re.sub(r"[0-9a-f]{8,}|(?:\d[\d.,]*[a-z]*)+", "#", text).split())


def test_each_reason_has_its_place_on_the_page_in_the_order_of_the_reasons() -> None:
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == [reason.value for reason in Reason]


@pytest.mark.parametrize("cause", [name for name in WORST if name != "not_polled_for_so_long_that_it_left"])
async def test_the_page_shows_what_is_printed(cause: str) -> None:
    assert plain(printed(await told_of(cause))) in plain(PAGE), "see tests/scenarios/show_explain.py"
