"""
The columns that tables and Spark get equal the messages that a consumer gets.

Pieces of batches become one array, and what does not fit is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.scan.arrow import (
    ARROW_TYPES,
    TEXT,
    as_numbers,
    bounds_of_parts,
    check_ends,
    concat,
    constant,
    for_each_row,
    joined,
    record_batch,
    spans,
    tags_of,
)
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Batch, RawBatch, Rows, encode, read, read_raw
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadBatch, RmqError
from rmq.wire.stores import StoreIds

STORE = 0xFEDCBA9876543210
ALL = tuple(ARROW_TYPES)


def stored(
    rows: Rows, *, base_offset: int = 0, physical_offset: int = 4096, stored_at: int = 1_700_000_000_000_000,
    codec: str = "zlib",
) -> bytes:  # fmt: skip
    data = encode("orders", 3, rows, codec=CODECS.by_name(codec))
    header = layout.parse_header(data)
    by = layout.Stamp(7, physical_offset, base_offset, stored_at, 0, 0, 1, 3, layout.KIND_DATA)
    data[: layout.BROKER_PART] = layout.stamp(data, header.header_size, by)
    return bytes(data)


def in_line(parts: Sequence[Rows], *, base_offset: int = 0, codecs: Sequence[str] = ("zlib",)) -> list[bytes]:
    batches: list[bytes] = []
    physical = 1 << 40
    for index, rows in enumerate(parts):
        at = 1_700_000_000_000_000 + index
        codec = codecs[index % len(codecs)]
        data = stored(rows, base_offset=base_offset, physical_offset=physical, stored_at=at, codec=codec)
        batches.append(data)
        base_offset, physical = base_offset + len(rows.bodies), physical + len(data)
    return batches


def raw(batches: Sequence[bytes]) -> list[RawBatch]:
    return [read_raw(memoryview(data)) for data in batches]


def built(batches: Sequence[bytes], columns: Sequence[str] = ALL) -> pa.RecordBatch:
    return record_batch(raw(batches), columns, stores=StoreIds(STORE))


def by_hand(stored_batches: Sequence[bytes]) -> list[dict[str, Any]]:
    """Row by row, through what a consumer's listener sees."""
    batches: list[Batch] = [read(data, stores=StoreIds(STORE)) for data in stored_batches]
    return [
        {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.message_id,
            "key": message.key,
            "tag": message.tag,
            "index_keys": list(message.index_keys),
            "body": message.body,
            "properties": list(message.properties.items()),
            "born_at": message.born_at,
            "stored_at": message.stored_at,
            "attempt": 1 + batch.columns.attempts_of(index),
        }
        for batch in batches
        for index, message in enumerate(batch.messages())
    ]


texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = texts.filter(bool)
keys = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=8)
times = st.integers(0, 4_000_000_000_000_000)


def grown(body: bytes) -> bytes:
    """Some bodies are worth compressing, others are not."""
    return body * 30 if body[:1] < b"\x80" else body


@st.composite
def row_sets(draw: st.DrawFn) -> Rows:
    count = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    return Rows(
        bodies=draw(st.lists(st.binary(max_size=20).map(grown), min_size=count, max_size=count)),
        born_at=draw(times | st.lists(times, min_size=count, max_size=count)),
        tags=column(st.none() | names),
        index_keys=column(st.lists(keys, max_size=3)),
        keys=column(st.none() | texts),
        properties=column(st.dictionaries(names, texts, max_size=3)),
        attempts=column(st.integers(0, 65535)),
    )


codecs = st.lists(st.sampled_from(["zlib", "lz4", "zstd"]), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(row_sets(), min_size=1, max_size=5), st.integers(0, 1 << 40), codecs)
def test_arrow_rows_equal_the_messages(parts: list[Rows], base_offset: int, packed_by: list[str]) -> None:
    batches = in_line(parts, base_offset=base_offset, codecs=packed_by)

    found = built(batches)

    found.validate(full=True)
    assert found.to_pylist() == by_hand(batches)


