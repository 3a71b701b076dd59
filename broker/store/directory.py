"""
The data directory: created, named by ``store.json``, and locked against other processes.

A broker locks it exclusively. Tools that read the log of a stopped broker share a lock, so that none starts meanwhile.
The lock is on the directory and on the file ``lock`` in it. Older versions only look at the file; the directory is
locked as well because removing a locked file lets the next process lock another file of the same name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.errors import RmqError

from .files import UNREADABLE, Files

log = get_broker_logger(__name__)
FORMAT = 1
STORE_FILE = "store.json"
COPY_MARK = "copy"  # in store.json: this directory was copied, and is another history from its first start on


class StoreError(RmqError):
    """The data directory cannot be used; the sentence says why and what to do."""


class LogIdentity(NamedTuple):
    """
    A log as the file system knows it: the inode of its directory, and when that came into being (0: it does not say).

    Both survive a restart, a reboot and ``mv`` within a file system, and neither can be copied. The birth is compared
    as well, because a new directory often gets the inode of the one that was removed before. It is the directory of
    the log and not the one above it, which stays the same when its content is replaced by that of a copy.
    """

    inode: int = 0
    born_ns: int = 0


def new_store_id() -> int:
    """Return a random id, never 0."""
    return secrets.randbits(63) | 1 << 63


class DataDirectory:
    """
    A directory that belongs to this process until :meth:`close`.

    Raises:
        StoreError: it cannot be made or written, another broker has it, or its format is unknown.
        OSError: the disk cannot read something of it.
    """

    def __init__(self, path: Path, files: Files | None = None, *, recognise_copies: bool = True) -> None:
        self.path = path
        self.commitlog = path / "commitlog"  # segments
        self.consumequeue = path / "consumequeue"  # queue indexes
        self.index = path / "index"  # the key index
        self.config = path / "config"  # the name of the store, and state exported for operators
        self.quarantine = path / "quarantine"  # bytes that were cut off
        self._recognise_copies = recognise_copies
        self.files = files or Files()
        is_new = not path.exists()
        try:
            if is_new:
                self.files.make_directory(path)
            for folder in (self.commitlog, self.consumequeue, self.config, self.index, self.quarantine):
                self.files.make_directory(folder)
            self._keep_names(is_new=is_new)
            self._lock = DirectoryLock(path)
            self._take()
        except OSError as error:
            if error.errno in UNREADABLE:
                raise
            raise StoreError(f"the data directory {path} cannot be used: {error.strerror}; {remedy(error)}") from error
        try:
            self._store: dict[str, Any] = self._load()
        except BaseException:
            self._lock.close()
            raise
        self._warn_if_open()

    def _warn_if_open(self) -> None:
        """Log that other users may look into the directory; an operator may want it so."""
        mode = stat.S_IMODE(os.stat(self.path).st_mode)
        if mode & stat.S_IRWXO:
            advice = f"chmod 700 {self.path}, unless all users of this machine may read the messages"
            log.warning("store.open_to_others", path=str(self.path), mode=f"{mode:04o}", advice=advice)

    def _keep_names(self, *, is_new: bool) -> None:
        """Make what was made here outlive a power failure; the parent may be one that we may not read."""
        self.files.sync_directory(self.path)
        if is_new:
            with contextlib.suppress(OSError):
                self.files.sync_directory(self.path.absolute().parent)

    def _take(self) -> None:
        try:
            unsupported = self._lock.take()
        except InUse as error:
            text = f"another broker uses the data directory {self.path}: stop it or choose another --data-dir"
            raise StoreError(text) from error
        if unsupported is not None:
            log.warning(
                "store.directory_not_locked", path=str(self.path), error=unsupported.strerror,
                advice="its file `lock` is: removing that file would let a second broker start",
            )  # fmt: skip

    def _load(self) -> dict[str, Any]:
        file = self.config / STORE_FILE
        try:
            store = json.loads(self.files.read_file(file))
            if type(store) is not dict or "format" not in store:
                raise ValueError("it names no format")
            int(store.get("store_id", "0"), 16)
        except FileNotFoundError:
            return {}
        except (TypeError, ValueError) as error:
            text = f"{file} is not a store file ({error}): removing it is safe, since the log holds what it says"
            raise StoreError(text) from error
        if store.get("format") != FORMAT or store.get("incompatible"):
            text = f"{file} names format {store.get('format')} {store.get('incompatible') or ''}".rstrip()
            raise StoreError(
                f"{text}, this version of rmq reads format {FORMAT} only: start the version that wrote it, or choose "
                "another folder with --data-dir"
            )
        return store

    def name(self, store_id: int | None) -> int:
        """
        The id of this store: what the log says, else from ``store.json``, else a new random one.

        The file is written, with its directory synced, when it is missing or says something else than the log.
        """
        named = int(self._store.get("store_id", "0"), 16)
        if named and named == (store_id or named):
            return named
        if named:
            log.error("store.renamed", file=f"{named:016x}", log=f"{store_id:016x}")
        store_id = store_id or new_store_id()
        self.write_name(store_id)
        return store_id

    def write_name(self, store_id: int) -> None:
        """Write ``store.json`` and sync its directory; the store is not marked as a copy any more."""
        self._store = {"format": FORMAT, "incompatible": [], "store_id": f"{store_id:016x}"}
        self.files.replace_file(self.config / STORE_FILE, json.dumps(self._store, indent=2).encode())

    def place(self) -> LogIdentity:
        """Return what distinguishes this log from a copy of it."""
        return LogIdentity(*self.files.identity(self.commitlog))

    def is_copy_of(self, recorded: LogIdentity) -> bool:
        """
        Return whether this directory is a copy of the one where its log was last started.

        A backup and ``restore`` mark their copies. Any other is recognised by its place; an unknown one proves nothing.
        """
        is_moved = any(before and now and before != now for before, now in zip(recorded, self.place(), strict=True))
        return self._store.get(COPY_MARK) is True or (self._recognise_copies and is_moved)

    def close(self) -> None:
        """Let another broker have the directory."""
        self._lock.close()


def remedy(error: OSError) -> str:
    """What an operator can do about an error at start."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or choose another folder with --data-dir"
    if error.errno == errno.EMFILE:
        return "raise the limit of open files (ulimit -n)"
    if error.errno in UNREADABLE:
        return "check the disk and try again; if it stays so, see 'The disk failed' in docs/operations.md"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "the folder or file belongs to another user: run this as that user, or give it to this one (chown)"
    return "choose another folder with --data-dir"


class SharedLock:
    """
    The lock of a data directory, shared with other readers, in a ``with`` block or until :meth:`close`.

    A copy needs no lock file. ``instead`` says what to do with a copy.
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
