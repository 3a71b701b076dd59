"""
The one door to the disk: every operation on a file of the data directory goes through :class:`Files`.

A test can pass another implementation that records operations, fails on demand, or forgets what was never synced.
A method is one system call, or the few that belong together, and decides nothing.

:class:`IndexFaults` counts index files that the disk refuses. An index is a function of the log, so the log answers
instead and service goes on. An error that passes by itself (a full disk, too few descriptors) is not the fault of the
file: it is raised, and the operation is tried again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch.layout import Buffer

log = get_broker_logger(__name__)
AnyPath = str | Path

# Of a read: the disk, the file system or the network does not give what is there. It may give it later.
UNREADABLE: Final = frozenset({
    errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, errno.ENXIO, errno.ENOLINK, errno.EREMOTEIO,
    errno.ESTALE, errno.ETIMEDOUT,
})  # fmt: skip
_WAITS = (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS)
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EBADF)  # of beginning to write; else the system does as it likes
# Of sync_file_range: begin to write, wait for nothing. A failed write is reported once, to a caller that waits:
# so fdatasync, which follows, still reports all.
_WRITE_ONLY = 2
_AT_FDCWD = -100  # of statx: a path is relative to the working directory
_STATX_BTIME = 0x800
_BTIME_AT = 80  # in struct statx


class Files:
    """The real disk. Every method raises OSError as its system call does."""

    def open(self, path: AnyPath, *, create: bool = False) -> int:
        """A descriptor to read and write a file; ``create`` makes the file if it is missing, for its owner only."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def open_to_read(self, path: AnyPath) -> int:
        """A descriptor to read a file; does not wait if a pipe is in its place."""
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        """Write at a place of the file as much as the system takes at once; say how much that was."""
        return os.pwritev(fd, buffers, at)

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Bytes at a place of the file; fewer if it ends before. May wait for the disk."""
        return os.pread(fd, size, at)

    def read_cached(self, fd: int, size: int, at: int) -> bytearray | None:
        """The same, but None where it would wait for the disk, or where that cannot be known."""
        into = bytearray(size)
        try:
            done = os.preadv(fd, [into], at, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _WAITS:
                return None
            raise
        return into if done == size else None

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file, or make it longer by zeros."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Make the content of a file durable."""
        os.fdatasync(fd)

    def begin_writeback(self, fd: int, size: int, at: int) -> None:
        """Let the system begin to write out a part of a file, without waiting for its end. It promises nothing."""
        if _SYNC_FILE_RANGE is not None and _SYNC_FILE_RANGE(fd, at, size, _WRITE_ONLY):
            number = ctypes.get_errno()
            if number in _LOST:
                raise OSError(number, os.strerror(number))

    def open_directory(self, path: AnyPath) -> int:
        """A descriptor of a directory, for those who must not run out of descriptors when they sync it."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_directory(self, path: AnyPath, fd: int | None = None) -> None:
        """Make the names in a directory durable; through a descriptor of it, if there is one."""
        if fd is not None:
            os.fsync(fd)
            return
        fd = self.open_directory(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_filesystem(self, path: AnyPath) -> None:
        """Make everything durable that was written to the file system of ``path``."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _SYNCFS is None:
                os.sync()
            elif _SYNCFS(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        finally:
            os.close(fd)

    def make_directory(self, path: AnyPath) -> None:
        """Make a directory for its owner only, and those above it as usual; one that exists is left as it is."""
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, path: AnyPath, to: AnyPath) -> None:
        """Give a file or directory another name, in place of a file that had it."""
        os.replace(path, to)

    def unlink(self, path: AnyPath) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_tree(self, path: AnyPath) -> None:
        """Remove a directory and all in it; one that is missing is ignored."""
        shutil.rmtree(path, ignore_errors=True)

    def names(self, path: AnyPath) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(os.listdir(path))

    def size(self, path: AnyPath) -> int:
        """How long a file is."""
        return os.stat(path).st_size

    def identity(self, path: AnyPath) -> tuple[int, int]:
        """The inode of a file or directory, and when it came into being in nanoseconds; 0 where the system has none."""
        return os.stat(path).st_ino, _born_ns(path)

    def is_same(self, path: AnyPath, fd: int) -> bool:
        """Whether a path leads to what a descriptor was opened for."""
        return os.path.samestat(os.stat(path), os.fstat(fd))

    def is_file(self, path: AnyPath) -> bool:
        """Whether there is a regular file of that name, not a directory or a pipe; raises if that cannot be read."""
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def exists(self, path: AnyPath) -> bool:
        """Whether there is something of that name; raises if that cannot be read."""
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    # ---- made of those above

    def write_all(self, fd: int, content: Buffer, at: int) -> None:
        """Write all of a buffer at a place of the file."""
        rest = memoryview(content)
        while rest:
            done = self.write(fd, [rest], at)
            at += done
            rest = rest[done:]

    def read_at(self, path: AnyPath, size: int, at: int) -> bytes:
        """Bytes at a place of a file that is not open; fewer if it ends before. An error names the file."""
        fd = self.open_to_read(path)
        try:
            return self.read(fd, size, at)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            self.close(fd)

    def read_file(self, path: AnyPath) -> bytes:
        """All of a file. An error names the file."""
        fd = self.open_to_read(path)
        try:
            parts, at = [], 0
            while part := self.read(fd, 1 << 20, at):
                parts.append(part)
                at += len(part)
            return b"".join(parts)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            self.close(fd)

    def unshare(self, path: Path) -> None:
        """Make a file our own that has other names too (a backup may share it), before we change it."""
        if os.stat(path).st_nlink > 1:
            temporary = path.with_name(path.name + ".own")
            shutil.copy(path, temporary)
            fd = self.open(temporary)
            try:
                self.sync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)

    def replace_file(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        """Write a file so that a reader sees the old or the new content; ``durable``: also after a power cut."""
        temporary = path.with_name(path.name + ".tmp")
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write_all(fd, content, 0)
            if durable:
                self.sync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.sync_directory(path.parent)


def _find(name: str, *arguments: type[ctypes._SimpleCData[Any]]) -> ctypes._CFuncPtr | None:  # type: ignore[name-defined,unused-ignore]
    """A system call that Python has no name for; None where the system has none either."""
    found = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if found is not None:
        found.argtypes = arguments
    return found


def _born_ns(path: AnyPath) -> int:
    """The birth of an inode, which Python's ``stat`` leaves out."""
    found = ctypes.create_string_buffer(256)
    if _STATX is None or _STATX(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found):
        return 0
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME_AT)
    return seconds * 1_000_000_000 + nanoseconds if mask & _STATX_BTIME else 0


