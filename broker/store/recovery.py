"""
What the log holds after a start, whatever ended the last run.

:func:`recover` walks every batch, checks it in full and stops at the first that is not sound. What follows is a
torn tail: it was never acknowledged as durable, so it is copied to ``quarantine/`` and cut. If a later, sound
header proves that the damaged place had once been synced, it is rot instead, and the start is refused: cutting
would destroy what was promised to be kept. A start is refused as well where a newer version wrote.

What no header proves to be on the disk is written once more before it is synced: after a failed sync the system may
hold pages for clean that never got there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rmq.wire import batch as batches
from rmq.wire import layout
from rmq.wire.errors import UnsupportedFormat, WireError

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


class _Walked(NamedTuple):
    size: int  # of the sound batches
    reason: str  # why they end
    proven: int  # the position that the newest of them knew to be durable


def recover(log: CommitLog, quarantine: Path, visit: Visit) -> Cut | None:
    """
    Show every sound batch to ``visit`` in log order, cut a torn tail, and sync all that is kept.

    Raises:
        StoreError: a place that had been synced is damaged, or was written by a newer version.
    """
    cut, proven = None, 0
    if log.segments[0].start:
        raise StoreError(f"the log begins at {log.segments[0].start}: restore the segments before that from a copy")
    for index, segment in enumerate(log.segments):
        if index and segment.start != log.segments[index - 1].end:
            cut = _cut(log, index - 1, log.segments[index - 1].size, "a segment is missing", quarantine)
            break
        walked = _walk(segment, visit)
        proven = max(proven, walked.proven)
        if walked.size < segment.size:
            cut = _cut(log, index, walked.size, walked.reason, quarantine)
            break
    log.settle(proven)
    return cut


def _walk(segment: Segment, visit: Visit) -> _Walked:
    """Visit the sound batches of a segment; say where they end and why."""
    if not segment.size:
        return _Walked(0, "", 0)
    with segment.mapped() as map_, memoryview(map_) as view:
        at = proven = 0
        while at < segment.size:
            checked, reason = _judge(view, at, segment)
            if checked is None:
                return _Walked(at, reason, proven)
            with view[at : at + checked.header.size] as whole:
                visit(checked, whole)
            at += checked.header.size
            proven = checked.header.durable_before
    return _Walked(at, "", proven)


def _judge(view: memoryview, at: int, segment: Segment) -> tuple[batches.Checked | None, str]:
    """The batch at a place of a segment, or what is wrong with it."""
    is_newer = False
    try:
        checked = batches.check(view, at, stamped=True)
    except WireError as error:
        reason = error.text
        is_newer = isinstance(error, UnsupportedFormat) and _has_sound_header(view, at)
    else:
        if checked.header.physical_offset == segment.start + at:
            return checked, ""
        reason = f"a batch says it lies at {checked.header.physical_offset}"
    if is_newer:
        raise StoreError(
            f"this version cannot read the log at {segment.start + at} in {segment.path} ({reason}): "
            "start the version that wrote it"
        )
    return None, reason


def _cut(log: CommitLog, index: int, good: int, reason: str, quarantine: Path) -> Cut | None:
    position = log.segments[index].start + good
    for later in log.segments[index:]:
        witness = _synced_beyond(later, good if later is log.segments[index] else 0, position)
        if witness is not None:
            raise StoreError(
                f"the log is damaged at {position} ({reason}), which had been synced before the batch at {witness} was "
                f"written: restore {log.segments[index].path} from a copy"
            )
    kept_in = _unused(quarantine / f"{position:020d}")
    size = _copy_tail(log.segments[index:], good, kept_in)
    with log.segments[index].opened():
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


def _has_sound_header(view: memoryview, at: int) -> bool:
    """Whether a header of our format was written as it stands, also where this version does not know a value in it."""
    if view[at + 4 : at + 7] != _SIGN:
        return False
    return layout.header_crc(view, at, view[at + 7] * 8) == int.from_bytes(view[at + 8 : at + 12], "big")


def _unused(path: Path) -> Path:
    """A name that nothing has: what an earlier start put aside is never written over."""
    number = 1
    while path.exists():
        number += 1
        path = path.with_suffix(f".{number}")
    return path


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
            with segment.opened():
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
