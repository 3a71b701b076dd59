"""
The process as the operating system sees it: its memory, its processor time, and how many files it may have open.

Freed memory is kept for the next frame. A frame of a megabyte has a buffer of its own, which lives as long as its
batches are among the newest. The C allocator would return such a buffer to the system and get another one, whose pages
the system has to fill with zeros first: that takes longer than receiving the bytes. What a peak took may so stay with
the process, which the limits of the broker bound.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

from rmq.runtime.logging import get_broker_logger

_STATM: Final = Path("/proc/self/statm")  # of Linux


def resident_bytes(statm: Path = _STATM) -> int | None:
    """The memory that the process has in use; None where the system does not say."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s() -> float:
    """The processor time that all threads of the process have taken."""
    return round(time.process_time(), 3)


log = get_broker_logger(__name__)
RESERVED: Final = 100  # for the log, its indexes, and connections that are being refused
FEWEST: Final = 16


def raise_open_files() -> int:
    """
    Let this process have as many files open as it may; returns how many that are.

    For processes of our own only: a program that embeds a broker decides for itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the system has a bound of its own, below what it calls the hard limit
        return soft
    log.info("open_files.raised", limit=hard, before=soft)
    return hard


def possible_connections(wanted: int) -> int:
    """As many as wanted (0: no bound of its own) and possible: beyond that no connection could be given a reason."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = sys.maxsize if soft == resource.RLIM_INFINITY else max(soft - RESERVED, FEWEST)
    return min(wanted, possible) if wanted else possible


KEPT: Final = 64 << 20  # bytes at the end of the heap, more than which goes back to the system
LARGEST: Final = 5 << 20  # of the buffers that come from the heap: producers close a frame at one megabyte and a batch
_TRIM_THRESHOLD: Final = -1  # the numbers that glibc gives its settings
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Set this process up; return whether its allocator can be configured (glibc's can)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT) and mallopt(_MMAP_THRESHOLD, LARGEST))
