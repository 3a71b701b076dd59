"""
The batches of the floor: a header and a msgpack array of two, the lengths of all bodies and the bodies in a row. Pure.

Nothing is checked and nothing can be recovered: it is the least that carries messages of any length in order. A batch
is the same bytes on the way to the server, in its file and on the way back.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import msgpack

HEADER = struct.Struct("<IIIQ")  # bytes that follow, queue, messages, place of the first in its queue
OFFSET = struct.Struct("<Q")  # the last field alone: the server fills it in
OFFSET_AT = HEADER.size - OFFSET.size
ANSWER = struct.Struct("<Q")  # to a batch: where its first message is
PULL = struct.Struct("<III")  # queue, number of its first batch that is wanted, how many batches
LENGTH = struct.Struct("<I")  # before the frames of the echo

_ARRAY_OF_2 = b"\x92"
_BIN_32 = struct.Struct(">BI")  # its mark, and how many bytes follow
_AROUND = len(_ARRAY_OF_2) + _BIN_32.size

_pack = msgpack.Packer().pack  # one for all: each new one gets a megabyte of memory first
_unpack = msgpack.unpackb


def packed(queue: int, bodies: Sequence[bytes]) -> tuple[bytes, bytes]:
    """One batch to send, in two parts: all that goes before the bodies, and the bodies in a row."""
    # An array is made twice as fast of a list as of an iterator, whose length it cannot know.
    lengths = _pack(array("I", list(map(len, bodies))).tobytes())
    row = b"".join(bodies)
    # The row is not copied into a packer and out again: what msgpack puts before it is put there by hand.
    start = HEADER.pack(len(lengths) + len(row) + _AROUND, queue, len(bodies), 0)
    return start + _ARRAY_OF_2 + lengths + _BIN_32.pack(0xC6, len(row)), row


def unpacked(payload: memoryview) -> tuple[array[int], bytes]:
    """The lengths of the bodies, and the bodies in a row."""
    lengths, bodies = _unpack(payload)
    return array("I", lengths), bodies
