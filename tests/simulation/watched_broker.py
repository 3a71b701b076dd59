"""The real broker, which notes for a test whose progress it took, what it gave up and what was reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from rmq.broker.app import Broker
from rmq.broker.net.connection import Connection, Handler
from rmq.broker.state.offsets import Entry, Ledger
from rmq.broker.store import changes
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from simulation.history import Committed, DeadLettered, Event, OffsetReset

_SHAPES: dict[Op, Any] = {
    Op.COMMIT: ops.Commit, Op.RELEASE: ops.Release, Op.LEAVE: ops.Leave, Op.PULL: ops.Pull, Op.STARTING: ops.Starting,
}  # fmt: skip


class WatchedLedger(Ledger):
    """Tells of dead letters, with the progress that comes with them, and of resets; but not while the log is read."""

    def __init__(self, group: str, note: Callable[[Event], None], now: Callable[[], float]) -> None:
        super().__init__()
        self._group = group
        self._note = note
        self._now = now
        self.live = False
        self.last_epoch: Callable[[], int] = lambda: 0

    def apply(self, change: Entry) -> None:
        super().apply(change)
        if not self.live or isinstance(change, changes.DeadHandled) or change.group != self._group:
            return
        queue = MessageQueue(change.topic, change.queue_id)
        if isinstance(change, changes.Copied):
            for offset in change.queue_offsets:
                self._note(DeadLettered(self._now(), queue, offset))
        elif isinstance(change, changes.Committed):
            self._note(Committed(self._now(), queue, change.queue_offset))

    def reset(self, group: str, queue: MessageQueue, queue_offset: int) -> list[changes.Change]:
        if group == self._group:
            self._note(OffsetReset(self._now(), queue, queue_offset, self.last_epoch()))
        return super().reset(group, queue, queue_offset)


class WatchedBroker(Broker):
    """Notes ``Committed`` for every request that moves the offset of a group, and what its ledger tells."""

    _group = ""
    _note: Callable[[Event], None]
    _ledger: WatchedLedger

    def watch(self, group: str, note: Callable[[Event], None]) -> None:
        """Have the progress of a group noted from the start on."""
        self._group = group
        self._note = note

    async def start(self) -> None:
        await super().start()
        self._ledger.live = True

    def _build_services(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_services(loop)
        self._ledger = WatchedLedger(self._group, self._note, self.now)
        self._ledger.last_epoch = lambda: self._locks._last_epoch

    def _build_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_handlers(loop)
        for op in _SHAPES:
            self.handlers[op] = partial(self._watched, op, self.handlers[op])

    def _watched(self, op: Op, handler: Handler, connection: Connection, request_id: int, payload: Any) -> Any:
        entries = _progress(op, payload, self._group)
        before = [self._progress.committed(self._group, queue) for queue, _ in entries]
        answer = handler(connection, request_id, payload)
        for (queue, epoch), offset in zip(entries, before, strict=True):
            after = self._progress.committed(self._group, queue)
            if after != offset:
                self._note(Committed(self.now(), queue, after, epoch))
        return answer

    def fall(self) -> None:
        """The process is dead: give back what the test process holds for it."""
        self._stopping = self._stopped = True
        self._timers.cancel()
        self._abandon()

    def left_behind(self) -> list[str]:
        """What is still held although everybody has left."""
        return left_behind(self)


def left_behind(broker: Broker) -> list[str]:
    """What a broker still holds although everybody has left."""
    left = [f"{len(broker._locks)} leases"] if len(broker._locks) else []
    left += [f"{len(broker._parked_pulls)} parked pulls"] if len(broker._parked_pulls) else []
    left += [f"{broker._pulls.rescued} pulls that nobody woke"] if broker._pulls.rescued else []
    return [f"left behind: {what}" for what in left]


@cache
def watched(broker: type[Broker]) -> type[WatchedBroker]:
    """A broker class, watched."""
    return type(f"Watched{broker.__name__}", (WatchedBroker, broker), {})


def _progress(op: Op, payload: Any, group: str) -> list[tuple[MessageQueue, int | None]]:
    """The queues whose progress a request reports, and the epochs it does so under."""
    request = decode(_SHAPES[op], payload)
    if request.group != group:
        return []
    if isinstance(request, ops.Pull):
        return [(MessageQueue(*q[:2]), q.epoch) for q in request.queues if q.commit_offset != NO_OFFSET]
    if isinstance(request, ops.Starting):
        return [(MessageQueue(request.topic, request.queue_id), request.epoch)]
    entries = request.entries if isinstance(request, ops.Commit) else request.leases
    return [(MessageQueue(*entry[:2]), entry.epoch) for entry in entries if entry.queue_offset != NO_OFFSET]
