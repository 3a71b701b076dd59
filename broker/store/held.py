"""A data directory that is read while no broker uses it: held so that none starts meanwhile."""

from __future__ import annotations

from pathlib import Path

from .directory import StoreError
from .lock import DirectoryLock, InUse


class Held:
    """
    The lock of a data directory, shared with other readers, in a ``with`` block or until :meth:`close`.

    A copy needs no lock file. ``instead`` is what to do with a copy, for people.
    """

    def __init__(self, path: Path, instead: str) -> None:
        self._path = path
        self._instead = instead
        self._lock = DirectoryLock(path, shared=True)

    def take(self) -> None:
        """
        Take the lock.

        Raises:
            StoreError: a broker has it.
            OSError: the file system.
        """
        try:
            self._lock.take()
        except InUse as error:
            raise StoreError(
                f"a broker uses {self._path}: stop it first, or {self._instead} (`rmq-admin broker backup`)"
            ) from error

    def close(self) -> None:
        """Let a broker have the directory; may be called again."""
        self._lock.close()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_exc: object) -> None:
        self.close()
