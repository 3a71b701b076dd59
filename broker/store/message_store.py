"""
The store as the services see it: stage, write, expose, read.

Batches of one loop turn are staged, written together and then published in the queue indexes. ``expose`` makes
them readable: at once when answers do not wait for the disk, else when the flusher has posted their position.
"""

from __future__ import annotations

import shutil
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq.wire import batch as batches
from rmq.wire import layout
from rmq.wire.columns import TagColumn
from rmq.wire.errors import WireError
from rmq.wire.model import MessageQueue

from ..log import get_logger
from ..services.state import Change, Started, TopicDeleted, pack_changes, unpack_changes
from .commitlog import CommitLog
from .consume_queue import ConsumeQueue
from .directory import DataDirectory, StoreError
from .recovery import Cut, recover
from .segment import Segment

log = get_logger(__name__)

MAX_PULL_BATCHES = 512
MAX_PULL_ENTRIES = 20_000
FLUSH_EVERY = 4096  # batches read in recovery, so that waiting entries do not fill the memory
STATE_CHUNK = 2000  # changes in one state batch, far below the size limit
_BASE_OFFSET = struct.Struct(">Q")
_COUNT = struct.Struct(">H")


class Placed(NamedTuple):
    """Where a staged batch will lie; ``end`` is the log position behind it."""

    base_offset: int
    physical_offset: int
    stored_at: int
    end: int


class Found(NamedTuple):
    """Whole batches read from a queue, and where to go on."""

    buffers: list[bytes]
    size: int
    next_offset: int


class Recovered(NamedTuple):
    """What a start found: how much data, and the tail that was cut, if any."""

    batches: int
    messages: int
    cut: Cut | None


class _Owner(NamedTuple):
    base_offset: int
    topic_gen: int
    queue_id: int
    kind: int


class _Publication(NamedTuple):
    queue: MessageQueue
    into: ConsumeQueue  # as it was when staged: before the write the topic may be deleted and made anew
    position: int
    size: int
    messages: int
    tags: TagColumn | None


