"""
From the columns of record batches to Arrow, column by column.

:func:`record_batch` builds one Arrow record batch of any number of our batches. Both sides store columns, so no
message is looked at on its own: bytes are joined, lengths are summed up, codes are looked up, all inside of C.
The types are exactly those that Spark makes of the columns of its source; it accepts no others.

The columns are validated as far as building them needs it: lengths add up, codes lie in their dictionary, texts are
UTF-8, times are in range. What a broker stores is always valid. Numbers are little-endian in batches and in Arrow, so
most columns are built by joining the bytes of all batches.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

from rmq.wire.batch.batch import RawBatch, handle, id_of_handle
from rmq.wire.batch.layout import MAX_COUNT, MAX_TIME
from rmq.wire.errors import BadBatch
from rmq.wire.stores import StoreIds

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("tables of messages need pyarrow: pip install 'rmq[spark]'", name=error.name) from error
ID_LENGTH: Final = 32
INDEX_DIGITS: Final = 3  # the last digits of a message id are the place in the batch, which is below 4096
_DIGITS: Final = [bytes((b"%03x" % index)[digit] for index in range(MAX_COUNT)) for digit in range(INDEX_DIGITS)]
_TIME: Final = pa.timestamp("us", "UTC")
_COUNTS: Final = pa.array(range(64 << 10), pa.int64())
# Made once: pyarrow takes longer to make such a value of a number than to use it for a thousand rows.
_ZERO: Final = pa.scalar(0, pa.int32())
_ONE: Final = pa.scalar(1, pa.int32())
_ID_LENGTH: Final = pa.scalar(ID_LENGTH, pa.int64())
TEXT: Final = pa.string()
_NO_TEXT: Final = pa.scalar(None, TEXT)
_NO_TEXTS: Final = pa.array([], TEXT)
_I64: Final = struct.Struct("<q")
# The columns of the meta of a batch.
_LENGTHS, _TAGS, _INDEX_KEYS, _KEYS, _PROPERTIES, _BORN_AT, _ATTEMPTS = 0, 1, 2, 4, 5, 6, 7
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": TEXT,
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "message_id": TEXT,
    "key": TEXT,
    "tag": TEXT,
    "index_keys": pa.list_(pa.field("element", TEXT)),
    "body": pa.binary(),
    "properties": pa.map_(TEXT, pa.field("value", TEXT)),
    "born_at": _TIME,
    "stored_at": _TIME,
    "attempt": pa.int32(),
}


class BatchRun:
    """Batches of one queue, oldest first, and how many rows they make; message ids are made of ``stores``."""

    __slots__ = ("batches", "count", "counts", "stores")

    def __init__(self, batches: Sequence[RawBatch], stores: StoreIds) -> None:
        self.batches = batches
        self.stores = stores
        self.counts = [batch.header.count for batch in batches]
        self.count = sum(self.counts)

    def column(self, place: int) -> list[Any]:
        """One column of the meta, a piece of each batch."""
        return [batch.columns[place] for batch in self.batches]


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of rows with the named columns."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])


def record_batch(batches: Sequence[RawBatch], columns: Sequence[str], *, stores: StoreIds) -> pa.RecordBatch:
    """
    The messages of ``batches``, which are of one queue, as rows with the named columns.

    Raises:
        BadBatch: a column does not hold what it should; one of the batches is no batch of ours.
    """
    rows = BatchRun(batches, stores)
    try:
        arrays = [_BUILDERS[name](rows) for name in columns]
    except (pa.ArrowException, struct.error, TypeError, ValueError, LookupError) as error:
        raise BadBatch(f"a column does not hold what it should: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def table_of(rows: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
    """Record batches of the named columns as one table, which may be empty."""
    return pa.Table.from_batches(rows, schema_of(columns))


def tags_of(batches: Sequence[RawBatch]) -> pa.Array:
    """The tags alone; raises as :func:`record_batch` does."""
    return record_batch(batches, ["tag"], stores=StoreIds(0)).column(0)


def _topic(rows: BatchRun) -> pa.Array:
    return pa.repeat(pa.scalar(rows.batches[0].header.topic, TEXT), rows.count)


def _queue_id(rows: BatchRun) -> pa.Array:
    return pa.repeat(pa.scalar(rows.batches[0].header.queue_id, pa.int32()), rows.count)


def _queue_offset(rows: BatchRun) -> pa.Array:
    starts = [batch.header.base_offset for batch in rows.batches]
    follow = [first + count for first, count in zip(starts, rows.counts, strict=True)]
    if starts[1:] != follow[:-1]:  # a scan for some tags leaves batches out
        counted = [_counting(start, count) for start, count in zip(starts, rows.counts, strict=True)]
        return pa.concat_arrays(counted)
    return _counting(starts[0], rows.count)


def _counting(start: int, count: int) -> pa.Array:
    if count <= len(_COUNTS):
        return pc.add(_COUNTS.slice(0, count), pa.scalar(start, pa.int64()))
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=start - 1)


def _message_id(rows: BatchRun) -> pa.Array:
    first = [id_of_handle(rows.stores, handle(batch.header.physical_offset, 0)) for batch in rows.batches]
    ids = bytearray().join([text.encode() * count for text, count in zip(first, rows.counts, strict=True)])
    for place, digits in enumerate(_DIGITS, ID_LENGTH - INDEX_DIGITS):
        ids[place::ID_LENGTH] = b"".join([digits[:count] for count in rows.counts])
    return spans(TEXT, pc.multiply(_counting(0, rows.count + 1), _ID_LENGTH).cast(pa.int32()), ids)


def _tag(rows: BatchRun) -> pa.Array:
    columns = rows.column(_TAGS)
    if not any(columns):
        return pa.nulls(rows.count, TEXT)
    used: list[Any] = [c or ([], bytes(2 * count)) for c, count in zip(columns, rows.counts, strict=True)]
    return _looked_up([c[0] for c in used], [c[1] for c in used], rows.counts, lead=[None])


def _looked_up(
    dictionaries: Sequence[list[str]], codes: Sequence[bytes], counts: Sequence[int], lead: list[None]
) -> pa.Array:
    """The names that codes stand for, each batch with its own dictionary, which begins with ``lead``."""
    names: list[str | None] = []
    bases, sizes = [], []
    base, last = 0, None
    for dictionary in dictionaries:
        if dictionary != last:  # most batches have the same as the one before
            if type(dictionary) is not list or not all(type(name) is str for name in dictionary):
                raise BadBatch("a dictionary is not a list of names")
            base, last = len(names), dictionary
            names += lead
            names += dictionary
        bases.append(base)
        sizes.append(len(lead) + len(dictionary))
    # Wider than a code: a dictionary may have a name for each of them, and so one more than the last.
    numbers = as_numbers(joined("tags or properties", 2, codes, counts), 2).cast(pa.uint32())
    if not pc.all(pc.less(numbers, for_each_row(sizes, counts)), min_count=0).as_py():
        raise BadBatch("a code lies outside of its dictionary")
    return _dictionary(tuple(names)).take(pc.add(numbers, for_each_row(bases, counts)))


@lru_cache(maxsize=4)
def _dictionary(names: tuple[str | None, ...]) -> pa.Array:
    return pa.array(names, TEXT)


def _key(rows: BatchRun) -> pa.Array:
    columns = rows.column(_KEYS)
    if not any(columns):
        return pa.nulls(rows.count, TEXT)
    texts, _ = _texts("keys", columns, rows.counts)
    return pc.if_else(pc.not_equal(pc.binary_length(texts), _ZERO), texts, _NO_TEXT)


def _texts(name: str, columns: Sequence[Any], counts: Sequence[int]) -> tuple[pa.Array, Any]:
    """Return the texts of a column, one a message, and their bytes in a row; an empty text stands for none."""
    used = [c or (bytes(4 * count), b"") for c, count in zip(columns, counts, strict=True)]
    blob = concat(c[1] for c in used)
    ends = bounds_of_parts(name, [c[0] for c in used], counts, [len(c[1]) for c in used])
    return spans(TEXT, ends, blob), blob


def _index_keys(rows: BatchRun) -> pa.Array:
    columns = rows.column(_INDEX_KEYS)
    if not any(columns):
        return _lists(constant(0, rows.count + 1), _NO_TEXTS)
    texts, blob = _texts("index_keys", columns, rows.counts)
    is_some = pc.not_equal(pc.binary_length(texts), _ZERO)
    has_all = pc.all(is_some).as_py()
    if b" " not in blob:  # no message has more than one key
        if has_all:
            return _lists(_counting(0, rows.count + 1).cast(pa.int32()), texts)
        return _lists(_bounds_of(is_some.cast(pa.int32())), texts.filter(is_some))
    if not has_all:  # the empty text is no key, but would be split into one empty key
        texts = pc.if_else(is_some, texts, _NO_TEXT)
    split = pc.split_pattern(texts, " ")
    return _lists(_bounds_of(pc.fill_null(pc.list_value_length(split), _ZERO)), pc.list_flatten(split))


def _bounds_of(counts: pa.Array) -> pa.Array:
    return bounds(pa.concat_arrays([constant(0, 1), counts]))


def _lists(ends: pa.Array, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(ends, values, type=ARROW_TYPES["index_keys"])


def _body(rows: BatchRun) -> pa.Array:
    sizes = [batch.header.raw_size for batch in rows.batches]
    ends = bounds_of_parts("lengths", rows.column(_LENGTHS), rows.counts, sizes)
    return spans(pa.binary(), ends, b"".join([batch.bodies for batch in rows.batches]))


def _properties(rows: BatchRun) -> pa.Array:
    columns = rows.column(_PROPERTIES)
    if not any(columns):
        return pa.MapArray.from_arrays(
            constant(0, rows.count + 1), _NO_TEXTS, _NO_TEXTS, type=ARROW_TYPES["properties"]
        )
    pairs = zip(columns, rows.counts, strict=True)
    used: list[Any] = [column or ([], bytes(2 * count), b"", b"", b"") for column, count in pairs]
    totals = [len(c[2]) // 2 for c in used]
    counts = as_numbers(joined("properties", 2, [c[1] for c in used], rows.counts), 2)
    ends = _bounds_of(counts.cast(pa.int32()))
    check_ends("properties", ends, rows.counts, totals)
    names = _looked_up([c[0] for c in used], [c[2] for c in used], totals, lead=[])
    blob = concat(c[4] for c in used)
    places = bounds_of_parts("properties", [c[3] for c in used], totals, [len(c[4]) for c in used])
    return pa.MapArray.from_arrays(ends, names, spans(TEXT, places, blob), type=ARROW_TYPES["properties"])


def _born_at(rows: BatchRun) -> pa.Array:
    parts = [
        _I64.pack(times) * count if type(times) is int else times
        for times, count in zip(rows.column(_BORN_AT), rows.counts, strict=True)
    ]
    times = as_numbers(joined("born_at", 8, parts, rows.counts), 8)
    span = pc.min_max(times)
    if span["min"].as_py() < 0 or span["max"].as_py() >= MAX_TIME:
        raise BadBatch("a time of born_at is not between 1970 and 9999")
    return times.view(_TIME)


def _stored_at(rows: BatchRun) -> pa.Array:
    parts = [_I64.pack(batch.header.stored_at) * batch.header.count for batch in rows.batches]
    return as_numbers(b"".join(parts), 8).view(_TIME)


def _attempt(rows: BatchRun) -> pa.Array:
    columns = rows.column(_ATTEMPTS)
    if not any(columns):
        return constant(1, rows.count)
    parts = [bytes(2 * count) if c is None else c for c, count in zip(columns, rows.counts, strict=True)]
    before = as_numbers(joined("attempts", 2, parts, rows.counts), 2)
    return pc.add(before.cast(pa.int32()), _ONE)


_BUILDERS: Final[dict[str, Callable[[BatchRun], pa.Array]]] = {
    "topic": _topic,
    "queue_id": _queue_id,
    "queue_offset": _queue_offset,
    "message_id": _message_id,
    "key": _key,
    "tag": _tag,
    "index_keys": _index_keys,
    "body": _body,
    "properties": _properties,
    "born_at": _born_at,
    "stored_at": _stored_at,
    "attempt": _attempt,
}
NOTHING: Final = bytes(4)  # a length of 0
_CODES: Final = {2: "H", 4: "I", 8: "q"}
_KINDS: Final = {2: pa.uint16(), 4: pa.uint32(), 8: pa.int64()}
_SWAP: Final = sys.byteorder == "big"


def joined(name: str, width: int, parts: Sequence[bytes], counts: Sequence[int]) -> bytes:
    """
    The numbers of all batches, ``width`` bytes each and as many a batch as ``counts`` says.

    Raises:
        BadBatch: a batch has more or fewer.
    """
    for part, count in zip(parts, counts, strict=True):
        if type(part) is not bytes or len(part) != width * count:
            raise BadBatch(f"the column {name} is not {count} numbers of {width} bytes")
    return b"".join(parts)


def as_numbers(data: bytes, width: int) -> pa.Array:
    """Joined numbers as an array: of 2 and 4 bytes without a sign, of 8 with one."""
    held: bytes | array[int] = data
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        held = array(_CODES[width], data)
        held.byteswap()
    return pa.Array.from_buffers(_KINDS[width], len(data) // width, [None, pa.py_buffer(held)])


def constant(value: int, count: int) -> pa.Array:
    """The same number for every row, as 32 bits."""
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(array("i", (value,)) * count)])


def for_each_row(values: Sequence[int], counts: Sequence[int]) -> pa.Array | pa.Scalar:
    """A number a batch, as one a row, of 32 bits without a sign; a single one where all batches have the same."""
    if values.count(values[0]) == len(values):
        return pa.scalar(values[0], pa.uint32())
    spread = array("I")
    for value, count in zip(values, counts, strict=True):
        spread += array("I", (value,)) * count
    return pa.Array.from_buffers(pa.uint32(), len(spread), [None, pa.py_buffer(spread)])


def bounds(lengths: pa.Array) -> pa.Array:
    """Where each of some things begins and the last one ends, of their lengths behind a 0 in front."""
    return pc.cumulative_sum_checked(lengths)


def bounds_of_parts(name: str, parts: Sequence[bytes], counts: Sequence[int], sizes: Sequence[int]) -> pa.Array:
    """
    The bounds of things whose lengths are pieces of batches.

    Raises:
        BadBatch: those of a batch do not add up to its size.
    """
    found = bounds(as_numbers(NOTHING + joined(name, 4, parts, counts), 4))
    check_ends(name, found, counts, sizes)
    return found


def check_ends(name: str, found: pa.Array, counts: Sequence[int], sizes: Sequence[int]) -> None:
    """Refuse bounds at which the batches do not end where they should."""
    view = memoryview(found.buffers()[1]).cast("i")
    for row, size in zip(accumulate(counts), accumulate(sizes), strict=True):
        if view[row] != size:
            raise BadBatch(f"the lengths of the column {name} do not add up to what it holds")


def spans(kind: pa.DataType, found: pa.Array, blob: bytes | bytearray) -> pa.Array:
    """
    Texts or bytes that lie back to back between bounds.

    Raises:
        BadBatch: a text is not UTF-8.
    """
    built = pa.Array.from_buffers(kind, len(found) - 1, [None, found.buffers()[1], pa.py_buffer(blob)])
    if kind == TEXT and not blob.isascii():
        try:
            built.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadBatch("a text is not UTF-8") from error
    return built


def concat(blobs: Iterable[object]) -> bytes:
    """Runs of bytes as one; raises BadBatch if one is something else."""
    try:
        return b"".join(blobs)  # type: ignore[arg-type]  # what else it is, is for join to find
    except TypeError as error:
        raise BadBatch(f"a column holds something else than bytes: {error}") from error
