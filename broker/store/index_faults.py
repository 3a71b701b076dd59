"""
Index files that the disk does not read or write.

Every index is a function of the log, so the log answers in its place, and the broker goes on. What is left to do is to
log each such file once, and to count. What passes by itself (a full disk, too few descriptors) is not the file's fault:
it is raised, and tried again.
"""

from __future__ import annotations

import errno
import threading

from rmq.runtime.logging import get_broker_logger

from .files import AnyPath, Files

log = get_broker_logger(__name__)

ASIDE = ".unreadable"  # behind the name of a file that was put aside
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
        Note that a file cannot be read; one that is missing is no fault of the disk.

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
