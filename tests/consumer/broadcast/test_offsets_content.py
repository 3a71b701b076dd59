"""The text of ``offsets.json``: what is written is read again, and anything else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.consumer.broadcast.offsets_file import (
    MOST,
    BadOffsets,
    NewerOffsets,
    OffsetsContent,
    QueueProgress,
    decode,
    encode,
)
from rmq.wire.model import MessageQueue

names = st.text("abcXYZ019_-%", min_size=1, max_size=12)
numbers = st.integers(0, MOST)
contents = st.builds(
    OffsetsContent,
    names,
    names,
    st.integers(0, (1 << 64) - 1),
    st.frozensets(names, max_size=3),
    st.dictionaries(st.builds(MessageQueue, names, numbers), st.builds(QueueProgress, numbers, numbers, numbers)),
)
CONTENT = OffsetsContent(
    "g", "default", 0x9C0E51B2A64F7D13, frozenset({"t"}), {MessageQueue("t", 0): QueueProgress(1, 17, 2)}
)


@given(contents)
@settings(max_examples=60)
def test_what_is_written_is_read_again(content: OffsetsContent) -> None:
    assert decode(encode(content)) == content


def test_it_is_json_with_the_store_and_for_each_queue_its_generation_offset_and_log_epoch() -> None:
    assert json.loads(encode(CONTENT)) == {
        "format": 1,
        "group": "g",
        "instance": "default",
        "store_id": "9c0e51b2a64f7d13",
        "topics": ["t"],
        "queues": [{"topic": "t", "generation": 1, "queue_id": 0, "offset": 17, "log_epoch": 2}],
    }


def test_a_torn_text_is_refused_wherever_it_was_cut() -> None:
    text = encode(CONTENT)

    for length in range(len(text.rstrip())):
        with pytest.raises(BadOffsets):
            decode(text[:length])


@given(st.binary(max_size=60))
@settings(max_examples=60)
def test_garbage_is_refused_and_raises_nothing_else(text: bytes) -> None:
    with pytest.raises(BadOffsets):
        decode(text)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BadOffsets):
        decode(b"[" * 200_000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 0}, "its format is 0"),
        ({"format": True}, '"format" is no number'),
        ({"group": ""}, '"group" is no text'),
        ({"instance": 7}, '"instance" is no text'),
        ({"store_id": "9C0E51B2A64F7D13"}, '"store_id" has not the form'),
        ({"store_id": "12"}, '"store_id" has not the form'),
        ({"store_id": 12}, '"store_id" is no text'),
        ({"topics": "t"}, '"topics" is no list'),
        ({"topics": [1]}, 'a name in "topics" is no text'),
        ({"queues": None}, '"queues" is no list'),
        ({"queues": [[]]}, 'an entry of "queues" is no object'),
    ],
)
def test_a_field_that_cannot_be_is_named(change: dict[str, Any], reason: str) -> None:
    text = json.dumps({**json.loads(encode(CONTENT)), **change}).encode()

    with pytest.raises(BadOffsets, match=reason):
        decode(text)


@pytest.mark.parametrize("name", ["generation", "queue_id", "offset", "log_epoch"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True, MOST + 1])
def test_a_number_of_a_queue_that_cannot_be_is_named(name: str, value: object) -> None:
    found = json.loads(encode(CONTENT))
    found["queues"][0][name] = value

    with pytest.raises(BadOffsets, match=f'"{name}" is no number'):
        decode(json.dumps(found).encode())


def test_a_queue_that_is_listed_twice_is_refused() -> None:
    found = json.loads(encode(CONTENT))
    found["queues"] *= 2

    with pytest.raises(BadOffsets, match="t/0 is listed twice"):
        decode(json.dumps(found).encode())


def test_a_later_format_is_told_apart_from_damage() -> None:
    with pytest.raises(NewerOffsets, match="its format is 2, and this version of rmq knows 1"):
        decode(b'{"format": 2, "something": "else"}')


def test_what_a_later_version_adds_within_the_format_is_passed_over() -> None:
    found = {**json.loads(encode(CONTENT)), "remark": "by hand"}

    assert decode(json.dumps(found).encode()) == CONTENT
