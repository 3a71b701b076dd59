"""
Limits that keep one peer from harming the others.

- How long a peer may keep the broker waiting: with its hello, within a frame, and with reading its replies.
- Memory for unfinished frames: one budget for all connections, first come, first served.
- Memory for replies that peers have not read: one budget for all connections. A transport keeps each write whole until
  its last byte is taken, and a batch keeps the frame that it came in, so both count in full. Replies that the kernel
  takes at once cost nothing here.
- How many connections the broker serves; later ones receive the reason and are closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.errors import Fatal, FrameStalled, HelloTimeout, SlowReader, TooManyConnections

if TYPE_CHECKING:
    from .connection import Connection

BYTES_PER_S: Final = 1 << 20  # a frame must come at this rate, beyond the time that any frame has
CONTENDED_S: Final = 5.0  # that time, while others wait for the memory an unfinished frame holds


class PeerLimits(NamedTuple):
    """What the operator allows."""

    hello_s: float
    stall_s: float


class Peer(NamedTuple):
    """What can be seen of a peer at some moment."""

    greeted: bool
    unfinished: int | None  # size of the frame we wait for, None if we wait for none
    contended: bool  # whether others wait for the memory of unfinished frames
    unread: int  # bytes of answers that it has not taken
    taken: int  # bytes of answers that it has taken, ever


class PeerTimeouts:
    """
    The broker's patience with one peer.

    A peer that takes even a little of its answers is waited for; one that sends a frame byte by byte is not, since an
    unfinished frame holds memory that others need.
    """

    __slots__ = ("_frame_at", "_opened_at", "_taken", "_taken_at")

    def __init__(self, now: float) -> None:
        self._opened_at = now
        self._frame_at = now
        self._taken = 0
        self._taken_at = now

    def frame_began(self, now: float) -> None:
        """Another frame than before is unfinished, or its wait so far was not the peer's fault."""
        self._frame_at = now

    @property
    def heard_at(self) -> float:
        """When the peer last began or ended a frame."""
        return self._frame_at

    def judge(self, now: float, peer: Peer, limits: PeerLimits) -> Fatal | None:
        """Why the connection has to end, if it has to. Called about once a second."""
        if not peer.greeted:
            late = now - self._opened_at > limits.hello_s
            return HelloTimeout(f"no hello within {limits.hello_s:g} s") if late else None
        if not peer.unread or peer.taken > self._taken:
            self._taken, self._taken_at = peer.taken, now
        elif now - self._taken_at > limits.stall_s:
            return SlowReader(f"answers were not read for {limits.stall_s:g} s")
        if peer.unfinished is None:
            return None
        allowed = min(limits.stall_s, CONTENDED_S) if peer.contended else limits.stall_s
        allowed += peer.unfinished / BYTES_PER_S
        waited = now - self._frame_at
        return FrameStalled(f"a frame was begun and not finished within {allowed:.0f} s") if waited > allowed else None


