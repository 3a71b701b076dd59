"""
One producer's line of batches: what became of its last numbers.

The last batches lie in a ring of packed slots, 45 bytes each: as named tuples the last 256 of 20,000 producers would
take more than a gigabyte. A number that is spent and has no slot was not stored, as long as it is not below
``first_known``: refusals are not in the log, so after a crash they are the holes between what was stored.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

SLOT: Final = struct.Struct("<BQIqQqQ")  # state, then the fields of Known, or number, checksum and code of Spent
_HEAD: Final = struct.Struct("<QH")  # of a packed line: the lowest number whose fate is known, the ring's length
_EMPTY: Final = 0
_STORED: Final = 1
_REFUSED: Final = 2


class Known(NamedTuple):
    """
    A batch that was appended; a parked one has ``base_offset`` -1.

    ``end_position``: the log must be durable to here before it is answered again.
    """

    sequence: int
    batch_crc: int
    base_offset: int
    physical_offset: int
    stored_at: int
    end_position: int


class Spent(NamedTuple):
    """A number that was used up without storing anything; ``code`` tells why, 0: that is not known any more."""

    sequence: int
    batch_crc: int
    code: int


class Line:
    """One producer: its epoch, its last spent number, and what became of the last ones."""

    __slots__ = ("epoch", "floor", "fresh", "last", "ring", "seen_at", "window")

    def __init__(self, epoch: int, first: int, window: int, now: float) -> None:
        self.epoch = epoch
        self.floor = first  # what was stored from here on has a slot, or had one within the window
        self.last = first - 1
        self.fresh = True  # nothing was spent since the line began: it may go on from one that was forgotten
        self.window = window
        self.seen_at = now
        self.ring = bytearray()  # as long as the highest slot in use; numbers that start low keep it short

    @property
    def first_known(self) -> int:
        """The lowest number whose fate can be told."""
        return max(self.floor, self.last - self.window + 1)

    def fate(self, sequence: int) -> Known | Spent | None:
        """What became of a number that is not above the last; None if that is not known any more."""
        if sequence < self.first_known:
            return None
        at = sequence % self.window * SLOT.size
        if at + SLOT.size <= len(self.ring):
            state, number, crc, *rest = SLOT.unpack_from(self.ring, at)
            if number == sequence and state == _STORED:
                return Known(number, crc, *rest)
            if number == sequence and state == _REFUSED:
                return Spent(number, crc, rest[0])
        return Spent(sequence, 0, 0)

    def store(self, known: tuple[int, int, int, int, int, int]) -> None:
        """The batch with the fields of ``known`` was appended. Its number is above the last."""
        SLOT.pack_into(self.ring, self._slot(known[0]), _STORED, *known)
        self.last = known[0]
        self.fresh = False

    def spend(self, sequence: int, batch_crc: int, code: int) -> None:
        """The batch with the next number was refused for good."""
        SLOT.pack_into(self.ring, self._slot(sequence), _REFUSED, sequence, batch_crc, code, 0, 0, 0)
        self.last = sequence
        self.fresh = False

    def pass_over(self, sequence: int) -> None:
        """``sequence`` is the next one: the producer does not ask any more for those before it."""
        if self.fresh:
            self.floor = sequence
        self.last = sequence - 1

    def retract(self, sequence: int) -> None:
        """Make ``sequence`` the next one again: it and all behind it were not stored."""
        if sequence > self.last:
            return
        first = self.first_known  # what was overwritten by the ones that go now is not known any more
        for behind in range(max(sequence, first), self.last + 1):
            at = behind % self.window * SLOT.size
            if at < len(self.ring):
                self.ring[at] = _EMPTY
        self.floor = min(first, sequence)
        self.last = sequence - 1

    def forget_ring(self) -> None:
        """Keep the last number only."""
        self.ring = bytearray()
        self.floor = self.last + 1

    # Snapshots

    def pack(self) -> bytes:
        """What is known of the last numbers, as :meth:`unpack` takes it; empty if that is nothing."""
        if self.first_known > self.last:
            return b""
        return _HEAD.pack(self.first_known, self.window) + self.ring

    def unpack(self, packed: bytes, last: int) -> int:
        """Fill a new line from what :meth:`pack` gave; returns the position in the log behind its newest batch."""
        self.last = last
        self.floor = last + 1
        self.fresh = False
        if len(packed) < _HEAD.size or _HEAD.unpack_from(packed)[1] != self.window:
            return 0  # a ring of another length cannot be read
        self.floor = _HEAD.unpack_from(packed)[0]
        self.ring += packed[_HEAD.size :]
        for sequence in range(last, self.first_known - 1, -1):
            if isinstance(newest := self.fate(sequence), Known):
                return newest.end_position
        return 0

    def _slot(self, sequence: int) -> int:
        """Where in the ring a number lies; makes room for it."""
        at = sequence % self.window * SLOT.size
        missing = at + SLOT.size - len(self.ring)
        if missing > 0:
            self.ring += bytes(missing)
        return at
