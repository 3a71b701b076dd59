"""
An event loop with a clock of its own, so that a test of minutes takes milliseconds.

The clock stands still while anything can run and jumps to exactly the time of the next timer when nothing can. Sockets
inside the process work. Threads count as "something runs" while they owe the loop a callback:

- work given to ``run_in_executor`` and ``asyncio.to_thread`` is counted by the loop, until the thread has ended, also
  when its awaiter was cancelled;
- a plain thread is counted by the code that hands work to it: ``loop.threads_busy += 1`` on the loop's thread at the
  hand-over and ``loop.threads_busy -= 1`` in the callback that the thread posts by ``call_soon_threadsafe``; or
  ``with loop.thread_busy():`` around an ``await`` for that callback; or, from any thread, ``thread_started()`` and
  ``thread_ended()``. Code that may run on any loop asks first: ``isinstance(loop, CountsThreads)``.

When no timer is left and nothing can ever run, a test fails with ``Deadlock``, which lists what waits for what,
instead of hanging. Child processes and threads that are not counted are not seen: the clock runs ahead of them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import math
import selectors
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

__all__ = ["CountsThreads", "Deadlock", "VirtualTimeLoop"]

T = TypeVar("T")
Ready = list[tuple[selectors.SelectorKey, int]]

REAL_GRACE_S = 0.5  # real seconds for an uncounted thread to show up before a silent loop is called a deadlock
DELIVERY_S = 0.002  # real seconds for bytes to get from one socket to the other; who does not read keeps them for ever
MUCH = 16 << 10  # bytes
THREAD_LIMIT_S = 30.0  # real seconds a counted thread may be silent


class Deadlock(RuntimeError):
    """Nothing on the loop can ever run again."""


@runtime_checkable
class CountsThreads(Protocol):
    """A loop that wants to know how many threads owe it a callback."""

    threads_busy: int


class JumpingSelector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Where a loop would sleep until its next timer, this selector moves the loop's clock there instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Ready:
        ready: Ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.threads_busy > 0:
            return super().select(THREAD_LIMIT_S) or self.loop.fail_silent_threads()
        if timeout is None:
            return super().select(REAL_GRACE_S) or self.loop.fail_deadlock()
        if self._has_bytes_on_the_way() and (ready := super().select(DELIVERY_S)):
            return ready
        self.loop.jump(timeout)
        return super().select(0)

    def _has_bytes_on_the_way(self) -> bool:
        """
        Whether the system still carries much between two sockets: it may be at it on the other processor.

        Little is there at once, and may stay unacknowledged for 40 ms all the same.
        """
        return any(_unacknowledged(key.fd) > MUCH for key in self.get_map().values())


def _unacknowledged(fd: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0  # not a socket, or one that listens


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else can run."""

    def __init__(self, selector: JumpingSelector | None = None) -> None:
        self.now = 0.0
        self.threads_busy = 0  # written on the loop's thread; other threads use thread_started and thread_ended
        self._pool: concurrent.futures.Executor | None = None
        selector = selector or JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    @property
    def _clock_resolution(self) -> float:
        """
        By how much a timer may run early: not at all.

        Real loops run what is due within a nanosecond. Here that would have a timer of exactly 60 s run at the
        59.999999999999915 s that another sum of small steps came to, and no test would ever see 60 s.
        """
        return math.ulp(self.now)

    @_clock_resolution.setter
    def _clock_resolution(self, resolution: float) -> None:
        """What the base class measures of the real clock."""

    def jump(self, timeout: float) -> None:
        """Move the clock to the next timer, which is ``timeout`` seconds away."""
        target = self.now + timeout
        # The sum may miss the timer by a rounding error, and tests ask for exactly 60 s. A day-long sleep is cut in
        # pieces by the loop: then the timer is further away than the time-out, and the sum is right.
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if scheduled and abs(scheduled[0].when() - target) < 1e-6:
            target = scheduled[0].when()
        self.now = max(self.now, target)

    # Threads

    def thread_started(self) -> None:
        """Count a thread, from any thread, at once if it is the loop's own."""
        self._on_loop(1)

    def thread_ended(self) -> None:
        """The reverse of ``thread_started``; what the thread posted before is run before the clock moves."""
        self._on_loop(-1)

    @contextmanager
    def thread_busy(self) -> Iterator[None]:
        """Hold the clock while the body waits for a thread."""
        self.threads_busy += 1
        try:
            yield
        finally:
            self.threads_busy -= 1

    def _on_loop(self, change: int) -> None:
        if self._thread_id == threading.get_ident():  # type: ignore[attr-defined]
            self._count(change)
        else:
            self.call_soon_threadsafe(self._count, change)

    def _count(self, change: int) -> None:
        self.threads_busy += change

    def set_default_executor(self, executor: Any) -> None:
        super().set_default_executor(executor)
        self._pool = executor

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if executor is None:
            if self._pool is None:
                self.set_default_executor(concurrent.futures.ThreadPoolExecutor(thread_name_prefix="virtual-time"))
            executor = self._pool
        assert executor is not None
        work = executor.submit(func, *args)
        self.threads_busy += 1
        result = asyncio.wrap_future(work, loop=self)
        # Added after wrap_future's own callback, so the result is on the loop before the clock is let go.
        work.add_done_callback(self._executor_done)
        return result

    def _executor_done(self, _work: concurrent.futures.Future[Any]) -> None:
        if not self.is_closed():
            self.call_soon_threadsafe(self._count, -1)

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        with self.thread_busy():
            await super().shutdown_default_executor(*args, **kwargs)

    # Failures

    def fail_deadlock(self) -> Ready:
        raise Deadlock(f"at {self.now:g} s nothing can run: no timer, no I/O, no busy thread; {self._waiting()}")

    def fail_silent_threads(self) -> Ready:
        # Not to be repeated while the loop is closed after the failure.
        busy, self.threads_busy = self.threads_busy, 0
        raise Deadlock(
            f"at {self.now:g} s the clock waits for {busy} busy thread(s), silent for {THREAD_LIMIT_S:g} real seconds; "
            + self._waiting()
        )

    def _waiting(self) -> str:
        lines = []
        for task in asyncio.all_tasks(self):
            stack = task.get_stack(limit=1)
            where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "an unknown place"
            lines.append(f"\n  {task.get_name()} in {getattr(task.get_coro(), '__qualname__', '?')} at {where}")
        return f"{len(lines)} task(s) wait:" + "".join(sorted(lines))
