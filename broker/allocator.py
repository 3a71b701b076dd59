"""
Memory that was freed stays with the process, for the next frame.

A frame of a megabyte has a buffer of its own, which lives as long as its batches are among the newest. C's allocator
would give such a buffer back to the system, and get another one, whose pages the system has to fill with zeros first:
that takes longer than receiving the bytes. What a peak took may so stay with the process, which the limits of the
broker bound.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT: Final = 64 << 20  # bytes at the end of the heap, more than which goes back to the system
LARGEST: Final = 5 << 20  # of the buffers that come from the heap: producers close a frame at one megabyte and a batch

_TRIM_THRESHOLD: Final = -1  # the numbers that glibc gives its settings
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Set this process up; says whether its allocator can be told (glibc's can)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT) and mallopt(_MMAP_THRESHOLD, LARGEST))