class MessageStore:
    """
    The log of a data directory and the indexes made from it.

    Not thread-safe: it belongs to the event loop, but for ``log.sync``, which the flusher calls.
    """

    def __init__(
        self,
        directory: DataDirectory,
        *,
        segment_bytes: int,
        wall_us: Callable[[], int],
        segment: type[Segment] = Segment,
    ) -> None:
        self._directory = directory
        self._index_directory = str(directory.consumequeue)
        self._wall_us = wall_us
        self._last_us = 0
        self.log = CommitLog(directory.commitlog, segment_bytes, segment)
        self.log_epoch = 0
        self.store_id = 0
        self._queues: dict[MessageQueue, ConsumeQueue] = {}
        self._to_flush: set[ConsumeQueue] = set()  # those with enough waiting entries
        self._staged: list[_Publication] = []
        self._unexposed: deque[tuple[int, MessageQueue, ConsumeQueue, int]] = deque()  # in log order; ends with an end

    def recover(
        self,
        on_change: Callable[[Change], None],
        on_batch: Callable[[layout.Header], None],
        is_live: Callable[[layout.Header], bool] = lambda header: True,
    ) -> Recovered:
        """
        Read the whole log once: indexes are rebuilt, changes and data headers shown to the callbacks in order.

        ``is_live`` tells whether a batch belongs to a topic that exists; others are shown and not indexed.

        Raises:
            StoreError: the log is damaged where it had been synced.
        """
        shutil.rmtree(self._directory.consumequeue, ignore_errors=True)
        totals = [0, 0]

        def visit(checked: batches.Checked, whole: memoryview) -> None:
            header, columns = checked
            self.log_epoch = max(self.log_epoch, header.log_epoch)
            self._last_us = max(self._last_us, header.stored_at)
            if header.kind == layout.KIND_STATE:
                for change in _changes(header, whole):
                    if isinstance(change, Started):
                        self.store_id = change.store_id
                    on_change(change)
                    if isinstance(change, TopicDeleted):
                        self.drop_topic(change.topic, change.generation)
                return
            if not is_live(header):
                on_batch(header)
                return
            totals[0] += 1
            totals[1] += header.count
            queue = self.queue(MessageQueue(header.topic, header.queue_id))
            if header.base_offset != queue.end:
                place = f"{header.topic}/{header.queue_id} offset {queue.end}"
                raise StoreError(
                    f"the log misses {place}: the batch at {header.physical_offset} begins at {header.base_offset}"
                )
            queue.end += header.count
            self._index(queue, header.physical_offset, header.size, header.count, columns.tags)
            queue.readable = queue.published
            if not totals[0] % FLUSH_EVERY:
                self.flush_indexes()
            on_batch(header)

        cut = recover(self.log, self._directory.quarantine, visit)
        self.store_id = self._directory.name(self.store_id or None)
        self.log_epoch += 1
        return Recovered(totals[0], totals[1], cut)

    def queue(self, of: MessageQueue) -> ConsumeQueue:
        """The index of a queue; whether the queue exists is the topic table's to say."""
        queue = self._queues.get(of)
        if queue is None:
            queue = ConsumeQueue(f"{self._index_directory}/{of.topic}/{of.queue_id}")
            self._queues[of] = queue
        return queue

    def drop_topic(self, topic: str, generation: int) -> None:
        """
        Forget the queues of a topic that was deleted; a new one of its name begins at 0.

        What of it is staged or unexposed still reaches the log, where the end of the generation stands behind it.
        """
        for of in [of for of in self._queues if of.topic == topic]:
            self._to_flush.discard(self._queues.pop(of))

    def _index(self, queue: ConsumeQueue, position: int, size: int, count: int, tags: TagColumn | None) -> None:
        if queue.add(position, size, count, tags):
            self._to_flush.add(queue)

    def stage(self, to: MessageQueue, generation: int, batch: bytes, checked: batches.Checked) -> Placed:
        """Give a judged batch its offset and place; it exists once :meth:`write` returned."""
        header = checked.header
        queue = self.queue(to)
        owner = _Owner(queue.end, generation, to.queue_id, layout.KIND_DATA)
        placed = self._place(batch, header.header_size, owner)
        at, tags = placed.physical_offset, checked.columns.tags
        self._staged.append(_Publication(to, queue, at, len(batch), header.count, tags))
        queue.end += header.count
        return placed

    def stage_changes(self, changes: Sequence[Change]) -> None:
        """Put state changes in line, behind what was staged before."""
        for i in range(0, len(changes), STATE_CHUNK):
            body = pack_changes(changes[i : i + STATE_CHUNK])
            batch = batches.encode("", 0, batches.Rows([body], self._now_us()), kind=layout.KIND_STATE)
            self._place(batch, layout.FIXED_HEADER + layout.ALIGN, _Owner(0, 0, 0, layout.KIND_STATE))

    def _place(self, batch: bytes | bytearray, header_size: int, owner: _Owner) -> Placed:
        log, stored_at = self.log, self._now_us()
        position = log.end
        by = layout.Stamp(self.log_epoch, position, owner.base_offset, stored_at, log.durable, 0, *owner[1:])
        log.stage(layout.stamp(batch, header_size, by), memoryview(batch)[layout.BROKER_PART :], len(batch))
        return Placed(owner.base_offset, position, stored_at, log.end)

    def _now_us(self) -> int:
        self._last_us = max(self._last_us, self._wall_us())  # stored_at never falls, whatever the clock does
        return self._last_us

    def write(self) -> None:
        """
        Append everything staged and index it.

        Raises:
            OSError: none of it exists; offsets and positions are given out again.
        """
        staged, self._staged = self._staged, []
        try:
            self.log.write()
        except OSError:
            for item in staged:
                item.into.end = item.into.published
            raise
        for item in staged:  # nothing from here on may raise: the batches exist
            queue = item.into
            if self._queues.get(item.queue) is queue:  # else the topic was deleted in this turn
                self._index(queue, item.position, item.size, item.messages, item.tags)
                self._unexposed.append((item.position + item.size, item.queue, queue, queue.published))

    def expose(self, until: int) -> list[MessageQueue]:
        """Make readable what lies below a log position; return the queues that grew."""
        grown: dict[MessageQueue, None] = {}
        while self._unexposed and self._unexposed[0][0] <= until:
            _, of, queue, end = self._unexposed.popleft()
            queue.readable = end
            if self._queues.get(of) is queue:  # else the topic was deleted since
                grown[of] = None
        return list(grown)

    def read(
        self, of: MessageQueue, offset: int, max_bytes: int, out_of_time: Callable[[], bool] = lambda: False
    ) -> Found:
        """Batches from the one that holds ``offset`` on, at least one; the caller knows that ``offset`` is readable."""
        where = self.queue(of).locate(
            offset, max_bytes=max_bytes, max_batches=MAX_PULL_BATCHES, max_entries=MAX_PULL_ENTRIES
        )
        buffers = []
        for position, size in where:
            buffers.append(self.log.read(position, size))
            if out_of_time():
                break
        last = buffers[-1]
        (base,) = _BASE_OFFSET.unpack_from(last, 24)
        (count,) = _COUNT.unpack_from(last, 78)
        return Found(buffers, sum(map(len, buffers)), base + count)

    def flush_indexes(self) -> None:
        """Write index entries where enough wait in memory, to free it; they can be made again from the log."""
        while self._to_flush:
            queue = self._to_flush.pop()
            try:
                queue.flush()
            except OSError as error:  # the entries stay in memory
                self._to_flush.add(queue)
                log.error("index.write_failed", error=str(error))
                return

    def close(self) -> None:
        """Sync the log and let go of the directory; what waits for the indexes is made again at the next start."""
        try:
            self.log.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the directory as a crash would: what is not durable may be lost."""
        self.log.close()
        self._directory.close()


def _changes(header: layout.Header, batch: memoryview) -> list[Change]:
    body = bytes(batch[header.header_size + header.meta_size :][: header.body_size])
    try:
        return unpack_changes(body)
    except WireError as error:
        raise StoreError(f"the state batch at {header.physical_offset} cannot be used: {error.text}") from error