@settings(deadline=None)
@given(st.lists(row_sets(), min_size=2, max_size=5), st.data())
def test_batches_that_do_not_follow_one_another_keep_their_offsets(parts: list[Rows], data: st.DataObject) -> None:
    batches = in_line(parts)
    kept = data.draw(
        st.lists(st.sampled_from(batches), min_size=1, unique=True).map(lambda some: sorted(some, key=batches.index))
    )

    assert built(kept).to_pylist() == by_hand(kept)


@settings(deadline=None)
@given(st.lists(row_sets(), min_size=1, max_size=3), st.data())
def test_a_slice_equals_the_same_messages(parts: list[Rows], data: st.DataObject) -> None:
    batches = in_line(parts)
    rows = by_hand(batches)
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))

    assert built(batches).slice(start, end - start).to_pylist() == rows[start:end]


def test_a_full_batch_gives_every_message_its_own_id() -> None:
    batch = stored(Rows([b"%d" % i for i in range(layout.MAX_COUNT)], 0), physical_offset=layout.MAX_POSITION - 8)

    ids = built([batch], ["message_id"]).column(0).to_pylist()

    assert ids == [row["message_id"] for row in by_hand([batch])]
    assert len(set(ids)) == layout.MAX_COUNT


def test_more_rows_than_are_counted_in_advance_have_their_offsets() -> None:
    batches = in_line([Rows([b""] * layout.MAX_COUNT, 0)] * 17, base_offset=5)

    assert built(batches, ["queue_offset"]).column(0).to_pylist() == list(range(5, 5 + 17 * layout.MAX_COUNT))


def test_tags_of_batches_with_different_dictionaries_are_kept_apart() -> None:
    batches = in_line([Rows([b""] * 2, 0, tags=["b", "a"]), Rows([b""], 0), Rows([b""] * 3, 0, tags=["a", None, "c"])])

    assert built(batches, ["tag"]).column(0).to_pylist() == ["b", "a", None, "a", None, "c"]
    assert tags_of(raw(batches)).to_pylist() == ["b", "a", None, "a", None, "c"]


@pytest.mark.parametrize(
    "keys",
    [[["a"], ["b"]], [["a"], []], [[], ["a", "b"]], [["a", "b"], ["c"]], [[], []], [["ä"], ["ö", "ü"]]],
)
def test_no_key_one_key_and_many_are_what_they_were(keys: list[list[str]]) -> None:
    batches = in_line([Rows([b""] * 2, 0, index_keys=keys), Rows([b""], 0)])

    assert built(batches, ["index_keys"]).column(0).to_pylist() == [*keys, []]


def test_a_batch_may_have_as_many_names_of_properties_as_there_are_codes() -> None:
    half = 1 << 15
    rows = Rows([b""] * 2, 0, properties=[{f"{i}": "" for i in range(start, start + half)} for start in (0, half)])
    batches = in_line([rows, Rows([b""], 0, properties=[{"a": "b"}])])

    found = built(batches, ["properties"]).column(0).to_pylist()

    assert [len(row) for row in found] == [half, half, 1]
    assert {name for row in found[:2] for name, _ in row} == {f"{i}" for i in range(2 * half)}


def test_a_key_is_null_where_a_message_has_none() -> None:
    batches = in_line([Rows([b""] * 3, 0, keys=["ä", None, ""]), Rows([b""], 0), Rows([b""], 0, keys=["o 17"])])

    assert built(batches, ["key"]).column(0).to_pylist() == ["ä", None, None, None, "o 17"]


def test_a_message_without_keys_and_properties_has_empty_ones_not_null() -> None:
    assert built(in_line([Rows([b"x"], 0)]), ["index_keys", "properties"]).to_pylist() == [
        {"index_keys": [], "properties": []}
    ]


