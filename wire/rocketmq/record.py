"""
One record of a RocketMQ commit log: its fields, and what makes it sound. Pure.

Integers are big-endian; hosts take 8 bytes, or 20 of IPv6::

      0 i32 total size     4 u32 magic          8 i32 body crc      12 i32 queue id     16 i32 flag
     20 i64 queue offset  28 i64 physical      36 i32 sysflag       40 i64 born at (ms)
     48 born host, i64 stored at (ms), store host, i32 reconsume times, i64 prepared transaction offset
        i32 + body, u8 + topic, i16 + properties
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
START: Final = struct.Struct(">iI")  # what each record begins with: size and magic
MIN_SIZE: Final = 91  # of a record without body, topic and properties, between IPv4 hosts
MAX_SIZE: Final = 64 << 20  # far more than any broker is set to take; a size beyond is no size

COMPRESSED: Final = 0x1
PREPARED: Final = 0x4
ROLLED_BACK: Final = 0xC
TRANSACTION_BITS: Final = 0xC
BORN_IPV6: Final = 0x10
STORE_IPV6: Final = 0x20

_FIXED = struct.Struct(">iIiiiqqiq")  # up to and with the time of birth
_I64 = struct.Struct(">q")
_BEFORE_BODY = struct.Struct(">iqi")
_PAIR = "\x01"
_NEXT = "\x02"


class BadRecord(Exception):
    """Bytes that are no record; the text is half a sentence that goes on behind "the record"."""


class Record(NamedTuple):
    """A message as RocketMQ stored it; ``body`` is as it was sent, perhaps compressed. Times are in milliseconds."""

    size: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sysflag: int
    born_at: int
    born_host: bytes
    stored_at: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: dict[str, str]

    @property
    def transaction(self) -> int:
        """Which kind of transactional message it is; 0 for none."""
        return self.sysflag & TRANSACTION_BITS

    @property
    def has_place(self) -> bool:
        """Whether it takes a place in its queue; what is only prepared or rolled back has none."""
        return self.transaction not in (PREPARED, ROLLED_BACK)

    @property
    def offset_id(self) -> str:
        """The message id that the broker gave: its address and the place in the log."""
        return (self.store_host + _I64.pack(self.physical_offset)).hex().upper()


def decode(data: bytes | memoryview) -> Record:
    """
    The record that ``data`` is, from its first byte to its last.

    Raises:
        BadRecord: a length, the magic, the body's checksum or a text is not what it must be.
    """
    if len(data) < MIN_SIZE:
        raise BadRecord(f"has {len(data)} bytes, and none has fewer than {MIN_SIZE}")
    size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sysflag, born_at = _FIXED.unpack_from(data)
    if magic != MESSAGE_MAGIC:
        raise BadRecord(f"has the magic {magic:08X} instead of {MESSAGE_MAGIC:08X}")
    if size != len(data):
        raise BadRecord(f"says that it has {size} bytes, not {len(data)}")
    born_end = 48 + (20 if sysflag & BORN_IPV6 else 8)
    store_end = born_end + 8 + (20 if sysflag & STORE_IPV6 else 8)
    at = store_end + _BEFORE_BODY.size
    if at > size:
        raise BadRecord(f"has hosts that take {at - size} bytes more than it has")
    (stored_at,) = _I64.unpack_from(data, born_end)
    reconsume_times, prepared_offset, length = _BEFORE_BODY.unpack_from(data, store_end)
    body_at, at = at, _behind(at, length, 3, size)
    body = bytes(data[body_at:at])
    topic_at, at = at + 1, _behind(at + 1, data[at], 2, size)
    topic = bytes(data[topic_at:at])
    properties_at, at = at + 2, _behind(at + 2, int.from_bytes(data[at : at + 2], "big", signed=True), 0, size)
    properties = bytes(data[properties_at:at])
    if at != size:
        raise BadRecord(f"has {size} bytes, and its fields take {at}")
    if body_checksum(body) != body_crc:
        raise BadRecord("has a body that does not match its checksum")
    if not topic or queue_id < 0 or queue_offset < 0:
        raise BadRecord(f"has no topic or a negative place (queue {queue_id}, offset {queue_offset})")
    named = parse_properties(_text("properties", properties))
    return Record(
        size, queue_id, flag, queue_offset, physical_offset, sysflag, born_at, bytes(data[48:born_end]), stored_at,
        bytes(data[born_end + 8 : store_end]), reconsume_times, prepared_offset, body, _text("topic", topic), named,
    )  # fmt: skip


def _behind(at: int, length: int, needed: int, size: int) -> int:
    """Where a field ends that begins at ``at``; ``needed`` bytes must follow it."""
    if not 0 <= length <= size - needed - at:
        raise BadRecord(f"has a field of {length} bytes where {size - at} are left")
    return at + length


def _text(what: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"has a text ({what}) that is not UTF-8") from error


def body_checksum(body: bytes) -> int:
    """What the field of the checksum holds for a body."""
    return crc32(body) & 0x7FFFFFFF if body else 0


def parse_properties(text: str) -> dict[str, str]:
    """``name 0x01 value 0x02 ...``, with or without the last separator; empty names and values count as none."""
    found: dict[str, str] = {}
    for segment in text.split(_NEXT):
        name, separator, value = segment.partition(_PAIR)
        if separator and name and value:
            found[name] = value
    return found
