"""
Indexes, checkpoints, retention and free disk space, kept up while the broker runs.

The loop prepares each piece of work in one step, consistent with the tables, and one thread runs the pieces one after
the other. No promise depends on any of it: what fails is tried again, and a start rebuilds from the log what is
missing. :class:`DiskWatch` decides from the free space whether sends are accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rmq.runtime.logging import get_broker_logger

from ..state.snapshot import JsonExport
from ..store.changes import Change
from ..store.checkpoint import CheckpointWork
from ..store.index_backlog import IndexWork
from ..store.message_store import MessageStore
from ..store.retention import Expired, Removal, RetentionSearch
from .read_pool import ReadPool

log = get_broker_logger(__name__)
MAX_BATCHES: Final = 200_000  # between two checkpoints: a start reads about 100,000 a second
RETENTION_S: Final = 10.0
EXPORT_S: Final = 5.0


class Schedule(NamedTuple):
    """How often a checkpoint is taken, and how much of the log is kept (0: however much)."""

    checkpoint_bytes: int
    checkpoint_s: float
    retention_s: float
    retention_bytes: int


class Maintenance:
    """
    ``snapshot(rings)`` returns all state, ``for_export`` the part that is exported for operators.

    ``next_turn`` makes sure that :meth:`turn_over` is called soon.
    """

    def __init__(
        self, store: MessageStore, pool: ReadPool, schedule: Schedule, *, snapshot: Callable[[bool], list[Change]],
        next_turn: Callable[[], None], now: Callable[[], float], wall_us: Callable[[], int], checkpoint_position: int,
        for_export: Callable[[], list[Change]],
    ) -> None:  # fmt: skip
        self._store = store
        self._pool = pool
        self._schedule = schedule
        self._snapshot = snapshot
        self._exported_changes = for_export
        self._next_turn = next_turn
        self._now = now
        self._wall_us = wall_us
        self.has_unwritten: Callable[[], bool] = lambda: False  # whether the tables say more than the log
        self._busy = False
        self._wanted = False  # a checkpoint, at the end of the next turn
        self._captured: CheckpointWork | None = None  # waits until the log is durable up to it
        self._waiting: list[Callable[[], None]] = []  # for the next work on the key index
        self._served: list[Callable[[], None]] = []  # by the work that is under way
        self._exported_to = -1  # the log position that the exported files show
        self.checkpoint_position = checkpoint_position
        self._waiting_from = self._captured_from = store.delays.oldest  # of what waited at the checkpoint
        self._checkpoint_at = self._saved_at = self._retention_at = self._exported_at = now()
        self._checkpoint_batches = store.batches_written
        self._seen: dict[int, float] = {}  # since when each segment is known to exist, by a clock that is never set
        self.failures = 0

    # ---- events

    def each_second(self) -> None:
        """Look what there is to do."""
        now = self._now()
        if self._busy:
            return
        if now - self._retention_at >= RETENTION_S:  # first: where much is written, a checkpoint is due all the time
            self._retention_at = now
            if self._search_expired():
                return
        if self._is_due(now):
            self.want_checkpoint()
        elif now - self._exported_at >= EXPORT_S and self._store.log.written != self._exported_to:
            self._exported_at = now
            self._export()
        else:
            self._write_indexes()

    def _is_due(self, now: float) -> bool:
        store, schedule = self._store, self._schedule
        grown = store.log.written - self.checkpoint_position
        return grown > 0 and (
            grown >= schedule.checkpoint_bytes
            or now - self._checkpoint_at >= schedule.checkpoint_s
            or store.batches_written - self._checkpoint_batches >= MAX_BATCHES
        )

    def want_checkpoint(self) -> None:
        """Take a checkpoint at the end of the next turn."""
        self._wanted = True
        self._next_turn()

    def want_nothing(self) -> None:
        """Begin no checkpoint any more: the stop takes the last one."""
        self._wanted = False

    def turn_over(self) -> None:
        """
        A turn was written, or given up.

        Changes that were given up are true in memory and come into the log later. A snapshot in the log may come before
        them. A checkpoint may not: nothing but it would have them after a crash, and what is then built on them.
        """
        if self._store.turn_over():
            self._next_turn()  # a new segment begins with a snapshot
        elif self._wanted and not self._busy and not self.has_unwritten():
            self._wanted = False
            self._busy = True
            self._captured = self.capture()
            self.synced(self._store.log.durable)

    def synced(self, position: int) -> None:
        """The log is durable up to here."""
        captured = self._captured
        if captured is not None and position >= captured.checkpoint.position:
            self._captured = None
            self._pool.submit(captured.run, lambda result: self._saved(captured, _error(result)))

    def index_now(self, done: Callable[[], None]) -> None:
        """Bring the key index up to what can be read now, then call ``done``."""
        if not self._store.index_lag:
            done()
            return
        self._waiting.append(done)
        if not self._busy:
            self._write_indexes()

    # ---- work

    def capture(self) -> CheckpointWork:
        """The checkpoint of this moment; the caller lets it be done, and ends with :meth:`saved`."""
        store = self._store
        self._captured_from = store.delays.oldest
        indexes = self._take_index_work(everything=True)
        return CheckpointWork(indexes, store.log, store.directory.path, store.checkpoint(self._snapshot(True)))

    def _saved(self, work: CheckpointWork, error: Exception | None) -> None:
        self._checkpoint_at = self._now()
        self._checkpoint_batches = self._store.batches_written
        if error is None:
            self.checkpoint_position = work.checkpoint.position
            self._saved_at = self._checkpoint_at
            self._waiting_from = self._captured_from
        else:
            log.error("checkpoint.failed", error=str(error))
        self._indexed(work.indexes, error)

    def _take_index_work(self, *, everything: bool) -> IndexWork:
        """Take work that serves the callbacks so far; later ones may want what it does not have."""
        self._served += self._waiting
        self._waiting = []
        return self._store.take_index_work(everything=everything)

    def _write_indexes(self) -> None:
        self._busy = True
        work = self._take_index_work(everything=False)
        if not (work.runs or work.keys.batches or work.garbage):
            self._indexed(work, None)
            return
        self._pool.submit(work.run, lambda result: self._indexed(work, _error(result)))

    def _indexed(self, work: IndexWork, error: Exception | None) -> None:
        self._store.backlog.done(work, error)
        served, self._served = self._served, []
        for done in served:
            done()
        self._ended(error)

    def _export(self) -> None:
        self._busy = True
        self._exported_to = self._store.log.written
        work = JsonExport(self._store.files, self._store.directory.config, self._exported_changes())
        self._pool.submit(work.run, lambda result: self._ended(_error(result)))

    def _search_expired(self) -> bool:
        """Look for segments that may go; says whether there is anything to look at."""
        store, schedule = self._store, self._schedule
        wall_us, old_before = self._wall_us(), self._old_before()
        before_us = wall_us - int(schedule.retention_s * 1_000_000) if schedule.retention_s else 0
        if len(store.log.segments) == 1 or not (before_us or schedule.retention_bytes):
            return False
        # What waits lies in the log alone; so does what was delivered since the checkpoint, if a crash takes the copy.
        oldest = self._waiting_from
        needed_from = self.checkpoint_position if oldest is None else min(oldest, self.checkpoint_position)
        search = RetentionSearch(
            store.files, store.log.extents(), store.log.written, before_us, schedule.retention_bytes, needed_from,
            wall_us, old_before,
        )  # fmt: skip
        self._busy = True
        self._pool.submit(search.run, self._searched)
        return True

    def _old_before(self) -> int:
        """Return where the newest segment begins that has been there for as long as the log is kept; 0 without one."""
        now, kept_s = self._now(), self._schedule.retention_s
        self._seen = {segment.start: self._seen.get(segment.start, now) for segment in self._store.log.segments}
        return max((start for start, since in self._seen.items() if now - since > kept_s), default=0)

    def _searched(self, found: Expired | Exception | None) -> None:
        if not isinstance(found, Expired):
            self._ended(_error(found))
            return
        store = self._store
        try:
            store.log.check_place()
        except OSError as error:
            self._ended(error)
            return
        segments, index_files = store.forget_before(found.start, found.head)
        log.info("log.retention", segments=len(segments), starts_at=found.start)
        paths = [segment.path for segment in segments]
        removal = Removal(store.files, store.directory.commitlog, paths, index_files, store.keys, store.faults)
        self._pool.submit(removal.run, lambda result: self._ended(_error(result)))

    def _ended(self, error: Exception | None) -> None:
        self._busy = False
        if error is not None:
            self.failures += 1
            log.error("upkeep.failed", error=str(error) or repr(error))
        if self._waiting:  # who asked for the index while something else was done
            self._write_indexes()

    def stats(self) -> dict[str, float]:
        """How far checkpoint and indexes are."""
        return {
            "checkpoint_position": self.checkpoint_position,
            "checkpoint_age_s": round(self._now() - self._saved_at, 3),
            "key_index_lag_bytes": self._store.index_lag,
            "failed_index_reads": self._store.faults.failed_reads,
            "failed_index_writes": self._store.faults.failed_writes,
            "failures": self.failures,
        }

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._busy


def _error(result: object) -> Exception | None:
    return result if isinstance(result, Exception) else None


_LEAST_BYTES: Final = 1 << 20


class DiskWatch:
    """
    ``refusal`` is why sends are refused at present, None if they are not; service resumes by itself.

    ``is_scarce``: not even half of what is to be left free is. Until then delayed messages are delivered: the log is
    kept from the oldest that waits on, so that a disk full of what waits would stay full else.
    """

    def __init__(self, path: Path, min_free_bytes: int) -> None:
        self._path = path
        self._min_free = min_free_bytes
        self.free_bytes = 0
        self.refusal: str | None = None
        self.is_scarce = False
        self._looked_at = 0  # how much was written by then

    def is_due(self, written: int) -> bool:
        """Whether so much was written since the last look that what was free may be gone: look now, not in a second."""
        return written - self._looked_at > max(self._min_free // 4, _LEAST_BYTES)

    def look(self, written: int = 0) -> None:
        """Ask the file system; ``written`` is where the log ends now."""
        self._looked_at = written
        disk = os.statvfs(self._path)
        self.judge(disk.f_bavail * disk.f_frsize)

    def judge(self, free_bytes: int) -> None:
        """So much is free."""
        was_full = self.refusal is not None
        self.free_bytes = free_bytes
        is_full = free_bytes < self._min_free
        self.is_scarce = free_bytes < self._min_free // 2
        wanted = f"{self._min_free >> 20} MiB are needed: free some space"
        self.refusal = f"the disk has {free_bytes >> 20} MiB free, {wanted}" if is_full else None
        if is_full != was_full:
            log.warning("disk.full" if is_full else "disk.recovered", free_bytes=free_bytes)
