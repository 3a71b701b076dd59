"""
What is kept of a RocketMQ message, and under which name.

Bodies of RocketMQ messages: unpacked as its consumers do, and never beyond the limit.

Names of RocketMQ, and what they become here.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.importer.messages import (
    BodyTooLarge,
    born_us,
    content,
    identity,
    identity_of,
    is_system_group,
    is_system_topic,
    key_of,
    message_of,
    new_group,
    new_topic,
)
from rmq.client.importer.store_files import BadStore
from rmq.wire.errors import BadName
from rmq.wire.rocketmq.record import BadRecord, Record, decode

from rigs.rocketmq_store import encode_record


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

    assert (message.topic, message.body, message.tag, message.index_keys) == ("new", b"body", tag, keys)
    assert message.properties == kept | ALWAYS
    assert message.deliver_at is None


def test_a_sharding_key_is_the_key_where_it_leads_to_the_queue_of_the_message() -> None:
    sharded = {"__SHARDINGKEY": "order-1"}  # 6 of 8

    assert key_of(sharded, 6, 8) == "order-1"
    assert key_of(sharded, 5, 8) is key_of({}, 6, 8) is key_of({"__SHARDINGKEY": ""}, 0, 8) is None
    message = message_of(record(properties=sharded), b"", "t", key="order-1")
    assert (message.key, message.properties["__SHARDINGKEY"]) == ("order-1", "order-1")


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


PACKERS: list[tuple[int, Any]] = [
    (0x001, zlib.compress),
    (0x301, zlib.compress),
    (0x101, lz4.frame.compress),
    (0x201, zstandard.ZstdCompressor(write_content_size=False).compress),
    (0x201, zstandard.ZstdCompressor().compress),
]


def record_bodies(body: bytes, sysflag: int) -> Record:
    return decode(encode_record(topic="t", body=body, sysflag=sysflag))


@pytest.mark.parametrize(("sysflag", "pack"), PACKERS)
@given(body=st.binary(max_size=300))
def test_a_packed_body_is_what_its_producer_sent(sysflag: int, pack: Any, body: bytes) -> None:
    assert content(record_bodies(pack(body), sysflag), 300) == body


def test_a_plain_body_is_kept() -> None:
    assert content(record_bodies(b"plain", 0x300), 5) == b"plain"


@pytest.mark.parametrize(("sysflag", "pack"), [(0, bytes), *PACKERS])
def test_a_body_beyond_the_limit_is_refused(sysflag: int, pack: Any) -> None:
    body = bytes(5000)

    assert content(record_bodies(pack(body), sysflag), 5000) == body
    with pytest.raises(BodyTooLarge, match="has a body"):
        content(record_bodies(pack(body), sysflag), 4999)


@pytest.mark.parametrize(("sysflag", "pack"), PACKERS)
def test_a_body_that_is_cut_off_is_bad(sysflag: int, pack: Any) -> None:
    packed = pack(bytes(range(256)) * 40)

    for cut in (packed[:-5], packed[: len(packed) // 2], b"garbage"):
        with pytest.raises(BadRecord, match="has a body that is not"):
            content(record_bodies(cut, sysflag), 1 << 20)


def test_an_unknown_codec_is_bad() -> None:
    with pytest.raises(BadRecord, match="in an unknown way"):
        content(record_bodies(b"x", 0x701), 10)


@pytest.mark.parametrize(("sysflag", "name"), [(0x101, "lz4"), (0x201, "zstd")])
def test_a_package_that_is_missing_is_named(sysflag: int, name: str) -> None:
    def load(_: str) -> Any:
        raise ImportError

    with pytest.raises(BadStore, match=rf"compressed with {name}: pip install 'rmq\[{name}\]'"):
        content(record_bodies(b"x", sysflag), 10, load)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("orders", "orders"),
        ("INST%orders", "INST%orders"),
        ("%RETRY%billing", "RETRY-billing"),
        ("%DLQ%billing", "DLQ-billing"),
        ("%RETRY%INST%billing", "INST%RETRY-billing"),
        ("a|b", "renamed"),
        ("%DLQ%a|b", "dead"),
    ],
)
def test_a_topic_keeps_its_name_or_gets_a_plain_one(old: str, new: str) -> None:
    assert new_topic(old, {"a|b": "renamed", "%DLQ%a|b": "dead"}) == new


@pytest.mark.parametrize("old", ["a|b", "%x", "a%b%c", "%RETRY%a|b", "x" * 128])
def test_a_name_that_is_refused_here_is_told_with_what_to_do(old: str) -> None:
    with pytest.raises(BadName) as caught:
        new_topic(old, {})

    assert str(caught.value).endswith(f": choose another one with --map '{old}=NAME', or leave the topic out")


def test_a_new_name_is_judged_too() -> None:
    with pytest.raises(BadName, match="may hold only letters"):
        new_topic("orders", {"orders": "a b"})


def test_groups_keep_their_names_or_are_given_one() -> None:
    assert new_group("billing", {}) == "billing"
    assert new_group("a|b", {"a|b": "ab"}) == "ab"
    with pytest.raises(BadName, match=r"--map-group 'a\|b=NAME'"):
        new_group("a|b", {})


@pytest.mark.parametrize(
    ("name", "is_system"),
    [
        ("SCHEDULE_TOPIC_XXXX", True), ("RMQ_SYS_TRANS_HALF_TOPIC", True), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", True),
        ("TRANS_CHECK_MAX_TIME_TOPIC", True), ("SELF_TEST_TOPIC", True), ("OFFSET_MOVED_EVENT", True),
        ("TBW102", True), ("BenchmarkTest", True), ("RMQ_SYS_TRACE_TOPIC", True), ("rmq_sys_x", True),
        ("c1_REPLY_TOPIC", True), ("c2_REPLY_TOPIC", False), ("orders", False), ("%RETRY%g", False),
    ],
)  # fmt: skip
def test_topics_that_rocketmq_keeps_for_itself(name: str, is_system: bool) -> None:
    assert is_system_topic(name, {"c1"}) is is_system


def test_groups_that_rocketmq_keeps_for_itself() -> None:
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert is_system_group("TOOLS_CONSUMER")
    assert not is_system_group("billing")