_SYNCFS = _find("syncfs", ctypes.c_int)
_STATX = _find("statx", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
_SYNC_FILE_RANGE = _find("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


# ---- index files that the disk refuses

ASIDE = ".unreadable"  # suffix of a file that was put aside
_PASSING = (
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS, errno.EAGAIN, errno.EINTR,
)  # fmt: skip


def is_passing(error: OSError) -> bool:
    """Return whether an error says nothing about the file at hand."""
    return error.errno in _PASSING


class IndexFaults:
    """Counts failed reads and writes of index files since the start, and logs each file once. Any thread may use it."""

    def __init__(self) -> None:
        self.failed_reads = 0
        self.failed_writes = 0
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def is_first(self, event: str, path: AnyPath) -> bool:
        """Return whether an event is the first of its kind for a file, and remember it."""
        with self._lock:
            is_new = (event, str(path)) not in self._logged
            self._logged.add((event, str(path)))
        return is_new

    def is_known(self, path: AnyPath) -> bool:
        """Return whether a file was reported as unreadable."""
        return ("unreadable", str(path)) in self._logged

    def read_failed(self, path: AnyPath, error: OSError) -> None:
        """
        Note that a file cannot be read; one that is missing is not the fault of the disk.

        Raises:
            OSError: the error passes by itself.
        """
        if is_passing(error):
            raise error
        if isinstance(error, FileNotFoundError):
            return
        with self._lock:
            self.failed_reads += 1
        if self.is_first("unreadable", path):
            log.error("index.unreadable", file=str(path), error=error.strerror, then="the log is read instead")

    def write_failed(self, path: AnyPath, error: OSError) -> None:
        """
        Note that a file cannot be written, cut or removed.

        Raises:
            OSError: the error passes by itself.
        """
        if is_passing(error):
            raise error
        with self._lock:
            self.failed_writes += 1
        if self.is_first("unwritable", path):
            log.error(
                "index.unwritable", file=str(path), error=error.strerror, then="the log is read instead",
                advice="check the disk and the owner of the file, or remove it while the broker is stopped",
            )  # fmt: skip


def put_aside(files: Files, path: AnyPath) -> None:
    """
    Give a file that cannot be used, or a directory in its place, another name, so that a new one can be made.

    Raises:
        OSError: it keeps its name.
    """
    kept_as = f"{path}{ASIDE}"
    files.rename(path, kept_as)
    log.warning("index.put_aside", file=str(path), kept_as=kept_as)
