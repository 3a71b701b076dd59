"""
What the log holds after a start, whatever ended the last run.

:func:`recover` walks every batch, checks it in full and stops at the first that is not sound. What follows is a
torn tail: it was never acknowledged as durable, so it is copied to ``quarantine/`` and cut. If a later, sound
header proves that the damaged place had once been synced, it is rot instead, and the start is refused: cutting
would destroy what was promised to be kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rmq.wire import batch as batches
from rmq.wire import layout
from rmq.wire.errors import WireError

from .commitlog import CommitLog
from .directory import StoreError, sync_directory
from .segment import Segment

Visit = Callable[[batches.Checked, memoryview], None]
_SIGN = layout.MAGIC.to_bytes(2, "big") + bytes((layout.FORMAT,))
_COPY_BYTES = 8 << 20


class Cut(NamedTuple):
    """A torn tail that was removed."""

    position: int
    size: int
    reason: str
    kept_in: Path


def recover(log: CommitLog, quarantine: Path, visit: Visit) -> Cut | None:
    """
    Show every sound batch to ``visit`` in log order, cut a torn tail, and sync all that is kept.

    Raises:
        StoreError: a place that had been synced is damaged.
    """
    cut = None
    for index, segment in enumerate(log.segments):
        if index and segment.start != log.segments[index - 1].end:
            cut = _cut(log, index - 1, log.segments[index - 1].size, "a segment is missing", quarantine)
            break
        good, reason = _walk(segment, visit)
        if good < segment.size:
            cut = _cut(log, index, good, reason, quarantine)
            break
    log.written = log.end = log.segments[-1].end
    for segment in log.segments:
        segment.synced = 0
        segment.name_synced = False
    log.durable = log.sync()
    return cut


def _walk(segment: Segment, visit: Visit) -> tuple[int, str]:
    """Visit the sound batches of a segment; return where they end and why."""
    if not segment.size:
        return 0, ""
    with segment.mapped() as map_, memoryview(map_) as view:
        at = 0
        while at < segment.size:
            try:
                checked = batches.check(view, at, stamped=True)
                header = checked.header
                if header.physical_offset != segment.start + at:
                    return at, f"a batch says it lies at {header.physical_offset}"
            except WireError as error:
                return at, error.text
            with view[at : at + header.size] as whole:
                visit(checked, whole)
            at += header.size
    return at, ""


def _cut(log: CommitLog, index: int, good: int, reason: str, quarantine: Path) -> Cut | None:
    position = log.segments[index].start + good
    for later in log.segments[index:]:
        witness = _synced_beyond(later, good if later is log.segments[index] else 0, position)
        if witness is not None:
            raise StoreError(
                f"the log is damaged at {position} ({reason}), which had been synced before the batch at {witness} was "
                f"written: restore {log.segments[index].path} from a copy"
            )
    kept_in = quarantine / f"{position:020d}"
    size = _copy_tail(log.segments[index:], good, kept_in)
    log.segments[index].truncate(good)
    log.drop_behind(index)
    return Cut(position, size, reason, kept_in)


def _synced_beyond(segment: Segment, at: int, position: int) -> int | None:
    """The place of a sound header that was written when ``position`` was durable already."""
    if segment.size - at < layout.FIXED_HEADER:
        return None
    with segment.mapped() as map_, memoryview(map_) as view:
        found = map_.find(_SIGN, at)
        while found >= 0:
            start = found - 4
            if start >= at and start % layout.ALIGN == 0 and _proves(view, start, position):
                return segment.start + start
            found = map_.find(_SIGN, found + 1)
    return None


def _proves(view: memoryview, at: int, position: int) -> bool:
    try:
        header = layout.parse_header(view, at)
    except WireError:
        return False
    return header.durable_before > position and layout.header_crc(view, at, header.header_size) == header.header_crc


def _copy_tail(segments: list[Segment], at: int, to: Path) -> int:
    size = 0
    with open(to, "wb") as file:
        for segment in segments:
            while at < segment.size:
                part = segment.read(segment.start + at, min(_COPY_BYTES, segment.size - at))
                file.write(part)
                size += len(part)
                at += len(part)
            at = 0
        file.flush()
        os.fsync(file.fileno())
    sync_directory(to.parent)
    return size
