"""
Arrow arrays made of the pieces that the batches of a scan hold: joined, summed up and judged as one.

Numbers are little-endian in batches and in Arrow, so most pieces become arrays by being joined.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("tables of messages need pyarrow: pip install 'rmq[spark]'", name=error.name) from error

from rmq.wire.errors import BadBatch

TEXT: Final = pa.string()
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
