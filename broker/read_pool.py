"""Threads for work that waits for the disk, so that the loop never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from rmq.wire.errors import TooManyInFlight

MAX_WAITING: Final = 256

T = TypeVar("T")


class ReadPool:
    """A few threads. A job runs in one of them; what came of it is told on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 2, name: str = "rmq-read") -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """
        Run ``job`` in a thread, then ``done`` on the loop with its result, or with what it raised.

        Raises:
            TooManyInFlight: too many jobs wait already.
        """
        if self._waiting >= MAX_WAITING:
            raise TooManyInFlight(f"{MAX_WAITING} reads wait for the disk already: try again")
        self._waiting += 1
        future = self._loop.run_in_executor(self._executor, job)
        future.add_done_callback(lambda ended: self._ended(ended, done))

    def _ended(self, future: asyncio.Future[Any], done: Callable[[Any], None]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            error = future.exception()
            done(future.result() if error is None else error)

    def close(self) -> None:
        """Let running jobs end, and drop those that wait; blocks until then."""
        self._executor.shutdown(wait=True, cancel_futures=True)
