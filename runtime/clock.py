"""
The two clocks that rmq reads: one for intervals, which counts while the machine is suspended, and one for time stamps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from rmq.wire.batch.native import native

# Seconds since some point in the past; they go on while the machine is suspended, where the system can tell. Never a
# function of ours: it is read for every message.
_boottime: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
boottime: Callable[[], float] = getattr(native, "boottime", _boottime)


def wall_us() -> int:
    """Microseconds since 1970, as people and other machines count them."""
    return time.time_ns() // 1000
