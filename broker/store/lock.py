"""
The lock of a data directory: on the directory itself, and on the file ``lock`` in it.

The file is what older versions look at. The directory is locked as well because removing a file that is locked lets
the next process lock another one of the same name.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NAME = "lock"
# Of a file system that cannot lock a directory; EBADF where a lock needs a descriptor to write with, as on NFS.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF, errno.ENOSYS)


class InUse(Exception):
    """Another process has locked the directory."""


class DirectoryLock:
    """
    Locks ``path`` until :meth:`close` or the end of the process.

    ``shared``: alongside other readers. It then makes no file, since a copy may be read-only.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._path = path
        self._how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        self._shared = shared
        self._fds: list[int] = []

    def take(self) -> OSError | None:
        """
        Take both locks; return the error of a file system that cannot lock a directory, where the file has to do.

        Raises:
            InUse: another process has one of them.
            OSError: one cannot be opened or locked.
        """
        try:
            unsupported = self._lock_directory()
            self._lock_file()
        except BaseException:
            self.close()
            raise
        return unsupported

    def _lock_directory(self) -> OSError | None:
        try:
            self._lock(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None  # for its reader to report
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return error
        return None

    def _lock_file(self) -> None:
        if not self._shared:
            self._lock(self._path / _NAME, os.O_RDWR | os.O_CREAT)
            return
        with suppress(FileNotFoundError):
            self._lock(self._path / _NAME, os.O_RDONLY)

    def _lock(self, path: Path, flags: int) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._fds.append(fd)
        try:
            fcntl.flock(fd, self._how)
        except BlockingIOError as error:
            raise InUse from error

    def close(self) -> None:
        """Release both locks; may be called again."""
        while self._fds:
            os.close(self._fds.pop())