@pytest.mark.parametrize("columns", [("body",), ("queue_offset", "queue_id"), ("stored_at", "tag", "index_keys")])
def test_only_the_columns_asked_for_are_built_in_their_order(columns: tuple[str, ...]) -> None:
    found = built(in_line([Rows([b"x", b"y"], 0)]), columns)

    assert tuple(found.schema.names) == columns
    assert found.schema.equals(pa.schema([(name, ARROW_TYPES[name]) for name in columns]))


SOUND = Rows([b"ab", b"c"], [1, 2], ["t", None], [("k",), ("l", "m")], None, [{"p": "v"}, {}], [0, 3])


@pytest.mark.parametrize(
    ("place", "value", "column"),
    [
        (0, b"\1\0\0\0\1\0\0\0", "body"),  # too few bytes
        (0, b"\xff\xff\xff\xff\4\0\0\0", "body"),  # a sum that wraps around
        (0, b"\1\0\0\0", "body"),
        (0, "text", "body"),
        (0, None, "body"),
        (1, [["t"], b"\1\0\2\0"], "tag"),  # a code without a name
        (1, [["t"], b"\1\0"], "tag"),
        (1, [[5], b"\1\0\0\0"], "tag"),
        (1, 7, "tag"),
        (1, {"a": 1}, "tag"),
        (1, ["ab", b"\1\0\2\0"], "tag"),
        (1, [{"a": 1, "b": 2}, b"\1\0\2\0"], "tag"),
        (1, [["a", None], b"\1\0\2\0"], "tag"),
        (1, [["a", b"b"], b"\1\0\2\0"], "tag"),
        (2, [b"\1\0\0\0\1\0\0\0", b"abc"], "index_keys"),
        (2, [b"\1\0\0\0\1\0\0\0", b"a\xff"], "index_keys"),
        (2, [b"\1\0\0\0\1\0\0\0", "\u00e4".encode()], "index_keys"),  # a bound within a character
        (2, [b"\1\0\0\0\1\0\0\0", "ab"], "index_keys"),
        (2, [b"\1\0\0\0"], "index_keys"),
        (4, [b"\1\0\0\0\1\0\0\0", b"abc"], "key"),
        (4, [b"\1\0\0\0\1\0\0\0", b"a\xff"], "key"),
        (4, [b"\1\0\0\0"], "key"),
        (5, [["p"], b"\2\0\0\0", b"\0\0", b"\1\0\0\0", b"v"], "properties"),
        (5, [["p"], b"\1\0\0\0", b"\1\0", b"\1\0\0\0", b"v"], "properties"),
        (5, [["p"], b"\1\0\0\0", b"\0\0", b"\2\0\0\0", b"v"], "properties"),
        (5, [["p"], b"\1\0\0\0"], "properties"),
        (5, ["p", b"\1\0\0\0", b"\0\0", b"\1\0\0\0", b"v"], "properties"),
        (5, {0: ["p"]}, "properties"),
        (6, -1, "born_at"),
        (6, 1 << 70, "born_at"),
        (6, b"\xff" * 16, "born_at"),
        (6, "now", "born_at"),
        (7, b"\0\0\0", "attempt"),
    ],
)
def test_a_column_that_no_broker_stores_is_refused(place: int, value: object, column: str) -> None:
    """Whether it comes alone or behind sound batches, with which it is built together."""
    (whole,) = raw([stored(SOUND)])
    columns = [*whole.columns]
    columns[place] = value
    broken = whole._replace(columns=columns)

    for batches in ([broken], [whole, broken], [broken, whole]):
        with pytest.raises(BadBatch):
            record_batch(batches, [column], stores=StoreIds(STORE))


