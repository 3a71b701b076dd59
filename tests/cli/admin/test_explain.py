"""``rmq-admin explain``: what it prints for people and for programs, and how it ends."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from click.testing import CliRunner

from rmq.cli.admin.explain import json_text, naming_broker, text
from rmq.cli.rmq_produce import command as produce
from rmq.cli.shell import exit_codes
from rmq.client import Explanation, QueueStory, Reason, Urgency
from rmq.client.explain.notes import Note

from ..commands import admin
from rigs.processes import ConsumerProcess, Running

OWNER = "vm@16468#884f2d57"
RESET = "`rmq-admin group reset-offset billing --topic orders --queue 0 --to 3`"


def story(queue_id: int = 0, reason: str = "NO_NEW_MESSAGES", urgency: str = "OK", **more: Any) -> QueueStory:
    common: dict[str, Any] = dict.fromkeys(QueueStory._fields)
    common |= {"topic": "orders", "queue_id": queue_id, "sentence": "all messages are done.", "advice": "", "lag": 0}
    common |= {"attempt": 1, "owner": OWNER, "epoch": 4294967297, "lease_left_s": 57.1}
    return QueueStory(**{**common, "reason": Reason(reason), "urgency": Urgency[urgency], **more})


def told(*queues: QueueStory, notes: tuple[Note, ...] = (), **more: Any) -> Explanation:
    fields = {"group": "billing", "ordered": True, "model": "clustering", "strategy": "average", "members": 2, **more}
    return Explanation(**fields, queues=list(queues), notes=list(notes))


RETRYING = story(
    0, "RETRYING", "ACTION_REQUIRED", lag=3, head_offset=2, head_id="00ff", head_age_s=6.3, attempt=4, retry_in_s=3.1,
    sentence="message 2 failed 3 times; delivery 4 comes in 3.1 s. The error: ValueError: no such customer: 17.",
    advice=f"look at the message (`rmq-admin message get 00ff`) and fix the listener, or skip it: {RESET}.",
)  # fmt: skip


# ---- what is printed


def test_a_healthy_group_is_explained_in_one_line() -> None:
    assert text(told(*map(story, range(8)))) == (
        "billing: 8 queues, all well (ordered, 2 members, 0 messages wait)\n  8 NO_NEW_MESSAGES\n"
    )


def test_a_progressing_group_is_shown_with_its_rate() -> None:
    moving = [story(i, "CONSUMING", lag=600, per_s=float(60 + i * 60)) for i in range(2)]

    assert text(told(*moving, story(2))) == (
        "billing: 3 queues, all well (ordered, 2 members, 1,200 messages wait)\n"
        "  2 CONSUMING, 1 NO_NEW_MESSAGES (180 messages/s, through in 10.0s)\n"
    )


def test_a_queue_that_requires_action_is_followed_by_cause_and_advice() -> None:
    assert (
        text(told(RETRYING, story(1), story(2)))
        == f"""\
billing: 1 of 3 queues requires action (ordered, 2 members, 3 messages wait)

  QUEUE     REASON    WAIT  HEAD   AGE  TRY  NEXT  OWNER      LEFT
! orders/0  RETRYING     3     2  6.3s    4  3.1s  884f2d57  57.1s
     message 2 failed 3 times; delivery 4 comes in 3.1 s. The error: ValueError:
     no such customer: 17.
     do: look at the message (`rmq-admin message get 00ff`) and fix the
         listener, or skip it:
         {RESET}.

2 queues well: 2 NO_NEW_MESSAGES
"""
    )


def test_queues_that_are_alike_share_their_words_and_empty_columns_are_left_out() -> None:
    alone: dict[str, Any] = {"owner": None, "epoch": None, "lease_left_s": None, "sentence": "nobody.", "advice": "go."}
    queues = [story(i, "NO_MEMBER", "ACTION_REQUIRED" if i else "WATCH", lag=i, **alone) for i in (2, 1, 0)]

    assert (
        text(told(*queues, ordered=None, members=0))
        == """\
