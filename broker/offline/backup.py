"""
A consistent copy of a log that a broker is writing: closed segments whole, the open one up to a durable position.

Only the log is copied: a broker that starts on the copy makes the rest from it. The copy is made under the name of a
partial one and renamed when it is whole; one that failed removes what it had copied.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..store.directory import COPY_MARK, FORMAT, STORE_FILE, SharedLock, StoreError
from ..store.files import Files
from ..store.scan import read_needed
from .index import log_files

_PIECE = 8 << 20
_TRIES = 3  # retention may remove a segment under our hands


class BackupResult(NamedTuple):
    """What a backup holds: the log from ``start`` to ``end``, but for what the original lacks itself."""

    start: int
    end: int
    segments: int
    linked: int
    missing_bytes: int = 0


class _Vanished(Exception):
    """A segment that was listed is gone."""


class Backup:
    """
    Copies ``source`` to ``target``, up to the physical offset ``durable``, which its broker named.

    ``store_id`` is the broker's word for its store, in hex: the directory it names may be another one here. What is
    damaged is copied as it is, since the rest may need saving. ``link``: closed segments share their blocks with the
    original, which costs no space and survives no bad disk.
    """

    def __init__(
        self, source: Path, target: Path, durable: int, *, store_id: str = "", link: bool = False,
        progress: Callable[[int], None] = lambda size: None,
    ) -> None:  # fmt: skip
        self._source = source
        self._target = target.absolute()
        self._durable = durable
        self._store_id = store_id
        self._link = link
        self._progress = progress
        self._files = Files()
        self._linked = 0
        self._missing = 0

    def run(self) -> BackupResult:
        """
        Do it; durable when this returns.

        Raises:
            StoreError: the target is taken, the source cannot be read here, or changes too fast.
            Unreadable: the disk cannot read all of the source.
            OSError: the disk.
        """
        # An empty folder stays, as it may be a mount point: its file system is where the copy belongs.
        is_there = self._target.is_dir()
        partial = self._target / ".partial" if is_there else self._target.with_name(self._target.name + ".partial")
        if self._target.exists() and not (is_there and _is_empty(self._target, partial)):
            raise StoreError(f"{self._target} exists and is not empty: name a new or an empty folder")
        self._check_source()
        for _ in range(_TRIES):
            shutil.rmtree(partial, ignore_errors=True)
            try:
                copied = self._copy(partial)
                if is_there:
                    for name in ("commitlog", "config"):  # in this order: a log without a name is recognised as a copy
                        self._files.rename(partial / name, self._target / name)
                    partial.rmdir()
                    self._files.sync_directory(self._target)
                else:
                    self._files.rename(partial, self._target)
            except _Vanished:
                continue
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                if is_there:
                    shutil.rmtree(self._target / "commitlog", ignore_errors=True)
                raise
            self._files.sync_directory(self._target.parent)
            return copied
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"segments of {self._source} vanish while they are copied: try again")

    def _check_source(self) -> None:
        here = f"{self._source} is not what the broker uses"
        if not (self._source / "commitlog").is_dir():
            raise StoreError(f"{self._source} cannot be seen from here: run this on the broker's machine")
        if self._target.resolve().is_relative_to(self._source.resolve()):
            raise StoreError(f"{self._target} lies in the broker's own directory: name a folder elsewhere")
        found = self._name().get("store_id")
        if self._store_id and found != self._store_id:
            text = f"it holds the store {found}, the broker's is {self._store_id}" if found else "it has no store.json"
            raise StoreError(f"{here}: {text}; run this on the broker's machine")

    def _name(self) -> dict[str, Any]:
        """Return what ``store.json`` says; nothing if there is none that can be used: the log says the same."""
        try:
            name = json.loads(self._files.read_file(self._source / "config" / STORE_FILE))
        except (FileNotFoundError, ValueError):
            return {}
        return name if type(name) is dict else {}

    def _copy(self, to: Path) -> BackupResult:
        log, copy = self._source / "commitlog", to / "commitlog"
        for directory in (to, copy, to / "config"):
            self._files.make_directory(directory)
        starts = sorted(int(name) for name in self._files.names(log) if name.isdigit())
        starts = [start for start in starts if start < self._durable]
        self._linked = self._missing = 0
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            name = f"{start:020d}"
            closed = following is not None
            self._copy_segment(log / name, copy / name, (following or self._durable) - start, closed=closed)
        store = {"format": FORMAT, **self._name(), COPY_MARK: True}
        self._files.replace_file(to / "config" / STORE_FILE, json.dumps(store, indent=2).encode())
        for directory in (copy, to / "config", to):
            self._files.sync_directory(directory)
        return BackupResult(starts[0] if starts else 0, self._durable, len(starts), self._linked, self._missing)

    def _copy_segment(self, path: Path, to: Path, size: int, *, closed: bool) -> None:
        if closed and self._link:
            try:
                os.link(path, to)
            except FileNotFoundError as error:
                raise _Vanished from error
            except OSError:  # another file system, or one without links: a copy does as well
                pass
            else:
                self._linked += 1
                self._missing += max(size - self._files.size(to), 0)
                self._progress(size)
                return
        try:
            there = min(size, self._files.size(path))
            source = self._files.open_to_read(path)
        except FileNotFoundError as error:
            raise _Vanished from error
        try:
            target = self._files.open(to, create=True)
            try:
                self._copy_bytes(path, source, target, there)
                self._missing += size - there
                self._files.sync(target)
            finally:
                self._files.close(target)
        finally:
            self._files.close(source)

    def _copy_bytes(self, path: Path, source: int, target: int, size: int) -> None:
        at = 0
        while at < size:
            part = read_needed(self._files, source, min(_PIECE, size - at), at, path)
            self._files.write_all(target, part, at)
            at += len(part)
            self._progress(len(part))


def restore(backup: Path, target: Path, *, progress: Callable[[int], None] = lambda size: None) -> BackupResult:
    """
    Copy a backup, or the folder of a stopped broker, to the new folder ``target``; durable when this returns.

    The broker that is started on the copy begins a history of its own.

    Raises:
        StoreError: the target is taken, a broker uses the backup, or it holds no log.
        OSError: the disk.
    """
    with SharedLock(backup, "name a copy of it"):
        pieces = log_files(Files(), backup)
        return Backup(backup, target, pieces[-1].end, progress=progress).run()


def _is_empty(directory: Path, partial: Path) -> bool:
    """Whether nothing is in a directory but what every file system, or a copy that was killed, leaves there."""
    return all(entry == partial or entry.name == "lost+found" for entry in directory.iterdir())