@settings(deadline=None, max_examples=200)
@given(st.lists(row_sets(), min_size=1, max_size=3), st.data())
def test_without_the_checksum_changed_bytes_are_refused_or_give_rows_that_arrow_finds_sound(
    parts: list[Rows], data: st.DataObject
) -> None:
    """Never a crash, nor a read beyond a buffer: what lies in the content may be anything."""
    batches = [bytearray(batch) for batch in in_line(parts)]
    victim = data.draw(st.sampled_from(batches))
    first = layout.parse_header(bytes(victim)).header_size
    for _ in range(data.draw(st.integers(1, 3))):
        victim[data.draw(st.integers(first, len(victim) - 1))] = data.draw(st.integers(0, 255))
    try:
        taken = [read_raw(memoryview(batch), verify=False) for batch in batches]
        found = record_batch(taken, ALL, stores=StoreIds(STORE))
    except RmqError:
        return

    found.validate(full=True)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def test_numbers_of_all_batches_are_one_array() -> None:
    data = joined("x", 2, [b"\1\0\2\0", b"\3\0"], [2, 1])

    assert as_numbers(data, 2).to_pylist() == [1, 2, 3]
    assert as_numbers(u32(7, 1 << 31), 4).to_pylist() == [7, 1 << 31]
    assert as_numbers(struct.pack("<2q", -1, 5), 8).to_pylist() == [-1, 5]


@pytest.mark.parametrize("part", [b"\1\0", b"\1\0\2\0\3\0", "text", None, 7])
def test_a_batch_with_more_or_fewer_numbers_than_messages_is_refused(part: object) -> None:
    with pytest.raises(BadBatch, match="the column x is not 2 numbers of 2 bytes"):
        joined("x", 2, [b"\1\0\2\0", part], [2, 2])  # type: ignore[list-item]


def test_a_constant_has_every_row() -> None:
    assert constant(5, 3).equals(pa.array([5, 5, 5], pa.int32()))


def test_a_number_a_batch_becomes_one_a_row_or_a_single_one() -> None:
    spread = for_each_row([4, 9], [2, 1])

    assert spread.equals(pa.array([4, 4, 9], pa.uint32()))
    assert for_each_row([4, 4], [2, 1]).equals(pa.scalar(4, pa.uint32()))


def test_bounds_are_the_running_sum_of_the_lengths() -> None:
    assert bounds_of_parts("x", [u32(1, 2), u32(3)], [2, 1], [3, 3]).to_pylist() == [0, 1, 3, 6]


@pytest.mark.parametrize("sizes", [[4, 2], [3, 4], [2, 4]])
def test_lengths_of_one_batch_that_another_makes_up_for_are_refused(sizes: list[int]) -> None:
    with pytest.raises(BadBatch, match="do not add up"):
        bounds_of_parts("x", [u32(1, 2), u32(3)], [2, 1], sizes)


def test_lengths_that_wrap_around_are_refused() -> None:
    with pytest.raises((BadBatch, pa.ArrowInvalid)):
        bounds_of_parts("x", [u32((1 << 32) - 1, 2)], [2], [1])


def test_ends_are_those_of_each_batch() -> None:
    check_ends("x", pa.array([0, 2, 2, 5], pa.int32()), [1, 2], [2, 3])


def test_texts_are_what_lies_between_bounds() -> None:
    found = pa.array([0, 2, 2, 5], pa.int32())

    assert spans(TEXT, found, "äabc".encode()).to_pylist() == ["ä", "", "abc"]
    assert spans(pa.binary(), found, b"\xffabcd").to_pylist() == [b"\xffa", b"", b"bcd"]


def test_a_text_that_is_no_utf_8_or_ends_within_a_character_is_refused() -> None:
    for blob, ends in ((b"\xff\xfe", [0, 2]), ("ä".encode(), [0, 1, 2])):
        with pytest.raises(BadBatch, match="UTF-8"):
            spans(TEXT, pa.array(ends, pa.int32()), blob)


def test_only_bytes_can_be_joined() -> None:
    assert concat([b"a", memoryview(b"b")]) == b"ab"
    with pytest.raises(BadBatch, match="something else than bytes"):
        concat([b"a", "b"])
