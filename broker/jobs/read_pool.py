"""
Threads for what may wait for the disk, so that the loop never does.

A job runs in a thread; what it returned or raised is handed to a callback on the loop. A job must not touch what
belongs to the loop. The number of jobs in line is bounded: beyond it a request is refused, at once and by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rmq.wire.errors import TooManyInFlight

THREADS = 2
MAX_JOBS = 256

T = TypeVar("T")


class ReadPool:
    """At most ``threads`` jobs at once; at most ``most`` that run or wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS, most: int = MAX_JOBS) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="rmq-read")
        self._most = most
        self.jobs = 0  # that run or wait

    def submit(self, job: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """
        Run ``job`` in a thread, then ``done`` on the loop; not at all if the pool is closed before.

        Raises:
            TooManyInFlight: as many jobs wait as may.
        """
        if self.jobs >= self._most:
            raise TooManyInFlight(f"{self.jobs} reads of the disk wait already: try again soon")
        future = self._loop.run_in_executor(self._executor, _caught(job))
        self.jobs += 1
        future.add_done_callback(lambda ended: self._ended(ended, done))

    def _ended(self, future: asyncio.Future[T | Exception], done: Callable[[T | Exception], None]) -> None:
        self.jobs -= 1
        if not future.cancelled():
            done(future.result())

    def close(self) -> None:
        """Wait for what runs; what waits is not begun. Not on the loop, which the jobs may be waiting for."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _caught(job: Callable[[], T]) -> Callable[[], T | Exception]:
    def run() -> T | Exception:
        try:
            return job()
        except Exception as error:
            return error

    return run
