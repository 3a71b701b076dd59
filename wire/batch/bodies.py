"""
Bodies of messages as a batch holds them: the column of their lengths, and their bytes back to back.

They are looked at once, when a sender takes them over; from then on whole runs are cut and put together.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain

from .layout import Buffer
from .native import native


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
