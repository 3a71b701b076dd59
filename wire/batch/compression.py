"""
The codecs that bodies may be compressed with: their numbers in a batch header, their names, and whether they are here.

zlib comes with Python. lz4 and zstd need a package each, which is imported when a codec is first asked for. The bytes
are those of the codec alone, without anything of ours: a zlib stream, one lz4 block without its size, one zstd frame.

**Unpacking is bounded**: whatever the bytes say, no more than ``raw_size`` bytes (and one) are made of them.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..errors import BadBatch, UnsupportedFormat

Buffer = bytes | bytearray | memoryview

NAMES: Final = {1: "zlib", 2: "lz4", 3: "zstd"}
NUMBERS: Final = {name: number for number, name in NAMES.items()}
ZLIB_LEVEL: Final = 1  # a third of the time of the usual 6, for a sixth more bytes
ZSTD_LEVEL: Final = 3
ZSTD_WINDOW: Final = 8 << 20  # what a frame may make us set aside; no batch needs more
MIN_SIZE: Final = 64  # fewer bytes are not worth the try

Load = Callable[[str], Any]


class Codec(NamedTuple):
    """One way to compress; ``shrink`` and ``unpack`` are what a batch uses."""

    number: int
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[Buffer, int], bytes]  # given the size to expect; may raise whatever its package raises

    def shrink(self, raw: bytes, gain: int) -> bytes | None:
        """The bytes compressed, or None where that does not save at least ``gain`` bytes."""
        if len(raw) < MIN_SIZE:
            return None
        packed = self.compress(raw)
        return packed if len(packed) + gain <= len(raw) else None

    def unpack(self, packed: Buffer, raw_size: int) -> bytes:
        """
        What was compressed, exactly ``raw_size`` bytes.

        Raises:
            BadBatch: the bytes are not of this codec, hold more or less, or are followed by others.
        """
        try:
            raw = self.decompress(packed, raw_size)
        except MemoryError:
            raise
        except Exception as error:  # each package has errors of its own
            raise BadBatch(f"the bodies are not {self.name}: {error}") from error
        if len(raw) != raw_size:
            raise BadBatch(f"the bodies do not unpack to the {raw_size} bytes that are announced")
        return raw


class Codecs:
    """The codecs by name and by number; ``load`` imports a package."""

    def __init__(self, load: Load = importlib.import_module) -> None:
        self._load = load
        self._made: dict[int, Codec] = {}

    def by_name(self, name: str) -> Codec:
        """
        The codec of a name.

        Raises:
            UnsupportedFormat: there is none, or its package is not installed.
        """
        number = NUMBERS.get(name)
        if number is None:
            raise UnsupportedFormat(f"compression {name!r} is unknown: it is one of {', '.join(NUMBERS)}")
        return self.by_number(number)

    def by_number(self, number: int) -> Codec:
        """The codec of a number in a header; raises as :meth:`by_name` does."""
        codec = self._made.get(number)
        if codec is None:
            codec = self._made[number] = self._make(number)
        return codec

    def available(self) -> list[str]:
        """The names of the codecs that can be used here."""
        return [name for number, name in NAMES.items() if self._is_here(number)]

    def _is_here(self, number: int) -> bool:
        try:
            self.by_number(number)
        except UnsupportedFormat:
            return False
        return True

    def _make(self, number: int) -> Codec:
        name = NAMES.get(number)
        if name is None:
            raise UnsupportedFormat(f"compression codec {number} is unknown")
        try:
            return Codec(number, name, *_FUNCTIONS[name](self._load))
        except ImportError as error:
            raise UnsupportedFormat(
                f"{name} compression is not installed where it is needed: pip install 'rmq[{name}]' there"
            ) from error


Functions = tuple[Callable[[bytes], bytes], Callable[[Buffer, int], bytes]]


def _zlib(_load: Load) -> Functions:
    def compress(raw: bytes) -> bytes:
        return zlib.compress(raw, ZLIB_LEVEL)

    def decompress(packed: Buffer, raw_size: int) -> bytes:
        stream = zlib.decompressobj()
        raw = stream.decompress(packed, raw_size + 1)  # one more, so that a stream of the right size gets to its end
        if len(raw) <= raw_size and (not stream.eof or stream.unused_data):
            raise ValueError("the stream does not end with the bodies")
        return raw

    return compress, decompress


def _lz4(load: Load) -> Functions:
    block = load("lz4.block")

    def compress(raw: bytes) -> bytes:
        packed: bytes = block.compress(raw, store_size=False)
        return packed

    def decompress(packed: Buffer, raw_size: int) -> bytes:
        raw: bytes = block.decompress(packed, uncompressed_size=raw_size)
        return raw

    return compress, decompress


def _zstd(load: Load) -> Functions:
    zstandard = load("zstandard")

    def compress(raw: bytes) -> bytes:
        packed: bytes = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw)
        return packed

    def decompress(packed: Buffer, raw_size: int) -> bytes:
        # A frame that tells its size is given as much memory, whatever the limit: so that size is judged before.
        told = zstandard.get_frame_parameters(packed).content_size
        if told not in (raw_size, zstandard.CONTENTSIZE_UNKNOWN):
            raise ValueError(f"the frame holds {told} bytes, and {raw_size} are announced")
        unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        raw: bytes = unpacker.decompress(packed, max_output_size=raw_size, allow_extra_data=False)
        return raw

    return compress, decompress


_FUNCTIONS: Final[dict[str, Callable[[Load], Functions]]] = {"zlib": _zlib, "lz4": _lz4, "zstd": _zstd}

CODECS: Final = Codecs()
