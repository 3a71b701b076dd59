"""
A batch as its columns lie, for readers that take many batches at once and judge their columns together.

:func:`read_raw` judges what belongs to a batch as a whole: its header, its checksums, its padding, and that its meta is
an array of columns. What the columns hold is left to the reader, who finds it sound: a broker stores nothing else,
and the checksum shows that it is still the same. Nothing is copied but the meta and what was compressed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import BadBatch
from . import layout
from .checksum import crc32
from .columns import unpack_meta
from .compression import CODECS
from .layout import Header


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
