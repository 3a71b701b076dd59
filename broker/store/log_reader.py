"""
The log as a thread reads it that is not the loop's: through descriptors of its own.

A reader is made on the loop, from the segments and the readable end of that moment, used for one piece of work in a
thread, and closed. It never hands out what may not be read yet. A segment that retention removes meanwhile reads as
nothing.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from rmq.wire.batch import layout

from .files import AnyPath, Files

FIRST_READ = 4096  # most batches of few messages come with it
LONGEST_HEADER = 1024
_WINDOW = 1 << 20
_START = struct.Struct(">IHBBIIQQqQQIIB")
_MAGIC = layout.MAGIC.to_bytes(2, "big") + bytes((layout.FORMAT,))


class Head(NamedTuple):
    """What the log itself needs to know of a batch: how long it is and when it was stored."""

    size: int
    stored_at: int


class LogReader:
    """
    Batches by their physical offset, up to ``end``; ``segments`` are starts and paths, oldest first.

    Reading raises OSError where the disk fails.
    """

    def __init__(self, files: Files, segments: Sequence[tuple[int, AnyPath]], end: int) -> None:
        self._files = files
        self._paths = [path for _, path in segments]
        self._starts = [start for start, _ in segments]
        self.end = end
        self._open: dict[int, int] = {}  # segments to descriptors, -1 for one that is gone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for fd in self._open.values():
            if fd >= 0:
                self._files.close(fd)
        self._open.clear()

    @property
    def first(self) -> int:
        """Where the log begins."""
        return self._starts[0] if self._starts else self.end

    def ranges(self) -> list[tuple[int, int]]:
        """The range of each segment that can be read, oldest first."""
        stops = [*self._starts[1:], self.end]
        return [(start, min(stop, self.end)) for start, stop in zip(self._starts, stops, strict=True)]

    def batch(self, position: int) -> bytes | None:
        """The bytes of the batch at a physical offset, not yet judged; None if none begins there."""
        data = self._read(position, FIRST_READ, needed=layout.FIXED_HEADER)
        if data[4:7] != _MAGIC:
            return None
        size = int.from_bytes(data[:4], "big")
        if size > layout.MAX_BATCH or position + size > self.end:
            return None
        if size > len(data):
            data = self._read(position, size, needed=size)
        return data[:size] if len(data) >= size else None

    def head(self, position: int) -> Head | None:
        """The header of the batch at a physical offset, checked; None if none begins there, or a damaged one."""
        return _head(self._header(position), 0, position, self.end)

    def header_bytes(self, position: int) -> bytes | None:
        """The bytes that the header at a physical offset lies in, its checksum right; None as for :meth:`head`."""
        data = self._header(position)
        return None if _head(data, 0, position, self.end) is None else data

    def _header(self, position: int) -> bytes:
        data = self._read(position, LONGEST_HEADER, needed=layout.FIXED_HEADER)
        size = min(int.from_bytes(data[7:8], "big") * 8, LONGEST_HEADER)
        if data[4:7] == _MAGIC and size > len(data):
            data = self._read(position, LONGEST_HEADER, needed=size)
        return data

    def positions(self, first: int, end: int) -> list[int]:
        """Where batches begin in a range, newest first; ``first`` is the start of one. Damage is passed over."""
        return list(self._walk(first, min(end, self.end)))[::-1]

    def _walk(self, at: int, end: int) -> Iterator[int]:
        while at < end:
            head = self.head(at)
            if head is not None:
                yield at
                at += head.size
            else:
                at = self._next(at + layout.ALIGN, end)

    def _next(self, at: int, end: int) -> int:
        """The first sound header at ``at`` or behind it, or ``end``."""
        while at < end:
            window = self._read(at, _WINDOW)
            hit = window.find(_MAGIC)
            while hit >= 0:
                place = at + hit - 4
                if hit >= 4 and not place % layout.ALIGN and self.head(place) is not None:
                    return place
                hit = window.find(_MAGIC, hit + 1)
            at += max(len(window) - len(window) % layout.ALIGN, layout.ALIGN)
        return end

    def _read(self, position: int, size: int, *, needed: int = 1) -> bytes:
        """
        Bytes of one segment, up to ``size``: at least as many as are needed, unless it ends before or is gone.

        The system may return what lies before a bad sector, and fail only when asked for more.

        Raises:
            OSError: the disk cannot read what is needed; names the file and the bytes.
        """
        number = bisect_right(self._starts, position) - 1
        if number < 0 or position >= self.end or position % layout.ALIGN:
            return b""
        fd = self._open.get(number)
        if fd is None:
            fd = self._open[number] = self._descriptor(self._paths[number])
        if fd < 0:
            return b""
        at = position - self._starts[number]
        try:
            data = self._files.read(fd, size, at)
            while len(data) < needed and (more := self._files.read(fd, needed - len(data), at + len(data))):
                data += more
        except OSError as error:
            text = f"bytes {at} to {at + size}: {error.strerror}"
            raise OSError(error.errno, text, str(self._paths[number])) from error
        return data

    def _descriptor(self, path: AnyPath) -> int:
        try:
            return self._files.open_to_read(path)
        except FileNotFoundError:
            return -1


def _head(data: bytes, at: int, position: int, end: int) -> Head | None:
    if len(data) < at + layout.FIXED_HEADER or data[at + 4 : at + 7] != _MAGIC:
        return None
    size, _, _, words, crc, _, physical_offset, _, stored_at, *_ = _START.unpack_from(data, at)
    header_size = words * 8
    if header_size < layout.FIXED_HEADER or at + header_size > len(data) or position + size > end:
        return None
    if physical_offset != position or size < header_size or layout.header_crc(data, at, header_size) != crc:
        return None
    return Head(size, stored_at)
