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
from rmq.wire.columns import Columns, TagColumn
from rmq.wire.errors import WireError
from rmq.wire.model import MessageQueue

from ..log import get_logger
from ..services.state import Change, Started, pack_changes, unpack_changes
from .commitlog import CommitLog
from .consume_queue import ConsumeQueue
from .directory import DataDirectory, StoreError
from .files import Files
from .key_blocks import Entry, hash_column
from .key_index import KeyIndex
from .log_reader import LogReader
from .lookup import Locator
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
    position: int
    size: int
    messages: int
    tags: TagColumn | None
    keys: Entry | None


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
        self._files = Files()
        self._files.remove_tree(directory.path / "index")  # made again by recovery
        self.keys = KeyIndex(self._files, directory.path / "index")
        self.exposed = 0  # the log position up to which batches can be read
        self.log_epoch = 0
        self.store_id = 0
        self._queues: dict[MessageQueue, ConsumeQueue] = {}
        self._to_flush: set[ConsumeQueue] = set()  # those with enough waiting entries
        self._staged: list[_Publication] = []
        self._unexposed: deque[tuple[int, MessageQueue, int]] = deque()  # (position, queue, end), in log order

    def recover(self, on_change: Callable[[Change], None], on_batch: Callable[[layout.Header], None]) -> Recovered:
        """
        Read the whole log once: indexes are rebuilt, changes and data headers shown to the callbacks in order.

        Raises:
            StoreError: the log is damaged where it had been synced.
        """
        shutil.rmtree(self._directory.consumequeue, ignore_errors=True)
        totals = [0, 0]

        def visit(checked: batches.Checked, whole: memoryview) -> None:
            header, columns = checked
            entry = _key_entry(header.physical_offset, header.stored_at, columns)
            self._index_keys([] if entry is None else [entry], header.physical_offset, header.size)
            self.log_epoch = max(self.log_epoch, header.log_epoch)
            self._last_us = max(self._last_us, header.stored_at)
            if header.kind == layout.KIND_STATE:
                for change in _changes(header, whole):
                    if isinstance(change, Started):
                        self.store_id = change.store_id
                    on_change(change)
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
        self.exposed = self.log.written
        return Recovered(totals[0], totals[1], cut)

    def queue(self, of: MessageQueue) -> ConsumeQueue:
        """The index of a queue; whether the queue exists is the topic table's to say."""
        queue = self._queues.get(of)
        if queue is None:
            queue = ConsumeQueue(f"{self._index_directory}/{of.topic}/{of.queue_id}")
            self._queues[of] = queue
        return queue

    def _index(self, queue: ConsumeQueue, position: int, size: int, count: int, tags: TagColumn | None) -> None:
        if queue.add(position, size, count, tags):
            self._to_flush.add(queue)

    def stage(self, to: MessageQueue, generation: int, batch: bytes, checked: batches.Checked) -> Placed:
        """Give a judged batch its offset and place; it exists once :meth:`write` returned."""
        header = checked.header
        queue = self.queue(to)
        owner = _Owner(queue.end, generation, to.queue_id, layout.KIND_DATA)
        placed = self._place(batch, header.header_size, owner)
        keys = _key_entry(placed.physical_offset, placed.stored_at, checked.columns)
        self._staged.append(
            _Publication(to, placed.physical_offset, len(batch), header.count, checked.columns.tags, keys)
        )
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
        began = self.log.written
        try:
            self.log.write()
        except OSError:
            for item in staged:
                queue = self._queues[item.queue]
                queue.end = queue.published
            raise
        for item in staged:  # nothing from here on may raise: the batches exist
            queue = self._queues[item.queue]
            self._index(queue, item.position, item.size, item.messages, item.tags)
            self._unexposed.append((item.position + item.size, item.queue, queue.published))
        if self.log.written > began:
            self._index_keys([item.keys for item in staged if item.keys is not None], began, self.log.written - began)

    def _index_keys(self, entries: list[Entry], position: int, size: int) -> None:
        try:
            self.keys.extend(self.log.segment_at(position).start, entries, position, position + size)
        except OSError as error:  # the range stays a gap, which queries look up in the log
            log.error("key_index.write_failed", error=str(error))

    def reader(self) -> LogReader:
        """The log as it can be read now, for a thread."""
        return LogReader(self._files, [(segment.start, segment.path) for segment in self.log.segments], self.exposed)

    def locator(self, of: MessageQueue) -> Locator:
        """The index of a queue as it is now, for a thread."""
        return self.queue(of).locator()

    def expose(self, until: int) -> list[MessageQueue]:
        """Make readable what lies below a log position; return the queues that grew."""
        grown: dict[MessageQueue, None] = {}
        self.exposed = max(self.exposed, until)
        while self._unexposed and self._unexposed[0][0] <= until:
            _, queue, end = self._unexposed.popleft()
            self._queues[queue].readable = end
            grown[queue] = None
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


def _key_entry(position: int, stored_at: int, columns: Columns) -> Entry | None:
    return None if not columns.key_hashes else Entry(position, stored_at, hash_column(columns.key_hashes))


def _changes(header: layout.Header, batch: memoryview) -> list[Change]:
    body = bytes(batch[header.header_size + header.meta_size :][: header.body_size])
    try:
        return unpack_changes(body)
    except WireError as error:
        raise StoreError(f"the state batch at {header.physical_offset} cannot be used: {error.text}") from error
