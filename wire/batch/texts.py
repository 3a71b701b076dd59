"""
The text columns and the bodies of a batch that is being encoded.

Texts become lengths and bytes, hashes of keys, and codes of tags. Bodies are a column of lengths, and their bytes back
to back; they are inspected once, when a sender accepts them, and later only cut and joined in whole runs.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain

from ..errors import BadBatch
from .checksum import crc32
from .columns import count_keys
from .layout import Buffer
from .native import native

_SWAP = sys.byteorder == "big"


def little(typecode: str, values: Sequence[int]) -> bytes:
    """Numbers as a column."""
    column = array(typecode, values)
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column.byteswap()
    return column.tobytes()


def pack_codes(values: Sequence[str | None], codes: Mapping[str | None, int]) -> bytes:
    """The column of a code each; raises KeyError for a value that has none."""
    packed = None if native is None else native.pack_codes(values, codes)
    return pack_any_codes(values, codes) if packed is None else packed


def pack_any_codes(values: Sequence[str | None], codes: Mapping[str | None, int]) -> bytes:
    """The same for values and codes of any kind."""
    return little("H", list(map(codes.__getitem__, values)))


def pack_keys(rows: Sequence[Sequence[str]]) -> tuple[list[bytes], bytes]:
    """
    The columns of keys and of their hashes.

    Raises:
        BadBatch: an index key is empty or holds a space.
    """
    if native is not None and (packed := native.pack_keys(rows)) is not None:
        lengths, blob, hashes = packed
        return [lengths, blob], hashes
    return pack_any_keys(rows)


def pack_any_keys(rows: Sequence[Sequence[str]]) -> tuple[list[bytes], bytes]:
    """The same for any rows, also for those that have several keys or none."""
    try:
        texts = keys = [key for (key,) in rows]  # one each is the rule
    except ValueError:
        texts, keys = [" ".join(row) for row in rows], [key for row in rows for key in row]
    encoded, blob = encode_all(texts)
    hashes = list(map(crc32, encoded if keys is texts else encode_all(keys)[0]))
    lengths = list(map(len, encoded))
    if count_keys(lengths, blob) != len(hashes):
        raise BadBatch("an index key is empty or holds a space")
    return [little("I", lengths), blob], little("I", hashes)


def encode_all(texts: list[str]) -> tuple[list[bytes], bytes]:
    """Each text, and all of them in a row. Encoding them together takes half the time of one by one."""
    together = "\0".join(texts).encode()
    encoded = together.split(b"\0")
    if len(encoded) == len(texts):
        return encoded, together.replace(b"\0", b"")
    encoded = [text.encode() for text in texts]  # one of them has the separator
    return encoded, b"".join(encoded)


def pack_texts(texts: list[str]) -> list[bytes] | None:
    """The column of a text each; None if all of them are empty."""
    if not any(texts):
        return None
    if texts.count(texts[0]) == len(texts):  # many messages of one key are the rule: no work for each
        text = texts[0].encode()
        return [little("I", [len(text)]) * len(texts), text * len(texts)]
    encoded, blob = encode_all(texts)
    return [little("I", list(map(len, encoded))), blob]


class Bodies:
    """So many bodies: ``lengths`` (u32 each, little-endian) and ``pieces``, which hold ``size`` bytes together."""

    __slots__ = ("count", "lengths", "pieces", "size")

    def __init__(self, count: int, lengths: bytes, pieces: Sequence[Buffer], size: int) -> None:
        self.count = count
        self.lengths = lengths
        self.pieces = pieces
        self.size = size

    @property
    def longest(self) -> int:
        """The length of the longest."""
        return max(self._numbers(0, self.count))

    def fit(self, start: int, count: int, size: int) -> int:
        """How many of ``count`` from ``start`` on have no more than ``size`` bytes together."""
        return bisect_right(list(accumulate(self._numbers(start, count))), size)

    def size_of(self, start: int, count: int) -> int:
        """The bytes of ``count`` from ``start`` on."""
        return sum(self._numbers(start, count))

    def run(self, start: int, count: int, at: int, size: int) -> Bodies:
        """``count`` of them from ``start`` on, which lie at ``at`` and have ``size`` bytes; only of one piece."""
        (piece,) = self.pieces
        return Bodies(count, self.lengths[4 * start : 4 * (start + count)], (memoryview(piece)[at : at + size],), size)

    def _numbers(self, start: int, count: int) -> Sequence[int]:
        return _column(count).unpack_from(self.lengths, 4 * start)


def pack_bodies(bodies: Sequence[Buffer]) -> Bodies:
    """
    Bodies as a column and one piece.

    Raises:
        TypeError: one of them is not bytes.
    """
    if native is not None and len(bodies) > 1 and (joined := native.join_bodies(bodies)) is not None:
        lengths, piece = joined
        return Bodies(len(bodies), lengths, (piece,), len(piece))
    return pack_any_bodies(bodies)


def pack_any_bodies(bodies: Sequence[Buffer]) -> Bodies:
    """The same for all that can be a body."""
    count = len(bodies)
    try:
        lengths = tuple(map(len, bodies))
        piece = bodies[0] if count == 1 and type(bodies[0]) is bytes else b"".join(bodies)
    except TypeError as error:
        unfit = next((type(body).__name__ for body in bodies if not isinstance(body, Buffer)), None)
        raise error if unfit is None else TypeError(f"a body must be bytes, not {unfit}") from None
    size = sum(lengths)
    if len(piece) != size:
        raise TypeError("a body must be bytes, not numbers of another size")
    return Bodies(count, _column(count).pack(*lengths), (piece,), size)


def put_together(parts: Sequence[Bodies]) -> Bodies:
    """One run behind the other."""
    if len(parts) == 1:
        return parts[0]
    return Bodies(
        sum(part.count for part in parts),
        b"".join([part.lengths for part in parts]),
        list(chain.from_iterable([part.pieces for part in parts])),
        sum(part.size for part in parts),
    )


@lru_cache(maxsize=512)
def _column(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")
