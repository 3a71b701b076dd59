"""
The files of a RocketMQ store, opened for reading only: whether its broker runs, and the commit log as one address room.

A commit log is a row of equally long files; the name of each is the physical offset of its first byte.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

WINDOW: Final = 1 << 20  # read at once, unless one record is longer
_NAME_DIGITS: Final = 20
_FLOCK: Final = "hhlli"  # struct flock of Linux: type, whence, start, length, process


class BadStore(Exception):
    """A folder that cannot be taken for a store at all; the text is one sentence that says what to do."""


class StoreMissing(BadStore):
    """Something that was named does not exist."""


class StoreInUse(BadStore):
    """The broker of the store runs."""


class StoreUnreadable(BadStore):
    """The system does not let us read a file."""


class LogFile(NamedTuple):
    """A file of the commit log: it should hold the bytes ``[start, start + room)``, and holds ``length`` of them."""

    path: Path
    start: int
    length: int
    room: int

    @property
    def end(self) -> int:
        """The physical offset behind it."""
        return self.start + self.room


def numbered_files(folder: Path) -> list[tuple[int, Path, int]]:
    """
    The files of a folder whose names are positions, in that order, with their lengths.

    Raises:
        BadStore: there is something else in it, or it cannot be read.
    """
    found = []
    try:
        for path in folder.iterdir():
            if not (len(path.name) == _NAME_DIGITS and path.name.isascii() and path.name.isdecimal()):
                raise BadStore(f"{path} does not belong there: names have {_NAME_DIGITS} digits; take it away")
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise _not_a_file(path)
            found.append((int(path.name), path, status.st_size))
    except OSError as error:
        raise cannot_read(folder, error) from error
    return sorted(found)


def is_folder(path: Path) -> bool:
    """
    Whether there is a folder of this name.

    Raises:
        StoreUnreadable: the system does not tell.
    """
    try:
        return path.is_dir()
    except OSError as error:
        raise cannot_read(path, error) from error


def open_regular(path: str, flags: int) -> int:
    """
    Open a file without waiting for anything; made to be the ``opener`` of :func:`open`.

    Raises:
        BadStore: something else has its name; a pipe would keep the import waiting for ever.
        OSError: it cannot be opened.
    """
    fd = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _not_a_file(path)


def _not_a_file(path: str | Path) -> BadStore:
    return BadStore(f"{path} is not a file but a folder, a pipe or a device: no store has one there; take it away")


def cannot_read(path: Path, error: OSError) -> StoreUnreadable:
    """What is said of a file that the system does not let us read."""
    return StoreUnreadable(f"{path} cannot be read: {error.strerror}; import as a user who may read the store")


class RocketMQLog:
    """The commit log of a store; a file is open only while a part of it is read."""

    def __init__(self, folder: Path) -> None:
        if not is_folder(folder):
            raise StoreMissing(f"{folder} does not exist: give the root folder of a store, the one with commitlog/")
        found = numbered_files(folder)
        lengths = Counter(length for _, _, length in found)
        # One file of a wrong length does not make the others wrong.
        self.room = max(lengths, key=lambda length: (lengths[length], length), default=0)
        self.files = [LogFile(path, start, length, self.room) for start, path, length in found]
        self._starts = [file.start for file in self.files]
        self._window_of: LogFile | None = None
        self._window = b""
        self._window_at = 0

    @property
    def start(self) -> int:
        """The physical offset of the first byte there is."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """The physical offset behind the last file."""
        return self.files[-1].end if self.files else 0

    def file_at(self, position: int) -> LogFile | None:
        """The file that holds a physical offset."""
        index = bisect_right(self._starts, position) - 1
        if index < 0:
            return None
        file = self.files[index]
        return file if position < file.start + min(file.length, file.room) else None

    def read(self, file: LogFile, position: int, length: int) -> bytes:
        """
        ``length`` bytes of a file from a physical offset on; fewer where it ends.

        Raises:
            BadStore: the system cannot read them.
        """
        at = position - self._window_at
        if not (self._window_of is file and at >= 0 and at + length <= len(self._window)):
            self._window = _pread(file, position - file.start, max(length, WINDOW))
            self._window_of, self._window_at, at = file, position, 0
        return self._window[at : at + length]

    def last_written(self, file: LogFile, position: int) -> int:
        """The physical offset behind the last byte of a file that is not 0; ``position`` if there is none behind it."""
        last = position
        at, end = position - file.start, min(file.length, file.room)
        while at < end:
            part = _pread(file, at, WINDOW)[: end - at]
            if not part:
                break
            kept = len(part.rstrip(b"\0"))
            last = file.start + at + kept if kept else last
            at += len(part)
        return last


def _pread(file: LogFile, at: int, length: int) -> bytes:
    try:
        with open(file.path, "rb", buffering=0, opener=open_regular) as opened:
            return os.pread(opened.fileno(), length, at)
    except OSError as error:
        raise cannot_read(file.path, error) from error


def holder(root: Path) -> int | None:
    """
    The process that holds the lock of a store, as a running broker does; 0 if nobody does.

    It is only asked for, never taken. -1: one that is not seen from here, as in a container. None: the system cannot
    tell.
    """
    try:
        fd = os.open(root / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(fd)
    return 0 if kind == fcntl.F_UNLCK else int(process) or -1


def faults(files: Sequence[LogFile]) -> list[tuple[LogFile, str]]:
    """What is wrong with the row of files: a length, or a gap before a file."""
    found = []
    for file, before in zip(files, [None, *files[:-1]], strict=True):
        if before is not None and file.start != before.end:
            what = "lies behind a gap" if file.start > before.end else "overlaps"
            found.append((file, f"{what}: the file before it ends at {before.end}"))
        if file.length != file.room:
            found.append((file, f"has {file.length} bytes, and the others have {file.room}"))
    return found
