"""
A disk that notes what is done to it, and fails where a test says.

``python -m rigs.disk.faulty FILE FIRST END start ...`` is ``rmq-broker`` on such a disk: the bytes from FIRST up to END
of a file whose path ends with FILE lie on a bad sector, and a read returns what lies before.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rmq.broker.store.files import AnyPath, Files
from rmq.wire.batch.layout import Buffer

_BY_DESCRIPTOR = {"read", "read_cached", "write", "truncate", "sync"}  # whose errors name no file


def error_of(number: int) -> OSError:
    """An error as the system raises it."""
    return OSError(number, os.strerror(number))


class Done(NamedTuple):
    """An operation, and the file or folder that it was for."""

    op: str
    path: str


class _Rule:
    def __init__(self, op: str, part: str, error: OSError, *, times: int, after: int, skip: int) -> None:
        self.op = op
        self.part = part
        self.error = error
        self.times = times
        self.after = after  # so many bytes of a write arrive before it fails
        self.skip = skip  # so many operations succeed first


class FaultyFiles(Files):
    """
    The real disk with rules. ``done`` has what was done; ``cold``: nothing is in the page cache.

    ``before`` is called with each operation before it is done, so that a test can come in between.
    """

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.paths: dict[int, str] = {}
        self.cold = False
        self.at_most = 1 << 40  # bytes that one write takes
        self.before: Callable[[Done], None] = lambda done: None
        self._rules: list[_Rule] = []

    # ---- for tests

    def fail(
        self, op: str, part: str, number: int = errno.EIO, *, times: int = 1 << 30, after: int = 0, skip: int = 0
    ) -> None:
        """Let an operation on paths with ``part`` in them fail, so many times, after ``skip`` that succeed."""
        self._rules.append(_Rule(op, part, error_of(number), times=times, after=after, skip=skip))

    def heal(self) -> None:
        """Fail no more."""
        self._rules.clear()

    def ops(self, part: str, *names: str) -> list[str]:
        """The operations on paths with ``part`` in them, all or those of some names."""
        return [done.op for done in self.done if part in done.path and (not names or done.op in names)]

    def _note(self, op: str, path: AnyPath) -> _Rule | None:
        done = Done(op, str(path))
        self.before(done)
        self.done.append(done)
        for rule in self._rules:
            if rule.op == op and rule.part in done.path and rule.times > 0:
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule
        return None

    def _check(self, op: str, path: AnyPath) -> None:
        rule = self._note(op, path)
        if rule is not None:
            rule.error.filename = None if op in _BY_DESCRIPTOR else str(path)
            raise rule.error

    # ---- the disk

    def open(self, path: AnyPath, *, create: bool = False) -> int:
        self._check("open", path)
        fd = super().open(path, create=create)
        self.paths[fd] = str(path)
        return fd

    def open_to_read(self, path: AnyPath) -> int:
        self._check("open_to_read", path)
        fd = super().open_to_read(path)
        self.paths[fd] = str(path)
        return fd

    def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        rule = self._note("write", self.paths[fd])
        data = b"".join(buffers)
        if rule is not None:
            super().write(fd, [data[: rule.after]], at)
            raise rule.error
        return super().write(fd, [data[: self.at_most]], at)

    def read(self, fd: int, size: int, at: int) -> bytes:
        self._check("read", self.paths[fd])
        return super().read(fd, size, at)

    def read_cached(self, fd: int, size: int, at: int) -> bytearray | None:
        self._check("read_cached", self.paths[fd])
        if self.cold:
            return None
        data = super().read(fd, size, at)  # also where the system knows no RWF_NOWAIT
        return data if len(data) == size else None

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate", self.paths[fd])
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._check("sync", self.paths[fd])
        super().sync(fd)

    def sync_directory(self, path: AnyPath, fd: int | None = None) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path, fd)

    def sync_filesystem(self, path: AnyPath) -> None:
        self._check("sync_filesystem", path)

    def rename(self, path: AnyPath, to: AnyPath) -> None:
        self._check("rename", to)
        super().rename(path, to)

    def unlink(self, path: AnyPath) -> None:
        self._check("unlink", path)
        super().unlink(path)

    def names(self, path: AnyPath) -> list[str]:
        self._check("names", path)
        return super().names(path)

    def size(self, path: AnyPath) -> int:
        self._check("size", path)
        return super().size(path)

    def is_file(self, path: AnyPath) -> bool:
        self._check("is_file", path)
        return super().is_file(path)

    def remove_tree(self, path: AnyPath) -> None:
        self._check("remove_tree", path)
        super().remove_tree(path)


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
        if fd not in self._fds:
            return size
        return readable(range(self._first, self._end), size, at, short=self._short)


def readable(sector: range, size: int, at: int, *, short: bool = True) -> int:
    """Return how much of a read is done if a sector is bad; raise OSError if that is nothing."""
    if at >= sector.stop or sector.start >= at + size:
        return size
    if at < sector.start and short:
        return sector.start - at
    raise error_of(errno.EIO)


def flip(path: Path, at: int, mask: int = 0xFF) -> None:
    """Change a byte of a file as a bad disk would."""
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)


def main() -> None:
    """Make reads fail, then run the command."""
    from rmq.cli.rmq_broker import command

    file, sector = sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3]))
    read = Files.read

    def failing_read(self: Files, fd: int, size: int, at: int) -> bytes:
        is_bad = os.readlink(f"/proc/self/fd/{fd}").endswith(file)
        return read(self, fd, readable(sector, size, at) if is_bad else size, at)

    Files.read = failing_read  # type: ignore[method-assign]
    command(sys.argv[4:], prog_name="rmq-broker")


if __name__ == "__main__":
    main()
