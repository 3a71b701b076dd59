"""
When callers stop waiting: one timer for all parcels of a producer, and who waits for all of them.

All parcels have the same time, so the order of acceptance is the order of deadlines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rmq.engine.native.connection import describe
from rmq.wire.errors import RmqError, WireError, from_wire

from .pending import Parcel


class Deadlines:
    """The parcels whose callers were not told yet, oldest first (told ones leave when they reach the front)."""

    def __init__(
        self, after_s: float, state: Callable[[], str], refusal: Callable[[], WireError | None] = lambda: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._after_s = after_s
        self._state = state  # what to tell with a time-out
        self._refusal = refusal  # why the broker accepts nothing at present
        self._parcels: deque[Parcel] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._accepted = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def add(self, parcel: Parcel) -> None:
        """Watch a parcel, whose time begins now."""
        self._accepted += 1
        parcel.number = self._accepted
        parcel.deadline = self._loop.time() + self._after_s
        self._parcels.append(parcel)
        if self._timer is None:
            self._timer = self._loop.call_at(parcel.deadline, self._expire)

    def tidy(self) -> None:
        """Let go of what was settled; call it after settling."""
        parcels = self._parcels
        while parcels and parcels[0].settled:
            parcels.popleft()
        while self._waiters and (not parcels or parcels[0].number > self._waiters[0][0]):
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    async def all_settled(self) -> None:
        """Wait until everything accepted so far is settled; cancelling is safe."""
        self.tidy()
        if self._parcels:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((self._accepted, waiter))
            await waiter

    def fail_all(self, why: str, error: RmqError | None = None) -> None:
        """Tell every caller that no answer comes any more; by ``error`` those of whom nothing was sent."""
        if self._timer is not None:
            self._timer.cancel()
        for parcel in self._parcels:
            if not parcel.settled:
                parcel.fail(parcel.overdue(why, error))
        self.tidy()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for parcel in self._parcels:
            if parcel.deadline > now:
                break
            if not parcel.settled:
                parcel.fail(self._late(parcel))
        self.tidy()
        if self._parcels:
            self._timer = self._loop.call_at(self._parcels[0].deadline, self._expire)

    def _late(self, parcel: Parcel) -> RmqError:
        """Return what a caller gets whose time is over: the refusal itself only if nothing may have been stored."""
        within = f"within {self._after_s:g} s"
        refusal = parcel.trouble if isinstance(parcel.trouble, WireError) else self._refusal()
        if refusal is None:
            return parcel.overdue(f"no answer {within}{self._state()}")
        error = from_wire(refusal.code, f"nothing was stored in {parcel.topic!r} {within}: {refusal}")
        return parcel.overdue(f"no success {within}, last refused with {describe(refusal)}", error)
