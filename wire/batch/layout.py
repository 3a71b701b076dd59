"""
Where each field of a record batch lies: its header, stamped, parsed and patched.

Header integers are big-endian. A batch starts at a multiple of 8 and is padded to one::

      0 u32 size (with padding)      4 u16 magic   6 u8 format   7 u8 header length / 8
      8 u32 header_crc (from 12 to the header's end)
     12 u32 log_epoch               16 u64 physical_offset      24 u64 base_offset
     32 i64 stored_at (us)          40 u64 durable_before       48 u64 origin
     56 u32 topic_gen               60 u32 queue_id             64 u8 kind, 7 reserved
    ------------------------------------------------------------------ the producer's part
     72 u32 batch_crc (from 76 to the end of the bodies)
     76 u16 attributes (codec)      78 u16 count                80 u64 producer_id
     88 u64 sequence                96 u16 producer_epoch       98 u16 delay_level
    100 u32 meta_size              104 u32 body_size           108 u32 raw_size
    112 u64 tag_bloom              120 i64 deliver_at (us)
    128 topic: u8 length, bytes, padding to 8     then meta (msgpack), then bodies

The broker's part (0 to 72) is stamped at append; the producer's is never changed afterwards. ``body_size`` is what the
bodies take here, ``raw_size`` what they take uncompressed: every limit holds for a batch as if it were not compressed.

A batch with a ``delay_level`` or a ``deliver_at`` (never both) is delivered later. Until then it lies in the log as a
*parked* batch, whose ``base_offset`` is the time it is due (us): it has no place in its queue yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from ..errors import BadBatch, BatchTooLarge, Refused, UnsupportedFormat
from .checksum import crc32
from .compression import NAMES as CODEC_NAMES

Buffer = bytes | bytearray | memoryview

MAGIC: Final = 0x524D
FORMAT: Final = 1
FIXED_HEADER: Final = 128
BROKER_PART: Final = 72
HEADER_CRC_FROM: Final = 12
CRC_FROM: Final = 76
ALIGN: Final = 8
PADDINGS: Final = tuple(bytes(n) for n in range(ALIGN))  # by their length

MAX_COUNT: Final = 4096
MAX_BODY: Final = 4 << 20
MAX_BATCH: Final = (4 << 20) + (64 << 10)
MAX_TAG: Final = 255  # bytes of UTF-8
MAX_TIME: Final = 253_402_300_800_000_000  # the first microsecond of the year 10000, which no calendar here can show
MAX_POSITION: Final = 1 << 54  # of physical offsets: a handle then fits 63 bits

KIND_DATA: Final = 0
KIND_PARKED: Final = 1
KIND_STATE: Final = 2
KIND_TRANSACTION: Final = 3
KNOWN_KINDS: Final = frozenset({KIND_DATA, KIND_PARKED, KIND_STATE})
_NEVER_DELAYED: Final = frozenset({KIND_DATA, KIND_STATE})  # kinds that need no further look if no delay is told
CODEC_BITS: Final = 7
KNOWN_ATTRIBUTES: Final = CODEC_BITS  # no transaction yet

_HEADER = struct.Struct(">IHBBIIQQqQQIIB7sIHHQQHHIIIQq")
_STAMPED = struct.Struct(">IQQqQQIIB7s")  # from 12: what header_crc covers of the broker's part
_PRODUCER = struct.Struct(">IHHQQHHIIIQq")
_START = struct.Struct(">IHBBI")
_U32 = struct.Struct(">I")
_TAGS = struct.Struct(">I8xQ")  # from 100: meta_size and tag_bloom
_NO_RESERVED = bytes(7)
_UNKNOWN = ~KNOWN_ATTRIBUTES


class Header(NamedTuple):
    """All fields of a batch header, in the order of the layout."""

    size: int
    magic: int
    format: int
    header_words: int
    header_crc: int
    log_epoch: int
    physical_offset: int
    base_offset: int
    stored_at: int
    durable_before: int
    origin: int
    topic_gen: int
    queue_id: int
    kind: int
    reserved: bytes
    batch_crc: int
    attributes: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    producer_id: int
    sequence: int
    producer_epoch: int
    delay_level: int
    meta_size: int
    body_size: int
    raw_size: int
    tag_bloom: int
    deliver_at: int
    topic: str

    @property
    def header_size(self) -> int:
        """Bytes before the meta."""
        return self.header_words * 8

    @property
    def content_size(self) -> int:
        """Bytes before the padding."""
        return self.header_words * 8 + self.meta_size + self.body_size

    @property
    def end_offset(self) -> int:
        """The queue offset behind the last message; a parked batch has none."""
        return self.base_offset + self.count

    @property
    def codec(self) -> int:
        """The number of the codec of the bodies; 0 is none."""
        return self.attributes & CODEC_BITS

    @property
    def open_size(self) -> int:
        """Bytes of the batch with its bodies uncompressed: what it takes in the memory of a reader."""
        return self.size + self.raw_size - self.body_size


class Stamp(NamedTuple):
    """What the broker says of a batch when it appends it."""

    log_epoch: int
    physical_offset: int
    base_offset: int
    stored_at: int
    durable_before: int
    origin: int
    topic_gen: int
    queue_id: int
    kind: int


def padding(length: int) -> int:
    """How many bytes bring ``length`` to a multiple of 8."""
    return -length & (ALIGN - 1)


def pack_topic(topic: str) -> bytes:
    """The topic as it stands at the end of the header; raises BadBatch if it does not fit."""
    text = topic.encode()
    if len(text) > 255:
        raise BadBatch(f"the topic has {len(text)} bytes, at most 255 fit")
    packed = bytes((len(text),)) + text
    return packed + bytes(padding(len(packed)))


def pack_producer_part(header: tuple[int, ...]) -> bytes:
    """The producer's fixed fields, from 72 to 128; the CRC is patched in by :func:`seal`."""
    return _PRODUCER.pack(0, *header)


