"""``rmq-admin message``: finding messages from the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rmq.cli.admin.messages import COLUMNS, card, query_text, remarks
from rmq.cli.output.render import stored_object
from rmq.cli.shell import exit_codes
from rmq.client import FoundMessages, Message, Producer
from rmq.wire.batch import batch as batches
from rmq.wire.stores import StoreIds

from ..commands import admin
from rigs.batches import STORE_ID, sample
from rigs.stored import stored_message

MISSING = "the newest messages may be missing, try again"


def send(address: str, *messages: Message) -> list[str]:
    async def sending() -> list[str]:
        async with Producer(address) as producer:
            return [receipt.message_id for receipt in await producer.send_many(messages, queue_id=1)]

    return asyncio.run(sending())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["get", "zz"], "ID: a message id has 32 hex digits, 'zz' is none; receipts and `rmq-admin message tail"),
        (["trace", ""], "ID: a message id has 32 hex digits, '' is none; receipts and"),
        (["query", "--index-key", "a b"], "--index-key: 'a b' is empty or holds white space, and no index key of"),
        (["query", "--key", "a", "--index-key", "b"], "--key and --index-key exclude each other"),
        (["query"], "Missing option '--key' or '--index-key'"),
        (["tail", "orders", "--key", ""], "--key: it is empty, and no key of a message is"),
        (["tail", "orders", "--key", "a", "--index-key", "b"], "--key and --index-key exclude each other"),
    ],
)
def test_what_can_name_no_message_is_a_wrong_command_line(nowhere: str, arguments: list[str], text: str) -> None:
    result = admin("message", *arguments, "--broker", nowhere)

    assert (result.exit_code, result.stdout) == (exit_codes.USAGE, "")
    assert result.stderr.startswith(f"rmq-admin: {text}")


def test_a_message_for_people() -> None:
    first, _, third = batches.read(sample(), stores=StoreIds(STORE_ID)).messages()

    assert card(first).splitlines() == [
        "topic         orders",
        "queue_id      2",
        "queue_offset  1000",
        "message_id    0123456789abcdef0000000000200000",
        "copy_of       -",
        "tag           created",
        "index_keys    o-17",
        "properties    trace=a1",
        "key           o-17",
        "born_at       2023-11-14T22:13:20+00:00",
        "stored_at     2023-11-14T22:13:20.123456+00:00",
        "",
        "created",
    ]
    assert card(third).splitlines()[-3:] == ["body          7 bytes that are not text, as base64:", "", "cGFpZCAA/w=="]


def test_a_long_body_is_cut_on_request_and_marked() -> None:
    message = stored_message("orders", body=b"x" * 5000, position=8)

    assert card(message).endswith("\n" + "x" * 5000 + "\n")
    *_, body, cut = card(message, 4096).splitlines()
    assert (body, cut) == (
        "x" * 4096,
        "... cut: the body has 5000 bytes; --full and --json show all of it",
    )
    assert card(message, 5000) == card(message)


def test_in_a_narrow_terminal_the_messages_of_a_key_are_lines() -> None:
    messages = [stored_message("orders", offset=i, body=b"body %d" % i, position=8 + 8 * i) for i in range(2)]

    assert query_text(messages, 300) == query_text(messages)
    assert query_text(messages).split()[0] == "STORED_AT"
    lines = query_text(messages, 80).splitlines()
    assert [line.split()[2:] for line in lines] == [
        [message.message_id, "orders/0", f"@{i}", "body", str(i)] for i, message in enumerate(messages)
    ]
    assert max(map(len, lines)) <= 80


def test_a_copy_to_be_tried_again_says_where_it_lies() -> None:
    message = stored_message("%RETRY%g", position=8, properties={"RMQ_ORIGIN_TOPIC": "orders"})

    assert "topic         orders\n" in card(message)
    assert "stored_topic  %RETRY%g\n" in card(message)


def test_a_message_as_json_has_nothing_of_a_delivery() -> None:
    (first, *_) = batches.read(sample(), stores=StoreIds(STORE_ID)).messages()

    assert {"epoch", "attempt"} & set(stored_object(first)) == set()
    assert set(COLUMNS) <= set(stored_object(first))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FoundMessages([], False, 0), []),
        (FoundMessages([], False, 900), [f"the index lags by 900 bytes: {MISSING}"]),
        (
            FoundMessages([], False, 5 << 19),
            ["the index lags by 2.5 MiB: the newest messages may be missing, try again"],
        ),
        (FoundMessages([], True, 0), ["more than 0 may match: raise --limit"]),
    ],
)
def test_a_partial_result_is_marked(found: FoundMessages, said: list[str]) -> None:
    assert remarks(found) == said


@pytest.mark.slow
def test_messages_are_found_by_key_and_by_id(broker: str, topic: str) -> None:
    sent = [Message(topic, b"%d " % i + b"x" * 50, tag="t", index_keys=(f"{topic}-{i % 2}",)) for i in range(6)]
    names = send(broker, *sent)

    def query(*more: str) -> list[dict[str, Any]]:
        result = admin("message", "query", "--key", f"{topic}-1", "--broker", broker, "--json", *more)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    assert [row["message_id"] for row in query()] == [names[5], names[3], names[1]]
    assert [row["message_id"] for row in query("--limit", "1", "--since", "10m", "--topic", topic)] == [names[5]]
    assert query("--until", "10m") == []

    (last,) = send(broker, Message(topic, b"last", key=f"{topic}-1", index_keys=(f"{topic}-9",)))
    assert [row["message_id"] for row in query("--limit", "2")] == [last, names[5]]
    only = admin("message", "query", "--index-key", f"{topic}-1", "--broker", broker, "--json")
    assert [json.loads(line)["message_id"] for line in only.stdout.splitlines()] == [names[5], names[3], names[1]]

    none = admin("message", "query", "--key", "no-such-key", "--broker", broker)
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr.startswith("no stored message has the key 'no-such-key'")

    shown = admin("message", "query", "--key", f"{topic}-0", "--limit", "2", "--broker", broker)
    heading, *lines = shown.stdout.splitlines()
    assert heading.split() == [name.upper() for name in COLUMNS]
    assert [line.split()[4] for line in lines] == [names[4], names[2]]
    assert lines[0].endswith("x...")
    assert shown.stderr == "more than 2 may match: raise --limit\n"

    got = admin("message", "get", names[2], "--json", "--broker", broker)
    assert json.loads(got.stdout)["body"] == "2 " + "x" * 50
    assert f"message_id    {names[2]}\n" in admin("message", "get", names[2], "--broker", broker).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["get", "f" * 32], exit_codes.NO_INPUT, "ask the broker that has it"),
        (["get", "17"], exit_codes.USAGE, "a message id has 32 hex digits"),
        (["query", "--key", "k", "--topic", "nowhere"], exit_codes.NO_INPUT, "there is no topic 'nowhere'"),
        (["query", "--key", "k", "--since", "soon"], exit_codes.USAGE, "'soon' is not a time"),
        (["query"], exit_codes.USAGE, "--key"),
    ],
)
def test_a_mistake_is_one_sentence_and_one_code(broker: str, arguments: list[str], code: int, sentence: str) -> None:
    result = admin("message", *arguments, "--broker", broker)

    assert (result.exit_code, sentence in result.stderr) == (code, True), result.stderr
