"""
A disk that fails where it is told to.

A fault is a value: what to fail at, the how manieth time, where, and how. It prints as the expression that makes it,
so that a failing run can be replayed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import NamedTuple, TypeAlias

from rmq.broker.store.files import AnyPath, Files
from rmq.wire.batch.layout import Buffer


class Fails(NamedTuple):
    """The operation raises this error and does nothing."""

    number: int

    def __repr__(self) -> str:
        return f"Fails(errno.{errno.errorcode[self.number]})"


class WritesOnly(NamedTuple):
    """A write takes so many bytes and says so, as the system may at any time."""

    size: int


class FillsUp(NamedTuple):
    """So many bytes still fit on the disk, from this write on; then there is no space, until :meth:`repair`."""

    room: int


Effect: TypeAlias = Fails | WritesOnly | FillsUp


class Fault(NamedTuple):
    """
    At the ``nth`` operation of a name (from 1) on a path that matches, and at ``times`` - 1 more, something goes wrong.

    ``operation`` is the name of a method of Files, ``path`` a pattern of the shell for the whole path.
    """

    operation: str
    nth: int
    effect: Effect
    path: str = "*"
    times: int = 1


class FaultyFiles(Files):
    """Another disk with faults; ``fired`` tells which have struck, in their order."""

    def __init__(self, faults: Sequence[Fault] = (), inner: Files | None = None) -> None:
        self.faults = list(faults)
        self.fired: list[Fault] = []
        self._inner = inner or Files()
        self._lock = threading.Lock()
        self._paths: dict[int, str] = {}
        self._seen = [0] * len(self.faults)
        self._room: tuple[str, int] | None = None  # where the disk fills up, and what still fits

    def __repr__(self) -> str:
        return f"FaultyFiles({self.faults!r}), of which fired: {self.fired!r}"

    def add(self, fault: Fault) -> None:
        """One more fault; its operations are counted from now on."""
        with self._lock:
            self.faults.append(fault)
            self._seen.append(0)

    def repair(self) -> None:
        """No fault strikes any more, and there is space."""
        with self._lock:
            self.faults.clear()
            self._seen.clear()
            self._room = None

    def _effect(self, operation: str, path: str) -> Effect | None:
        """Count an operation; what goes wrong with it, if anything. Raises if it fails."""
        chosen: Effect | None = None
        with self._lock:
            for i, fault in enumerate(self.faults):
                if fault.operation != operation or not fnmatch(path, fault.path):
                    continue
                self._seen[i] += 1
                if fault.nth <= self._seen[i] < fault.nth + fault.times and chosen is None:
                    self.fired.append(fault)
                    chosen = fault.effect
                    if isinstance(chosen, FillsUp):
                        self._room = fault.path, chosen.room
        if isinstance(chosen, Fails):
            raise OSError(chosen.number, os.strerror(chosen.number), path)
        return chosen

    def _fitting(self, path: str, wanted: int) -> int:
        """How much of a write still finds space."""
        with self._lock:
            if self._room is None or not fnmatch(path, self._room[0]):
                return wanted
            pattern, room = self._room
            if wanted and not room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            fits = min(wanted, room)
            self._room = pattern, room - fits
            return fits

    # ---- operations on paths

    def open(self, path: AnyPath, *, create: bool = False) -> int:
        self._effect("open", str(path))
        fd = self._inner.open(path, create=create)
        self._paths[fd] = str(path)
        return fd

    def open_to_read(self, path: AnyPath) -> int:
        self._effect("open_to_read", str(path))
        fd = self._inner.open_to_read(path)
        self._paths[fd] = str(path)
        return fd

    def open_directory(self, path: AnyPath) -> int:
        self._effect("open_directory", str(path))
        return self._inner.open_directory(path)

    def sync_directory(self, path: AnyPath, fd: int | None = None) -> None:
        self._effect("sync_directory", str(path))
        self._inner.sync_directory(path, fd)

    def sync_filesystem(self, path: AnyPath) -> None:
        self._effect("sync_filesystem", str(path))
        self._inner.sync_filesystem(path)

    def make_directory(self, path: AnyPath) -> None:
        self._effect("make_directory", str(path))
        self._inner.make_directory(path)

    def rename(self, path: AnyPath, to: AnyPath) -> None:
        self._effect("rename", str(path))
        self._inner.rename(path, to)

    def unlink(self, path: AnyPath) -> None:
        self._effect("unlink", str(path))
        self._inner.unlink(path)

    def remove_tree(self, path: AnyPath) -> None:
        self._effect("remove_tree", str(path))
        self._inner.remove_tree(path)

    def names(self, path: AnyPath) -> list[str]:
        self._effect("names", str(path))
        return self._inner.names(path)

    def size(self, path: AnyPath) -> int:
        self._effect("size", str(path))
        return self._inner.size(path)

    def identity(self, path: AnyPath) -> tuple[int, int]:
        return self._inner.identity(path)

    def is_same(self, path: AnyPath, fd: int) -> bool:
        self._effect("is_same", str(path))
        return self._inner.is_same(path, fd)

    def is_file(self, path: AnyPath) -> bool:
        self._effect("is_file", str(path))
        return self._inner.is_file(path)

    def exists(self, path: AnyPath) -> bool:
        self._effect("exists", str(path))
        return self._inner.exists(path)

    # ---- operations on descriptors

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._inner.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        path = self._paths.get(fd, "")
        effect = self._effect("write", path)
        wanted = sum(map(len, buffers))
        fits = min(self._fitting(path, wanted), effect.size if isinstance(effect, WritesOnly) else wanted)
        return self._inner.write(fd, buffers if fits == wanted else [b"".join(buffers)[:fits]], at)

    def read(self, fd: int, size: int, at: int) -> bytes:
        self._effect("read", self._paths.get(fd, ""))
        return self._inner.read(fd, size, at)

    def read_cached(self, fd: int, size: int, at: int) -> bytearray | None:
        self._effect("read_cached", self._paths.get(fd, ""))
        return self._inner.read_cached(fd, size, at)

    def truncate(self, fd: int, size: int) -> None:
        self._effect("truncate", self._paths.get(fd, ""))
        self._inner.truncate(fd, size)

    def begin_writeback(self, fd: int, size: int, at: int) -> None:
        self._effect("begin_writeback", self._paths.get(fd, ""))
        self._inner.begin_writeback(fd, size, at)

    def sync(self, fd: int) -> None:
        self._effect("sync", self._paths.get(fd, ""))
        self._inner.sync(fd)


class UnreadableFiles(Files):
    """
    The real disk, whose sectors from ``first`` up to ``end`` of one file cannot be read, until :meth:`repair`.

    ``file`` is the end of its path. A read that begins before them returns what lies there, as that of Linux does; or
    fails, if not ``short``.
    """

    def __init__(self, file: str, first: int = 0, end: int = 1 << 62, *, short: bool = True) -> None:
        self._short = short
        self._file = file
        self._first = first
        self._end = end
        self._fds: set[int] = set()

    def fail(self, first: int, end: int) -> None:
        """From now on these bytes cannot be read, and all others can."""
        self._first, self._end = first, end

    def repair(self) -> None:
        """Everything can be read again."""
        self._first = self._end = 0

    def open(self, path: AnyPath, *, create: bool = False) -> int:
        return self._note(path, super().open(path, create=create))

    def open_to_read(self, path: AnyPath) -> int:
        return self._note(path, super().open_to_read(path))

    def _note(self, path: AnyPath, fd: int) -> int:
        if str(path).endswith(self._file):
            self._fds.add(fd)
        else:
            self._fds.discard(fd)
        return fd

    def read(self, fd: int, size: int, at: int) -> bytes:
        return super().read(fd, self._readable(fd, size, at), at)

    def read_cached(self, fd: int, size: int, at: int) -> bytearray | None:
        return super().read_cached(fd, size, at) if self._readable(fd, size, at) == size else None

    def _readable(self, fd: int, size: int, at: int) -> int:
        """Return how much of a read is done; raises OSError if that is nothing."""
        if fd not in self._fds or at >= self._end or self._first >= at + size:
            return size
        if at < self._first and self._short:
            return self._first - at
        raise OSError(errno.EIO, os.strerror(errno.EIO))
