"""
Several processes on one loop and one virtual clock, which can be stopped, continued and killed one by one.

Everything a process does runs in callbacks, and every callback runs in a context that it inherited from the code
that scheduled it. So a process is a context variable: right before a callback would run, the loop looks whose it is.
What belongs to a stopped process is put aside and runs when it is continued; what belongs to a killed one never runs.
The clock goes on meanwhile, as CLOCK_BOOTTIME does for a process that got SIGSTOP.

A callback is never cut in the middle: a stop between two statements is a stop before the first ``await`` after them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

from rigs.virtual_time import JumpingSelector, Ready, VirtualTimeLoop
from simulation.network import Network

T = TypeVar("T")

IN_TIME = "in time"  # a continued process runs what it missed in the order in which it was due
TIMERS_FIRST = "timers first"  # it looks at its timers before it reads its sockets
SOCKETS_FIRST = "sockets first"  # the other way round
ORDERS = (IN_TIME, TIMERS_FIRST, SOCKETS_FIRST)


class Process:
    """Whatever is started by :meth:`run` or :meth:`task`, and all that this starts."""

    def __init__(self, name: str, loop: SimulatedLoop) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.still = False  # nothing of it runs at the moment; follows from the others
        self.missed: list[tuple[float, asyncio.Handle]] = []  # and when they would have run
        self._still_since = 0.0
        self._blocking: asyncio.Future[None] | None = None
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(_OWNER.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def run(self, work: Callable[[], T]) -> T:
        """Call something inside the process."""
        return self.context.copy().run(work)

    def task(self, work: Any) -> asyncio.Task[Any]:
        """Start a coroutine inside the process."""
        return self._loop.create_task(work, context=self.context.copy())

    def stop(self) -> None:
        """Run nothing from here on; connections stay open."""
        self.stopped = True
        self._stand_still()

    def go_on(self, order: str = IN_TIME) -> None:
        """Run what was missed, then live on."""
        self.stopped = False
        self._catch_up(order)

    async def block(self, seconds: float) -> None:
        """What a listener does that blocks its loop: for this long nothing of the process runs but the caller."""
        self._blocking = over = self._loop.create_future()
        self._stand_still()
        # Outside of the process, in which nothing runs.
        self._loop.call_later(seconds, self.unblock, over, context=contextvars.Context())
        await over

    def unblock(self, which: asyncio.Future[None] | None = None) -> None:
        """End the blocking call early; or this one, if it is still the one that blocks."""
        over = self._blocking
        if over is None or which not in (None, over):
            return
        self._blocking = None
        if not over.done():
            over.set_result(None)  # the caller goes on first
        self._catch_up(IN_TIME)

    def miss(self, handle: asyncio.Handle) -> None:
        """Put a callback aside."""
        self.missed.append((self._loop.time(), handle))

    def _stand_still(self) -> None:
        if not self.still:
            self.still = True
            self._still_since = self._loop.time()

    def _catch_up(self, order: str) -> None:
        if self.stopped or self.dead or self._blocking is not None:
            return
        self.still = False
        missed, self.missed = self.missed, []
        # What was about to run when it stood still runs first in any case.
        begun = [handle for at, handle in missed if at == self._still_since]
        later = [handle for at, handle in missed if at != self._still_since]
        if order == IN_TIME:
            return self._loop.run_missed([*begun, *later])
        timers = [handle for handle in later if isinstance(handle, asyncio.TimerHandle)]
        others = [handle for handle in later if not isinstance(handle, asyncio.TimerHandle)]
        first, last = (timers, others) if order == TIMERS_FIRST else (others, timers)
        self._loop.run_missed([*begun, *first])
        # After what those wake: as if the loop had looked at the others a moment later.
        self._loop.call_soon(self._loop.run_missed, last, context=contextvars.Context())

    def kill(self) -> None:
        """End it without a word; its peers notice, if the network lets it."""
        self.dead = True
        self._stand_still()
        self._loop.network.process_ended(self)

    def bury(self) -> None:
        """After the test: what was killed may run again, cut off from everybody, so that its tasks can be ended."""
        self._loop.network.process_ended(self)
        self.dead = False
        self.unblock()
        self.go_on()


_OWNER: ContextVar[Process | None] = ContextVar("process", default=None)


def owner() -> Process | None:
    """The process whose code is running."""
    return _OWNER.get()


class _Ready(deque[asyncio.Handle]):
    """The callbacks that are due. The loop runs what it takes from here, unless it is cancelled."""

    def __init__(self, nothing: asyncio.Handle) -> None:
        super().__init__()
        self._nothing = nothing

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = handle._context.get(_OWNER)  # type: ignore[attr-defined]
        if process is None or not process.still:
            return handle
        process.miss(handle)
        return self._nothing


class _NoSockets(JumpingSelector):
    """Asks the system only when a thread is at work: no socket exists, and every thread is counted."""

    def select(self, timeout: float | None = None) -> Ready:
        if self.loop.threads_busy or timeout is None:
            return super().select(timeout)
        if timeout > 0:
            self.loop.jump(timeout)
        return []


class SimulatedLoop(VirtualTimeLoop):
    """A virtual-time loop with processes, and a network in memory instead of sockets."""

    def __init__(self) -> None:
        super().__init__(_NoSockets())
        nothing = asyncio.Handle(lambda: None, (), self)
        nothing.cancel()
        self._ready: _Ready = _Ready(nothing)
        self.network = Network(self, owner)

    def run_missed(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run these callbacks as soon as possible, in this order."""
        self._ready.extend(handles)

    def _executor_done(self, _work: object) -> None:
        # A thread that is fast ends within the call that starts it: that it has must not be missed by a dead process.
        if not self.is_closed():
            self.call_soon_threadsafe(self._count, -1, context=contextvars.Context())

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, host, int(port))
