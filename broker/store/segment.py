"""One file of the log: a run of batches that begins at a known physical offset."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rmq.wire.layout import Buffer

IOV_MAX = 1024
NAME_DIGITS = 20
_PIECE = 8 << 20


class Segment:
    """
    An append-only file named by its start offset in the log.

    ``size`` counts what was written in full; a failed :meth:`append` leaves the file as it was before. A new segment
    is open, an existing one has no descriptor until :meth:`reopen`.
    """

    def __init__(self, path: Path, start: int, size: int, *, is_new: bool) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.synced = 0 if is_new else size
        self.name_synced = not is_new  # whether the directory entry is durable; written by the flusher
        self._fd = -1
        if is_new:
            self.reopen()

    @classmethod
    def create(cls, directory: Path, start: int) -> Segment:
        """A new, empty segment."""
        return cls(directory / f"{start:0{NAME_DIGITS}d}", start, 0, is_new=True)

    @classmethod
    def open(cls, path: Path) -> Segment:
        """An existing segment, whose content is yet to be judged."""
        return cls(path, int(path.name), path.stat().st_size, is_new=False)

    def reopen(self) -> None:
        """Take a descriptor, unless there is one."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have a descriptor for a while; it is given back if there was none before."""
        was_open = self.is_open
        self.reopen()
        try:
            yield
        finally:
            if not was_open:
                self.close()

    @property
    def is_open(self) -> bool:
        """Whether it has a descriptor of its own."""
        return self._fd >= 0

    @property
    def end(self) -> int:
        """The physical offset behind the last written byte."""
        return self.start + self.size

    def append(self, buffers: Sequence[Buffer], length: int) -> None:
        """
        Write all buffers at the end, or none of them.

        Raises:
            OSError: the write failed; what had reached the file was cut off again.
        """
        try:
            self._write(buffers, length)
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += length

    def _write(self, buffers: Sequence[Buffer], length: int) -> None:
        at, done = self.size, 0
        for i in range(0, len(buffers), IOV_MAX):
            group = list(buffers[i : i + IOV_MAX])
            wanted = sum(map(len, group))
            written = self.put(group, at + done)
            done += written
            if written < wanted:  # rare: the rest goes out as one run of bytes
                rest = memoryview(b"".join(group))[written:]
                while rest:
                    written = self.put([rest], at + done)
                    done += written
                    rest = rest[written:]
        assert done == length

    def put(self, buffers: Sequence[Buffer], at: int) -> int:
        """One system call: write what fits at a place in the file and say how much that was."""
        return os.pwritev(self._fd, buffers, at)

    def read(self, position: int, size: int) -> bytes:
        """``size`` bytes at a physical offset; fewer if the file ends before."""
        return os.pread(self._fd, size, position - self.start)

    def mapped(self) -> mmap.mmap:
        """The whole file as memory, for recovery."""
        with self.opened():
            return mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)

    def truncate(self, size: int) -> None:
        """Cut the file; used by recovery before anything is served."""
        os.ftruncate(self._fd, size)
        self.size = size
        self.synced = min(self.synced, size)

    def rewrite(self, position: int) -> None:
        """Write what lies behind a physical offset once more, so that the next sync must bring it to the disk."""
        at = max(position - self.start, 0)
        while at < self.size:
            part = self.read(self.start + at, min(_PIECE, self.size - at))
            at += self.put([part], at)

    def sync(self) -> None:
        """Make everything written so far durable. Called by the flusher's thread."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Give the descriptor back, if there is one."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
