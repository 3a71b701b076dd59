"""
A segment read from front to back: sound batches, and what lies between them.

It reads in pieces. Where the disk cannot read, readable sectors are kept apart from unreadable ones: these look like
zeros, and ``on_unreadable`` is called, so that they are not mistaken for what was stored. Recovery and ``verify-store``
judge batches by the same code.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import UnsupportedFormat, WireError

from .directory import StoreError
from .files import UNREADABLE, AnyPath, Files

_WINDOW = 16 << 20
_SECTOR = 4096
_SIGN = layout.MAGIC.to_bytes(2, "big") + bytes((layout.FORMAT,))
_SIGN_AT = 4  # of a header
_BAD_SECTOR = frozenset({errno.EIO})


class UnreadableRange(NamedTuple):
    """Bytes of a file, from ``first`` up to ``end``; ``why`` they cannot be read."""

    first: int
    end: int
    why: str = os.strerror(errno.EIO)


class Unreadable(StoreError):
    """The disk cannot read something that is needed. No message is given up: the disk may read it again."""

    @classmethod
    def bytes_of(cls, path: AnyPath, found: UnreadableRange, *, so: str = "nothing was changed") -> Unreadable:
        """Return the error for a part of a file; ``so`` says what that means for the log."""
        return cls(
            f"{path}: bytes {found.first} to {found.end} cannot be read ({found.why}), so {so}: "
            "check the disk and try again; if it stays so, see 'The disk failed' in docs/operations.md"
        )


class Bad(NamedTuple):
    """
    A place where no sound batch lies.

    ``header`` is there if that, at least, is sound; ``newer``: a newer version wrote it.
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
    """
    The file of ``fd``, whose first byte has the physical offset ``start`` and which is ``size`` long.

    ``on_unreadable`` is called with every range of the file that the disk cannot read, before it is judged as zeros.
    Without it only bad sectors look like zeros, and any other error is raised: it may pass.
    """

    def __init__(
        self, files: Files, fd: int, start: int, size: int, *, window: int = _WINDOW,
        on_unreadable: Callable[[UnreadableRange], None] | None = None,
    ) -> None:  # fmt: skip
        self._files = files
        self._fd = fd
        self._on_unreadable = on_unreadable
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
        """Yield every place from ``position`` on that holds a sound header, batch or not."""
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
        """Yield the headers of one batch after the other, from one at ``position`` on; damage is skipped."""
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
            size = min(self._size, self.end - position)
            errors = _BAD_SECTOR if self._on_unreadable is None else UNREADABLE
            self._data, unreadable = _read(self._files, self._fd, size, position - self.start, errors)
            if self._on_unreadable is not None:
                for found in unreadable:
                    self._on_unreadable(found)
        return memoryview(self._data), at


def read_or_zeros(files: Files, fd: int, size: int, at: int) -> bytes:
    """Return bytes of a file, with zeros where the disk cannot read it; any other error may pass, and is raised."""
    return _read(files, fd, size, at, _BAD_SECTOR)[0]


def read_needed(files: Files, fd: int, size: int, at: int, path: AnyPath, *, so: str = "nothing was changed") -> bytes:
    """
    Return exactly so many bytes of a file.

    Raises:
        Unreadable: the disk cannot read all of them, or the file ends before.
    """
    data, unreadable = _read(files, fd, size, at, UNREADABLE)
    if unreadable:
        raise Unreadable.bytes_of(path, unreadable[0], so=so)
    return data


def _read(files: Files, fd: int, size: int, at: int, errors: frozenset[int]) -> tuple[bytes, list[UnreadableRange]]:
    """
    Read so many bytes of a file; return them, with zeros for what is not to be had, and which ranges these are.

    The system may return what lies before a bad sector, and fail only when asked for more: only an empty answer is the
    end of the file. From a failure on, sectors of the file are read one by one until one can be read.
    """
    parts: list[bytes] = []
    unreadable: list[UnreadableRange] = []
    end, by_sector = at + size, False
    while at < end:
        stop = min(at - at % _SECTOR + _SECTOR, end) if by_sector else end
        try:
            part = files.read(fd, stop - at, at)
            if not part:
                unreadable.append(UnreadableRange(at, end, "the file is shorter than the file system says"))
                parts.append(bytes(end - at))
                break
            by_sector = False
        except OSError as error:
            if error.errno not in errors:
                raise
            if error.errno == errno.ETIMEDOUT:  # each sector would take as long
                stop = end
            elif not by_sector:
                by_sector = True
                continue
            part = bytes(stop - at)
            first = unreadable.pop().first if unreadable and unreadable[-1].end == at else at
            unreadable.append(UnreadableRange(first, stop, error.strerror or str(error)))
        parts.append(part)
        at += len(part)
    return b"".join(parts), unreadable


def _is_header(view: memoryview, at: int) -> bool:
    """Whether a header of our format was written as it stands, also where this version does not know a value in it."""
    if len(view) - at < layout.FIXED_HEADER or view[at + _SIGN_AT : at + _SIGN_AT + 3] != _SIGN:
        return False
    size = view[at + 7] * 8
    if size <= layout.HEADER_CRC_FROM or at + size > len(view):
        return False
    return layout.header_crc(view, at, size) == int.from_bytes(view[at + 8 : at + 12], "big")
