"""Tables and lines for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.cli.output.render import (
    counted,
    message_line,
    message_object,
    printable,
    receipt_line,
    receipt_object,
    seconds,
    table,
    to_json,
)
from rmq.client.producer.receipts import Part, Receipt
from rmq.wire.batch import batch, layout
from rmq.wire.model import StoredMessage
from rmq.wire.stores import StoreIds


def stored(
    body: bytes, *, tag: str | None = None, index_keys: tuple[str, ...] = (), key: str | None = None, **properties: str
) -> StoredMessage:
    """A message as a consumer gets it."""
    rows = batch.Rows([body], 1_700_000_000_000_001, [tag], [index_keys], [key], [properties])
    encoded = batch.encode("orders", 2, rows)
    checked = batch.check(encoded, stamped=False)
    header = checked.header._replace(base_offset=17, physical_offset=800, stored_at=1_700_000_000_000_002)
    return batch.Batch(header, checked.columns, body, StoreIds(0xAB)).messages(17)[0]


def test_a_name_is_to_the_left_also_if_it_begins_with_a_digit() -> None:
    assert table(("owner", "left"), [["4595efbc", "9.5s"], [None, "12.0s"]]) == (
        "OWNER      LEFT\n4595efbc   9.5s\n-         12.0s\n"
    )


def test_columns_are_aligned_numbers_to_the_right() -> None:
    shown = table(("topic", "queues"), [["a", 4], ["longer", 16]])

    assert shown == "TOPIC   QUEUES\na            4\nlonger      16\n"


def test_a_table_without_rows_is_its_heading() -> None:
    assert table(("group", "topic"), []) == "GROUP  TOPIC\n"


def test_none_is_a_dash_and_control_characters_do_not_reach_the_terminal() -> None:
    assert table(("a", "b"), [[None, "x\x1b[2J\n"]]) == "A  B\n-  x\\x1b[2J\\n\n"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0s"), (5.04, "5.0s"), (99.94, "99.9s"), (100, "1m40s"), (3661, "1h01m")]
)
def test_durations_read_well(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_message_is_one_json_object_with_every_field() -> None:
    message = stored(b'{"n": 1}', tag="paid", index_keys=("o-17", "x"), key="o-17", source="shop")
    message.attempt = 3

    found = json.loads(to_json(message_object(message, epoch=(5 << 32) + 1)))

    assert found == {
        "topic": "orders",
        "queue_id": 2,
        "queue_offset": 17,
        "message_id": f"{0xAB:016x}{(800 // layout.ALIGN) << 12:016x}",
        "copy_of": None,
        "tag": "paid",
        "index_keys": ["o-17", "x"],
        "body": '{"n": 1}',
        "properties": {"source": "shop"},
        "key": "o-17",
        "attempt": 3,
        "epoch": "21474836481",
        "born_at": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=1).isoformat(),
        "stored_at": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=2).isoformat(),
    }


def test_a_body_that_is_not_utf8_is_base64() -> None:
    found = message_object(stored(b"\xff\x00"), epoch=1)

    assert found["body_base64"] == "/wA="
    assert "body" not in found


def test_json_is_one_line_whatever_the_body_holds() -> None:
    assert "\n" not in to_json(message_object(stored("a\nb\u2028ü".encode()), epoch=1))


@pytest.mark.parametrize("code", [0x1B, 0x7F, 0x80, 0x9B, 0x9F, 0x061C, 0x200F, 0x2028, 0x202E, 0x2066, 0x2069])
def test_json_escapes_what_a_terminal_acts_on_and_means_the_same(code: int) -> None:
    text = f"a{chr(code)}b"

    shown = to_json({text: text})

    assert shown.isascii()
    assert chr(code) not in shown
    assert json.loads(shown) == {text: text}


def test_json_leaves_letters_of_all_languages_as_they_are() -> None:
    assert to_json("Zürich, \u041c\u043e\u0441\u043a\u0432\u0430, \u6771\u4eac \U0001f600") == (
        '"Zürich, \u041c\u043e\u0441\u043a\u0432\u0430, \u6771\u4eac \U0001f600"'
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"key": "o-17", "tag": "paid"}, "orders/2 @17 key=o-17 tag=paid attempt=1  hi"),
        ({}, "orders/2 @17 attempt=1  hi"),
        ({"index_keys": ("a", "b")}, "orders/2 @17 index_keys=a,b attempt=1  hi"),
        ({"source": "shop"}, "orders/2 @17 source=shop attempt=1  hi"),
    ],
)
def test_a_message_is_one_line_for_people(options: Mapping[str, Any], line: str) -> None:
    assert message_line(stored(b"hi", **options)) == line


def test_a_binary_or_hostile_body_stays_on_its_line() -> None:
    assert message_line(stored(b"a\n\x1b]0;x\xff")).endswith("  a\\n\\x1b]0;x\\xff")
    assert printable("\x9b\x7f\t") == "\\x9b\\x7f\\t"
    assert printable("paid\u202ediap\u2028") == "paid\\u202ediap\\u2028"  # which would show "paidpaid"


def test_a_receipt_names_place_and_message() -> None:
    receipt: Any = SimpleNamespace(queue_id=1, queue_offset=9, message_id="ff" * 16, durable=True, is_deferred=False)

    assert receipt_line("orders", receipt) == f"orders/1 @9 {'ff' * 16}"
    assert receipt_object("orders", receipt) == {
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": 9,
        "message_id": "ff" * 16,
        "durable": True,
        "is_delayed": False,
    }


def test_a_receipt_of_a_delayed_message_has_no_place_yet() -> None:
    receipt = Receipt("orders", 1, Part(1, -1, 4096, 0, 0, True), 0, store_id=7)

    assert receipt_line("orders", receipt) == f"orders/1 delayed {receipt.message_id}"
    shown = receipt_object("orders", receipt)
    assert (shown["queue_offset"], shown["is_delayed"]) == (None, True)


def test_only_times_are_made_texts() -> None:
    with pytest.raises(TypeError, match="object is not data"):
        to_json({"x": object()})


@pytest.mark.parametrize(("count", "text"), [(0, "0 queues"), (1, "1 queue"), (2, "2 queues")])
def test_one_of_a_thing_is_not_many(count: int, text: str) -> None:
    assert counted(count, "queue") == text
