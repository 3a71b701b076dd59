"""
A disk that remembers: every operation is done for real and noted, in the order in which it was done.

What was noted can be replayed up to any place by :mod:`rigs.disk.crash`. A test puts its own marks into the same line
(``mark``), so that "acknowledged before the crash" is a matter of which comes first. Descriptors are noted as numbers
of files, which never repeat: a file that was removed and made again is another one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rmq.broker.store.files import AnyPath, Files
from rmq.wire.batch.layout import Buffer

MEMORY = "/dev/shm"


class Created(NamedTuple):
    """A file came into being, empty."""

    path: str
    file: int


class Wrote(NamedTuple):
    """Bytes were written into a file."""

    file: int
    at: int
    data: bytes


class Resized(NamedTuple):
    """A file was cut, or made longer by zeros."""

    file: int
    size: int


class Synced(NamedTuple):
    """Content and length of a file were made durable."""

    file: int


class DirectorySynced(NamedTuple):
    """The names in a directory were made durable."""

    path: str


class AllSynced(NamedTuple):
    """Everything was made durable."""


class Renamed(NamedTuple):
    """A file or directory got another name."""

    path: str
    to: str


class Unlinked(NamedTuple):
    """A file lost its name."""

    path: str


class DirectoryMade(NamedTuple):
    """A directory came into being, empty."""

    path: str


class DirectoryRemoved(NamedTuple):
    """An empty directory was removed."""

    path: str


class Marked(NamedTuple):
    """Not an operation: what the test knew at this place of the line."""

    what: Any


Operation: TypeAlias = (
    Created
    | Wrote
    | Resized
    | Synced
    | DirectorySynced
    | AllSynced
    | Renamed
    | Unlinked
    | DirectoryMade
    | DirectoryRemoved
    | Marked
)


class Step(NamedTuple):
    """An operation and when it was done, on the clock of the test."""

    operation: Operation
    moment: float


class Start(NamedTuple):
    """What was there before the first operation, all of it durable: directories, and files by their number."""

    directories: list[str]
    files: dict[str, int]
    content: dict[int, bytes]


class Recording(NamedTuple):
    """All that happened to a directory, and what it began with. Paths are relative to it."""

    start: Start
    steps: list[Step]

    def marks(self, until: int | None = None) -> list[tuple[int, Any]]:
        """The test's own marks with their places, of the first ``until`` steps."""
        found = enumerate(self.steps[:until])
        return [(i, step.operation.what) for i, step in found if isinstance(step.operation, Marked)]


