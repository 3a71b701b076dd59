"""
A segment read from front to back: sound batches, and what lies between them.

It reads in pieces, so that a place that the disk cannot read is a damaged place and not the end of the process.
Judging is done here for recovery and for ``verify-store`` alike.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

from rmq.wire import batch as batches
from rmq.wire import layout
from rmq.wire.errors import UnsupportedFormat, WireError

from .files import Files

_WINDOW = 16 << 20
_SECTOR = 4096
_SIGN = layout.MAGIC.to_bytes(2, "big") + bytes((layout.FORMAT,))
_SIGN_AT = 4  # of a header


class Bad(NamedTuple):
    """
    A place where no sound batch lies.

    ``header`` is there if that, at least, is sound; ``newer``: whoever wrote it knew more than we do.
    """

    position: int
    reason: str
    header: layout.Header | None = None
    newer: bool = False


class Good(NamedTuple):
    """A sound batch and its bytes."""

    checked: batches.Checked
    data: memoryview


class Scan:
    """The file behind ``fd``, whose first byte has the physical offset ``start`` and which is ``size`` long."""

    def __init__(self, files: Files, fd: int, start: int, size: int, *, window: int = _WINDOW) -> None:
        self._files = files
        self._fd = fd
        self._size = window  # how much is read at once
        self.start = start
        self.end = start + size
        self._data = b""
        self._from = start

    def batches(self, position: int) -> Iterator[Good | Bad]:
        """Every sound batch from ``position`` on; ends with the file, or with the first that is not sound."""
        while position < self.end:
            found = self.judge(position)
            yield found
            if isinstance(found, Bad):
                return
            position += found.checked.header.size

    def judge(self, position: int) -> Good | Bad:
        """The batch at a place."""
        view, at = self._window(position)
        try:
            checked = batches.check(view, at, stamped=True, unpack=False)
        except WireError as error:
            return self._bad(view, at, position, error)
        header = checked.header
        if header.physical_offset != position:
            return Bad(position, f"a batch says it lies at {header.physical_offset}")
        return Good(checked, view[at : at + header.size])

    def _bad(self, view: memoryview, at: int, position: int, error: WireError) -> Bad:
        if not _is_header(view, at):
            return Bad(position, error.text)
        if isinstance(error, UnsupportedFormat):
            return Bad(position, error.text, newer=True)
        return Bad(position, error.text, self.header(position))

    def header(self, position: int) -> layout.Header | None:
        """The header at a place, if it is sound and belongs there; what follows it is not looked at."""
        view, at = self._window(position)
        if not _is_header(view, at):
            return None
        try:
            header = layout.parse_header(view, at)
            layout.check_stamp(header)
        except WireError:
            return None
        return header if header.physical_offset == position else None

    def headers(self, position: int) -> Iterator[layout.Header]:
        """Every place behind ``position`` (included) that holds a sound header, batch or not."""
        while position + layout.FIXED_HEADER < self.end:
            view, at = self._window(position)
            found = self._data.find(_SIGN, at + _SIGN_AT)
            if found < 0:
                position = self._from + len(view) - layout.ALIGN
                position = max(position - position % layout.ALIGN, self._from + at + layout.ALIGN)
                continue
            place = self._from + found - _SIGN_AT
            header = self.header(place) if place % layout.ALIGN == 0 else None
            if header is not None:
                yield header
            position = place + layout.ALIGN - place % layout.ALIGN

    def headers_in_line(self, position: int) -> Iterator[layout.Header]:
        """The headers of one batch behind the other, from one at ``position`` on; what is damaged is passed over."""
        while position < self.end:
            header = self.header(position) or next(self.headers(position), None)
            if header is None:
                return
            yield header
            position = header.physical_offset + header.size

    def _window(self, position: int) -> tuple[memoryview, int]:
        """The bytes around a position, at least a whole batch of them if the file has as many; and where it is."""
        at = position - self._from
        is_short = at > len(self._data) - layout.MAX_BATCH and self._from + len(self._data) < self.end
        if at < 0 or is_short:
            self._from, at = position, 0
            self._data = read_or_zeros(
                self._files, self._fd, min(self._size, self.end - position), position - self.start
            )
        return memoryview(self._data), at


def read_or_zeros(files: Files, fd: int, size: int, at: int) -> bytes:
    """Bytes of a file, with zeros where the disk cannot read it."""
    try:
        data = files.read(fd, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        data = b"".join(_sector(files, fd, min(_SECTOR, at + size - i), i) for i in range(at, at + size, _SECTOR))
    return data + bytes(size - len(data))


def _sector(files: Files, fd: int, size: int, at: int) -> bytes:
    try:
        data = files.read(fd, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        data = b""
    return data + bytes(size - len(data))


def _is_header(view: memoryview, at: int) -> bool:
    """Whether a header of our format was written as it stands, also where this version does not know a value in it."""
    if len(view) - at < layout.FIXED_HEADER or view[at + _SIGN_AT : at + _SIGN_AT + 3] != _SIGN:
        return False
    size = view[at + 7] * 8
    if size <= layout.HEADER_CRC_FROM or at + size > len(view):
        return False
    return layout.header_crc(view, at, size) == int.from_bytes(view[at + 8 : at + 12], "big")
