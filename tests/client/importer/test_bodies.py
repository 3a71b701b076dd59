"""Bodies of RocketMQ messages: unpacked as its consumers do, and never beyond the limit."""

from __future__ import annotations

import zlib
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.importer.messages import BodyTooLarge, content
from rmq.client.importer.store_files import BadStore
from rmq.wire.rocketmq.record import BadRecord, Record, decode

from support.rocketmq_store import encode_record

PACKERS: list[tuple[int, Any]] = [
    (0x001, zlib.compress),
    (0x301, zlib.compress),
    (0x101, lz4.frame.compress),
    (0x201, zstandard.ZstdCompressor(write_content_size=False).compress),
    (0x201, zstandard.ZstdCompressor().compress),
]


def record(body: bytes, sysflag: int) -> Record:
    return decode(encode_record(topic="t", body=body, sysflag=sysflag))


@pytest.mark.parametrize(("sysflag", "pack"), PACKERS)
@given(body=st.binary(max_size=300))
def test_a_packed_body_is_what_its_producer_sent(sysflag: int, pack: Any, body: bytes) -> None:
    assert content(record(pack(body), sysflag), 300) == body


def test_a_plain_body_is_kept() -> None:
    assert content(record(b"plain", 0x300), 5) == b"plain"


@pytest.mark.parametrize(("sysflag", "pack"), [(0, bytes), *PACKERS])
def test_a_body_beyond_the_limit_is_refused(sysflag: int, pack: Any) -> None:
    body = bytes(5000)

    assert content(record(pack(body), sysflag), 5000) == body
    with pytest.raises(BodyTooLarge, match="has a body"):
        content(record(pack(body), sysflag), 4999)


@pytest.mark.parametrize(("sysflag", "pack"), PACKERS)
def test_a_body_that_is_cut_off_is_bad(sysflag: int, pack: Any) -> None:
    packed = pack(bytes(range(256)) * 40)

    for cut in (packed[:-5], packed[: len(packed) // 2], b"garbage"):
        with pytest.raises(BadRecord, match="has a body that is not"):
            content(record(cut, sysflag), 1 << 20)


def test_a_codec_that_nobody_knows_is_bad() -> None:
    with pytest.raises(BadRecord, match="in a way that nobody knows"):
        content(record(b"x", 0x701), 10)


@pytest.mark.parametrize(("sysflag", "name"), [(0x101, "lz4"), (0x201, "zstd")])
def test_a_package_that_is_missing_is_named(sysflag: int, name: str) -> None:
    def load(_: str) -> Any:
        raise ImportError

    with pytest.raises(BadStore, match=rf"compressed with {name}: pip install 'rmq\[{name}\]'"):
        content(record(b"x", sysflag), 10, load)
