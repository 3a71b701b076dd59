"""The real broker, which notes for a test what it took of the progress of its groups; and all that lies in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final

from rmq.broker.app import Broker
from rmq.broker.net.connection import Connection as ServerConnection
from rmq.broker.net.connection import Handler
from rmq.broker.state.offsets import Entry, Ledger, OffsetTable
from rmq.broker.store import changes
from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op
from rmq.wire.protocol.ops.deferrals import DelayPage, ListDelays
from rmq.wire.stores import StoreIds

from simulation.history import Committed, DeadLettered, Event, OffsetReset, Row

BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)  # the time of day at which a simulation begins
BEGAN_US: Final = int(BEGAN.timestamp()) * 1_000_000
_SHAPES: dict[Op, Any] = {
    Op.COMMIT: ops.Commit, Op.RELEASE: ops.Release, Op.LEAVE: ops.Leave, Op.PULL: ops.Pull, Op.STARTING: ops.Starting,
}  # fmt: skip


class NotingOffsets(OffsetTable):
    """Notes all progress, with the epoch under which it is being reported; but not while the log is read."""

    def __init__(self, note: Callable[[Event], None], now: Callable[[], float]) -> None:
        super().__init__()
        self._note = note
        self._now = now
        self.live = False
        self.epochs: dict[MessageQueue, int | None] = {}  # of the request that is being handled

    def _put(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        before = self.get(group, queue)
        super()._put(group, queue, queue_offset)
        if self.live and queue_offset != before:
            self._note(Committed(self._now(), queue, queue_offset, self.epochs.get(queue), group))


class NotingLedger(Ledger):
    """Notes dead letters and resets; but not while the log is read."""

    offsets: NotingOffsets

    def __init__(
        self, tables: Ledger, note: Callable[[Event], None], now: Callable[[], float], last_epoch: Callable[[], int]
    ) -> None:
        vars(self).update(vars(tables))  # those of a broken build, too
        self.offsets = NotingOffsets(note, now)
        self._note = note
        self._now = now
        self._last_epoch = last_epoch

    def apply(self, change: Entry) -> None:
        super().apply(change)
        if self.offsets.live and isinstance(change, changes.Copied):
            queue = MessageQueue(change.topic, change.queue_id)
            for offset in change.queue_offsets:
                self._note(DeadLettered(self._now(), queue, offset, change.group))

    def reset(self, group: str, queue: MessageQueue, queue_offset: int) -> list[changes.Change]:
        self._note(OffsetReset(self._now(), queue, queue_offset, self._last_epoch(), group))
        return super().reset(group, queue, queue_offset)


class NotingBroker(Broker):
    """Notes ``Committed`` whenever a group advances, and what its ledger notes."""

    note: Callable[[Event], None]
    _ledger: NotingLedger

    async def start(self) -> None:
        await super().start()
        self._ledger.offsets.live = True

    def _build_services(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_services(loop)
        self._ledger = NotingLedger(self._ledger, self.note, self.now, lambda: self._locks._last_epoch)

    def _build_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_handlers(loop)
        for op in _SHAPES:
            self.handlers[op] = partial(self._watched, op, self.handlers[op])

    def _watched(self, op: Op, handler: Handler, connection: ServerConnection, request_id: int, payload: Any) -> object:
        offsets = self._ledger.offsets
        offsets.epochs = _epochs(op, payload)
        try:
            return handler(connection, request_id, payload)
        finally:
            offsets.epochs = {}

    def committed(self, group: str, queue: MessageQueue) -> int:
        """Return the progress of a group."""
        return self._ledger.offsets.get(group, queue)

    def fall(self) -> None:
        """Give back what the test process holds for a process that died."""
        self._stopping = self._stopped = True
        self._timers.cancel()
        self._abandon()

    def left_behind(self) -> list[str]:
        """Return what is still held although everybody has left."""
        left = [f"{len(self._locks)} leases"] if len(self._locks) else []
        left += [f"{len(self._parked_pulls)} parked pulls"] if len(self._parked_pulls) else []
        left += [f"{self._pulls.rescued} pulls that were never woken"] if self._pulls.rescued else []
        return [f"still held: {what}" for what in left]


@cache
def noting(broker: type[Broker]) -> type[NotingBroker]:
    """Return a broker class that notes."""
    return type(f"Noting{broker.__name__}", (NotingBroker, broker), {})


def _epochs(op: Op, payload: Any) -> dict[MessageQueue, int | None]:
    """Return the queues whose progress a request reports, and the epochs it does so under."""
    request = decode(_SHAPES[op], payload)
    if isinstance(request, ops.Pull):
        return {MessageQueue(*q[:2]): q.epoch for q in request.queues if q.commit_offset != NO_OFFSET}
    if isinstance(request, ops.Starting):
        return {MessageQueue(request.topic, request.queue_id): request.epoch}
    entries = request.entries if isinstance(request, ops.Commit) else request.leases
    return {MessageQueue(*entry[:2]): entry.epoch for entry in entries if entry.queue_offset != NO_OFFSET}


async def read_rows(connection: Connection, topics: Iterable[str]) -> list[Row]:
    """Return all messages of these topics; one that does not exist has none."""
    found: list[Row] = []
    wanted = set(topics)
    listed = decode_list(ops.TopicInfo, await connection.request(Op.LIST_TOPICS, ops.ListTopics()))
    queues = [
        MessageQueue(one.topic, queue_id)
        for one in listed
        if one.topic in wanted
        for queue_id in range(len(one.queues))
    ]
    ranges = await connection.request(Op.RANGES, ops.Ranges(None, [ops.QueueRef(*queue) for queue in queues]))
    for queue, held in zip(queues, decode_list(ops.Range, ranges), strict=True):
        offset = held.min_offset
        while offset < held.max_offset:
            asked = ops.Pull(None, 0, 1 << 20, [ops.PullQueue(*queue, offset)])
            (result,) = decode_list(ops.PullResult, await connection.request(Op.PULL, asked))
            for batch in batches.read_all(result.batches, stores=StoreIds(1)):
                found += [_row(queue, message) for message in batch.messages(offset)]
            offset = result.next_offset
    return found


def _row(queue: MessageQueue, message: StoredMessage) -> Row:
    said = message.properties
    parts = [said.get(f"RMQ_ORIGIN_{part}") for part in ("TOPIC", "QUEUE", "OFFSET")]
    first = None if parts[0] is None else "/".join(map(str, parts))
    at = (message._origin.header.stored_at - BEGAN_US) / 1e6
    return Row(queue, message.queue_offset, message.body, message.attempt - 1, at, message.tag, message.copy_of, first)


async def waiting(connection: Connection) -> int:
    """Return how many messages are deferred."""
    return decode(DelayPage, await connection.request(Op.LIST_DELAYS, ListDelays(limit=1))).messages
