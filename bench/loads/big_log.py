"""A broker whose log has some gigabytes, and whether there is room for that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from ..processes import BrokerProcess, free_bytes, worker

NAME: Final = "big-log"  # of a data directory that several benchmarks use
GB: Final = 1e9
FULL_GB: Final = 10.0  # what the targets are about
QUICK_GB: Final = 0.1
RESERVE: Final = 2 << 30  # that a broker and others on this disk may need meanwhile
MORE: Final = 1.2  # for the indexes, and for what is sent afterwards


def fill(broker: BrokerProcess, gb: float) -> None:
    """Make the log of a broker at least this long; returns when that is on the disk."""
    with worker("rmq.bench.workers.fill_worker", address=broker.address, log_bytes=int(gb * GB)) as child:
        child.go()
        child.told()


def log_bytes(data_dir: Path) -> int:
    """How long the log in a directory is; 0 where there is none."""
    return sum(path.stat().st_size for path in (data_dir / "commitlog").glob("*"))


def no_room(folder: Path | None, gb: float) -> str:
    """Why a log of this size cannot be made in a folder, or where temporary ones lie; empty if it can."""
    folder = folder or Path(tempfile.gettempdir())
    needed, free = gb * GB * MORE + RESERVE, free_bytes(folder)
    if free >= needed:
        return ""
    return f"{needed / GB:.1f} GB of disk space are needed, and {free / GB:.1f} are free at {folder}"
