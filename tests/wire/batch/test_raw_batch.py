"""A raw batch is judged as a whole as any other, and holds the same columns."""

from __future__ import annotations

import pytest

from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows, encode, read, read_raw
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadBatch, RmqError
from rmq.wire.stores import StoreIds

from support.batches import every_codec

ROWS = Rows([b"first" * 30, b"second" * 30], [1, 2], tags=["a", None])


def stored(codec: str | None = None) -> bytearray:
    data = encode("orders", 0, ROWS, codec=None if codec is None else CODECS.by_name(codec))
    by = layout.Stamp(1, 4096, 5, 1_700_000_000_000_000, 0, 0, 1, 0, layout.KIND_DATA)
    data[: layout.BROKER_PART] = layout.stamp(data, layout.parse_header(data).header_size, by)
    return data


def test_it_holds_what_lies_in_the_batch() -> None:
    data = stored()
    whole = read(data, stores=StoreIds(1))

    raw = read_raw(memoryview(data))

    assert raw.header == whole.header
    assert bytes(raw.bodies) == b"".join(ROWS.bodies) == whole.bodies
    assert raw.columns[0] == whole.columns.lengths.tobytes()
    assert raw.columns[1] == [["a"], b"\1\0\0\0"]


@every_codec
def test_compressed_bodies_are_unpacked_unless_nobody_wants_them(name: str) -> None:
    data = memoryview(stored(name))

    assert read_raw(data).bodies == b"".join(ROWS.bodies)
    assert read_raw(data, bodies=False).bodies == b""


def test_a_batch_is_found_behind_another() -> None:
    data = stored()

    assert read_raw(memoryview(data + data), len(data)) == read_raw(memoryview(data))


def test_every_changed_byte_is_noticed() -> None:
    data = stored()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(RmqError):
            read_raw(memoryview(changed))


def test_without_verify_only_the_content_goes_unjudged() -> None:
    data = stored()
    header = layout.parse_header(data)
    for at in (0, 5, 30, header.header_size - 1, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(RmqError):
            read_raw(memoryview(changed), verify=False)
    data[header.content_size - 1] ^= 1

    assert bytes(read_raw(memoryview(data), verify=False).bodies) != b"".join(ROWS.bodies)


@pytest.mark.parametrize("meta", [b"\xc1", b"\x01", b"\x91\x01"])
def test_a_meta_that_is_no_array_of_columns_is_refused(meta: bytes) -> None:
    data = stored()
    header = layout.parse_header(data)
    data[header.header_size : header.header_size + header.meta_size] = meta.ljust(header.meta_size, b"\0")

    with pytest.raises(BadBatch, match="the meta is not"):
        read_raw(memoryview(data), verify=False)
