"""
The record batch: 1 to 4096 messages of one queue, stored column by column.

:func:`encode` makes a batch, :func:`check` validates it, :meth:`Batch.messages` reads it. The same bytes travel from
the producer through the log to consumers and Spark. **Whatever** ``check`` **accepts can be decoded**, so no stored
batch can block a queue.

Meta is one msgpack array; its columns are little-endian, as Arrow's::

    [lengths, tags, index_keys, index_key_hashes, keys, properties, born_at, attempts]

    lengths           bin, u32 a message
    tags              nil or [names, bin of u16 codes]: 0 is no tag, k is names[k - 1]
    index_keys        nil or [bin of u32 lengths, bin]: the index keys of a message joined by a space
    index_key_hashes  nil or bin, the CRC-32 (u32) of each index key
    keys              nil or [bin of u32 lengths, bin]: the key that orders a message; length 0 is none
    properties        nil or [names, bin of u16 counts, bin of u16 codes, bin of u32 value lengths, bin]
    born_at           int (all equal) or bin of i64, microseconds
    attempts          nil or bin of u16: deliveries before this batch was made

The bodies may be compressed, as one piece. Meta never is: the broker reads it.

:func:`encode_single` makes the batch of one message with nothing but a body, which most calls of ``send`` need. It
gives the same bytes as :func:`encode` in a quarter of the time, as all but a few numbers of it are known beforehand.

:func:`read_raw` gives a batch as columns, for readers that take many batches at once and validate their columns
together. It validates the header, the checksums, the padding, and that meta is an array of columns, but not what the
columns hold: a broker stores only valid ones, and the checksum proves that they did not change. Only meta and what was
compressed are copied.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgpack

from ..errors import BadBatch, BatchTooLarge, MessageTooLarge, UnsupportedFormat
from ..model import StoredMessage, stored_messages
from ..stores import StoreIds
from . import layout
from .checksum import crc32
from .columns import Columns, check_columns, check_names, check_times, unpack_meta
from .compression import CODECS, Codec
from .hashing import tag_bloom
from .layout import Buffer, Header
from .native import native
from .texts import Bodies, encode_all, little, pack_bodies, pack_codes, pack_keys, pack_texts

_BEFORE_PLACE = bytes(60)  # the broker's part up to queue and kind
_MESSAGE_ID = re.compile(r"[0-9a-fA-F]{32}\Z", re.ASCII)


class ProducerMark(NamedTuple):
    """Whose batch it is, and the how-manyth of that producer."""

    producer_id: int = 0
    sequence: int = 0
    producer_epoch: int = 0


_NOBODY = ProducerMark()


class Rows(NamedTuple):
    """
    The messages of a batch to be, column by column; a column that no message uses is None.

    ``born_at`` as bytes is a column already, of times that were judged.
    """

    bodies: Sequence[bytes] | Bodies
    born_at: int | Sequence[int] | bytes
    tags: Sequence[str | None] | None = None
    index_keys: Sequence[Sequence[str]] | None = None
    keys: Sequence[str | None] | None = None
    properties: Sequence[Mapping[str, str]] | None = None
    attempts: Sequence[int] | None = None


_OPTIONAL = Rows._fields[2:]


class Checked(NamedTuple):
    """What :func:`check` found: the header and the columns of a sound batch."""

    header: Header
    columns: Columns


class Batch:
    """A sound batch with its bodies, apart from the reply it came in."""

    __slots__ = ("_bounds", "_origin", "_read_to", "bodies", "columns", "header")

    def __init__(self, header: Header, columns: Columns, bodies: bytes, stores: StoreIds) -> None:
        self.header = header
        self.columns = columns
        self.bodies = bodies  # back to back, as Arrow wants them
        self._origin = BatchOrigin(header, columns, stores)
        # Made with the first message: a batch may wait for long.
        self._bounds: list[int] | None = None
        self._read_to = (0, 0)  # a message, most likely the next to be read, and where its body begins

    def show_topic(self, topic: str, namespace: str = "") -> None:
        """Have the messages of the batch tell this as their topic, and those of their originals without a namespace."""
        self._origin.topic = topic
        self._origin.namespace = namespace

    def messages(self, from_offset: int = 0) -> list[StoredMessage]:
        """The messages at ``from_offset`` and behind."""
        first = max(0, from_offset - self.header.base_offset)
        return self.pick(range(first, self.header.count))

    def pick(self, indexes: Sequence[int]) -> list[StoredMessage]:
        """The messages at some places of the batch, each with a body of its own."""
        if type(indexes) is range and indexes.step == 1 and indexes:
            picked = self._in_line(indexes[0], indexes[-1] + 1)
        else:
            picked = stored_messages(self._origin, self._cut_out(indexes), indexes)
        if self.columns.attempts is not None:
            for message, i in zip(picked, indexes, strict=True):
                message.attempt += self.columns.attempts_of(i)
        return picked

    def _in_line(self, start: int, end: int) -> list[StoredMessage]:
        """The messages from one place to before another."""
        lengths = self.columns.lengths
        first, at = self._read_to
        if start != first:
            at = sum(lengths[:start])
        if native is not None and type(self.bodies) is bytes:
            made, at = native.make_messages(StoredMessage, self._origin, self.bodies, lengths, start, end, at)
        else:
            made, at = messages_in_line(self._origin, self.bodies, lengths, start, end, at)
        self._read_to = end, at
        return made

    def _cut_out(self, indexes: Sequence[int]) -> list[bytes]:
        """The bodies at some places."""
        if self._bounds is None:
            self._bounds = [0, *accumulate(self.columns.lengths)]
        bodies, bounds = self.bodies, self._bounds
        return [bodies[bounds[i] : bounds[i + 1]] for i in indexes]


def messages_in_line(  # noqa: PLR0917  # as the compiled one
    origin: BatchOrigin, bodies: bytes, lengths: array[int], start: int, end: int, at: int
) -> tuple[list[StoredMessage], int]:
    """The messages from one place of a batch, which begins ``at``, to before another; and where that one begins."""
    # A file in memory cuts bodies out in half the time of slices. A file a call: one for all would have a place that
    # threads, and a call that failed halfway, could lose.
    file, some = BytesIO(bodies), lengths[start:end]
    file.seek(at)
    return stored_messages(origin, map(file.read, some), range(start, end)), at + sum(some)


class BatchOrigin:
    """What the messages of one batch share; it keeps no body alive."""

    __slots__ = ("columns", "header", "namespace", "stores", "topic")

    def __init__(self, header: Header, columns: Columns, stores: StoreIds) -> None:
        self.topic = header.topic  # as readers see it
        self.namespace = ""  # that they do not see
        self.header = header
        self.columns = columns
        self.stores = stores

    def message_id(self, index: int) -> str:
        """32 hex digits: the store and the handle."""
        position = self.header.physical_offset
        return message_id(self.stores.at(position), handle(position, index))

    def copy_of(self, index: int) -> str | None:
        """The id of what a message was copied from: a whole batch is copied in its order, or one message alone."""
        origin = self.header.origin
        return id_of_handle(self.stores, origin + index) if origin else None


def encode(
    topic: str,
    queue_id: int,
    rows: Rows,
    *,
    by: ProducerMark = _NOBODY,
    kind: int = layout.KIND_DATA,
    codec: Codec | None = None,
    delay_level: int = 0,
    deliver_at: int = 0,
) -> bytearray:
    """
    One batch as bytes; see :func:`encode_parts`, which has the same arguments.

    Raises:
        BadBatch, MessageTooLarge, BatchTooLarge, UnsupportedFormat: as there.
    """
    parts = encode_parts(
        topic, queue_id, rows, by=by, kind=kind, codec=codec, delay_level=delay_level, deliver_at=deliver_at
    )
    return bytearray().join(parts)


def encode_parts(
    topic: str,
    queue_id: int,
    rows: Rows,
    *,
    by: ProducerMark = _NOBODY,
    kind: int = layout.KIND_DATA,
    codec: Codec | None = None,
    delay_level: int = 0,
    deliver_at: int = 0,
) -> list[Buffer]:
    """
    One batch, ready to send, in parts to be sent one behind the other: the bodies are not copied for that.

    The broker's part is empty but for size, magic, queue and kind.

    ``codec`` compresses the bodies if that makes the batch smaller. The limits are those of the batch without it.
    ``delay_level`` (1 and up) or ``deliver_at`` (us since 1970) have it delivered later; 0 is neither.

    Raises:
        BadBatch: no message or too many, two delays, or something that cannot be stored.
        MessageTooLarge, BatchTooLarge: over a limit.
        UnsupportedFormat: an unknown kind, or a codec for a kind that has none.
    """
    bodies = rows.bodies if isinstance(rows.bodies, Bodies) else pack_bodies(rows.bodies)
    _check_rows(rows, bodies)
    if kind not in layout.KNOWN_KINDS:
        raise UnsupportedFormat(f"batch kind {kind} is unknown")
    if kind == layout.KIND_PARKED:
        raise UnsupportedFormat("a batch is parked by a broker alone: encode it as data, with a delay")
    if codec is not None and kind != layout.KIND_DATA:
        raise UnsupportedFormat(f"a batch of kind {kind} is never compressed")
    if delay_level or deliver_at:
        layout.check_delay(kind, delay_level, deliver_at)
    names = [] if rows.tags is None else sorted(filter(None, set(rows.tags)))
    pieces, attributes, body_size = bodies.pieces, 0, bodies.size
    try:
        name, meta = layout.pack_topic(topic), _pack_meta(rows, bodies.lengths, names)
        _check_size(layout.FIXED_HEADER + len(name) + len(meta) + bodies.size)
        if codec is not None and (packed := codec.shrink(b"".join(pieces), layout.ALIGN)) is not None:
            pieces, attributes, body_size = (packed,), codec.number, len(packed)
        sizes = (len(meta), body_size, bodies.size)
        producer = layout.pack_producer_part(
            (attributes, bodies.count, *by, delay_level, *sizes, tag_bloom(names) if names else 0, deliver_at)
        )
        place = queue_id.to_bytes(4, "big") + bytes((kind, 0, 0, 0, 0, 0, 0, 0))
    except (UnicodeEncodeError, OverflowError, struct.error) as error:
        raise BadBatch(f"the batch cannot be stored: {error}") from error
    head = bytearray().join((_BEFORE_PLACE, place, producer, name, meta))
    padding = layout.PADDINGS[layout.padding(len(head) + body_size)]
    layout.seal_parts(head, layout.FIXED_HEADER + len(name), pieces, len(head) + body_size + len(padding))
    return [head, *pieces, padding] if padding else [head, *pieces]


def check(data: Buffer, at: int = 0, *, stamped: bool, header: Header | None = None, unpack: bool = True) -> Checked:
    """
    Judge the batch at ``at``. ``stamped`` batches have been through a broker; one that has not been must end
    where ``data`` ends, since the broker stores all of it. ``header`` saves parsing it a second time.

    Compressed bodies are unpacked, to see that it can be done. ``unpack=False`` leaves that to :func:`check_bodies`, or
    out: for whoever finds a batch that was judged before, and only asks whether its bytes are still the same.

    Raises:
        BadBatch, BatchTooLarge, MessageTooLarge, UnsupportedFormat: with one sentence of what is wrong.
    """
    header, columns, body_at = _judge(data, at, stamped, header)
    if header.attributes and unpack:
        _unpacked(data, header, body_at)
    return Checked(header, columns)


def check_bodies(data: Buffer, header: Header, at: int = 0) -> None:
    """Judge what ``check(unpack=False)`` left out; raises as :func:`check` does."""
    if header.attributes:
        _unpacked(data, header, at + header.header_size + header.meta_size)


def read(data: Buffer, at: int = 0, *, stores: StoreIds) -> Batch:
    """Judge the stamped batch at ``at`` and take its content, uncompressed; raises as :func:`check` does."""
    header, columns, body_at = _judge(data, at, True, None)
    if header.attributes:
        bodies = _unpacked(data, header, body_at)
    else:
        bodies = bytes(memoryview(data)[body_at : body_at + header.body_size])
    return Batch(header, columns, bodies, stores)


def _judge(data: Buffer, at: int, stamped: bool, header: Header | None) -> tuple[Header, Columns, int]:
    """All that there is to judge, but for the content of compressed bodies; also tells where the bodies begin."""
    if header is None:
        header = layout.parse_header(data, at)
    meta_at = at + header.header_words * 8
    body_at = meta_at + header.meta_size
    end = body_at + header.body_size
    view = memoryview(data)
    if stamped:
        if crc32(view[at + layout.HEADER_CRC_FROM : meta_at]) != header.header_crc:
            raise BadBatch("the header's checksum does not match")
        layout.check_stamp(header)
    elif at + header.size != len(view):
        raise BadBatch(f"{len(view) - at - header.size} bytes follow the batch")
    if crc32(view[at + layout.CRC_FROM : end]) != header.batch_crc:
        raise BadBatch("the checksum does not match the content")
    stop = at + header.size
    if view[end:stop] != layout.PADDINGS[stop - end]:
        raise BadBatch("the padding is not zero")
    return header, check_columns(view[meta_at:body_at], header), body_at


def _unpacked(data: Buffer, header: Header, body_at: int) -> bytes:
    with memoryview(data) as view, view[body_at : body_at + header.body_size] as packed:
        return CODECS.by_number(header.codec).unpack(packed, header.raw_size)


def read_all(data: Buffer, *, stores: StoreIds) -> list[Batch]:
    """Every batch of a pull's answer; raises as :func:`check` does."""
    batches, at = [], 0
    while at < len(data):
        batches.append(read(data, at, stores=stores))
        at += batches[-1].header.size
    return batches


