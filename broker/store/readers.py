"""The few descriptors through which segments are read that have none of their own."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from .files import Files

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
