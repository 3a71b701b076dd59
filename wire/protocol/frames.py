"""
Framing: how messages of the protocol are cut out of a byte stream.

::

    0            4                                   4 + length
    | length u32 | one msgpack array                      |

    request  [0, id, op, payload]
    reply    [1, id, status, payload]            or with a map of hints as fifth element
    push     [2, 0, push, payload]

``length`` counts the array only. A length over the limit is fatal at once, without waiting for the payload.
No sockets here: :class:`FrameReader` gives the buffer for the next bytes, and gets their number when they arrived.

A long SEND frame is taken apart without copying its batches, as msgpack would do. If the frame has a buffer of its own,
its batches are validated, written and kept in place. That applies only to the shape that our own producers write; any
other is left to msgpack, which reports what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from .. import unpacking
from ..batch.layout import Buffer
from ..errors import BadFrame, FrameTooLarge
from .ops.core import MAX_BATCHES, Op, OutgoingBatch, Send

REQUEST: Final = 0
REPLY: Final = 1
PUSH: Final = 2
MAX_FRAME: Final = 16 << 20
MAX_HELLO_FRAME: Final = 64 << 10
LENGTH: Final = struct.Struct(">I")
_BIN32: Final = struct.Struct(">BI")


class FrameReader:
    """
    Cuts frames out of what arrives, copying only what a callback leaves unfinished.

    Several readers may share one ``shared`` buffer: whole frames are returned as views of it, which are valid
    until the next call of :meth:`buffer` on any of them; so between :meth:`buffer` and :meth:`received` of one
    reader no other reader is asked. An unfinished frame moves to a buffer of its exact size, which is made when
    :meth:`buffer` is asked for its rest: until then it costs what came, not what it announces. Where a quarter of it
    came at once, that buffer is made at once, which saves a copy.
    """

    __slots__ = ("_filled", "_head", "_length", "_partial", "_prefix", "_shared", "max_frame")

    def __init__(self, shared: memoryview, max_frame: int = MAX_FRAME) -> None:
        self._shared = shared
        self._length = 0  # of the unfinished frame, and what came of it before its own buffer was made
        self._head = b""
        self._partial: bytearray | None = None
        self._filled = 0
        self._prefix = b""
        self.max_frame = max_frame

    @property
    def pending(self) -> int:
        """Size of the buffer that the unfinished frame has or needs, 0 if there is none."""
        return self._length

    @property
    def unfinished(self) -> bool:
        """Whether a frame was begun and not ended."""
        return bool(self._length or self._prefix)

    def buffer(self) -> memoryview:
        """Where the next received bytes go."""
        if self._length:
            if self._partial is None:
                self._partial = bytearray(self._length)
                self._partial[: self._filled] = self._head
                self._head = b""
            return memoryview(self._partial)[self._filled :]
        if self._prefix:
            self._shared[: len(self._prefix)] = self._prefix
        return self._shared[len(self._prefix) :]

    def received(self, count: int) -> list[memoryview]:
        """
        Note that ``count`` bytes were put into :meth:`buffer`; return the frames they finished.

        Raises:
            FrameTooLarge: a frame announces more than ``max_frame``; the stream cannot go on, and frames that
                came in the same bytes before it are dropped.
        """
        if self._partial is not None:
            self._filled += count
            if self._filled < len(self._partial):
                return []
            frame, self._partial = memoryview(self._partial), None
            self._length = 0
            return [frame]
        return self._split(len(self._prefix) + count)

    def _split(self, end: int) -> list[memoryview]:
        shared, at = self._shared, 0
        frames: list[memoryview] = []
        self._prefix = b""
        while end - at >= 4:
            (length,) = LENGTH.unpack_from(shared, at)
            if length > self.max_frame:
                raise FrameTooLarge(f"a frame of {length} bytes is over the limit of {self.max_frame}")
            at += 4
            if end - at < length:
                self._length = length
                self._filled = end - at
                if 4 * self._filled >= length:
                    self._partial = bytearray(length)
                    self._partial[: self._filled] = shared[at:end]
                else:
                    self._head = bytes(shared[at:end])
                return frames
            frames.append(shared[at : at + length])
            at += length
        self._prefix = bytes(shared[at:end])
        return frames


def unpack(frame: Buffer, *, trusted: bool = False) -> list[Any]:
    """
    The array in a frame. ``trusted`` (by a client, of its broker) lifts the limits on how many values it may hold.

    Raises:
        BadFrame: the bytes are not one msgpack array of known types with at least four elements.
    """
    try:
        parts = unpacking.unpack(frame, trusted=trusted)
    except unpacking.Malformed as error:
        raise BadFrame(f"a frame is not msgpack: {error}") from error
    if type(parts) is not list or len(parts) < 4:
        raise BadFrame("a frame is not an array of four or more")
    if type(parts[0]) is not int or type(parts[1]) is not int or type(parts[2]) is not int:
        raise BadFrame("kind, id and operation of a frame are not numbers")
    return parts


def pack(kind: int, request_id: int, code: int, payload: object, hints: dict[str, Any] | None = None) -> bytes:
    """One whole frame, length included."""
    parts = (kind, request_id, code, payload) if hints is None else (kind, request_id, code, payload, hints)
    array: bytes = msgpack.packb(parts)
    return LENGTH.pack(len(array)) + array


def pack_parts(kind: int, request_id: int, code: int, payload: Sequence[Buffer]) -> list[Buffer]:
    """One whole frame whose payload is already msgpack, as buffers to be written one behind the other."""
    head = msgpack.packb((kind, request_id, code, None))[:-1]
    length = len(head) + sum(map(len, payload))
    return [LENGTH.pack(length) + head, *payload]


def array_header(count: int) -> bytes:
    """The msgpack head of an array."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdd" + LENGTH.pack(count)


def bin_header(length: int) -> bytes:
    """The msgpack head of a run of bytes."""
    return _BIN32.pack(0xC6, length)


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
