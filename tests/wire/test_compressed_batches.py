"""Batches with compressed bodies: they read as the others do, under the same limits, and none of them is a trap."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.compression import CODECS, NUMBERS
from rmq.wire.errors import BadBatch, BatchTooLarge, MessageTooLarge, Refused, UnsupportedFormat, WireError
from rmq.wire.stores import StoreIds

from rigs.batches import (
    BORN_AT,
    FULL,
    MARK,
    STAMP,
    STORE_ID,
    any_rows,
    assemble,
    every_codec,
    golden,
    little,
    patched,
    quick,
    settings_of,
    stamped,
)

GOLDEN = Path(__file__).parent / "golden"
MIB = 1 << 20
PACKED = FULL._replace(bodies=[b"created " * 20, b"", b"paid \x00\xff" * 20])


def sample(name: str, rows: Rows = PACKED) -> bytes:
    data = stamped(batch.encode("orders", 2, rows, by=MARK, codec=CODECS.by_name(name)))
    assert layout.parse_header(data).codec == NUMBERS[name]
    return data


def one_body(packed: bytes, codec: str, announced: int) -> bytes:
    """A batch of one message, whatever its compressed body is."""
    meta = msgpack.packb([little("I", [announced]), None, None, None, None, None, BORN_AT, None])
    return assemble(meta, packed, count=1, codec=NUMBERS[codec], raw_size=announced)


@every_codec
def test_messages_of_a_compressed_batch_have_its_log_epoch(name: str) -> None:
    data = stamped(sample(name), STAMP._replace(log_epoch=27_000_000))

    assert [m.log_epoch for m in batch.read(data, stores=StoreIds(STORE_ID)).messages()] == [27_000_000] * 3


@every_codec
def test_the_golden_batch_of_each_codec_reads_for_ever(name: str) -> None:
    """Its bytes may come out differently elsewhere: a codec promises to read them, not to write them again."""
    read = batch.read(golden(GOLDEN / f"batch_{name}.hex"), stores=StoreIds(STORE_ID))

    assert read.header.codec == NUMBERS[name]
    assert [message.body for message in read.messages()] == PACKED.bodies
    assert [message.tag for message in read.messages()] == PACKED.tags


@every_codec
@quick
@given(any_rows(), st.lists(st.integers(0, 60), min_size=6, max_size=6))
def test_any_rows_come_back(name: str, rows: Rows, times: list[int]) -> None:
    rows = rows._replace(bodies=[body * n for body, n in zip(rows.bodies, times, strict=False)])
    plain = batch.encode("orders", 2, rows, by=MARK)

    data = batch.encode("orders", 2, rows, by=MARK, codec=CODECS.by_name(name))

    checked, read = batch.check(data, stamped=False), batch.read(stamped(data), stores=StoreIds(STORE_ID))
    as_plain = batch.read(stamped(plain), stores=StoreIds(STORE_ID))
    assert data == plain or (checked.header.codec == NUMBERS[name] and len(data) < len(plain))
    assert read.bodies == as_plain.bodies == b"".join(rows.bodies)
    assert read.header.open_size - len(plain) in range(-7, 8), "but for the padding"
    assert [(m.body, m.tag, m.index_keys, m.properties) for m in read.messages()] == [
        (m.body, m.tag, m.index_keys, m.properties) for m in as_plain.messages()
    ]


@every_codec
def test_what_does_not_shrink_is_stored_as_it_is(name: str) -> None:
    for rows in (Rows([os.urandom(500)], BORN_AT), Rows([b""], BORN_AT), Rows([b"x" * 40], BORN_AT)):
        assert batch.encode("orders", 2, rows, codec=CODECS.by_name(name)) == batch.encode("orders", 2, rows)


@every_codec
def test_every_flipped_bit_and_every_truncation_is_refused(name: str) -> None:
    data = sample(name)

    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            batch.check(flipped, stamped=True)
    for length in range(len(data)):
        with pytest.raises(WireError):
            batch.check(data[:length], stamped=True)


@every_codec
@settings_of(400)
@given(st.data())
def test_a_mutated_batch_with_right_checksums_decodes_or_is_refused(name: str, draw: st.DataObject) -> None:
    data = sample(name)
    bodies = layout.parse_header(data).header_size + layout.parse_header(data).meta_size
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.sampled_from([76, 77, *range(100, 112)]) | st.integers(bodies, len(data) - 1))
        data = data[:at] + draw.draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
    try:
        data = patched(data, 0, "")
        batch.check(data, stamped=True)
    except Refused as error:
        assert error.text
        return

    read = batch.read(data, stores=StoreIds(STORE_ID))
    assert [len(message.body) for message in read.messages()] == list(read.columns.lengths)


@every_codec
@pytest.mark.parametrize("change", [-1, +1])
def test_bodies_of_another_size_than_announced_are_refused(name: str, change: int) -> None:
    codec = CODECS.by_name(name)

    batch.check(one_body(codec.compress(bytes(1000)), name, 1000), stamped=True)
    with pytest.raises(BadBatch):
        batch.check(one_body(codec.compress(bytes(1000)), name, 1000 + change), stamped=True)


def test_lengths_that_do_not_add_up_to_the_raw_size_are_refused() -> None:
    with pytest.raises(BadBatch, match="the lengths add up to 300, the bodies have 301 bytes"):
        batch.check(patched(sample("zlib"), 108, ">I", 301), stamped=True)


@every_codec
def test_a_bomb_takes_no_more_memory_than_it_announces(name: str) -> None:
    data = one_body(CODECS.by_name(name).compress(bytes(64 * MIB))[: 4 * MIB], name, 300_000)

    tracemalloc.start()
    try:
        with pytest.raises(BadBatch):
            batch.check(data, stamped=True)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@every_codec
def test_the_limits_are_those_of_the_batch_without_a_codec(name: str) -> None:
    codec, most = CODECS.by_name(name), layout.MAX_BODY

    largest = batch.encode("orders", 2, Rows([bytes(most)], BORN_AT), codec=codec)
    assert batch.check(largest, stamped=False).header.raw_size == most
    assert len(largest) < most // 100
    with pytest.raises(MessageTooLarge, match=f"a body of {most + 1} bytes"):
        batch.encode("orders", 2, Rows([bytes(most + 1)], BORN_AT), codec=codec)
    with pytest.raises(MessageTooLarge, match=f"a body of {most + 1} bytes"):
        batch.check(one_body(codec.compress(bytes(most + 1)), name, most + 1), stamped=True)
    with pytest.raises(BatchTooLarge, match="over the limit"):
        batch.encode("orders", 2, Rows([bytes(most), bytes(most)], BORN_AT), codec=codec)


def test_a_state_batch_is_not_compressed() -> None:
    with pytest.raises(UnsupportedFormat, match="a batch of kind 2 is never compressed"):
        batch.encode("", 0, PACKED, kind=layout.KIND_STATE, codec=CODECS.by_name("zlib"))


def test_whoever_only_asks_whether_the_bytes_are_the_same_unpacks_nothing() -> None:
    wrong = one_body(random.Random(1).randbytes(100), "zlib", 500)

    assert batch.check(wrong, stamped=True, unpack=False).header.raw_size == 500
    header = layout.parse_header(wrong)
    for judge in (
        lambda: batch.check(wrong, stamped=True),
        lambda: batch.check_bodies(wrong, header),
        lambda: batch.check_bodies(bytes(8) + wrong, header, 8),
        lambda: batch.read(wrong, stores=StoreIds(STORE_ID)),
    ):
        with pytest.raises(BadBatch, match="the bodies are not zlib"):
            judge()
    damaged = bytearray(wrong)
    damaged[-9] ^= 1
    with pytest.raises(BadBatch, match="checksum"):
        batch.check(damaged, stamped=True, unpack=False)


WITHOUT_PACKAGES = """
import sys
sys.modules["lz4"] = sys.modules["lz4.block"] = sys.modules["zstandard"] = None
from rmq.wire.batch import batch
from rmq.wire.errors import UnsupportedFormat
from rmq.wire.stores import StoreIds
for name in sys.argv[1:]:
    data = bytes.fromhex(open(name).read())
    assert batch.check(data, stamped=True, unpack=False).header.count == 3
    try:
        batch.read(data, stores=StoreIds(1))
    except UnsupportedFormat as error:
        print(error.text)
"""


def test_a_codec_that_is_not_installed_is_named_and_so_is_its_extra() -> None:
    files = [str(GOLDEN / f"batch_{name}.hex") for name in NUMBERS]

    ran = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES, *files], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [
        f"{name} compression is not installed where it is needed: pip install 'rmq[{name}]' there"
        for name in ("lz4", "zstd")
    ]
