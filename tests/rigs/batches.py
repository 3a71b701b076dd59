"""Batches for tests: sound ones, and ones that are wrong in exactly one place with all checksums right."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.batch.compression import CODECS, NUMBERS


def settings_of(examples: int) -> settings:
    """Settings of a property test: no deadline, since a busy machine fails nothing."""
    return settings(deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])


quick = settings_of(60)

STAMP = layout.Stamp(
    log_epoch=3, physical_offset=4096, base_offset=1000, stored_at=1_700_000_000_123_456, durable_before=2048,
    origin=0, topic_gen=5, queue_id=2, kind=layout.KIND_DATA,
)  # fmt: skip
BORN_AT = 1_700_000_000_000_000
STORE_ID = 0x0123456789ABCDEF

MINIMAL = Rows([b""], BORN_AT)
FULL = Rows(
    bodies=[b"created", b"", b"paid \x00\xff"],
    born_at=[BORN_AT, BORN_AT + 1, BORN_AT + 2],
    tags=["created", None, "bezahlt-€"],
    index_keys=[("o-17",), (), ("o-17", "größe")],
    keys=["o-17", None, "😀"],
    properties=[{"trace": "a1"}, {}, {"trace": "", "währung": "€"}],
    attempts=[0, 1, 65535],
)
MARK = ProducerMark(producer_id=0xA1B2C3D4E5F60708, sequence=42, producer_epoch=7)


HERE = CODECS.available()
every_codec = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.skipif(name not in HERE, reason=f"needs rmq[{name}]")) for name in NUMBERS],
)


def golden(path: Path) -> bytes:
    """The bytes of a golden file: hex digits, any white space between."""
    return bytes.fromhex(path.read_text())


def little(typecode: str, values: Sequence[int]) -> bytes:
    """Numbers as a column has them."""
    column = array(typecode, values)
    if struct.pack("=H", 1) == b"\0\1":
        column.byteswap()
    return column.tobytes()


def stamped(data: bytes | bytearray, by: layout.Stamp = STAMP) -> bytes:
    """A batch as it lies in the log."""
    return layout.stamp(data, layout.parse_header(data).header_size, by) + data[layout.BROKER_PART :]


def sample(rows: Rows = FULL) -> bytes:
    """A stamped batch."""
    return stamped(batch.encode("orders", 2, rows, by=MARK))


def parts_of(data: bytes) -> list[Any]:
    """The meta columns of a batch."""
    header = layout.parse_header(data)
    parts: list[Any] = msgpack.unpackb(data[header.header_size : header.header_size + header.meta_size])
    return parts


def assemble(
    meta: bytes,
    bodies: bytes,
    *,
    count: int,
    bloom: int = 0,
    by: layout.Stamp = STAMP,
    codec: int = 0,
    raw_size: int | None = None,
) -> bytes:
    """A stamped batch around any meta and bodies, its sizes (but perhaps ``raw_size``) and checksums right."""
    sizes = (len(meta), len(bodies), len(bodies) if raw_size is None else raw_size)
    fields = (codec, count, *MARK, 0, *sizes, bloom, 0)
    content = layout.pack_producer_part(fields) + layout.pack_topic("orders") + meta + bodies
    size = layout.BROKER_PART + len(content)
    data = bytearray(bytes(layout.BROKER_PART) + content + bytes(layout.padding(size)))
    layout.seal(data, size)
    return layout.stamp(data, layout.FIXED_HEADER + 8, by) + data[layout.BROKER_PART :]


def patched(data: bytes, at: int, fmt: str, *values: object) -> bytes:
    """The batch with some bytes replaced and both checksums made right again."""
    changed = bytearray(data)
    struct.pack_into(fmt, changed, at, *values)
    meta_size, body_size = struct.unpack_from(">II", changed, 100)
    head = changed[7] * 8
    struct.pack_into(">I", changed, 72, crc32(changed[76 : head + meta_size + body_size]))
    struct.pack_into(">I", changed, 8, crc32(changed[12:head]))
    return bytes(changed)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = texts.filter(bool)
tags = names.filter(lambda text: len(text.encode()) <= layout.MAX_TAG)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1, max_size=8)
times = st.integers(0, layout.MAX_TIME - 1)


@st.composite
def any_rows(draw: st.DrawFn) -> Rows:
    """The rows of any legal batch (of few messages)."""
    bodies = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=6))

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(values, min_size=len(bodies), max_size=len(bodies)))

    return Rows(
        bodies=bodies,
        born_at=draw(times | st.lists(times, min_size=len(bodies), max_size=len(bodies))),
        tags=column(st.none() | tags),
        index_keys=column(st.lists(keys, max_size=3).map(tuple)),
        keys=column(st.none() | names),
        properties=column(st.dictionaries(names, texts, max_size=3)),
        attempts=column(st.integers(0, 65535)),
    )
