"""Pieces of batches become one array, and what does not fit is refused."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from rmq.client.scan.arrow import (
    TEXT,
    as_numbers,
    bounds_of_parts,
    check_ends,
    concat,
    constant,
    for_each_row,
    joined,
    spans,
)
from rmq.wire.errors import BadBatch


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