class RecordingFiles(Files):
    """
    The disk, noting what changes below ``root``; what happens elsewhere is done and not noted.

    Safe to be used by several threads: one operation at a time, noted in the order in which they were done.
    """

    def __init__(self, root: AnyPath, *, now: Callable[[], float] = lambda: 0.0, inner: Files | None = None) -> None:
        self.root = os.path.abspath(root)
        self._now = now
        self._inner = inner or Files()
        self._lock = threading.RLock()
        self._fds: dict[int, int] = {}  # descriptor -> number of the file
        self._last = 0
        self._files: dict[str, int] = {}  # the names that files have now
        self.recording = Recording(self._look(), [])

    def _look(self) -> Start:
        start = Start([], {}, {})
        for folder, subfolders, names in os.walk(self.root):
            start.directories.extend(self._inside(os.path.join(folder, name)) or "" for name in sorted(subfolders))
            for name in sorted(names):
                path = os.path.join(folder, name)
                number = self._next()
                start.files[self._inside(path) or ""] = number
                start.content[number] = Path(path).read_bytes()
        self._files.update(start.files)
        return start

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _inside(self, path: AnyPath) -> str | None:
        """A path relative to the root, or None if it lies elsewhere; the root itself is ``.``."""
        relative = os.path.relpath(os.path.abspath(path), self.root)
        return None if relative.startswith("..") else relative

    def _note(self, operation: Operation) -> None:
        self.recording.steps.append(Step(operation, self._now()))

    def mark(self, what: Any) -> None:
        """Note something that the test knows from here on."""
        with self._lock:
            self._note(Marked(what))

    # ---- what changes something

    def open(self, path: AnyPath, *, create: bool = False) -> int:
        with self._lock:
            inside = self._inside(path)
            fd = self._inner.open(path, create=create)
            if inside is not None:
                if inside not in self._files:
                    self._files[inside] = self._next()
                    self._note(Created(inside, self._files[inside]))
                self._fds[fd] = self._files[inside]
            return fd

    def open_to_read(self, path: AnyPath) -> int:
        with self._lock:
            fd = self._inner.open_to_read(path)
            inside = self._inside(path)
            if inside in self._files:
                self._fds[fd] = self._files[inside]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._fds.pop(fd, None)
            self._inner.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        with self._lock:
            done = self._inner.write(fd, buffers, at)
            if fd in self._fds:
                self._note(Wrote(self._fds[fd], at, b"".join(buffers)[:done]))
            return done

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._inner.truncate(fd, size)
            if fd in self._fds:
                self._note(Resized(self._fds[fd], size))

    def begin_writeback(self, fd: int, size: int, at: int) -> None:
        self._inner.begin_writeback(fd, size, at)  # it promises nothing, so there is nothing to note

    def sync(self, fd: int) -> None:
        with self._lock:
            self._inner.sync(fd)
            if fd in self._fds:
                self._note(Synced(self._fds[fd]))

    def sync_directory(self, path: AnyPath, fd: int | None = None) -> None:
        with self._lock:
            self._inner.sync_directory(path, fd)
            inside = self._inside(path)
            if inside is not None:
                self._note(DirectorySynced(inside))

    def sync_filesystem(self, path: AnyPath) -> None:
        with self._lock:
            self._inner.sync_filesystem(path)
            if self._inside(path) is not None:
                self._note(AllSynced())

    def make_directory(self, path: AnyPath) -> None:
        with self._lock:
            missing = []
            above = os.path.abspath(path)
            while not os.path.isdir(above):
                missing.append(above)
                above = os.path.dirname(above)
            self._inner.make_directory(path)
            for made in reversed(missing):
                inside = self._inside(made)
                if inside is not None and inside != ".":
                    self._note(DirectoryMade(inside))

    def rename(self, path: AnyPath, to: AnyPath) -> None:
        with self._lock:
            self._inner.rename(path, to)
            old, new = self._inside(path), self._inside(to)
            if old is None and new is None:
                return
            assert old is not None and new is not None, f"{path} -> {to} leaves what is recorded"
            if old in self._files:
                self._files[new] = self._files.pop(old)
            for name in [name for name in self._files if name.startswith(old + "/")]:
                self._files[new + name[len(old) :]] = self._files.pop(name)
            self._note(Renamed(old, new))

    def unlink(self, path: AnyPath) -> None:
        with self._lock:
            self._inner.unlink(path)
            self._forget(path)

    def _forget(self, path: AnyPath) -> None:
        inside = self._inside(path)
        if inside is not None:
            del self._files[inside]
            self._note(Unlinked(inside))

    def remove_tree(self, path: AnyPath) -> None:
        """As the system does it: file by file, and a directory when it is empty, so a crash may come in between."""
        with self._lock:
            for folder, subfolders, names in os.walk(path, topdown=False):
                for name in sorted(names):
                    self._inner.unlink(os.path.join(folder, name))
                    self._forget(os.path.join(folder, name))
                for name in sorted(subfolders):
                    self._remove_directory(os.path.join(folder, name))
            if os.path.isdir(path):
                self._remove_directory(path)

    def _remove_directory(self, path: AnyPath) -> None:
        os.rmdir(path)
        inside = self._inside(path)
        if inside is not None:
            self._note(DirectoryRemoved(inside))

    def unshare(self, path: Path) -> None:
        """As the disk does it, noted as what it is made of."""
        with self._lock:
            if os.stat(path).st_nlink > 1:
                temporary = path.with_name(path.name + ".own")
                fd = self.open(temporary, create=True)
                self.write_all(fd, self._inner.read_file(path), 0)
                self.close(fd)
                self.rename(temporary, path)

    # ---- what only looks

    def open_directory(self, path: AnyPath) -> int:
        return self._inner.open_directory(path)

    def read(self, fd: int, size: int, at: int) -> bytes:
        return self._inner.read(fd, size, at)

    def read_cached(self, fd: int, size: int, at: int) -> bytearray | None:
        return self._inner.read_cached(fd, size, at)

    def names(self, path: AnyPath) -> list[str]:
        return self._inner.names(path)

    def size(self, path: AnyPath) -> int:
        return self._inner.size(path)

    def identity(self, path: AnyPath) -> tuple[int, int]:
        return self._inner.identity(path)

    def is_same(self, path: AnyPath, fd: int) -> bool:
        return self._inner.is_same(path, fd)

    def is_file(self, path: AnyPath) -> bool:
        return self._inner.is_file(path)

    def exists(self, path: AnyPath) -> bool:
        return self._inner.exists(path)


def memory_folder() -> str | None:
    """A folder where syncing costs nothing, if the system has one; None means the usual one for temporary files."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None
