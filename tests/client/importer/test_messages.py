"""What is kept of a RocketMQ message, and under which name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rmq.client.importer.messages import born_us, identity, identity_of, message_of
from rmq.wire.rocketmq.record import Record, decode

from support.rocketmq_store import encode_record


def record(**fields: Any) -> Record:
    return decode(encode_record(topic="t", **fields))


ALWAYS = {"ROCKETMQ_OFFSET_ID": "7F00000100002A9F0000000000000000", "ROCKETMQ_STORE_TIME": "1700000000000"}


@pytest.mark.parametrize(
    ("properties", "tag", "keys", "kept"),
    [
        ({}, None, (), {}),
        ({"TAGS": "paid"}, "paid", (), {}),
        ({"KEYS": "a b  c"}, None, ("a", "b", "c"), {}),
        ({"trace": "1", "UNIQ_KEY": "U"}, None, (), {"trace": "1", "ROCKETMQ_UNIQ_KEY": "U"}),
        ({"TAGS": "a||b"}, None, (), {"ROCKETMQ_TAGS": "a||b"}),
        ({"TAGS": "a b"}, None, (), {"ROCKETMQ_TAGS": "a b"}),
        ({"TAGS": "é" * 128}, None, (), {"ROCKETMQ_TAGS": "é" * 128}),
        ({"KEYS": "a\tb c"}, None, (), {"ROCKETMQ_KEYS": "a\tb c"}),
        ({"KEYS": " "}, None, (), {"ROCKETMQ_KEYS": " "}),
        ({"WAIT": "true", "CLUSTER": "c1"}, None, (), {"ROCKETMQ_WAIT": "true", "ROCKETMQ_CLUSTER": "c1"}),
        ({"ROCKETMQ_OFFSET_ID": "mine"}, None, (), {"ROCKETMQ_USER_ROCKETMQ_OFFSET_ID": "mine"}),
    ],
)
def test_tag_keys_and_properties(
    properties: dict[str, str], tag: str | None, keys: tuple[str, ...], kept: dict[str, str]
) -> None:
    message = message_of(record(properties=properties), b"body", "new")

    assert (message.topic, message.body, message.tag, message.keys) == ("new", b"body", tag, keys)
    assert message.properties == kept | ALWAYS
    assert message.deliver_at is None


def test_numbers_that_are_not_zero_are_kept() -> None:
    message = message_of(record(flag=7, reconsume_times=2, physical_offset=255), b"", "t")

    assert message.properties == ALWAYS | {
        "ROCKETMQ_FLAG": "7",
        "ROCKETMQ_RECONSUME_TIMES": "2",
        "ROCKETMQ_OFFSET_ID": "7F00000100002A9F00000000000000FF",
    }


@pytest.mark.parametrize(
    ("due_ms", "time"),
    [
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        (1 << 62, datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        (-5, datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_message_that_waits_is_delivered_at_its_time(due_ms: int, time: datetime) -> None:
    assert message_of(record(), b"", "t", due_ms).deliver_at == time


def test_the_time_of_birth_is_kept_where_a_calendar_can_tell_it() -> None:
    assert born_us(record(born_at=1_700_000_000_123)) == 1_700_000_000_123_000
    assert "ROCKETMQ_BORN_TIME" not in message_of(record(), b"", "t").properties
    for strange in (-1, 1 << 62):
        assert 0 <= born_us(record(born_at=strange)) < 253_402_300_800_000_000
        assert message_of(record(born_at=strange), b"", "t").properties["ROCKETMQ_BORN_TIME"] == str(strange)


def test_an_imported_message_is_known_by_its_record() -> None:
    one = record(physical_offset=7)

    assert identity(message_of(one, b"", "t").properties) == identity_of(one)
    assert identity({"ROCKETMQ_OFFSET_ID": "x"}) is None
    assert identity({}) is None
