"""How many connections the limit of open files allows."""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 100  # for the log, its indexes, and those who are told why they may not stay
FEWEST: Final = 16


def possible_connections(wanted: int) -> int:
    """As many as wanted (0: no bound of its own) and possible: beyond that nobody could be told why."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(soft - RESERVED, FEWEST)
    return min(wanted, possible) if wanted else possible
