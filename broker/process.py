"""What the operating system says of this process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")  # of Linux


def resident_bytes(statm: Path = _STATM) -> int | None:
    """The memory that the process has in use; None where the system does not tell."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s() -> float:
    """The processor time that all threads of the process have taken."""
    return round(time.process_time(), 3)
