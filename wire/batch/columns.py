"""
The columns of a batch: judged once on arrival, read without a loop over messages.

:func:`check_columns` accepts exactly what the accessors of :class:`Columns` can read: lengths add up, codes lie
in their dictionary, text is UTF-8 at every boundary. Nothing here copies a body.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from .. import unpacking
from ..errors import BadBatch, MessageTooLarge
from .checksum import crc32
from .hashing import tag_bloom, tag_hash
from .layout import MAX_BODY, MAX_TAG, MAX_TIME, Buffer, Header
from .native import native

META_COLUMNS = 8
BORN_AT = 6  # its place among them
META_VALUES = 1024  # besides names; far more than the columns of today
_SIZES = {"H": 2, "I": 4, "q": 8}
_SPACE = 0x20
_SWAP = sys.byteorder == "big"


class TextColumn(NamedTuple):
    """One text a message: lengths and the bytes back to back; length 0 is no text."""

    lengths: array[int]
    blob: bytes

    def bounds(self) -> list[int]:
        """Where each text begins, and where the last one ends."""
        return [0, *accumulate(self.lengths)]

    def texts(self) -> list[str]:
        """Every text, decoded."""
        bounds = self.bounds()
        return [self.blob[a:b].decode() for a, b in pairwise(bounds)]


class TagColumn(NamedTuple):
    """A dictionary of tags and a code a message; code 0 is no tag."""

    names: list[str]
    codes: array[int]

    def hashes(self) -> list[int]:
        """The tag hash behind each code, beginning with 0 for no tag."""
        return [0, *map(tag_hash, self.names)]


class PropertyColumn(NamedTuple):
    """Properties of all messages: how many each has, then name codes and values in one line."""

    names: list[str]
    counts: array[int]
    codes: array[int]
    lengths: array[int]
    blob: bytes


class Columns:
    """The metadata of a batch; what a message asks for is decoded when first asked for, for the whole batch."""

    __slots__ = (
        "_index_keys",
        "_keys",
        "_properties",
        "attempts",
        "born_at",
        "index_key_hashes",
        "index_keys",
        "keys",
        "lengths",
        "properties",
        "tags",
    )  # fmt: skip

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.lengths: array[int] = parts[0]
        self.tags: TagColumn | None = parts[1]
        self.index_keys: TextColumn | None = parts[2]
        self.index_key_hashes: array[int] | None = parts[3]
        self.keys: TextColumn | None = parts[4]
        self.properties: PropertyColumn | None = parts[5]
        self.born_at: int | array[int] = parts[6]
        self.attempts: array[int] | None = parts[7]
        self._index_keys: list[tuple[str, ...]] | None = None
        self._keys: list[str] | None = None
        self._properties: list[dict[str, str]] | None = None

    def tag(self, index: int) -> str | None:
        """The tag of a message."""
        if self.tags is None or not (code := self.tags.codes[index]):
            return None
        return self.tags.names[code - 1]

    def index_keys_of(self, index: int) -> tuple[str, ...]:
        """The index keys of a message."""
        if self.index_keys is None:
            return ()
        if self._index_keys is None:
            self._index_keys = [tuple(text.split(" ")) if text else () for text in self.index_keys.texts()]
        return self._index_keys[index]

    def key(self, index: int) -> str | None:
        """Return the key of a message: the one that orders it."""
        if self.keys is None:
            return None
        if self._keys is None:
            self._keys = self.keys.texts()
        return self._keys[index] or None

    def searchable_hashes(self) -> array[int] | None:
        """Return the hashes that the batch is searched by: of its index keys, then of its keys; None without any."""
        if self.keys is None:
            return self.index_key_hashes
        hashes = hash_texts(self.keys)
        return hashes if self.index_key_hashes is None else self.index_key_hashes + hashes

    def properties_of(self, index: int) -> dict[str, str]:
        """A copy of the properties of a message."""
        if self.properties is None:
            return {}
        if self._properties is None:
            self._properties = _property_rows(self.properties)
        return dict(self._properties[index])

    def born_at_of(self, index: int) -> int:
        """When the producer made a message, in microseconds."""
        return self.born_at if isinstance(self.born_at, int) else self.born_at[index]

    def attempts_of(self, index: int) -> int:
        """How often a message was delivered before this batch was made."""
        return 0 if self.attempts is None else self.attempts[index]


def hash_texts(column: TextColumn) -> array[int]:
    """Return the CRC-32 of each text; an empty text has none, and equal neighbours share one."""
    if native is None:
        return hash_any_texts(column)
    hashes = array("I")
    hashes.frombytes(native.hash_texts(column.blob, column.lengths))
    return hashes


def hash_any_texts(column: TextColumn) -> array[int]:
    """The same, without a compiled function."""
    texts = (column.blob[a:b] for a, b in pairwise(column.bounds()))
    return array("I", [crc32(text) for text, _ in groupby(texts) if text])


def unpack_meta(meta: memoryview, header: Header) -> list[Any]:
    """
    The columns of a batch as they were packed: at least ``META_COLUMNS`` of them, not judged any further.

    Raises:
        BadBatch: the meta is no such array, or is larger than its messages can make it.
    """
    # Each tag has a message, each name of a property a value, which takes 6 bytes besides: a meta of more is unsound.
    most = META_VALUES + header.count + min(len(meta) // 8, unpacking.MAX_ARRAY)
    try:
        parts = unpacking.unpack(meta, max_items=most)
    except unpacking.Malformed as error:
        raise BadBatch(f"the meta is not msgpack: {error}") from error
    if type(parts) is not list or len(parts) < META_COLUMNS:
        raise BadBatch(f"the meta is not an array of {META_COLUMNS} columns")
    return parts


def check_columns(meta: memoryview, header: Header) -> Columns:
    """
    Decode and judge the meta of a batch.

    Raises:
        BadBatch, MessageTooLarge: with one sentence of what is wrong.
    """
    parts = unpack_meta(meta, header)
    lengths, tags, index_keys, hashes, keys, properties, born_at, attempts = parts[:META_COLUMNS]
    count = header.count
    sizes = _numbers("lengths", "I", lengths, count)
    _check_bodies(sizes, header)
    key_column = None if index_keys is None else _text("index_keys", index_keys, count)
    return Columns(
        (
            sizes,
            _tags(tags, header),
            key_column,
            _hashes(hashes, key_column),
            None if keys is None else _text("keys", keys, count),
            None if properties is None else _properties(properties, count),
            _times(born_at, count),
            None if attempts is None else _numbers("attempts", "H", attempts, count),
        )
    )


def tag_names(meta: Buffer) -> list[str]:
    """The tags in the meta of a batch that was judged."""
    tags = unpacking.unpack(meta, trusted=True)[1]
    names: list[str] = [] if tags is None else tags[0]
    return names


def check_names(column: str, names: list[str], longest: int | None = None) -> None:
    """Refuse a dictionary with a name that is empty, over ``longest`` bytes or there twice."""
    if not all(names):
        raise BadBatch(f"a name of the column {column} is empty")
    if len(set(names)) != len(names):
        raise BadBatch(f"a name of the column {column} is there twice")
    if longest is not None and any(len(name.encode()) > longest for name in names):
        raise BadBatch(f"a name of the column {column} is over the limit of {longest} bytes")


def check_times(column: str, times: Sequence[int]) -> None:
    """Refuse a time that a calendar cannot show."""
    if min(times) < 0 or max(times) >= MAX_TIME:
        raise _bad_time(column, next(time for time in times if not 0 <= time < MAX_TIME))


def _bad_time(column: str, time: int) -> BadBatch:
    return BadBatch(f"the time {time} of {column} is not between 1970 and 9999")


def count_keys(lengths: Sequence[int], blob: bytes) -> int:
    """Return how many index keys a column of joined ones holds; raise BadBatch if one of them is empty."""
    spaces = blob.count(b" ")
    if spaces:
        ends = list(accumulate(lengths))
        if b"  " in blob or any(
            length and (blob[end - length] == _SPACE or blob[end - 1] == _SPACE)
            for end, length in zip(ends, lengths, strict=True)
        ):
            raise BadBatch("an index key is empty or holds a space")
    return spaces + len(lengths) - _zeros(lengths)


def _zeros(lengths: Sequence[int]) -> int:
    if native is not None and isinstance(lengths, array):
        return native.tally(lengths)[1]
    return lengths.count(0)


def _total(lengths: array[int]) -> int:
    return sum(lengths) if native is None else native.tally(lengths)[0]


def _check_bodies(lengths: array[int], header: Header) -> None:
    if _total(lengths) != header.raw_size:
        raise BadBatch(f"the lengths add up to {sum(lengths)}, the bodies have {header.raw_size} bytes")
    if header.raw_size > MAX_BODY and max(lengths) > MAX_BODY:
        raise MessageTooLarge(f"a body of {max(lengths)} bytes is over the limit of {MAX_BODY}")


def _numbers(name: str, typecode: str, data: object, count: int) -> array[int]:
    if type(data) is not bytes or len(data) != count * _SIZES[typecode]:
        raise BadBatch(f"the column {name} is not {count} numbers of {_SIZES[typecode]} bytes")
    column = array(typecode, data)
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column.byteswap()
    return column


def _times(value: object, count: int) -> int | array[int]:
    if type(value) is int and 0 <= value < MAX_TIME:
        return value
    if type(value) is int:
        raise _bad_time("born_at", value)
    column = _numbers("born_at", "q", value, count)
    assert type(value) is bytes  # else it would not be numbers
    if value[7::8].strip(b"\0"):  # the highest bytes: those of a time before the year 4253 are 0
        check_times("born_at", column)
    return column


def _names(column: str, value: object, most: int, longest: int | None = None) -> list[str]:
    if type(value) is not list:
        raise BadBatch(f"the dictionary of the column {column} is not a list of texts")
    if len(value) > most:  # each costs time, so that names which nobody uses are not even looked at
        raise BadBatch(f"the column {column} has {len(value)} names, and {most} places that could use one")
    if not all(type(item) is str for item in value):
        raise BadBatch(f"the dictionary of the column {column} is not a list of texts")
    check_names(column, value, longest)
    return value


def _tags(value: object, header: Header) -> TagColumn | None:
    if value is None:
        if header.tag_bloom:
            raise BadBatch("there is a tag bloom and no tags")
        return None
    if type(value) is not list or len(value) != 2:
        raise BadBatch("the column tags is not a dictionary and codes")
    names = _names("tags", value[0], header.count, MAX_TAG)
    codes = _numbers("tags", "H", value[1], header.count)
    if (max(codes) if native is None else native.highest(codes)) > len(names):
        raise BadBatch(f"a tag code {max(codes)} lies outside of {len(names)} tags")
    if tag_bloom(names) != header.tag_bloom:
        raise BadBatch("the tag bloom does not match the tags")
    return TagColumn(names, codes)


def _text(name: str, value: object, count: int) -> TextColumn:
    if type(value) is not list or len(value) != 2 or type(value[1]) is not bytes:
        raise BadBatch(f"the column {name} is not lengths and bytes")
    column = TextColumn(_numbers(name, "I", value[0], count), value[1])
    _check_utf8(name, column.lengths, column.blob)
    return column


def _check_utf8(name: str, lengths: array[int], blob: bytes) -> None:
    if _total(lengths) != len(blob):
        raise BadBatch(f"the column {name} has {len(blob)} bytes, its lengths add up to {sum(lengths)}")
    if blob.isascii():
        return
    try:
        blob.decode()
    except UnicodeDecodeError as error:
        raise BadBatch(f"the column {name} is not UTF-8") from error
    # Valid as a whole is not enough: a boundary inside a character would make both neighbours unreadable.
    if any(at < len(blob) and blob[at] & 0xC0 == 0x80 for at in accumulate(lengths)):
        raise BadBatch(f"a text of the column {name} ends within a character")


def _hashes(value: object, index_keys: TextColumn | None) -> array[int] | None:
    if index_keys is None:
        if value is not None:
            raise BadBatch("there are hashes of index keys and no index keys")
        return None
    return _numbers("index_key_hashes", "I", value, count_keys(index_keys.lengths, index_keys.blob))


def _properties(value: object, count: int) -> PropertyColumn:
    if type(value) is not list or len(value) != 5 or type(value[4]) is not bytes:
        raise BadBatch("the column properties is not names, counts, codes, lengths and bytes")
    counts = _numbers("properties", "H", value[1], count)
    total = sum(counts)
    names = _names("properties", value[0], total)
    codes = _numbers("properties", "H", value[2], total)
    if codes and max(codes) >= len(names):
        raise BadBatch(f"a property code {max(codes)} lies outside of {len(names)} names")
    _check_distinct(counts, codes)
    column = PropertyColumn(names, counts, codes, _numbers("properties", "I", value[3], total), value[4])
    _check_utf8("properties", column.lengths, column.blob)
    return column


def _check_distinct(counts: array[int], codes: array[int]) -> None:
    """No message may have a property twice."""
    packed, first = codes.tobytes(), counts[0]
    if counts.count(first) == len(counts) and packed == packed[: 2 * first] * len(counts):
        rows = {packed[: 2 * first]}  # all messages have the same properties, as they mostly do
    else:
        rows = {packed[2 * (end - n) : 2 * end] for end, n in zip(accumulate(counts), counts, strict=True)}
    for row in rows:
        if len(set(array("H", row))) != len(row) // 2:
            raise BadBatch("a message has a property twice")


def _property_rows(column: PropertyColumn) -> list[dict[str, str]]:
    bounds = [0, *accumulate(column.lengths)]
    pairs = [
        (column.names[code], column.blob[bounds[i] : bounds[i + 1]].decode()) for i, code in enumerate(column.codes)
    ]
    ends = list(accumulate(column.counts))
    return [dict(pairs[end - count : end]) for end, count in zip(ends, column.counts, strict=True)]
