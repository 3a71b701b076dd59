"""``rmq-admin message trace``: what became of a message, from the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import timedelta

import pytest
from click.testing import Result

from rmq.cli.admin.trace import card_fields, copy_line, standing_lines, trace_object, trace_text
from rmq.cli.shell import exit_codes
from rmq.client import Message, Producer
from rmq.client.admin.trace import MessageCopy, Standing, Trace, origin_of
from rmq.wire.model import StoredMessage

from ..commands import admin
from rigs.dead_letters import bury
from rigs.stored import stored_message

SECOND = 1_000_000
MESSAGE = stored_message("orders", 2, 17, b"paid 12", position=80, at=SECOND, tag="paid")
PARKED = stored_message("orders", 2, position=40, at=SECOND, due_at=90 * SECOND)
DELIVERED = stored_message("orders", 2, 18, position=88, at=91 * SECOND, copy_of=40)
SAID = {"RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "2", "RMQ_ORIGIN_OFFSET": "17"}
RETRY = stored_message(
    "%RETRY%g", 0, 3, position=160, at=2 * SECOND, copy_of=80, properties={**SAID, "RMQ_ORIGIN_ID": MESSAGE.message_id}
)
NOW = MESSAGE.stored_at + timedelta(seconds=10)
STANDING = Standing("g", "past", 20, 0, True, "*", "host@7#ab12cd34", 5, 43.0, "held", 0, 0)
COPY = MessageCopy(
    "retry", "g", "%RETRY%g", 0, 3, RETRY.message_id, MESSAGE.message_id, RETRY.stored_at, None, 2, "past", None
)  # fmt: skip


def story(message: StoredMessage = MESSAGE, **more: object) -> Trace:
    return Trace(message, origin_of(message), False, None, None, [], [], [])._replace(**more)


def trace(*arguments: str) -> Result:
    return admin("message", "trace", *arguments)


def test_a_trace_for_people_is_a_card_groups_and_copies() -> None:
    text = trace_text(story(standings=[STANDING], copies=[COPY], remarks=["not all was looked at"]), NOW)

    assert text.splitlines() == [
        f"message {MESSAGE.message_id}",
        "  stored  orders/2 @17, 1970-01-01 00:00:01.000Z, 7 bytes",
        "  tag     paid",
        "",
        "groups that read orders, at orders/2 @17:",
        "  g  past it (committed 20); failed: 1 copy below",
        "     held by ..ab12cd34, epoch 5, 43.0s left",
        "",
        "copies, in the order they were made:",
        "  1970-01-01 00:00:02.000Z  for delivery 2, done",
        f"    %RETRY%g/0 @3, id {RETRY.message_id}",
        "",
        "not all was looked at",
    ]


def test_a_topic_without_groups_is_shown_as_such() -> None:
    assert trace_text(story(), NOW).endswith("\n\nno group reads orders\n")


def test_a_copy_is_marked_among_the_copies_and_names_its_origin() -> None:
    text = trace_text(story(RETRY, copies=[COPY]), NOW)

    assert f"  copy of  orders/2 @17, id {MESSAGE.message_id}\n" in text
    assert f"    %RETRY%g/0 @3, id {RETRY.message_id} (this one)\n" in text


@pytest.mark.parametrize(
    ("told", "name", "text"),
    [
        (story(PARKED, is_deferred=True), "waits", "until 1970-01-01 00:01:30.000Z, in 79.0s"),
        (story(PARKED), "stored", "orders/2, 1970-01-01 00:00:01.000Z, 1 bytes"),
        (story(PARKED, became=DELIVERED), "became", f"orders/2 @18, id {DELIVERED.message_id}"),
        (
            story(DELIVERED, source=PARKED),
            "made of",
            f"the delayed message {PARKED.message_id}",
        ),
        (story(DELIVERED), "made of", f"{PARKED.message_id}, which is no longer stored"),
        (story(DELIVERED, source=RETRY), "made of", f"%RETRY%g/0 @3, id {PARKED.message_id}"),
    ],
)  # fmt: skip
def test_what_the_message_is_stands_on_its_card(told: Trace, name: str, text: str) -> None:
    assert card_fields(told, NOW)[name] == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "consumed it (committed 20)"),
        ({"position": "at", "committed": 17}, "next message (committed 17)"),
        ({"position": "at", "attempts": 1}, "next message (committed 20); failed 1 time so far"),
        ({"position": "at", "attempts": 3, "abandoned": 2},
         "next message (committed 20); failed 3 times so far; 2 owners in a row were lost while processing it"),
        ({"position": "before", "messages_before": 1}, "1 message comes before it (committed 20)"),
        ({"position": "before", "messages_before": 7, "ordered": False},
         "7 messages come before it (committed 20), it may be consumed already"),
        ({"position": "none", "committed": None}, "no progress in its queue yet"),
        ({"position": "unwanted", "expression": "new"}, "filters its tag out: subscribes to new"),
    ],
)  # fmt: skip
def test_where_a_group_stands_and_who_has_the_queue(changes: dict[str, object], text: str) -> None:
    held = standing_lines(STANDING._replace(**changes), [])
    free = standing_lines(STANDING._replace(**changes, owner=None), [])

    assert held == [text, "held by ..ab12cd34, epoch 5, 43.0s left"]
    assert free == [text, "the queue has no owner"]


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ("past", "past it (committed 20); unknown whether it failed, see below"),
        ("at", "next message (committed 20)"),
    ],
)
def test_a_group_is_not_shown_as_done_while_copies_were_not_examined(position: str, text: str) -> None:
    assert standing_lines(STANDING._replace(position=position), [], unsure=True)[0] == text
    assert standing_lines(STANDING, [COPY], unsure=True)[0] == "past it (committed 20); failed: 1 copy below"


def test_members_that_broadcast_have_no_owner() -> None:
    (line,) = standing_lines(STANDING._replace(position="broadcasting", committed=None), [])

    assert line == "broadcasting: each member keeps its own progress"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "at"}, "for delivery 2, is the next one"),
        ({"state": "failed"}, "for delivery 2, failed"),
        ({"kind": "replay", "state": "before"}, "replayed, others come first"),
        ({"queue_offset": None, "due_at": NOW + timedelta(seconds=8)}, "for delivery 2, due in 8.0s"),
        ({"queue_offset": None, "due_at": NOW}, "for delivery 2, due now"),
        ({"kind": "dead_letter", "state": "dropped"}, "dead letter, 2 deliveries failed, dropped"),
        ({"kind": "returned", "topic": "orders"}, "sent back to its topic by a replay"),
    ],
)
def test_what_became_of_a_copy(changes: dict[str, object], text: str) -> None:
    assert copy_line(COPY._replace(**changes), NOW) == text


def test_no_line_but_a_reason_is_wider_than_80_columns() -> None:
    long = Standing("g" * 20, "before", 12345, 4567, True, "*", "h@7#ab12cd34", 5 << 32, 43.0, "held", 0, 0)
    letter = COPY._replace(kind="dead_letter", topic="%DLQ%" + "g" * 8, state="replayed")
    told = story(DELIVERED, source=PARKED, became=DELIVERED, standings=[long], copies=[COPY, letter])

    assert max(map(len, trace_text(told, NOW).splitlines())) <= 80


def test_a_trace_as_json_is_one_object() -> None:
    shown = trace_object(story(RETRY, standings=[STANDING], copies=[COPY], became=DELIVERED))

    assert (shown["message"]["stored_topic"], shown["message"]["topic"], shown["message"]["size"]) == (
        "%RETRY%g",
        "orders",
        1,
    )
    assert shown["origin"]["message_id"] == MESSAGE.message_id
    assert shown["groups"][0]["position"] == "past"
    assert shown["copies"][0]["kind"] == "retry"
    assert shown["became"]["queue_offset"] == 18
    assert trace_object(story())["origin"] is None


@pytest.mark.slow
def test_a_dead_letter_is_traced_by_the_real_command(broker: str, topic: str) -> None:
    (name,) = bury(broker, "tracers", [Message(topic, b"x", index_keys=("k",))], reason="poison", queue_id=1)
    arguments = [sys.executable, "-m", "rmq.cli.rmq_admin", "message", "trace", name, "--broker", broker]
    shown = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout
    told = json.loads(trace(name, "--json", "--broker", broker).stdout)

    assert f"{topic}/1 @0" in shown
    assert "  tracers  past it (committed 1); failed: 1 copy below\n" in shown
    assert "dead letter, 0 deliveries failed, waiting\n    %DLQ%tracers/0 @0, id " in shown
    assert "    reason: poison\n" in shown
    assert [(copy["kind"], copy["group"], copy["state"]) for copy in told["copies"]] == [
        ("dead_letter", "tracers", "waiting")
    ]
    assert told["groups"][0]["position"] == "past"


@pytest.mark.slow
def test_a_message_that_waits_says_until_when(broker: str, topic: str) -> None:
    async def send() -> str:
        async with Producer(broker) as producer:
            return (await producer.send(Message(topic, b"later", delay_s=600))).message_id

    shown = trace(asyncio.run(send()), "--broker", broker)

    assert shown.exit_code == 0
    assert "  waits   until " in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("f" * 32, exit_codes.NO_INPUT, "ask the broker that has it"),
        ("17", exit_codes.USAGE, "a message id has 32 hex digits"),
    ],
)
def test_an_id_of_no_message_is_one_sentence(broker: str, name: str, code: int, sentence: str) -> None:
    result = trace(name, "--broker", broker)

    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
