"""The few descriptors through which segments are read that have none of their own."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .segment import Segment

LIMIT = 64

T = TypeVar("T")


class Readers:
    """At most ``limit`` descriptors, of the files that were read last. They belong to the event loop alone."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fds)

    def read(self, segment: Segment, position: int, size: int) -> bytes:
        """``size`` bytes of a segment at a physical offset."""
        fd = self._fds.get(segment.path)
        if fd is None:
            fd = self._add(segment.path)
        else:
            self._fds.move_to_end(segment.path)
        return os.pread(fd, size, position - segment.start)

    def _add(self, path: Path) -> int:
        while len(self._fds) >= self._limit:
            self._drop_oldest()
        self._fds[path] = fd = self.make_room(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
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

    def _drop_oldest(self) -> None:
        os.close(self._fds.popitem(last=False)[1])

    def close(self) -> None:
        """Give all descriptors back."""
        while self._fds:
            self._drop_oldest()
