"""The real broker, which notes the progress of all groups for a test; and all that lies in it, read as others read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Final

from rmq.broker.app import Broker
from rmq.broker.state.offsets import OffsetTable
from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.deferrals import DelayPage, ListDelays
from rmq.wire.stores import StoreIds

from simulation.mixed_history import MixedEvent, Row, Stored
from simulation.watched_broker import left_behind

BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)  # the time of day at which a simulation begins
BEGAN_US: Final = int(BEGAN.timestamp()) * 1_000_000


class NotingOffsets(OffsetTable):
    """Tells of progress; but not while the log is read."""

    def __init__(self, note: Callable[[MixedEvent], None], now: Callable[[], float]) -> None:
        super().__init__()
        self._note = note
        self._now = now
        self.live = False

    def _put(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        before = self.get(group, queue)
        super()._put(group, queue, queue_offset)
        if self.live and queue_offset != before:
            self._note(Stored(self._now(), group, queue, queue_offset))


class MixedBroker(Broker):
    """Notes ``Stored`` whenever a group gets on."""

    note: Callable[[MixedEvent], None]
    _offsets: NotingOffsets

    async def start(self) -> None:
        await super().start()
        self._offsets.live = True

    def _build_services(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_services(loop)
        self._offsets = self._ledger.offsets = NotingOffsets(self.note, self.now)

    def fall(self) -> None:
        """The process is dead: give back what the test process holds for it."""
        self._stopping = self._stopped = True
        self._timers.cancel()
        self._abandon()

    def left_behind(self) -> list[str]:
        """What is still held although everybody has left."""
        return left_behind(self)

    def committed(self, group: str, queue: MessageQueue) -> int:
        """The progress of a group."""
        return self._offsets.get(group, queue)


@cache
def mixed(broker: type[Broker]) -> type[MixedBroker]:
    """A broker class, watched."""
    return type(f"Mixed{broker.__name__}", (MixedBroker, broker), {})


async def read_rows(connection: Connection, topics: Iterable[str]) -> list[Row]:
    """All messages of these topics; one that does not exist has none."""
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
    """How many messages wait for their time."""
    return decode(DelayPage, await connection.request(Op.LIST_DELAYS, ListDelays(limit=1))).messages