class ReceiveBudget:
    """
    Bytes that connections may hold in copies that outlive a read callback.

    A charge is granted while the sum stays within ``limit`` and no other connection waits; the only holder always
    gets what it asks for, so that a frame larger than the whole budget cannot wait for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[Connection] = deque()

    @property
    def contended(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def charge(self, who: Connection, charged: int, needed: int) -> bool:
        """Change what ``who`` holds from ``charged`` to ``needed``; False puts it in line and changes nothing."""
        if needed > charged and not self._fits(who, charged, needed):
            if who not in self._waiting:
                self._waiting.append(who)
            return False
        self._leave_queue(who)
        self.used += needed - charged
        if needed <= charged:
            self._wake()
        return True

    def _fits(self, who: Connection, charged: int, needed: int) -> bool:
        if self._waiting and self._waiting[0] is not who:
            return False
        return self.used <= charged or self.used - charged + needed <= self._limit

    def give_back(self, who: Connection, charged: int) -> None:
        """``who`` is gone."""
        self._leave_queue(who)
        self.used -= charged
        self._wake()

    def _leave_queue(self, who: Connection) -> None:
        if who in self._waiting:
            self._waiting.remove(who)

    def _wake(self) -> None:
        """Let the first in the queue try again, then the next, as long as each gets what it needs."""
        while self._waiting:
            first = self._waiting[0]
            first.budget_freed()
            if self._waiting and self._waiting[0] is first:
                return


log = get_broker_logger(__name__)
FRACTION: Final = 8  # a connection may hold this part of what is free; as much is made free when nothing is
SMALLEST_SHARE: Final = 64 << 10
ENTRY_BYTES: Final = 64 << 10  # smaller writes are counted together
WRITE_OVERHEAD: Final = 400  # bytes of memory that a write which waits takes besides its buffers
BUFFER_OVERHEAD: Final = 100


class AnswerBudget:
    """
    Bounds the memory of unread answers, without harm to connections that read.

    A connection gets no further pulls while it holds more than its :attr:`share`, an eighth of what is free, so that a
    few that read nothing cannot take all of it. Where ``limit`` is passed nevertheless, the connections with the most
    bytes for the longest time without any progress are aborted, until an eighth is free. The only holder is left
    alone: an answer larger than the whole budget must be readable.
    """

    def __init__(self, limit: int, *, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._holders: set[Unread] = set()
        self.used = 0
        self.evicted = 0

    @property
    def share(self) -> int:
        """How many bytes of unread answers a connection may have before its pulls wait."""
        return max((self._limit - self.used) // FRACTION, SMALLEST_SHARE)

    def charge(self, holder: Unread, change: int) -> None:
        """Count what ``holder`` has got more or less than before."""
        self.used += change
        if not holder.memory:
            self._holders.discard(holder)
            return
        self._holders.add(holder)
        if change > 0 and self.used > self._limit:
            self._make_room()

    def _make_room(self) -> None:
        now = self._now()
        for holder in tuple(self._holders):
            holder.settle(now)
        if self.used <= self._limit:
            return
        for holder in sorted(self._holders, key=lambda holder: holder.burden(now), reverse=True):
            spare = self._limit // FRACTION if holder.burden(now)[0] else 0  # never at the cost of one that reads
            if self.used <= self._limit - spare or len(self._holders) == 1:
                return
            self.evicted += 1
            holder.evict(now)


class Unread:
    """Tracks the answers of one connection that wait to be read. ``memory`` is the memory they take."""

    __slots__ = (
        "_budget", "_high_water", "_kept", "_moved_at", "_peer", "_taken", "_transport", "_writes", "memory", "written",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, budget: AnswerBudget, high_water: int, peer: str) -> None:
        self._transport = transport
        self._budget = budget
        self._high_water = high_water
        self._peer = peer
        self._writes: deque[tuple[int, int]] = deque()  # up to which byte of all that was written, and its memory
        self._kept = 0
        self._taken = 0
        self._moved_at = 0.0  # when the peer was last seen to have taken something, or had nothing to take
        self.memory = 0
        self.written = 0
        self.resumed()

    @property
    def size(self) -> int:
        """Bytes that the peer has not taken."""
        return self._transport.get_write_buffer_size()

    def keeps(self, size: int) -> None:
        """Note memory besides their own bytes that the answers of the next write keep."""
        self._kept += size

    def wrote(self, size: int, buffers: int, now: float) -> None:
        """Count a write that the transport was just given."""
        self.written += size
        kept, self._kept = self._kept, 0
        if not self.size:
            self.forget()
            return
        if not self.memory:
            self._moved_at = now
        self.settle(now)
        cost = size + kept + WRITE_OVERHEAD + BUFFER_OVERHEAD * buffers
        small = self._writes.pop()[1] if self._writes and self._writes[-1][1] < ENTRY_BYTES else 0
        self._writes.append((self.written, small + cost))
        self.memory += cost
        self._budget.charge(self, cost)

    def settle(self, now: float) -> None:
        """Notice what the peer has taken."""
        taken = self.written - self.size
        if taken > self._taken:
            self._taken, self._moved_at = taken, now
        freed = 0
        while self._writes and self._writes[0][0] <= taken:
            freed += self._writes.popleft()[1]
        if freed:
            self.memory -= freed
            self._budget.charge(self, -freed)

    def forget(self) -> None:
        """Release everything: all was taken, or the connection is gone."""
        if self.memory:
            freed, self.memory = self.memory, 0
            self._writes.clear()
            self._budget.charge(self, -freed)

    @property
    def is_flooding(self) -> bool:
        """Whether so much is held that no more requests are to be read."""
        return self._exceeds(4)

    def pause_if_much(self) -> None:
        """Pause writing until most was taken, if more is held than the connection's share."""
        if self._exceeds(1):
            self._transport.set_write_buffer_limits(high=min(self._high_water, self.size // 2))

    def _exceeds(self, times: int) -> bool:
        share = self._budget.share
        return self.memory > times * share or self.size > times * min(self._high_water, share)

    def resumed(self) -> None:
        """Pause writing at the mark that holds while there is room."""
        self._transport.set_write_buffer_limits(high=self._high_water)

    def burden(self, now: float) -> tuple[float, int]:
        """Return what the answers cost the others: bytes times seconds without progress, then bytes."""
        return self.memory * (now - self._moved_at), self.memory

    def evict(self, now: float) -> None:
        """Abort the connection: it reads nothing, so it cannot be given a reason."""
        log.warning("connection.evicted", peer=self._peer, held=self.memory, waited_s=round(now - self._moved_at, 3))
        self.forget()
        self._transport.abort()


MAX_TURNED_AWAY: Final = 16  # connections beyond the limit whose reason is being sent


class Admission:
    """The connections that are served, ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.connections: set[Connection] = set()
        self._most = most
        self._turned_away: dict[Connection, None] = {}  # in the order they came

    def opened(self, connection: Connection) -> TooManyConnections | None:
        """A connection came; the reason if it may not stay."""
        if len(self.connections) >= self._most:
            self._turn_away(connection)
            return TooManyConnections(f"the broker has {self._most} connections, as many as it may")
        self.connections.add(connection)
        return None

    def closed(self, connection: Connection) -> None:
        """A connection ended."""
        self.connections.discard(connection)
        self._turned_away.pop(connection, None)

    def _turn_away(self, connection: Connection) -> None:
        """Sending the reason takes a moment and a descriptor: the connection that had the longest moment makes room."""
        if len(self._turned_away) >= MAX_TURNED_AWAY:
            eldest = next(iter(self._turned_away))
            del self._turned_away[eldest]
            eldest.abort()
        self._turned_away[connection] = None
