"""Records of a RocketMQ commit log: the golden ones of a real broker, all that a builder makes, and all that is bad."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.rocketmq.record import BadRecord, decode, parse_properties

from rigs.rocketmq_store import encode_properties, encode_record, host, java_hash

# Written by a real RocketMQ 4.9.
GOLDEN = bytes.fromhex(
    "000000a4daa320a73610a686000000000000000700000000000000000000000000000000000000000000018bcfe5687b"
    "0a01020300009c40000001a1e1876d707f00000100002a9f0000000000000000000000000000000568656c6c6f"
    "06546f70696341003e4b455953016b31206b3202554e49515f4b455901414331303030303130303030324139463030"
    "303030303030303030303030303102544147530154616741"
)
GOLDEN_IPV6 = bytes.fromhex(
    "00000082daa320a7699bc91c00000001000000070000000000000001000000000000018e000000300000018bcfe5687b"
    "20010db800000000000000000000000100000005000001a1e1876dac20010db800000000000000000000000200002a9f"
    "0000000000000000000000000000000376363606546f706963410006544147530154"
)
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


def test_the_record_of_a_real_broker_is_read_field_by_field() -> None:
    record = decode(GOLDEN)

    assert record._asdict() == {
        "size": 164,
        "queue_id": 0,
        "flag": 7,
        "queue_offset": 0,
        "physical_offset": 0,
        "sysflag": 0,
        "born_at": 1700000000123,
        "born_host": host(bytes([10, 1, 2, 3]), 40000),
        "stored_at": 0x1A1E1876D70,
        "store_host": host(),
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": b"hello",
        "topic": "TopicA",
        "properties": {"KEYS": "k1 k2", "UNIQ_KEY": "AC10000100002A9F0000000000000001", "TAGS": "TagA"},
    }
    assert record.offset_id == "7F00000100002A9F0000000000000000"
    assert record.has_place


def test_the_record_of_a_real_broker_with_ipv6_hosts_is_read() -> None:
    record = decode(GOLDEN_IPV6)

    assert (record.physical_offset, record.queue_id, record.queue_offset) == (398, 1, 1)
    assert (record.body, record.topic, record.properties) == (b"v66", "TopicA", {"TAGS": "T"})
    assert record.born_host == host(bytes.fromhex("20010db8000000000000000000000001"), 5)
    assert record.offset_id == "20010DB800000000000000000000000200002A9F000000000000018E"
    assert len(record.offset_id) == 56


def test_the_builder_of_our_tests_writes_what_a_real_broker_writes() -> None:
    record = decode(GOLDEN)
    fields = {name: value for name, value in record._asdict().items() if name != "size"}
    six = {name: value for name, value in decode(GOLDEN_IPV6)._asdict().items() if name != "size"}

    assert encode_record(**fields) == GOLDEN
    assert encode_record(**six) == GOLDEN_IPV6


@given(
    body=st.binary(max_size=200),
    topic=TEXT,
    properties=st.dictionaries(TEXT, TEXT, max_size=5),
    closed=st.booleans(),
    numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 3),
    places=st.tuples(*[st.integers(0, 2**62)] * 3),
    hosts=st.tuples(*[st.sampled_from([host(), host(bytes(16), 1)])] * 2),
    sysflag=st.sampled_from([0, 1, 4, 8, 12, 0x301]),
)
def test_whatever_is_written_is_read(
    *, body: bytes, topic: str, properties: dict[str, str], closed: bool,
    numbers: tuple[int, int, int], places: tuple[int, int, int], hosts: tuple[bytes, bytes], sysflag: int,
) -> None:  # fmt: skip
    data = encode_record(
        topic=topic[:30], body=body, queue_id=numbers[0], flag=numbers[1], reconsume_times=numbers[2],
        queue_offset=places[0], physical_offset=places[1], born_at=places[2], born_host=hosts[0], store_host=hosts[1],
        sysflag=sysflag, properties=properties, closed=closed,
    )  # fmt: skip

    record = decode(data)

    assert (record.size, record.body, record.topic, record.properties) == (len(data), body, topic[:30], properties)
    assert (record.queue_id, record.flag, record.reconsume_times) == numbers
    assert (record.queue_offset, record.physical_offset, record.born_at) == places
    assert (record.born_host, record.store_host) == hosts
    assert record.transaction == sysflag & 12


@given(st.integers(0, len(GOLDEN) - 1), st.integers(1, 255))
def test_a_changed_byte_of_sizes_magic_or_body_is_seen(at: int, change: int) -> None:
    data = bytearray(GOLDEN)
    data[at] ^= change
    fixed, body, lengths = range(12), range(84, 93), {93, 100, 101}

    if at in {*fixed, *body, *lengths}:
        with pytest.raises(BadRecord):
            decode(bytes(data))


@given(st.binary(max_size=300))
def test_garbage_is_refused_by_name(data: bytes) -> None:
    for start in (b"", struct.pack(">iI", len(data) + 8, 0xDAA320A7)):
        try:
            decode(start + data)
        except BadRecord as error:
            assert str(error)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (GOLDEN[:90], "has 90 bytes, and none has fewer than 91"),
        (GOLDEN[:-1], "says that it has 164 bytes, not 163"),
        (
            struct.pack(">i", 91) + GOLDEN[4:36] + struct.pack(">i", 0x30) + GOLDEN[40:91],
            "has hosts that take 21 bytes more than it has",
        ),
        (GOLDEN[:4] + bytes(4) + GOLDEN[8:], "has the magic 00000000 instead of DAA320A7"),
        (GOLDEN.replace(b"hello", b"hallo"), "has a body that does not match its checksum"),
        (GOLDEN.replace(b"TopicA", b"Topic\xff"), "has a text (topic) that is not UTF-8"),
        (GOLDEN.replace(b"k1", b"\xff1"), "has a text (properties) that is not UTF-8"),
        (GOLDEN[:84] + struct.pack(">i", -1) + GOLDEN[88:], "has a field of -1 bytes where 76 are left"),
        (GOLDEN[:84] + struct.pack(">i", 2**30) + GOLDEN[88:], "has a field of 1073741824 bytes where 76 are left"),
        (GOLDEN[:101] + b"\x3d" + GOLDEN[102:], "has 164 bytes, and its fields take 163"),
        (encode_record(topic=""), "has no topic or a negative place (queue 0, offset 0)"),
        (encode_record(topic="t", queue_id=-1), "has no topic or a negative place (queue -1, offset 0)"),
    ],
)
def test_each_fault_has_its_words(data: bytes, text: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decode(data)

    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b\x02c\x01d\x01e", {"a": "b", "c": "d\x01e"}),
        ("a\x01b\x02a\x01c", {"a": "c"}),
        ("\x01b\x02a\x01\x02ab\x02\x02", {}),
    ],
)
def test_properties_are_read_as_rocketmq_reads_them(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


def test_empty_values_are_written_and_not_read_back() -> None:
    assert parse_properties(encode_properties({"a": "", "b": "c"}).decode()) == {"b": "c"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("TagA", 0x27A807), ("D0", 2156), ("中Tag", 596291117), ("polygenelubricants", -(2**31))],
)
def test_the_builder_writes_the_tags_codes_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value