def seal(batch: bytearray, body_end: int) -> None:
    """Write size, magic, format and ``batch_crc`` into a batch whose other bytes are final."""
    (topic_length,) = batch[FIXED_HEADER : FIXED_HEADER + 1]
    header_size = FIXED_HEADER + 1 + topic_length + padding(1 + topic_length)
    _START.pack_into(batch, 0, len(batch), MAGIC, FORMAT, header_size // 8, 0)
    with memoryview(batch) as view:
        _U32.pack_into(batch, BROKER_PART, crc32(view[CRC_FROM:body_end]))


def seal_parts(head: bytearray, header_size: int, bodies: Iterable[Buffer], size: int) -> None:
    """The same for a batch of ``size`` bytes in parts, whose ``head`` holds all that comes before the bodies."""
    _START.pack_into(head, 0, size, MAGIC, FORMAT, header_size // 8, 0)
    with memoryview(head) as view:
        crc = crc32(view[CRC_FROM:])
    for body in bodies:
        crc = crc32(body, crc)
    _U32.pack_into(head, BROKER_PART, crc)


def stamp(batch: Buffer, header_size: int, by: Stamp) -> bytes:
    """The broker's part for a checked batch, alone in its buffer: the 72 bytes that replace its first ones."""
    fields = _STAMPED.pack(*by, _NO_RESERVED)
    with memoryview(batch) as view:
        crc = crc32(view[BROKER_PART:header_size], crc32(fields))
    return _START.pack(len(batch), MAGIC, FORMAT, header_size // 8, crc) + fields


def header_crc(batch: Buffer, at: int, header_size: int) -> int:
    """The checksum that ``header_crc`` of a stamped batch must equal."""
    with memoryview(batch) as view:
        return crc32(view[at + HEADER_CRC_FROM : at + header_size])


def batch_crc(batch: Buffer, at: int, header: Header) -> int:
    """The checksum that ``batch_crc`` of a batch must equal."""
    with memoryview(batch) as view:
        return crc32(view[at + CRC_FROM : at + header.content_size])


def tag_fields(rest: Buffer) -> tuple[int, int]:
    """``(meta_size, tag_bloom)`` from the producer's part of a batch that was judged."""
    meta_size, tag_bloom = _TAGS.unpack_from(rest, 100 - BROKER_PART)
    return meta_size, tag_bloom


def check_stamp(header: Header) -> None:
    """Refuse what no broker stamps: a reader could not show it."""
    if header.physical_offset % ALIGN or header.physical_offset >= MAX_POSITION:
        raise BadBatch(f"no batch lies at the physical offset {header.physical_offset}")
    if header.kind == KIND_PARKED and not 0 < header.base_offset < MAX_TIME:
        raise BadBatch(f"the time {header.base_offset} at which a parked batch is due is not between 1970 and 9999")
    if header.base_offset >> 62:
        raise BadBatch(f"no message lies at the queue offset {header.base_offset}")
    if not 0 <= header.stored_at < MAX_TIME:
        raise BadBatch(f"the time {header.stored_at} of stored_at is not between 1970 and 9999")


def parse_header(batch: Buffer, at: int = 0, *, alone: bool = False) -> Header:
    """
    Read the header at ``at`` and judge its own consistency (not its checksums).

    ``alone``: ``batch`` need not hold what follows the header.

    Raises:
        BadBatch, BatchTooLarge: the bytes are no header, or its sizes contradict each other or a limit.
        UnsupportedFormat: an unknown format, kind, codec or attribute.
    """
    room = len(batch) - at
    if room < FIXED_HEADER + ALIGN:
        raise BadBatch(f"a batch of {room} bytes is shorter than its header")
    fields = _HEADER.unpack_from(batch, at)
    size, magic, format_, words = fields[:4]
    if magic != MAGIC or format_ != FORMAT or size > MAX_BATCH or (size > room and not alone):
        raise _bad_start(size, magic, format_, room)
    topic = _topic(bytes(batch[at + FIXED_HEADER : at + words * 8]))
    header: Header = tuple.__new__(Header, (*fields, topic))
    used = words * 8 + header.meta_size + header.body_size
    if used + padding(used) != size or not 1 <= header.count <= MAX_COUNT:
        raise _bad_sizes(header, used)
    if header.reserved != _NO_RESERVED:
        raise BadBatch("reserved bytes of the header are not zero")
    if header.kind not in _NEVER_DELAYED or header.attributes & _UNKNOWN or header.delay_level or header.deliver_at:
        _check_unusual(header)
    if header.attributes or header.raw_size != header.body_size:
        _check_codec(header)
    return header


def _check_codec(header: Header) -> None:
    """Judge a header that announces a codec, or two sizes of its bodies. Whether the codec is here is not asked."""
    codec = header.attributes & CODEC_BITS
    if not codec:
        if header.raw_size != header.body_size:
            raise BadBatch(f"bodies of {header.body_size} bytes announce {header.raw_size}, and are not compressed")
        return
    if codec not in CODEC_NAMES:
        raise UnsupportedFormat(f"compression codec {codec} is unknown")
    if header.kind == KIND_STATE:
        raise BadBatch("a batch of the broker's own state is never compressed")
    if header.raw_size <= header.body_size:
        raise BadBatch(f"compressed bodies of {header.body_size} bytes announce {header.raw_size}, which is no gain")
    used = header.header_size + header.meta_size + header.raw_size
    if used > MAX_BATCH:
        raise BatchTooLarge(f"a batch of {used} bytes, uncompressed, is over the limit of {MAX_BATCH}")


def _bad_start(size: int, magic: int, format_: int, room: int) -> Refused:
    if magic != MAGIC:
        return BadBatch(f"a batch begins with magic 0x{magic:04x}, not 0x{MAGIC:04x}")
    if format_ != FORMAT:
        return UnsupportedFormat(f"batch format {format_} is unknown, this version reads {FORMAT}")
    if size > MAX_BATCH:
        return BatchTooLarge(f"a batch of {size} bytes is over the limit of {MAX_BATCH}")
    return BadBatch(f"a batch announces {size} bytes and has {room}")


@lru_cache(maxsize=1024)
def _topic(packed: bytes) -> str:
    """The topic from the end of a header. A later format may add fields behind it; format 1 has none."""
    length = packed[0] if packed else 0
    if len(packed) != 1 + length + padding(1 + length):
        raise BadBatch(f"a header of {FIXED_HEADER + len(packed)} bytes does not fit a topic of {length}")
    if any(packed[1 + length :]):
        raise BadBatch("the padding of the topic is not zero")
    try:
        return packed[1 : 1 + length].decode()
    except UnicodeDecodeError as error:
        raise BadBatch("the topic is not UTF-8") from error


def _bad_sizes(header: Header, used: int) -> BadBatch:
    if not 1 <= header.count <= MAX_COUNT:
        return BadBatch(f"a batch holds 1 to {MAX_COUNT} messages, not {header.count}")
    return BadBatch(f"a batch of {header.size} bytes does not fit its parts of {used}")


def check_delay(kind: int, delay_level: int, deliver_at: int) -> None:
    """Refuse a delay that cannot be: raises BadBatch."""
    if delay_level and deliver_at:
        raise BadBatch("a batch has a delay level or a time of delivery, not both")
    if not 0 <= deliver_at < MAX_TIME:
        raise BadBatch(f"the time {deliver_at} of deliver_at is not between 1970 and 9999")
    if kind == KIND_STATE and (delay_level or deliver_at):
        raise BadBatch("a batch of the broker's own state is never delayed")


def _check_unusual(header: Header) -> None:
    """Judge a header that announces a delay, a kind that is delayed, or something that is not known."""
    if header.kind not in KNOWN_KINDS:
        raise UnsupportedFormat(f"batch kind {header.kind} is unknown")
    if header.attributes & _UNKNOWN:
        raise UnsupportedFormat(f"attribute bits 0x{header.attributes:04x} are unknown")
    check_delay(header.kind, header.delay_level, header.deliver_at)
    # A copy for a retry is parked by the broker, whatever its producer wanted.
    if header.kind == KIND_PARKED and not (header.delay_level or header.deliver_at or header.origin):
        raise BadBatch("a parked batch has neither a delay level, nor a time of delivery, nor an origin")
