"""
From the columns of record batches to Arrow, column by column.

:func:`record_batch` builds one Arrow record batch of any number of our batches. Both sides store columns, so no
message is looked at on its own: bytes are joined, lengths are summed up, codes are looked up, all inside of C.
The types are exactly those that Spark makes of :data:`COLUMNS`; it accepts no others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq.wire.batch import Batch, handle, message_id
from rmq.wire.columns import PropertyColumn, TagColumn, TextColumn
from rmq.wire.layout import MAX_COUNT

ID_LENGTH: Final = 32
INDEX_DIGITS: Final = 3  # the last digits of a message id are the place in the batch, which is below 4096
_INDEXES: Final = [b"%03x" % index for index in range(MAX_COUNT)]
_TIME: Final = pa.timestamp("us", "UTC")
_TEXT: Final = pa.string()
_ZERO: Final = pa.array([0], pa.int32())

ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": _TEXT,
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "message_id": _TEXT,
    "tag": _TEXT,
    "keys": pa.list_(pa.field("element", _TEXT)),
    "body": pa.binary(),
    "properties": pa.map_(_TEXT, pa.field("value", _TEXT)),
    "born_at": _TIME,
    "stored_at": _TIME,
    "attempt": pa.int32(),
}


def record_batch(batches: Sequence[Batch], columns: Sequence[str]) -> pa.RecordBatch:
    """The messages of ``batches``, which follow one another in one queue, as rows with the named columns."""
    arrays = [_BUILDERS[name](batches) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, ARROW_TYPES[name]) for name in columns]))


def _rows(batches: Sequence[Batch]) -> int:
    return sum(batch.header.count for batch in batches)


def _topic(batches: Sequence[Batch]) -> pa.Array:
    return pa.repeat(pa.scalar(batches[0].header.topic, _TEXT), _rows(batches))


def _queue_id(batches: Sequence[Batch]) -> pa.Array:
    return pa.repeat(pa.scalar(batches[0].header.queue_id, pa.int32()), _rows(batches))


def _queue_offset(batches: Sequence[Batch]) -> pa.Array:
    ones = pa.repeat(pa.scalar(1, pa.int64()), _rows(batches))
    return pc.cumulative_sum(ones, start=batches[0].header.base_offset - 1)


def _message_id(batches: Sequence[Batch]) -> pa.Array:
    parts = []
    for batch in batches:
        first = message_id(batch.store_id, handle(batch.header.physical_offset, 0))
        prefix = first[:-INDEX_DIGITS].encode()
        parts += [prefix, prefix.join(_INDEXES[: batch.header.count])]
    return _texts(_TEXT, pa.repeat(pa.scalar(ID_LENGTH, pa.int32()), _rows(batches)), b"".join(parts))


def _tag(batches: Sequence[Batch]) -> pa.Array:
    columns = [batch.columns.tags for batch in batches]
    if not any(columns):
        return pa.nulls(_rows(batches), _TEXT)
    names: dict[str | None, int] = {None: 0}
    codes = array("I")
    for batch, column in zip(batches, columns, strict=True):
        codes.extend(_tag_codes(column, batch.header.count, names))
    return pa.array(list(names), _TEXT).take(_numbers(codes, pa.uint32()))


def _tag_codes(column: TagColumn | None, count: int, names: dict[str | None, int]) -> array[int]:
    if column is None:
        return array("I", bytes(4 * count))
    return _recode(column.codes, [0, *_places(column.names, names)])


def _keys(batches: Sequence[Batch]) -> pa.Array:
    columns = [batch.columns.keys for batch in batches]
    if not any(columns):
        return _lists(pa.repeat(pa.scalar(0, pa.int32()), _rows(batches)), pa.array([], _TEXT))
    lengths = array("I")
    for batch, column in zip(batches, columns, strict=True):
        lengths.extend(array("I", bytes(4 * batch.header.count)) if column is None else column.lengths)
    texts = _texts(_TEXT, _numbers(lengths, pa.int32()), b"".join(_blobs(columns)))
    # The empty text is no key, but would be split into one empty key.
    texts = pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, _TEXT), texts)
    keys = pc.split_pattern(texts, " ")
    return _lists(pc.fill_null(pc.list_value_length(keys), 0), pc.list_flatten(keys))


def _blobs(columns: Sequence[TextColumn | PropertyColumn | None]) -> list[bytes]:
    return [column.blob for column in columns if column is not None]


def _lists(counts: pa.Array, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(_bounds(counts), values, type=ARROW_TYPES["keys"])


def _body(batches: Sequence[Batch]) -> pa.Array:
    lengths = array("I")
    for batch in batches:
        lengths.extend(batch.columns.lengths)
    return _texts(pa.binary(), _numbers(lengths, pa.int32()), b"".join(batch.bodies for batch in batches))


def _properties(batches: Sequence[Batch]) -> pa.Array:
    columns = [batch.columns.properties for batch in batches]
    names: dict[str | None, int] = {}
    counts, codes, lengths = array("I"), array("I"), array("I")
    for batch, column in zip(batches, columns, strict=True):
        if column is None:
            counts.frombytes(bytes(4 * batch.header.count))
        else:
            counts.extend(array("I", column.counts))
            codes.extend(_recode(column.codes, _places(column.names, names)))
            lengths.extend(column.lengths)
    keys = pa.array(list(names), _TEXT).take(_numbers(codes, pa.uint32()))
    values = _texts(_TEXT, _numbers(lengths, pa.int32()), b"".join(_blobs(columns)))
    return pa.MapArray.from_arrays(_bounds(_numbers(counts, pa.int32())), keys, values, type=ARROW_TYPES["properties"])


def _born_at(batches: Sequence[Batch]) -> pa.Array:
    times = array("q")
    for batch in batches:
        born_at = batch.columns.born_at
        times.extend(array("q", (born_at,)) * batch.header.count if isinstance(born_at, int) else born_at)
    return _numbers(times, _TIME)


def _stored_at(batches: Sequence[Batch]) -> pa.Array:
    times = array("q")
    for batch in batches:
        times.extend(array("q", (batch.header.stored_at,)) * batch.header.count)
    return _numbers(times, _TIME)


def _attempt(batches: Sequence[Batch]) -> pa.Array:
    before = array("H")
    for batch in batches:
        before.extend(batch.columns.attempts or array("H", bytes(2 * batch.header.count)))
    return pc.add(_numbers(before, pa.uint16()).cast(pa.int32()), pa.scalar(1, pa.int32()))


def _places(names: Sequence[str], known: dict[str | None, int]) -> list[int]:
    """Where each name stands in the dictionary of all batches; new ones are added at its end."""
    return [known.setdefault(name, len(known)) for name in names]


def _recode(codes: array[int], places: list[int]) -> array[int]:
    if places == list(range(len(places))):
        return array("I", codes)
    return array("I", map(places.__getitem__, codes))


def _numbers(values: array[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _bounds(lengths: pa.Array) -> pa.Array:
    """Where each of some things begins, and where the last one ends."""
    # A length of 0 in front makes the running sum begin at 0. Checked: what does not fit 32 bits fails, never wraps.
    return pc.cumulative_sum_checked(pa.concat_arrays([_ZERO, lengths]))


def _texts(kind: pa.DataType, lengths: pa.Array, blob: bytes) -> pa.Array:
    """An array of bytes or texts that lie back to back."""
    return pa.Array.from_buffers(kind, len(lengths), [None, _bounds(lengths).buffers()[1], pa.py_buffer(blob)])


_BUILDERS: Final[dict[str, Callable[[Sequence[Batch]], pa.Array]]] = {
    "topic": _topic,
    "queue_id": _queue_id,
    "queue_offset": _queue_offset,
    "message_id": _message_id,
    "tag": _tag,
    "keys": _keys,
    "body": _body,
    "properties": _properties,
    "born_at": _born_at,
    "stored_at": _stored_at,
    "attempt": _attempt,
}
