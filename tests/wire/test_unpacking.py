"""msgpack from strangers: only known types, and never much more memory than bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.unpacking import MAX_ARRAY, MAX_ITEMS, SMALL, Malformed, _check_items, unpack

from rigs.batches import quick

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=40) | st.binary(max_size=40) | st.sampled_from([b'x' * 300, 'y' * 70_000]),
    lambda inner: st.lists(inner, max_size=17) | st.dictionaries(st.text(max_size=5), inner, max_size=17),
    max_leaves=20,
)  # fmt: skip


def items_in(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(items_in, value))
    if isinstance(value, dict):
        return 1 + sum(1 + items_in(item) for item in value.values())
    return 1


@quick
@given(values)
def test_whatever_msgpack_packs_comes_back(value: object) -> None:
    assert unpack(msgpack.packb(value)) == value


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(buffer: Any) -> None:
    assert unpack(buffer(b"\x93\x01\xa1a\xc4\x01b")) == [1, "a", b"b"]


@quick
@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_malformed(data: bytes) -> None:
    try:
        unpack(data)
    except Malformed as error:
        assert str(error)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "incomplete"),
        (b"\x92\x01", "incomplete"),
        (b"\x01\x02", "extra data"),
        (b"\xc1", "begins no value"),
        (b"\x91" * 1025 + b"\xc0", "nested too deep"),
        (b"\xa1\xff", "utf-8"),
        (b"\x81\x01\x01", "not allowed for map key"),
        (b"\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\xc7\x00\x05", "extension type 5"),
        (b"\xd4\x05\x01", "max_ext_len"),
        (b"\xd6\xff\x00\x00\x00\x01", "max_ext_len"),  # timestamps of all three sizes
        (b"\xd7\xff" + bytes(8), "max_ext_len"),
        (b"\xc7\x0c\xff" + bytes(12), "max_ext_len"),
        (b"\xc7\x00\xff", "timestamp"),
    ],
)
def test_what_is_refused_says_why(data: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        unpack(data)


@pytest.mark.parametrize(
    "head",
    [b"\xdd" + MAX_ARRAY.to_bytes(4, "big"), b"\xdc\xff\xff", b"\xdf" + MAX_ARRAY.to_bytes(4, "big"), b"\xde\xff\xff"],
)
def test_nested_heads_reserve_little_more_than_the_frame_could_hold(head: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            unpack(head * 600)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 20 << 20


@pytest.mark.parametrize(
    "unit", [b"\x90", b"\x80", b"\xc0", b"\xa2ab", b"\xcd\xff\xff", b"\x91\x91\x90", b"\xc4\x02ab", b"\x81\xa1a\x90"]
)
def test_many_small_values_are_refused_before_they_are_built(unit: bytes) -> None:
    run = b"\xdc\xff\xff" + unit * 65535
    data = b"\x9f" + run * 15

    with pytest.raises(Malformed, match=f"more than {MAX_ITEMS} values"):
        unpack(data)


def test_a_large_value_of_few_parts_is_read() -> None:
    value = [0, 1, 3, [[[queue, bytes(1 << 20)] for queue in range(4)]], {"a" * 70_000: None}]

    assert unpack(msgpack.packb(value)) == value


def test_a_large_input_may_hold_as_many_values_as_the_limit() -> None:
    rows: list[list[int]] = [[1000] * 30_000, [1000] * 30_000, [1000] * (MAX_ITEMS - 60_004)]
    data = msgpack.packb(rows)
    assert len(data) > SMALL
    assert items_in(rows) == MAX_ITEMS

    assert unpack(data) == rows
    with pytest.raises(Malformed, match="more than"):
        unpack(msgpack.packb([*rows, 1]))


def test_what_a_client_trusts_may_hold_more_values() -> None:
    rows = [[[queue, "rmq"] for queue in range(MAX_ARRAY + 1)], [[1000] * 5] * 50_000]
    data = msgpack.packb(rows)
    assert items_in(rows) > MAX_ITEMS

    assert unpack(data, trusted=True) == rows
    with pytest.raises(Malformed):
        unpack(data)


@pytest.mark.parametrize("cut", [1, 3, SMALL + 1])
def test_a_large_input_that_is_cut_is_incomplete(cut: int) -> None:
    data = msgpack.packb([bytes(SMALL), bytes(SMALL)])

    with pytest.raises(Malformed, match="incomplete"):
        unpack(data[:-cut])


@quick
@given(values)
def test_the_walk_counts_what_is_built(value: object) -> None:
    data = msgpack.packb(value)
    padded = data + b"\xdd\xff\xff\xff\xff"  # never reached if the walk ends where the value ends

    _check_items(padded)

    with pytest.raises(Malformed, match="more than"):
        _check_items(b"\x92" + padded)
