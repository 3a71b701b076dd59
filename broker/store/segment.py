"""
One file of the log: a run of batches that begins at a known physical offset.

Segments without a descriptor of their own are read through a few shared ones (:class:`Readers`).
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rmq.wire.batch.layout import Buffer

from .directory import StoreError
from .files import Files
from .scan import read_needed

IOV_MAX = 1024
NAME_DIGITS = 20
TAIL = 2 << 20  # the system locks what it writes out: appends must not wait for that
EXTENT = 1 << 20  # pages of a file may be held together in units of this size
_PIECE = 8 << 20
_CUT = "the start ended; a torn tail that it had cut is in quarantine/"


def segment_paths(files: Files, directory: Path) -> list[Path]:
    """
    Return the files of a log, oldest first.

    Raises:
        StoreError: something else has the name of one.
        OSError: the directory cannot be listed.
    """
    paths = [directory / name for name in files.names(directory) if name.isdigit()]
    for path in paths:
        if not files.is_file(path):
            raise StoreError(
                f"{path} is a directory or a pipe, not a segment of the log: move it away; if a segment had this name, "
                "restore it from a backup"
            )
    return paths


class Segment:
    """
    An append-only file named by its start offset in the log.

    ``size`` counts what was written in full; a failed :meth:`append` leaves the file as it was before. A new segment
    is open, an existing one has no descriptor until :meth:`reopen`.
    """

    def __init__(self, files: Files, path: Path, size: int, *, is_new: bool) -> None:
        self.path = path
        self.start = int(path.name)
        self.size = size
        self.synced = 0 if is_new else size
        self._sent_out = 0  # how much the system was asked to write out; of the flusher
        self.name_synced = not is_new  # whether the directory entry is durable; written by the flusher
        self._is_ragged = False  # whether a failed append may have left something after the end
        self._files = files
        self._fd = -1
        if is_new:
            self.reopen()

    @classmethod
    def create(cls, files: Files, directory: Path, start: int) -> Segment:
        """A new, empty segment."""
        return cls(files, directory / f"{start:0{NAME_DIGITS}d}", 0, is_new=True)

    @classmethod
    def open(cls, files: Files, path: Path) -> Segment:
        """An existing segment, whose content is yet to be judged."""
        return cls(files, path, files.size(path), is_new=False)

    def reopen(self) -> None:
        """Take a descriptor, unless there is one."""
        if self._fd < 0:
            self._fd = self._files.open(self.path, create=True)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Have a descriptor for a while; it is given back if there was none before."""
        was_open = self.is_open
        self.reopen()
        try:
            yield self._fd
        finally:
            if not was_open:
                self.close()

    @property
    def is_open(self) -> bool:
        """Whether it has a descriptor of its own."""
        return self._fd >= 0

    @property
    def fd(self) -> int:
        """Its descriptor; -1 if it has none."""
        return self._fd

    @property
    def end(self) -> int:
        """The physical offset after the last written byte."""
        return self.start + self.size

    def append(self, buffers: Sequence[Buffer], length: int) -> None:
        """
        Write all buffers at the end, or none of them.

        Raises:
            OSError: the write failed; what had reached the file was cut off again.
        """
        self.tidy()
        try:
            self._write(buffers, length)
        except OSError:
            self._is_ragged = True
            with suppress(OSError):  # then it is tried before the next append
                self._cut_back()
            raise
        self.size += length

    def tidy(self) -> None:
        """
        Cut off what a failed append may have left.

        Raises:
            OSError: it may still be there.
        """
        if self._is_ragged:
            self._cut_back()

    def _cut_back(self) -> None:
        """Whole batches of a failed append must not stand after those of a later one."""
        self._files.truncate(self._fd, self.size)
        self._is_ragged = False

    def _write(self, buffers: Sequence[Buffer], length: int) -> None:
        at, done = self.size, 0
        for i in range(0, len(buffers), IOV_MAX):
            group = list(buffers[i : i + IOV_MAX])
            wanted = sum(map(len, group))
            written = self._files.write(self._fd, group, at + done)
            if written < wanted:  # rare: the rest goes out as one run of bytes
                self._files.write_all(self._fd, memoryview(b"".join(group))[written:], at + done + written)
            done += wanted
        assert done == length

    def truncate(self, size: int) -> None:
        """Cut the file; used by recovery before anything is served."""
        self._files.truncate(self._fd, size)
        self.size = size
        self.synced = min(self.synced, size)

    def rewrite(self, position: int) -> None:
        """
        Write what lies after a physical offset once more, so that the next sync must bring it to the disk.

        Raises:
            Unreadable: the disk cannot read it.
            OSError: it cannot be written.
        """
        at = max(position - self.start, 0)
        while at < self.size:
            part = read_needed(self._files, self._fd, min(_PIECE, self.size - at), at, self.path, so=_CUT)
            self._files.write_all(self._fd, part, at)
            at += len(part)

    def begin_writeback(self) -> None:
        """Let the system write out what will not be touched again. Called by the flusher's thread."""
        begin, end = max(self._sent_out, self.synced), (self.size - TAIL) // EXTENT * EXTENT
        if end > begin:
            self._files.begin_writeback(self._fd, end - begin, begin)
            self._sent_out = end

    def sync(self) -> None:
        """Make everything written so far durable. Called by the flusher's thread."""
        self._files.sync(self._fd)

    def close(self) -> None:
        """Give the descriptor back, if there is one."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._files.close(fd)


LIMIT = 64
T = TypeVar("T")


class Readers:
    """At most ``limit`` descriptors, of the files that were read last. They belong to the event loop alone."""

    def __init__(self, files: Files, limit: int = LIMIT) -> None:
        self._files = files
        self._limit = limit
        self._fds: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, path: str) -> int:
        """A descriptor to read a file; it is ours only until the next call."""
        fd = self._fds.get(path)
        if fd is None:
            return self._add(path)
        self._fds.move_to_end(path)
        return fd

    def _add(self, path: str) -> int:
        while len(self._fds) >= self._limit:
            self._drop_oldest()
        self._fds[path] = fd = self.make_room(lambda: self._files.open_to_read(path))
        return fd

    def make_room(self, opening: Callable[[], T]) -> T:
        """Open something; when descriptors run out (connections have the rest), ours are given up for it."""
        while True:
            try:
                return opening()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._fds:
                    raise
                self._drop_oldest()

    def forget(self, path: str) -> None:
        """The file is about to go: keep no descriptor of it."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            self._files.close(fd)

    def _drop_oldest(self) -> None:
        self._files.close(self._fds.popitem(last=False)[1])

    def close(self) -> None:
        """Give all descriptors back."""
        while self._fds:
            self._drop_oldest()