billing: 2 of 3 queues require action (0 members, 3 messages wait)

  QUEUE     REASON     WAIT
! orders/2  NO_MEMBER     2
! orders/1  NO_MEMBER     1
? orders/0  NO_MEMBER     -
     nobody.
     do: go.
"""
    )


def test_a_lock_that_does_not_fit_into_the_line_gets_its_own() -> None:
    shown = text(told(RETRYING._replace(topic="orders-of-the-whole-continent")))

    assert "  QUEUE                            REASON    WAIT  HEAD   AGE  TRY  NEXT\n" in shown
    assert "\n     held by 884f2d57, 57.1s left\n" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_queues_that_are_well_are_shown_one_by_one_if_that_is_wished() -> None:
    shown = text(told(RETRYING, story(1), story(2)), everything=True).splitlines()

    assert shown[-6:] == [
        "2 queues well: 2 NO_NEW_MESSAGES",
        "",
        "  QUEUE     REASON           OWNER      LEFT",
        "  orders/1  NO_NEW_MESSAGES  884f2d57  57.1s",
        "  orders/2  NO_NEW_MESSAGES  884f2d57  57.1s",
        "     all messages are done.",
    ]


def test_notes_come_last() -> None:
    notes = (Note("IDLE_MEMBERS", "1 of 2 members has no queue."), Note("DEAD_LETTERS", "2 wait.", "`rmq-admin x`."))

    assert text(told(story(), notes=notes)).endswith(
        "\nnote: 1 of 2 members has no queue.\nnote: 2 wait. `rmq-admin x`.\n"
    )


def test_a_group_to_watch_and_one_without_queues_say_so() -> None:
    watch = story(urgency="WATCH", reason="PAUSED")

    assert text(told(watch)).startswith("billing: 1 of 1 queue to watch (ordered, 2 members, 0 messages wait)\n")
    assert text(told(members=1)) == "billing: no queues (ordered, 1 member, 0 messages wait)\n"
    assert text(told(story(), model="broadcasting")).startswith("billing: 1 queue, all well (broadcasting, 2 members,")


def test_commands_and_numbers_with_their_unit_are_never_broken() -> None:
    for width in range(40, 100):
        shown = text(told(RETRYING), width=width)
        assert RESET in shown
        assert "3.1 s" in shown


def test_of_many_queues_with_one_reason_the_first_ten_are_shown_unless_all_are_asked_for() -> None:
    failing = [RETRYING._replace(queue_id=i, sentence=f"message {i} failed.") for i in range(40)]
    idle = [story(i, "RETRYING", "WATCH", sentence="waits.", lag=1) for i in range(40, 51)]

    shown = text(told(*failing, *idle))

    assert shown.count("! orders/") == shown.count("? orders/") == 10
    assert "! 30 more queues RETRYING (90 messages wait): --all shows them\n? orders/40" in shown
    assert shown.endswith("     waits.\n? 1 more queue RETRYING (1 message waits): --all shows them\n")
    assert text(told(*failing, *idle), everything=True).count(" orders/") == 51


def test_queues_that_are_left_out_are_counted_by_how_urgent_they_are() -> None:
    act = [story(i, "NO_MEMBER", "ACTION_REQUIRED", sentence="nobody.", lag=2) for i in range(12)]
    watch = [story(i, "NO_MEMBER", "WATCH", sentence="nobody.") for i in range(12, 24)]

    more = [line for line in text(told(*act, *watch)).splitlines() if "more" in line]

    assert more == [
        "! 2 more queues NO_MEMBER (4 messages wait): --all shows them",
        "? 2 more queues NO_MEMBER (0 messages wait): --all shows them",
    ]


def test_commands_go_to_the_broker_that_was_named() -> None:
    notes = (Note("DEAD_LETTERS", "2 wait.", "`rmq-admin dlq show billing` shows them."),)
    verify = story(
        1, "DAMAGED", "ACTION_REQUIRED", advice="(`rmq-admin broker verify-store DATA_DIR`), `py-spy dump --pid 7`."
    )

    shown = text(naming_broker(told(RETRYING, verify, notes=notes), "mq-2:10911"), width=200)

    assert f"{RESET[:-1]} --broker mq-2:10911`" in shown
    assert "`rmq-admin message get 00ff --broker mq-2:10911`" in shown
    assert "`rmq-admin dlq show billing --broker mq-2:10911`" in shown
    assert "`rmq-admin broker verify-store DATA_DIR`), `py-spy dump --pid 7`" in shown


def test_what_comes_from_elsewhere_cannot_command_the_terminal() -> None:
    nasty = RETRYING._replace(sentence="\x1b[2J boom\nnext", owner="x\x1b[31m#\x07\x07\x07")

    assert "\x1b" not in text(told(nasty))
    assert "\x07" not in text(told(nasty))


def test_json_is_one_object_with_all_that_is_known() -> None:
    shown = json.loads(json_text(told(RETRYING, notes=(Note("N", "n"),))))

    assert (shown["group"], shown["requires_action"], shown["urgency"]) == ("billing", True, "ACTION_REQUIRED")
    assert shown["queues"][0] == {
        **RETRYING._asdict(), "reason": "RETRYING", "urgency": "ACTION_REQUIRED", "epoch": "4294967297",
    }  # fmt: skip


# ---- how it ends


def test_help_has_examples_and_exit_codes() -> None:
    result = admin("explain", "--help")

    assert result.exit_code == 0
    assert "Examples:\n  rmq-admin explain billing\n" in result.stdout
    assert "Exit code 4 if a queue requires action, otherwise 0." in " ".join(result.stdout.split())


def test_an_unknown_group_or_topic_is_one_line(broker: str, topic: str) -> None:
    group = admin("explain", topic, "--broker", broker)
    name = admin("explain", "%bad%", "--broker", broker)

    assert (group.exit_code, group.stdout) == (exit_codes.NO_INPUT, "")
    assert group.stderr == f"rmq-admin: there is no group {topic!r}: `rmq-admin group list` shows those that exist\n"
    assert name.exit_code == exit_codes.USAGE


@pytest.mark.slow
def test_the_command_against_a_real_broker_and_a_real_member(broker: str, topic: str) -> None:
    def send(lines: str) -> None:
        sent = CliRunner().invoke(produce, ["--topic", topic, "--key", "k", "--broker", broker], input=lines)
        assert sent.exit_code == 0

    def run(code: int) -> list[str]:
        with Running("rmq.cli.rmq_admin", "explain", topic, topic, "--broker", broker) as process:
            assert process.wait() == code, process.errors
            return process.lines

    def is_well() -> bool:
        shown = json.loads(admin("explain", topic, "--json", "--broker", broker).stdout)
        return [(queue["reason"], queue["lag"]) for queue in shown["queues"]] == [("NO_NEW_MESSAGES", 0)] * 4

    send("one\ntwo\n")
    with ConsumerProcess(broker, topic, "--group", topic) as consumer:
        consumer.wait_for(lambda lines: len(lines) == 2, "the second message")
        assert any(is_well() for _ in range(100)), "its progress is told within 0.2 s"
        well = run(exit_codes.OK)
        consumer.process.send_signal(signal.SIGSTOP)
        send("three\n")
        silent = run(exit_codes.ATTENTION)

    assert well == [f"{topic}: 4 queues, all well (ordered, 1 member, 0 messages wait)", "  4 NO_NEW_MESSAGES"]
    assert silent[0] == f"{topic}: 1 of 4 queues requires action (ordered, 1 member, 1 message waits)"
    assert sum(" MEMBER_SILENT " in line for line in silent) == 4
    assert f"`py-spy dump --pid {consumer.process.pid}`" in " ".join(silent)
    missing = admin("explain", topic, "no-such", "--broker", broker)
    assert missing.exit_code == exit_codes.NO_INPUT
    assert missing.stderr.startswith("rmq-admin: there is no topic 'no-such': ")
