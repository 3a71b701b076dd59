"""
The bytes of the key index: blocks that say which batches of the log hold which key hashes.

A block covers a range of the log. It copies the hash column of every batch with keys that lies in it; batches
without keys are covered and not listed. Header integers are big-endian, columns little-endian, as in a batch::

     0 u32 magic             4 u16 version       6 u16 zero
     8 u32 header_crc (of 12 to 56)             12 u32 column_crc (of 56 to the end)
    16 u32 batches          20 u32 hashes
    24 u64 first            32 u64 end          the range of the log, [first, end)
    40 i64 oldest           48 i64 newest       stored_at of the listed batches (0 without any)
    56 positions: u64 a batch      then the number of its first hash: u32 a batch      then hashes: u32 a key

A hash is found by ``bytes.find``, so a search costs little more than reading; it works in pieces, so that a thread
which searches does not keep the interpreter from the event loop. Pure.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from rmq.wire.batch.checksum import crc32

MAGIC: Final = 0x524D4B49  # RMKI
VERSION: Final = 1
HEADER: Final = 56
BLOCK_HASHES: Final = 64 << 10  # a block is closed behind the batch that brings it there
PIECE: Final = 256 << 10  # bytes searched at once: a fraction of a millisecond

_HEADER = struct.Struct(">IHHIIIIQQqq")
_START = struct.Struct(">IHH")
_CHECKED = struct.Struct(">IIIQQqq")  # from 12: what header_crc covers
_U32 = struct.Struct(">I")
_HASH = struct.Struct("<I")
_SWAP = sys.byteorder == "big"


class Entry(NamedTuple):
    """A batch with keys: where it lies, when it was stored, and its hash column as the batch has it."""

    position: int
    stored_at: int
    hashes: bytes


class Head(NamedTuple):
    """The header of a block, without what only guards it."""

    column_crc: int
    batches: int
    hashes: int
    first: int
    end: int
    oldest: int
    newest: int

    @property
    def column_size(self) -> int:
        """How many bytes follow the header."""
        return 12 * self.batches + 4 * self.hashes


class Block(NamedTuple):
    """A block to search: its header and its columns."""

    head: Head
    columns: bytes

    def packed(self) -> bytes:
        """The block as it lies in a file."""
        fields = _CHECKED.pack(*self.head)
        return _START.pack(MAGIC, VERSION, 0) + _U32.pack(crc32(fields)) + fields + self.columns

    def is_sound(self) -> bool:
        """Whether the columns are what the header says of them."""
        return len(self.columns) == self.head.column_size and crc32(self.columns) == self.head.column_crc

    def matches(self, value: int) -> list[int]:
        """The positions of the batches that have a hash, newest first."""
        return self._positions(self._batches_with(_HASH.pack(value)))

    def _positions(self, numbers: list[int]) -> list[int]:
        return [int.from_bytes(self.columns[8 * n : 8 * n + 8], "little") for n in reversed(numbers)]

    def _batches_with(self, wanted: bytes) -> list[int]:
        columns, base, stop = self.columns, 12 * self.head.batches, len(self.columns)
        firsts: array[int] | None = None
        found: list[int] = []
        at = base
        while at < stop:
            hit = columns.find(
                wanted, at, min(at + PIECE + 3, stop)
            )  # a hash may begin in one piece and end in the next
            if hit < 0:
                at += PIECE
            elif (hit - base) % 4:  # the end of one hash and the beginning of the next
                at = hit + 1
            else:
                firsts = firsts or self._firsts()
                number = bisect_right(firsts, (hit - base) // 4) - 1
                found.append(number)
                at = base + 4 * firsts[number + 1] if number + 1 < len(firsts) else stop
        return found

    def _firsts(self) -> array[int]:
        return _numbers("I", self.columns[8 * self.head.batches : 12 * self.head.batches])

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Each listed batch, oldest first: its position and its hashes."""
        base, firsts = 12 * self.head.batches, [*self._firsts(), self.head.hashes]
        for number, position in enumerate(_numbers("Q", self.columns[: 8 * self.head.batches])):
            yield position, self.columns[base + 4 * firsts[number] : base + 4 * firsts[number + 1]]


class Growing:
    """
    A block that still takes batches: columns in memory, 16 bytes a batch and 4 a key.

    ``end`` moves over batches without keys as well.
    """

    __slots__ = ("_firsts", "_hashes", "_newest", "_oldest", "_positions", "end", "first")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self._positions = array("Q")
        self._firsts = array("I")
        self._hashes = bytearray()
        self._oldest = self._newest = 0

    def add(self, entry: Entry) -> None:
        """List a batch; they come in the order of the log."""
        if not self._positions:
            self._oldest = entry.stored_at
        self._newest = entry.stored_at
        self._positions.append(entry.position)
        self._firsts.append(len(self._hashes) // 4)
        self._hashes += entry.hashes

    @property
    def hashes(self) -> int:
        """How many keys it lists."""
        return len(self._hashes) // 4

    def block(self) -> Block:
        """What it holds now, apart from what it will."""
        columns = _little(self._positions) + _little(self._firsts) + bytes(self._hashes)
        sizes = (len(self._positions), self.hashes)
        return Block(Head(crc32(columns), *sizes, self.first, self.end, self._oldest, self._newest), columns)


def pack(entries: Iterable[Entry], first: int, end: int, block_hashes: int = BLOCK_HASHES) -> list[Block]:
    """Blocks that list ``entries`` and cover the log from ``first`` to ``end``; a batch is never split over two."""
    blocks, growing = [], Growing(first)
    for entry in entries:
        if growing.hashes >= block_hashes:
            growing.end = entry.position
            blocks.append(growing.block())
            growing = Growing(entry.position)
        growing.add(entry)
    growing.end = end
    blocks.append(growing.block())
    return blocks


def parse_head(data: bytes) -> Head | None:
    """The header of a block; None if these bytes are none."""
    if len(data) < HEADER:
        return None
    magic, version, zero, header_crc, *fields = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or zero or header_crc != crc32(data[12:HEADER]):
        return None
    return Head(*fields)


def cut(block: Block, position: int) -> Block:
    """What a block says of the log below a position; times may then span more than is left."""
    kept = Growing(block.head.first)
    for at, hashes in block.entries():
        if at < position:
            kept.add(Entry(at, block.head.newest, hashes))
    kept.end = min(block.head.end, position)
    shorter = kept.block()
    oldest = block.head.oldest if shorter.head.batches else 0
    return shorter._replace(head=shorter.head._replace(oldest=oldest))


def hash_column(hashes: array[int]) -> bytes:
    """The hash column of a batch as bytes, as the batch itself has it."""
    return _little(hashes)


def _numbers(typecode: str, data: bytes) -> array[int]:
    column = array(typecode, data)
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column.byteswap()
    return column


def _little(column: array[int]) -> bytes:
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column = column[:]
        column.byteswap()
    return column.tobytes()
