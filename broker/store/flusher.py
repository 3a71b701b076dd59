"""
Group commit: a thread that makes the log durable and tells how far.

The loop writes and publishes; the flusher reads how far that got, syncs, and posts the position. Whoever waits
for a position is released by the loop. One ``fdatasync`` so covers every send that waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..log import get_logger

log = get_logger(__name__)

Synced = Callable[[int], None]
Failed = Callable[[Exception], None]


class SyncableLog(Protocol):
    """What the flusher needs of the log."""

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
        self._stopping = threading.Event()
        self._syncs = 0
        self._last_s = self._longest_s = self._total_s = 0.0
        self._thread = threading.Thread(target=self._run, name="rmq-flusher", daemon=True)

    def start(self) -> None:
        """Begin to serve requests."""
        self._thread.start()

    def request(self) -> None:
        """Something was written. Called by the loop, after ``written`` was set."""
        self._wanted.set()

    def stop(self) -> None:
        """Sync what is left and end; returns when the thread has ended."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.is_set() or not self._stopping.is_set():
            self._wanted.wait()
            if self._interval_s:
                self._stopping.wait(pause_s(self._interval_s, self._last_s))
            self._wanted.clear()  # before the position is read: a later write asks again
            began = time.perf_counter()
            try:
                position = self._log.sync()
            except Exception as error:  # also of a defect: a thread that ends in silence leaves everybody waiting
                if not isinstance(error, OSError):
                    log.exception("flusher.failed")
                self._post(self._failed, error)  # what a failed fsync left behind is unknown: never try again
                return
            self._syncs += 1
            self._last_s = time.perf_counter() - began
            self._longest_s = max(self._longest_s, self._last_s)
            self._total_s += self._last_s
            self._post(self._synced, position)

    def stats(self) -> dict[str, float]:
        """How many syncs there were, and how long the last, the longest and all of them took."""
        return {
            "syncs": self._syncs, "last_sync_s": self._last_s, "longest_sync_s": self._longest_s,
            "total_sync_s": self._total_s,
        }  # fmt: skip


def pause_s(interval_s: float, last_s: float) -> float:
    """How long to wait with a sync: the rest of the last, this, and one as long must fit into the interval."""
    return max(interval_s - 2 * last_s, 0.0)
