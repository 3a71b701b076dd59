"""
A long SEND frame, taken apart without copying its batches.

msgpack would copy each batch out of the frame. Where the frame has a buffer of its own, its batches can stay where they
are: they are judged, written and kept from there. Only the shape that our own producers write is known here; whatever
looks otherwise is left to msgpack, which tells what is wrong with it.
"""

from __future__ import annotations

import struct
from typing import Final

from ..batch.layout import Buffer
from .frames import REQUEST
from .ops.core import MAX_BATCHES, Op, OutgoingBatch, Send

LONG: Final = 64 << 10
_ARRAY_1: Final = 0x91
_ARRAY_3: Final = 0x93
_ARRAY_4: Final = 0x94
_ARRAY_32: Final = 0xDD
_BIN_32: Final = 0xC6
_NUMBERS: Final = {
    first: struct.Struct(code) for first, code in ((0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q"))
}
_LENGTH: Final = struct.Struct(">I")


class _Unusual(Exception):
    """Not the shape that is known here."""


def split(frame: Buffer, shared: memoryview) -> tuple[int, int, int, Send] | None:
    """
    The parts of a long SEND frame, its batches being views of it; None if msgpack has to look at it.

    So it does at a short frame, and at one that lies in the ``shared`` receive buffer, which others need.
    """
    if len(frame) < LONG or (isinstance(frame, memoryview) and frame.obj is shared.obj):
        return None
    try:
        return _split(memoryview(frame).toreadonly())
    except (_Unusual, IndexError, struct.error):
        return None


def _split(view: memoryview) -> tuple[int, int, int, Send]:
    size = len(view)
    if view[0] != _ARRAY_4 or view[1] != REQUEST:
        raise _Unusual
    request_id, at = _number(view, 2)
    op, at = _number(view, at)
    if op != Op.SEND or view[at] != _ARRAY_1:
        raise _Unusual
    count, at = _count(view, at + 1)
    batches = []
    for _ in range(count):
        if view[at] != _ARRAY_3:
            raise _Unusual
        queue_id, at = _number(view, at + 1)
        if view[at] != _BIN_32:
            raise _Unusual
        (length,) = _LENGTH.unpack_from(view, at + 1)
        at += 5
        end = at + length
        batch = view[at:end]
        generation, at = _number(view, end)
        batches.append(OutgoingBatch(queue_id, batch, generation))  # type: ignore[arg-type]  # as good as bytes
    if at != size:
        raise _Unusual
    return REQUEST, request_id, op, Send(batches)


def _count(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    if first & 0xF0 == 0x90:
        return first & 0x0F, at + 1
    if first != _ARRAY_32:
        raise _Unusual
    (count,) = _LENGTH.unpack_from(view, at + 1)
    if count > MAX_BATCHES:
        raise _Unusual
    return count, at + 5


def _number(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    if first < 0x80:
        return first, at + 1
    wide = _NUMBERS.get(first)
    if wide is None:
        raise _Unusual
    (value,) = wide.unpack_from(view, at + 1)
    return value, at + 1 + wide.size
