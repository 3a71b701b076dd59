"""A disk that notes what is done to it, and fails where it is told to."""

from __future__ import annotations

import errno
import os
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
    def __init__(self, op: str, part: str, error: OSError, *, times: int, after: int) -> None:
        self.op = op
        self.part = part
        self.error = error
        self.times = times
        self.after = after  # so many bytes of a write arrive before it fails


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

    def fail(self, op: str, part: str, number: int = errno.EIO, *, times: int = 1 << 30, after: int = 0) -> None:
        """Let an operation on paths with ``part`` in them fail, so many times."""
        self._rules.append(_Rule(op, part, error_of(number), times=times, after=after))

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

    def remove_tree(self, path: AnyPath) -> None:
        self._check("remove_tree", path)
        super().remove_tree(path)


def flip(path: Path, at: int, mask: int = 0xFF) -> None:
    """Change a byte of a file as a bad disk would."""
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)
