"""
``python -m rigs.disk.unreadable_broker FILE FIRST END start ...``: ``rmq-broker`` on a disk with a bad sector.

The bytes from FIRST up to END of a file whose path ends with FILE lie on a bad sector: a read returns what lies before.
"""

from __future__ import annotations

import errno
import os
import sys

from rmq.broker.store.files import Files
from rmq.cli.rmq_broker import command


def main() -> None:
    """Make reads fail, then run the command."""
    file, first, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    read = Files.read

    def readable(fd: int, size: int, at: int) -> int:
        if at >= end or first >= at + size or not os.readlink(f"/proc/self/fd/{fd}").endswith(file):
            return size
        if at < first:
            return first - at
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def failing_read(self: Files, fd: int, size: int, at: int) -> bytes:
        return read(self, fd, readable(fd, size, at), at)

    Files.read = failing_read  # type: ignore[method-assign]
    command(sys.argv[4:], prog_name="rmq-broker")


if __name__ == "__main__":
    main()