def handle(physical_offset: int, index: int) -> int:
    """The 63-bit number of a message in its store."""
    return (physical_offset // layout.ALIGN) << 12 | index


def place_of(of: int) -> tuple[int, int]:
    """The physical offset of the batch that holds the message with this number, and its index in there."""
    position, index = divmod(of, layout.MAX_COUNT)
    return position * layout.ALIGN, index


def message_id(store_id: int, of: int) -> str:
    """32 hex digits that name a message for ever."""
    return f"{store_id:016x}{of:016x}"


def id_of_handle(stores: StoreIds, of: int) -> str:
    """Return the id of the message with this number, under the store id that it was stored under."""
    return message_id(stores.at(place_of(of)[0]), of)


def split_message_id(text: str) -> tuple[int, int, int]:
    """``(store_id, physical_offset, index)`` of a message id; raises ValueError if it is none."""
    if not _MESSAGE_ID.match(text):
        raise ValueError(f"a message id has 32 hex digits, {text[:40]!r} is none")
    of = int(text[16:], 16)
    return int(text[:16], 16), (of >> 12) * layout.ALIGN, of & 0xFFF


def _check_rows(rows: Rows, bodies: Bodies) -> None:
    count = bodies.count
    if not 1 <= count <= layout.MAX_COUNT:
        raise BadBatch(f"a batch holds 1 to {layout.MAX_COUNT} messages, not {count}")
    if bodies.size > layout.MAX_BODY and bodies.longest > layout.MAX_BODY:
        raise MessageTooLarge(f"a body of {bodies.longest} bytes is over the limit of {layout.MAX_BODY}")
    for name, column in zip(_OPTIONAL, rows[2:], strict=True):
        if column is not None and len(column) != count:
            raise BadBatch(f"the column {name} has {len(column)} entries for {count} messages")
    born_at = rows.born_at
    if isinstance(born_at, int):
        check_times("born_at", (born_at,))
    elif len(born_at) != (8 * count if isinstance(born_at, bytes) else count):
        raise BadBatch(f"the column born_at has {len(born_at)} entries for {count} messages")
    elif not isinstance(born_at, bytes):
        check_times("born_at", born_at)


def _check_size(used: int) -> None:
    if used > layout.MAX_BATCH:
        raise BatchTooLarge(f"a batch of {used} bytes is over the limit of {layout.MAX_BATCH}")


def _pack_meta(rows: Rows, lengths: bytes, names: list[str]) -> bytes:
    keys, hashes = pack_keys(rows.index_keys) if rows.index_keys is not None and any(rows.index_keys) else (None, None)
    packed: bytes = msgpack.packb(
        [
            lengths,
            _pack_tags(rows.tags, names) if names and rows.tags is not None else None,
            keys,
            hashes,
            pack_texts([key or "" for key in rows.keys]) if rows.keys is not None else None,
            _pack_properties(rows.properties) if rows.properties is not None and any(rows.properties) else None,
            rows.born_at if isinstance(rows.born_at, int | bytes) else little("q", rows.born_at),
            None if rows.attempts is None else little("H", rows.attempts),
        ]
    )
    return packed


def _pack_tags(tags: Sequence[str | None], names: list[str]) -> list[object]:
    check_names("tags", names, layout.MAX_TAG)
    code: dict[str | None, int] = {None: 0, "": 0} | {name: i for i, name in enumerate(names, 1)}
    return [names, pack_codes(tags, code)]


def _pack_properties(rows: Sequence[Mapping[str, str]]) -> list[object]:
    names = sorted({name for row in rows for name in row})
    check_names("properties", names)
    code = {name: i for i, name in enumerate(names)}
    values, blob = encode_all([value for row in rows for value in row.values()])
    return [
        names,
        little("H", [len(row) for row in rows]),
        little("H", [code[name] for row in rows for name in row]),
        little("I", list(map(len, values))),
        blob,
    ]


SMALL: Final = 4096  # bytes of a body that is copied; a larger one is a part of its own
OLDEST: Final = 1 << 32  # us since 1970: before that, msgpack writes a time in fewer bytes
_BEFORE: Final = struct.Struct(">IHBBI48xI8xI")  # size, magic, format, header / 8, no checksum; queue; batch_crc
_FIELDS: Final = struct.Struct(">HHQQHHIIIQq")  # the producer's, behind batch_crc
_LENGTHS: Final = struct.Struct("<3sI")  # the meta begins: an array of 8, its first column 4 bytes
_TIMES: Final = struct.Struct(">6sQB")  # and ends: five columns that no message uses, born_at, no attempts
_META: Final = _LENGTHS.size + _TIMES.size


def encode_single(topic: str, queue_id: int, body: bytes, born_at: int, by: tuple[int, int, int]) -> list[Buffer]:
    """
    The batch, in parts to be sent one behind the other; ``by`` is its :class:`~rmq.wire.batch.batch.ProducerMark`.

    The caller knows that the body is not too long, and that ``born_at`` is not before :data:`OLDEST`.

    Raises:
        BadBatch, UnicodeEncodeError: the topic cannot be stored.
    """
    size, name = len(body), _packed(topic)
    fields = _FIELDS.pack(0, 1, *by, 0, _META, size, size, 0, 0)
    meta = _LENGTHS.pack(b"\x98\xc4\x04", size) + _TIMES.pack(b"\xc0\xc0\xc0\xc0\xc0\xcf", born_at, 0xC0)
    head = b"".join((fields, name, meta))
    header_size = layout.FIXED_HEADER + len(name)
    used = header_size + _META + size
    padding = layout.PADDINGS[layout.padding(used)]
    start = _BEFORE.pack(
        used + len(padding), layout.MAGIC, layout.FORMAT, header_size // 8, 0, queue_id, crc32(body, crc32(head))
    )
    return [b"".join((start, head, body, padding))] if size <= SMALL else [start + head, body, padding]


@lru_cache(maxsize=1024)
def _packed(topic: str) -> bytes:
    return layout.pack_topic(topic)


class RawBatch(NamedTuple):
    """
    The header, the columns of the meta as :mod:`~rmq.wire.batch.batch` names them, and the bodies back to back.

    The bodies are a view of what was read, new bytes if they were compressed, and empty if they were not asked for.
    """

    header: Header
    columns: list[Any]
    bodies: memoryview | bytes


def read_raw(data: memoryview, at: int = 0, *, verify: bool = True, bodies: bool = True) -> RawBatch:
    """
    The stamped batch at ``at``. Without ``verify`` the checksum of its content is not computed; that of the header is.

    Raises:
        BadBatch, BatchTooLarge, UnsupportedFormat: with one sentence of what is wrong.
    """
    header = layout.parse_header(data, at)
    meta_at = at + header.header_words * 8
    body_at = meta_at + header.meta_size
    end, stop = body_at + header.body_size, at + header.size
    if crc32(data[at + layout.HEADER_CRC_FROM : meta_at]) != header.header_crc:
        raise BadBatch("the header's checksum does not match")
    layout.check_stamp(header)
    if verify and crc32(data[at + layout.CRC_FROM : end]) != header.batch_crc:
        raise BadBatch("the checksum does not match the content")
    if data[end:stop] != layout.PADDINGS[stop - end]:
        raise BadBatch("the padding is not zero")
    columns = unpack_meta(data[meta_at:body_at], header)
    if not bodies:
        return RawBatch(header, columns, b"")
    packed = data[body_at:end]
    if header.attributes:
        return RawBatch(header, columns, CODECS.by_number(header.codec).unpack(packed, header.raw_size))
    return RawBatch(header, columns, packed)
