"""How many files may be open, and how many connections that allows."""

from __future__ import annotations

import resource
import sys
from typing import Final

from rmq.runtime.logging import get_broker_logger

log = get_broker_logger(__name__)

RESERVED: Final = 100  # for the log, its indexes, and those who are told why they may not stay
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
    """As many as wanted (0: no bound of its own) and possible: beyond that nobody could be told why."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = sys.maxsize if soft == resource.RLIM_INFINITY else max(soft - RESERVED, FEWEST)
    return min(wanted, possible) if wanted else possible
