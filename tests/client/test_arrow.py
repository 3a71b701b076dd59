"""The columns that Spark gets equal the messages that a consumer gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.arrow import ARROW_TYPES, record_batch
from rmq.wire import layout
from rmq.wire.batch import Batch, Rows, encode, read
from rmq.wire.compression import CODECS

STORE = 0xFEDCBA9876543210
ALL = tuple(ARROW_TYPES)


def stored(
    rows: Rows, *, base_offset: int = 0, physical_offset: int = 4096, stored_at: int = 1_700_000_000_000_000
) -> Batch:
    data = encode("orders", 3, rows, codec=CODECS.by_name("zlib"))
    header = layout.parse_header(data)
    by = layout.Stamp(7, physical_offset, base_offset, stored_at, 0, 0, 1, 3, layout.KIND_DATA)
    data[: layout.BROKER_PART] = layout.stamp(data, header.header_size, by)
    return read(data, store_id=STORE)


def in_line(parts: Sequence[Rows], *, base_offset: int = 0) -> list[Batch]:
    batches: list[Batch] = []
    physical = 1 << 40
    for index, rows in enumerate(parts):
        batch = stored(rows, base_offset=base_offset, physical_offset=physical, stored_at=1_700_000_000_000_000 + index)
        batches.append(batch)
        base_offset, physical = batch.header.end_offset, physical + batch.header.size
    return batches


def by_hand(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Row by row, through what a consumer's listener sees."""
    return [
        {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.message_id,
            "tag": message.tag,
            "keys": list(message.keys),
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
        keys=column(st.lists(keys, max_size=3)),
        ordering_keys=column(st.none() | texts),
        properties=column(st.dictionaries(names, texts, max_size=3)),
        attempts=column(st.integers(0, 65535)),
    )


@settings(deadline=None)
@given(st.lists(row_sets(), min_size=1, max_size=5), st.integers(0, 1 << 40))
def test_arrow_rows_equal_the_messages(parts: list[Rows], base_offset: int) -> None:
    batches = in_line(parts, base_offset=base_offset)

    built = record_batch(batches, ALL)

    built.validate(full=True)
    assert built.to_pylist() == by_hand(batches)


@settings(deadline=None)
@given(st.lists(row_sets(), min_size=1, max_size=3), st.data())
def test_a_slice_equals_the_same_messages(parts: list[Rows], data: st.DataObject) -> None:
    batches = in_line(parts)
    rows = by_hand(batches)
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))

    assert record_batch(batches, ALL).slice(start, end - start).to_pylist() == rows[start:end]


def test_a_full_batch_gives_every_message_its_own_id() -> None:
    batch = stored(Rows([b"%d" % i for i in range(layout.MAX_COUNT)], 0), physical_offset=layout.MAX_POSITION - 8)

    ids = record_batch([batch], ["message_id"]).column(0).to_pylist()

    assert ids == [message.message_id for message in batch.messages()]
    assert len(set(ids)) == layout.MAX_COUNT


def test_tags_of_batches_with_different_dictionaries_are_kept_apart() -> None:
    batches = in_line([Rows([b""] * 2, 0, tags=["b", "a"]), Rows([b""], 0), Rows([b""] * 3, 0, tags=["a", None, "c"])])

    assert record_batch(batches, ["tag"]).column(0).to_pylist() == ["b", "a", None, "a", None, "c"]


def test_a_message_without_keys_and_properties_has_empty_ones_not_null() -> None:
    built = record_batch(in_line([Rows([b"x"], 0)]), ["keys", "properties"])

    assert built.to_pylist() == [{"keys": [], "properties": []}]


@pytest.mark.parametrize("columns", [("body",), ("queue_offset", "queue_id"), ("stored_at", "tag", "keys")])
def test_only_the_columns_asked_for_are_built_in_their_order(columns: tuple[str, ...]) -> None:
    built = record_batch(in_line([Rows([b"x", b"y"], 0)]), columns)

    assert tuple(built.schema.names) == columns
    assert built.schema.equals(pa.schema([(name, ARROW_TYPES[name]) for name in columns]))
