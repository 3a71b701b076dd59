"""The checksum is zlib's, whatever makes it."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import checksum


@given(st.binary(max_size=9000), st.integers(0, (1 << 32) - 1))
def test_it_gives_the_numbers_of_zlib_also_going_on_from_another(data: bytes, before: int) -> None:
    assert checksum.crc32(data) == zlib.crc32(data)
    assert checksum.crc32(data, before) == zlib.crc32(data, before)
    assert checksum.crc32(memoryview(data)[1:]) == zlib.crc32(data[1:])
    assert checksum.MADE_BY in ("zlib", "zlib-ng")
