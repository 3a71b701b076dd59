"""Beginning to write the log out: which segments, how far, and never through a descriptor that is closed."""

from __future__ import annotations

import os
from pathlib import Path

from rmq.broker.store.commitlog import CommitLog
from rmq.broker.store.files import Files
from rmq.broker.store.segment import EXTENT, TAIL

LONG = TAIL + 2 * EXTENT


class Recording(Files):
    """Notes what is written out: the name of the file, and the range."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int]] = []

    def begin_writeback(self, fd: int, size: int, at: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))  # raises if it is closed
        super().begin_writeback(fd, size, at)
        self.begun.append((name.lstrip("0") or "0", at, at + size))


def write(log: CommitLog, size: int) -> None:
    log.stage(b"", bytes(size), size)
    log.write()


def test_all_segments_that_are_not_synced_are_written_out_and_no_other(tmp_path: Path) -> None:
    files = Recording()
    log = CommitLog(files, tmp_path, LONG)
    write(log, LONG)
    log.sync()
    log.roll()
    write(log, LONG)
    log.roll()
    write(log, LONG + EXTENT)
    log.begin_writeback()
    assert files.begun == [(str(LONG), 0, 2 * EXTENT), (str(2 * LONG), 0, 3 * EXTENT)]

    log.sync()
    log.roll()  # closes those that are done with
    write(log, EXTENT)
    files.begun.clear()
    log.begin_writeback()

    assert files.begun == []
    log.close()
