"""
One producer's line of batches: what became of its last numbers.

The last batches lie in a ring of packed slots, 45 bytes each: as named tuples the last 256 of 20,000 producers would
take more than a gigabyte. A number that is spent and has no slot was not stored, as long as it is not below
``first_known``: refusals are not in the log, so after a crash they are the holes between what was stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

SLOT: Final = struct.Struct("<BQIQQqQ")  # state, then the fields of Known, or number, checksum and code of Spent
_FLOOR: Final = struct.Struct("<Q")
_EMPTY: Final = 0
_STORED: Final = 1
_REFUSED: Final = 2


class Known(NamedTuple):
    """A batch that was appended. ``end_position``: the log must be durable to here before it is answered again."""

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
        return _FLOOR.pack(self.first_known) + b"".join(self._slots())

    def unpack(self, packed: bytes, last: int) -> int:
        """Fill a new line from what :meth:`pack` gave; returns the position in the log behind its newest batch."""
        self.last = last
        self.floor = last + 1
        self.fresh = False
        if not packed:
            return 0
        (self.floor,) = _FLOOR.unpack_from(packed)
        end = 0
        for at in range(_FLOOR.size, len(packed), SLOT.size):
            fields = SLOT.unpack_from(packed, at)
            place = self._slot(fields[1])
            self.ring[place : place + SLOT.size] = packed[at : at + SLOT.size]
            if fields[0] == _STORED:
                end = max(end, fields[-1])
        return end

    def _slots(self) -> Iterator[bytes]:
        for sequence in range(self.first_known, self.last + 1):
            at = sequence % self.window * SLOT.size
            slot = bytes(self.ring[at : at + SLOT.size])
            if len(slot) == SLOT.size and slot[0] != _EMPTY and SLOT.unpack(slot)[1] == sequence:
                yield slot

    def _slot(self, sequence: int) -> int:
        """Where in the ring a number lies; makes room for it."""
        at = sequence % self.window * SLOT.size
        missing = at + SLOT.size - len(self.ring)
        if missing > 0:
            self.ring += bytes(missing)
        return at
