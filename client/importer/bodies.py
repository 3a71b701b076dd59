"""
Bodies as consumers of RocketMQ see them: unpacked where the producer had compressed them.

**Unpacking is bounded**: no more than ``limit`` bytes (and one) are made of any body, whatever its bytes say.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from rmq.wire.rocketmq.record import COMPRESSED, BadRecord, Record

from .store_files import BadStore

CODEC_BITS: Final = 0x700
_CODECS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
_ZSTD_WINDOW: Final = 64 << 20
_STEP: Final = 256  # of zstd: so few bytes unpack to some MiB at most

Load = Callable[[str], Any]
Unpack = Callable[[bytes, int], bytes]


class BodyTooLarge(Exception):
    """A body that unpacks to more than a message of ours may have."""


def content(record: Record, limit: int, load: Load = import_module) -> bytes:
    """
    The body of a message as its producer was given it.

    Raises:
        BodyTooLarge: it has more than ``limit`` bytes.
        BadRecord: it cannot be unpacked.
        BadStore: it is compressed with a codec whose package is not installed.
    """
    if not record.sysflag & COMPRESSED:
        if len(record.body) > limit:
            raise BodyTooLarge(f"has a body of {len(record.body)} bytes, and a message here has at most {limit}")
        return record.body
    name = _CODECS.get(record.sysflag & CODEC_BITS)
    if name is None:
        raise BadRecord(f"is compressed in a way that nobody knows (sysflag {record.sysflag:#x})")
    try:
        unpack = _UNPACKERS[name](load)
    except ImportError as error:
        text = f"the store holds bodies compressed with {name}: pip install 'rmq[{name}]' to read them"
        raise BadStore(text) from error
    try:
        body = unpack(record.body, limit)
    except MemoryError:
        raise
    except Exception as error:  # each package has errors of its own
        raise BadRecord(f"has a body that is not {name}: {error}") from error
    if len(body) > limit:
        raise BodyTooLarge(f"has a body that unpacks to more than {limit} bytes, which a message here may have")
    return body


def _zlib(_load: Load) -> Unpack:
    def unpack(packed: bytes, limit: int) -> bytes:
        stream = zlib.decompressobj()
        raw = stream.decompress(packed, limit + 1)
        if len(raw) <= limit and not stream.eof:
            raise ValueError("the stream is cut off")
        return raw

    return unpack


def _lz4(load: Load) -> Unpack:
    frame = load("lz4.frame")

    def unpack(packed: bytes, limit: int) -> bytes:
        stream = frame.LZ4FrameDecompressor()
        raw: bytes = stream.decompress(packed, max_length=limit + 1)
        while not stream.eof and len(raw) <= limit:
            more = stream.decompress(b"", max_length=limit + 1 - len(raw))
            if not more:
                raise ValueError("the frame is cut off")
            raw += more
        return raw

    return unpack


def _zstd(load: Load) -> Unpack:
    zstandard = load("zstandard")

    def unpack(packed: bytes, limit: int) -> bytes:
        stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        raw = bytearray()
        for at in range(0, len(packed), _STEP):
            raw += stream.decompress(packed[at : at + _STEP])
            if stream.eof or len(raw) > limit:
                return bytes(raw)
        raise ValueError("the frame is cut off")

    return unpack


_UNPACKERS: Final[dict[str, Callable[[Load], Unpack]]] = {"zlib": _zlib, "lz4": _lz4, "zstd": _zstd}
