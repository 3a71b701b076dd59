"""The log of the fake broker: batches by queue, what of them can be read, and who waits for more."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple

from rmq.wire import errors
from rmq.wire.batch import batch, layout
from rmq.wire.batch.compression import Codec
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops import core as ops

STORE_ID = 0xABCDEF


class Stored(NamedTuple):
    """A batch in the log of a queue."""

    base_offset: int
    count: int
    data: bytes
    log_epoch: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


class FakeLog:
    """One list of batches for each queue; a test may damage it, shorten it at both ends, and grow it."""

    def __init__(self) -> None:
        self.log_epoch = 1
        self.compares = True  # whether it tells readers that the log has lost what they have
        self.generations: dict[str, int] = {}
        self.damaged: dict[MessageQueue, range] = {}
        self.logs: dict[MessageQueue, list[Stored]] = defaultdict(list)
        self.min_offsets: dict[MessageQueue, int] = {}
        self._changed: dict[MessageQueue, asyncio.Event] = defaultdict(asyncio.Event)
        self._generation = 0

    def send(
        self,
        topic: str,
        queue_id: int,
        *bodies: bytes,
        tags: list[str | None] | None = None,
        codec: Codec | None = None,
    ) -> None:
        """Append one batch."""
        queue = MessageQueue(topic, queue_id)
        base = self.max_offset(queue)
        rows = batch.Rows(bodies, 1_700_000_000_000_000, tags=tags)
        encoded = batch.encode(topic, queue_id, rows, codec=codec)
        stamp = layout.Stamp(
            self.log_epoch, base * 8, base, 1_700_000_000_000_000, 0, 0, self._generation_of(topic), queue_id,
            layout.KIND_DATA,
        )  # fmt: skip
        header = layout.stamp(encoded, layout.parse_header(encoded).header_size, stamp)
        self.logs[queue].append(Stored(base, len(bodies), header + encoded[layout.BROKER_PART :], self.log_epoch))
        self._wake(queue)

    def max_offset(self, queue: MessageQueue) -> int:
        log = self.logs[queue]
        return log[-1].end_offset if log else 0

    # What pulls find

    def _unreadable(self, queue: MessageQueue, wanted: ops.PullQueue, low: int, high: int) -> ops.PullResult | None:
        at = wanted.queue_offset
        agreed = self._agreed(queue, at, wanted.log_epoch)
        if agreed < at:
            return ops.PullResult(0, errors.LogTruncated.code, agreed, low, high, b"", "truncated")
        if at < low:
            return ops.PullResult(0, errors.MessagesLost.code, low, low, high, b"", "retention")
        if at > high:
            return ops.PullResult(0, errors.OffsetOutOfRange.code, at, low, high, b"", "out of range")
        if at in (damaged := self.damaged.get(queue, range(0))):
            return ops.PullResult(0, errors.Damaged.code, damaged.stop, low, high, b"", "rot")
        return None

    def _agreed(self, queue: MessageQueue, offset: int, log_epoch: int) -> int:
        """Up to where a reader whose message before ``offset`` has this log epoch holds what the log does."""
        if not log_epoch or not self.compares:
            return offset
        return min(offset, max((s.end_offset for s in self.logs[queue] if s.log_epoch <= log_epoch), default=0))

    def _found(self, queue: MessageQueue, offset: int, room: int, low: int, high: int) -> ops.PullResult:
        blob, following = b"", offset
        for stored in self.logs[queue]:
            end = stored.end_offset
            if end <= offset:
                continue
            if stored.base_offset in self.damaged.get(queue, ()):
                break
            if blob and len(blob) + len(stored.data) > room:
                break
            blob, following = blob + stored.data, end
        return ops.PullResult(0, 0, following, low, high, blob)

    # Inside

    def _generation_of(self, topic: str) -> int:
        if topic not in self.generations:
            self._generation += 1
            self.generations[topic] = self._generation
        return self.generations[topic]

    def _wake(self, queue: MessageQueue) -> None:
        self._changed[queue].set()
