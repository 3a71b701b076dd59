"""The two clocks a client reads: one for intervals that counts a suspended machine, one for time stamps."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def boottime() -> float:
    """Seconds since some point in the past; goes on while the machine is suspended, where the system can tell."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def wall_us() -> int:
    """Microseconds since 1970, as people and other machines count them."""
    return time.time_ns() // 1000
