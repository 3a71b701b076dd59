"""The two clocks of a broker: one for how long, one for when."""

from __future__ import annotations

import time
from collections.abc import Callable

from rmq.wire.batch.native import native


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


# Seconds that also count while the machine sleeps, so that a lease does not outlive a suspended night.
boottime: Callable[[], float] = getattr(native, "boottime", _boottime)


def wall_us() -> int:
    """Wall time in microseconds."""
    return time.time_ns() // 1000
