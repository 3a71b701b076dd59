"""Hashes that other systems compute too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch.hashing import java_string_hash, shard, shard_of_int, tag_bloom, tag_hash

from rigs.batches import quick

# As printed by a Java 17 runtime.
JAVA = {
    "": 0,
    "a": 97,
    "ab": 3105,
    "hello": 99162322,
    "Hello, World!": 1498789909,
    "TagA": 2598919,
    "order-1": -1207111310,
    "polygenelubricants": -(1 << 31),
    "é": 233,
    "€": 8364,
    "中文": 646394,
    "😀": 1772899,  # two units in UTF-16
    "größe": 98762257,
}


@pytest.mark.parametrize(("text", "value"), JAVA.items())
def test_text_hashes_as_in_java(text: str, value: int) -> None:
    assert java_string_hash(text) == value
    assert tag_hash(text) == value


@quick
@given(st.text() | st.tuples(st.text(min_size=1), st.integers(1, 700)).map(lambda pair: (pair[0] * pair[1])[:1200]))
def test_the_hash_is_the_polynomial_over_utf_16_units_in_32_signed_bits(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = sum(
        int.from_bytes(units[i : i + 2], "big") * 31 ** (len(units) // 2 - 1 - i // 2) for i in range(0, len(units), 2)
    )

    assert java_string_hash(text) == (value + (1 << 31)) % (1 << 32) - (1 << 31)


def test_a_lone_surrogate_hashes_as_its_unit() -> None:
    assert java_string_hash("\ud83d") == 0xD83D


@pytest.mark.parametrize(
    ("key", "shards", "queue"),
    [
        ("polygenelubricants", 4, 0),
        ("polygenelubricants", 7, 2),  # Math.abs of the smallest int stays negative in Java
        ("order-1", 8, 6),
        ("hello", 1, 0),
        ("7", 4, 55 % 4),  # text is hashed even if it looks like a number
    ],
)
def test_a_key_has_its_queue(key: str, shards: int, queue: int) -> None:
    assert shard(key, shards) == queue


@pytest.mark.parametrize(
    ("value", "shards", "queue"),
    [(0, 4, 0), (7, 4, 3), (-7, 4, 3), (10**12 + 1, 4, 1)],  # Java: -7 % 4 is -3, its absolute value 3
)
def test_a_number_has_its_queue(value: int, shards: int, queue: int) -> None:
    assert shard_of_int(value, shards) == queue


@quick
@given(st.text(), st.integers(), st.integers(1, 5000))
def test_every_key_and_number_has_a_queue_that_exists(key: str, value: int, shards: int) -> None:
    assert 0 <= shard(key, shards) < shards
    assert 0 <= shard_of_int(value, shards) < shards


def test_a_batch_without_tags_has_an_empty_bloom() -> None:
    assert tag_bloom([]) == 0


def test_a_tag_sets_the_bits_of_its_lowest_twelve_hash_bits() -> None:
    value = JAVA["TagA"]

    assert tag_bloom(["TagA"]) == 1 << (value & 63) | 1 << (value >> 6 & 63)
    assert tag_bloom(["TagA", "a"]) == tag_bloom(["TagA"]) | tag_bloom(["a"])


@quick
@given(st.lists(st.text()))
def test_the_bloom_fits_64_bits_and_misses_no_tag(tags: list[str]) -> None:
    bloom = tag_bloom(tags)

    assert bloom < 1 << 64
    assert all(tag_bloom([tag]) & bloom == tag_bloom([tag]) for tag in tags)
