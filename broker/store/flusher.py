"""
Group commit: a thread that makes the log durable and posts how far.

The loop writes and publishes; the flusher reads how far that got, syncs, and posts the position, and the loop releases
what waits for it. One ``fdatasync`` covers every send that waits.

Without waiting sends (``async``), a sync with much to write would still hold up the loop: the system locks what it
writes out, and the end of the file with it. So the system is asked to begin early, a few megabytes at a time and never
with the end of the file, and the sync itself finds little left to do. That request may wait, too, where the disk is
overloaded; so it is skipped when a sync is due before it would return.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from rmq.runtime.logging import get_broker_logger

log = get_broker_logger(__name__)

EARLY = 8 << 20  # bytes after which the system is asked to begin
SHORT_S = 0.05  # a pause as short, or none, begins with a request: an idle thread is not to look at the clock as often

Synced = Callable[[int], None]
Failed = Callable[[Exception], None]


class SyncableLog(Protocol):
    """What the flusher needs of the log."""

    written: int

    def begin_writeback(self) -> None:
        """Let the system begin to write out what is written, but for the end."""

    def sync(self) -> int:
        """Make all that is written durable; return the position reached."""


class AnyFlusher(Protocol):
    """What the broker needs of a flusher."""

    def start(self) -> None:
        """Begin to serve requests."""

    def request(self) -> None:
        """Something was written."""

    def stop(self) -> None:
        """Sync what is left and end."""

    def stats(self) -> dict[str, float]:
        """How many syncs there were, and how long the last, the longest and all of them took."""


FlusherFactory = Callable[[SyncableLog, Callable[..., object], Synced, Failed], AnyFlusher]


class Flusher:
    """
    One thread. ``post`` runs a callback on the loop (``loop.call_soon_threadsafe``).

    With ``interval_s`` it syncs at such a pace that what is written is durable within that time, also what is written
    while a sync runs: as long as two of them take no longer. Else it syncs at once when asked.
    """

    def __init__(
        self, log: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed, *, interval_s: float = 0.0
    ) -> None:
        self._log = log
        self._post = post
        self._synced = synced
        self._failed = failed
        self._interval_s = interval_s
        self._wanted = threading.Event()
        self._nudged = threading.Event()  # enough is written to begin with, or it is time to stop
        self._begun = 0  # how far the log was when that was last asked for
        self._begin_s = 0.0  # how long it took to begin, the last time
        self._stopping = threading.Event()
        self._syncs = 0
        self._last_s = self._longest_s = self._total_s = 0.0
        self._thread = threading.Thread(target=self._run, name="rmq-flusher", daemon=True)

    def start(self) -> None:
        """Begin to serve requests."""
        self._thread.start()

    def request(self) -> None:
        """Something was written. Called by the loop, after ``written`` was set."""
        if not self._wanted.is_set():  # to set it takes a lock, and many ask before one is served
            self._wanted.set()
        if self._interval_s and self._log.written - self._begun >= EARLY:
            self._begun = self._log.written
            self._nudged.set()

    def stop(self) -> None:
        """Sync what is left and end; returns when the thread has ended."""
        self._stopping.set()
        self._wanted.set()
        self._nudged.set()
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.is_set() or not self._stopping.is_set():
            try:
                position = self._rest_and_sync()
            except Exception as error:  # also of a defect: a thread that ends silently leaves all requests waiting
                if not isinstance(error, OSError):
                    log.exception("flusher.failed")
                self._post(self._failed, error)  # the state after a failed fsync is unknown: never try again
                return
            if position is not None:
                self._post(self._synced, position)

    def _rest_and_sync(self) -> int | None:
        """The position reached; None if no sync was requested within the interval."""
        pause = pause_s(self._interval_s, self._last_s)
        if pause <= SHORT_S:
            self._wanted.wait()
        # Else by the clock alone: woken by a request, this thread would take the interpreter from the loop.
        self._pause(pause)
        if not self._wanted.is_set():
            return None
        self._wanted.clear()  # before the position is read: a later write asks again
        began = time.perf_counter()
        position = self._log.sync()
        self._syncs += 1
        self._last_s = time.perf_counter() - began
        self._longest_s = max(self._longest_s, self._last_s)
        self._total_s += self._last_s
        return position

    def _pause(self, for_s: float) -> None:
        """Wait with a sync, and let the system begin meanwhile, as far as that takes no longer than the pause."""
        until, tried = time.perf_counter() + for_s, False
        while (rest := until - time.perf_counter()) > 0 and not self._stopping.is_set() and self._nudged.wait(rest):
            self._nudged.clear()
            began = time.perf_counter()
            if until - began > self._begin_s:
                self._log.begin_writeback()
                self._begin_s, tried = time.perf_counter() - began, True
        if not tried:
            self._begin_s /= 2  # the disk may have caught up since

    def stats(self) -> dict[str, float]:
        """How many syncs there were, and how long the last, the longest and all of them took."""
        return {
            "syncs": self._syncs, "last_sync_s": self._last_s, "longest_sync_s": self._longest_s,
            "total_sync_s": self._total_s,
        }  # fmt: skip


def pause_s(interval_s: float, last_s: float) -> float:
    """How long to wait with a sync: the rest of the last, this, and one as long must fit into the interval."""
    return max(interval_s - 2 * last_s, 0.0)
