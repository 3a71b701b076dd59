"""How much room the disk has, and whether sends may still come."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rmq.runtime.logging import get_broker_logger

log = get_broker_logger(__name__)

_LEAST_BYTES: Final = 1 << 20


class DiskWatch:
    """
    ``refusal`` is why sends are refused at present, None if they are not; service resumes by itself.

    ``is_scarce``: not even half of what is to be left free is. Until then delayed messages are delivered: the log is
    kept from the oldest that waits on, so that a disk full of what waits would stay full else.
    """

    def __init__(self, path: Path, min_free_bytes: int) -> None:
        self._path = path
        self._min_free = min_free_bytes
        self.free_bytes = 0
        self.refusal: str | None = None
        self.is_scarce = False
        self._looked_at = 0  # how much was written by then

    def is_due(self, written: int) -> bool:
        """Whether so much was written since the last look that what was free may be gone: look now, not in a second."""
        return written - self._looked_at > max(self._min_free // 4, _LEAST_BYTES)

    def look(self, written: int = 0) -> None:
        """Ask the file system; ``written`` is where the log ends now."""
        self._looked_at = written
        disk = os.statvfs(self._path)
        self.judge(disk.f_bavail * disk.f_frsize)

    def judge(self, free_bytes: int) -> None:
        """So much is free."""
        was_full = self.refusal is not None
        self.free_bytes = free_bytes
        is_full = free_bytes < self._min_free
        self.is_scarce = free_bytes < self._min_free // 2
        wanted = f"{self._min_free >> 20} MiB are needed: free some space"
        self.refusal = f"the disk has {free_bytes >> 20} MiB free, {wanted}" if is_full else None
        if is_full != was_full:
            log.warning("disk.full" if is_full else "disk.recovered", free_bytes=free_bytes)
