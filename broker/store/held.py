"""A data directory that is read while no broker uses it: held so that none starts meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .directory import StoreError


class Held:
    """
    The lock of a data directory, shared with other readers, in a ``with`` block or until :meth:`close`.

    A copy without a lock file needs none. ``instead`` is what to do with a copy, for people.
    """

    def __init__(self, path: Path, instead: str) -> None:
        self._path = path
        self._instead = instead
        self._fd = -1

    def take(self) -> None:
        """
        Take the lock.

        Raises:
            StoreError: a broker has it.
            OSError: the file system.
        """
        try:
            self._fd = os.open(self._path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreError(
                    f"a broker uses {self._path}: stop it first, or {self._instead} (`rmq-admin broker backup`)"
                ) from error
            raise

    def close(self) -> None:
        """Let a broker have the directory; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_exc: object) -> None:
        self.close()
