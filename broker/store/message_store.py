"""
The store as handlers and jobs see it: stage, write, expose, read.

Batches of one loop turn are staged, written together and then published in the queue indexes. ``expose`` makes
them readable: at once when replies do not wait for the disk, else when the flusher has posted their position.
Every segment but the first begins with a snapshot, so that the segments before it can be removed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.columns import Columns, TagColumn
from rmq.wire.batch.tags import Wanted
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..state.deferred import DeferredBatch, DelayTable
from . import checkpoint as checkpoints
from .changes import Change, QueueBounds, pack_in_pieces
from .checkpoint import BadCheckpoint, Checkpoint
from .commitlog import LIMIT, CommitLog
from .consume_queue import ENTRIES_PER_FILE, Bounds, ConsumeQueue
from .directory import DataDirectory
from .files import IndexFaults
from .history import NO_HISTORY, begin_history
from .index_backlog import IndexBacklog, IndexWork, KeyedBatch
from .index_repair import log_asker
from .key_index import KeyIndex
from .lookup import Locator, LogReader
from .read import ColdRead, Only, ReadBatches, read_now
from .rebuild import Rebuild, StateTables, read_head
from .recovery import Cut, LogDamage, Recovery, files_of
from .retention import remove_indexes
from .scan import Unreadable, read_needed
from .segment import Segment

log = get_broker_logger(__name__)
MAX_PULL_BATCHES = 512
MAX_PULL_ENTRIES = 20_000
SKIM_BYTES = 8 << 20  # of the log that a read for some tags looks at
_READ_BYTES: Final = 8 << 20  # of the log, to see whether the disk can read it
FLUSH_EVERY = 4096  # batches read in recovery, so that waiting entries do not fill the memory


class Recovered(NamedTuple):
    """What a start found: how much it had to read, the tail that was cut, if any, and what is damaged."""

    batches: int
    messages: int
    read_from: int
    cut: Cut | None
    damages: list[LogDamage]


class MessageStore:
    """
    The log of a data directory and the indexes made from it.

    Not thread-safe: it belongs to the event loop, but for ``log.sync``, which the flusher calls. ``snapshot`` returns
    all state; it is set by the composition root, and asked for between two turns only.
    """

    def __init__(
        self,
        directory: DataDirectory,
        *,
        segment_bytes: int,
        wall_us: Callable[[], int],
        entries_per_file: int = ENTRIES_PER_FILE,
        recent_bytes: int = LIMIT,
    ) -> None:
        self.files = directory.files
        self.directory = directory
        self._index_directory = str(directory.consumequeue)
        self._entries_per_file = entries_per_file
        self._wall_us = wall_us
        self.newest_us = 0  # the stored_at of the last batch: it never falls, whatever the clock does
        self.log = CommitLog(self.files, directory.commitlog, segment_bytes, recent_bytes=recent_bytes)
        self.faults = IndexFaults()
        self.keys = KeyIndex(self.files, directory.index, faults=self.faults)
        self.backlog = IndexBacklog(self.files, self.keys, self.faults)
        self.log_epoch = 0
        self.history = NO_HISTORY
        self.stores = NO_HISTORY.stores  # the ids that message ids are made of
        self.snapshot: Callable[[], list[Change]] = list
        self.exposed = 0  # the log position up to which batches can be read
        self.batches_written = 0  # since the start
        self._recovered = 0
        self._last = self._last_written = (-1, 0)  # where the last batch begins, and its header_crc
        self._queues: dict[MessageQueue, ConsumeQueue] = {}
        self._of_topic: dict[str, list[MessageQueue]] = {}  # the same queues: a start asks for those of each topic
        self.delays = DelayTable(segment_bytes)
        self.traffic = Traffic()
        self.on_deferred: Callable[[int], None] = lambda due_at: None  # set by the composition root: who delivers
        self._staged: list[Publication] = []
        self._staged_deferred: list[DeferredBatch] = []  # staged as well
        self._unexposed: deque[tuple[int, MessageQueue, ConsumeQueue, int]] = deque()  # in log order

    # ---- start

    def recover(self, tables: StateTables) -> Recovered:
        """
        Fill queues and tables from the checkpoint and the log after it, or from the log alone.

        Raises:
            StoreError: a newer version wrote here, or the log contradicts itself.
            Unreadable: the disk cannot read all that is needed; nothing of the log was changed.
        """
        known = self._load_checkpoint()
        missing = None if known is None else checkpoints.missing_index(known, self.files, self._index_directory)
        is_outdated = known is not None and self._begin_key_rebuild(known.position)
        if is_outdated and missing is None:
            missing = "the key index has the format of an older version"
        begin = self.log.start if known is None or missing is not None else known.position
        proven = 0 if known is None else known.position
        needs_head = self.log.start > 0 and (known is None or missing is not None)
        rebuild = Rebuild(self, tables, needs_head=needs_head, after_batch=self._after_recovered_batch)
        obsolete: list[str] = []
        if known is not None:
            rebuild.log_epoch, rebuild.stored_at, rebuild.last = known.log_epoch, known.stored_at, known.last
        if known is None:
            self.files.remove_tree(self._index_directory)  # no start uses it without a checkpoint
        elif missing is not None:
            log.warning("checkpoint.without_index", reason=missing, then="the whole log is read")
            rebuild.expect(known.position, known.changes)
        else:
            rebuild.restore(known.changes)
            if self.log.start > 0:
                head = read_head(self.files, str(self.log.segments[0].path), self.log.start)
                obsolete = rebuild.raise_minimums(head.changes if head is not None else ())
        starts = [segment.start for segment in self.log.segments]
        # What the key index keeps is passed over by the walk, which cuts a file of an older format when it comes to it.
        self.keys.recover(starts, begin if is_outdated else max(begin, proven), from_scratch=known is None)
        self.backlog.begin(begin)
        cut = Recovery(self.files, self.log, self.directory.quarantine, rebuild, proven).run(begin)
        rebuild.ended()
        remove_indexes(self.files, obsolete, self.faults)
        self.newest_us = rebuild.stored_at
        self._last = self._last_written = rebuild.last
        self.history = begin_history(self.directory, self.log, rebuild.started, rebuild.log_epoch, self._wall_us())
        self.stores, self.log_epoch = self.history.stores, self.history.log_epoch
        self.exposed = self.log.written
        self.backlog.reach(self.log.written)
        self._collect_garbage()
        return Recovered(rebuild.batches, rebuild.messages, begin, cut, rebuild.damages)

    def _load_checkpoint(self) -> Checkpoint | None:
        try:
            known = checkpoints.load(self.files, self.directory.path)
            if known is not None:
                checkpoints.judge(known, self.files, files_of(self.log))
        except BadCheckpoint as error:
            log.warning("checkpoint.unusable", reason=str(error), then="the whole log is read")
            return None
        return known

    def _begin_key_rebuild(self, position: int) -> bool:
        """
        Return whether the key index is outdated and can be made again, which needs the log before the checkpoint.

        If the disk cannot read it, the start goes on without: queries read the log where the index is outdated.
        """
        if not self.keys.is_outdated():
            return False
        self.keys.begin_rebuild()
        try:
            for segment in files_of(self.log):
                self._try_to_read(segment.path, min(segment.end, position) - segment.start)
        except (OSError, Unreadable) as error:
            log.warning("key_index.not_rebuilt", reason=str(error), then="look-ups by key read the log")
            return False
        return True

    def _try_to_read(self, path: str, size: int) -> None:
        fd = self.files.open_to_read(path)
        try:
            for at in range(0, size, _READ_BYTES):
                read_needed(self.files, fd, min(_READ_BYTES, size - at), at, path, so="the key index stays as it is")
        finally:
            self.files.close(fd)

    def _after_recovered_batch(self) -> None:
        self._recovered += 1
        if not self._recovered % FLUSH_EVERY:
            work = self.take_index_work(everything=False)
            work.run()
            self.backlog.done(work, None)

    def _collect_garbage(self) -> None:
        live = {f"{queue.topic}@{index.generation}" for queue, index in self._queues.items()}
        try:
            names = self.files.names(self._index_directory)
        except OSError as error:
            self.faults.read_failed(self._index_directory, error)
            return
        for name in set(names) - live:
            self.backlog.discard(f"{self._index_directory}/{name}")

    # ---- queues

    def queue(self, of: MessageQueue) -> ConsumeQueue:
        """The index of a queue; whether the queue exists is the topic table's to say."""
        queue = self._queues.get(of)
        if queue is None:
            queue = self._queues[of] = ConsumeQueue(entries_per_file=self._entries_per_file)
            self._of_topic.setdefault(of.topic, []).append(of)
        return queue

    def queue_of(self, of: MessageQueue, generation: int) -> ConsumeQueue:
        """The index of a queue of this generation; one of an older generation makes room for it."""
        queue = self.queue(of)
        if queue.generation != generation:
            if queue.generation:
                self.drop_topic(of.topic, queue.generation)
                queue = self.queue(of)
            queue.belong(generation, f"{self._index_directory}/{of.topic}@{generation}/{of.queue_id}")
        return queue

    def readable_range(self, of: MessageQueue) -> tuple[int, int]:
        """The offsets of a queue that can be read: the first, and the one after the last."""
        queue = self.queue(of)
        return queue.min_offset, queue.readable

    def accept_history(self) -> None:
        """Let readers of another history continue in this one."""
        self.history = self.history._replace(accepted=True)

    def end_since(self, of: MessageQueue, log_epoch: int) -> int:
        """Return the end of a queue, or where it parts from the log that a reader followed under ``log_epoch``."""
        queue = self.queue(of)
        parted = self.history.parted(queue, log_epoch, queue.readable) if log_epoch else None
        return queue.readable if parted is None else parted.offset

    def known(self, of: MessageQueue, generation: int) -> ConsumeQueue | None:
        """The index of a queue, if there is one of just this generation."""
        queue = self._queues.get(of)
        return queue if queue is not None and queue.generation == generation else None

    def drop_topic(self, topic: str, generation: int) -> None:
        """Forget the queues of a topic up to this generation; their batches stay in the log until retention."""
        self.traffic.forget(topic)
        for of in self._of_topic.pop(topic, ()):
            if self._queues[of].generation > generation:
                self._of_topic.setdefault(topic, []).append(of)
                continue
            queue = self._queues.pop(of)
            self.backlog.drop(queue)
            if queue.generation:
                self.backlog.discard(f"{self._index_directory}/{topic}@{queue.generation}")

    def reserve(self, of: MessageQueue, end_offset: int) -> None:
        """Offsets up to ``end_offset`` were in use before the log was damaged: they are not given to others."""
        queue = self._queues.get(of)
        if queue is not None and queue.generation and queue.end < end_offset:
            log.error("log.messages_damaged", queue=str(of), first=queue.end, end=end_offset)
            self.index_gap(queue, self.log.written - layout.ALIGN, end_offset)
            queue.readable = queue.published

    def queue_bounds(self) -> list[QueueBounds]:
        """The bounds of all queues that ever held something, for a snapshot."""
        return [
            QueueBounds(of.topic, queue.generation, of.queue_id, queue.min_offset, queue.published, queue.epochs[:])
            for of, queue in self._queues.items()
            if queue.generation
        ]

    def index_gap(self, queue: ConsumeQueue, position: int, end_offset: int) -> None:
        """Index messages that recovery found damaged."""
        queue.add_gap(position, end_offset)
        self.backlog.add(queue, worth_it=False)

    def index(self, queue: ConsumeQueue, header: layout.Header, columns: Columns) -> None:
        """Index a batch that recovery found."""
        position = header.physical_offset
        self.backlog.add(queue, worth_it=queue.add(position, header.size, header.count, columns.tags))
        if (keyed := keyed_of(position, header.stored_at, columns)) is not None:
            self.backlog.add_keys(keyed)
        self.backlog.reach(position + header.size)

    # ---- append

    def stage(  # noqa: PLR0917  # called for every batch: keywords would cost more than they say
        self, to: MessageQueue, generation: int, batch: bytes, checked: batches.Checked, origin: int = 0,
        due_at: int = 0,
    ) -> Placed:  # fmt: skip
        """
        Place a judged batch, which exists once :meth:`write` returned; ``origin``: the handle of what it copies.

        With ``due_at`` it is parked until that time, or what delivery has come to: it has no offset yet.
        """
        header, columns = checked.header, checked.columns
        if due_at:
            return self._defer(to, generation, batch, header, origin, due_at)
        queue = self._queues.get(to)
        if queue is None or queue.generation != generation:
            queue = self.queue_of(to, generation)
        owner = Owner(queue.end, origin, generation, to.queue_id, layout.KIND_DATA)
        placed = self._place(batch, header.header_size, owner)
        keyed = keyed_of(placed.physical_offset, placed.stored_at, columns)
        self._staged.append(
            Publication(to, queue, placed.physical_offset, len(batch), header.count, columns.tags, keyed)
        )
        queue.end += header.count
        return placed

    def _defer(  # noqa: PLR0917  # as stage
        self, to: MessageQueue, generation: int, batch: bytes, header: layout.Header, origin: int, due_at: int
    ) -> Placed:
        due_at = self.delays.earliest(due_at)
        owner = Owner(due_at, origin, generation, to.queue_id, layout.KIND_PARKED)
        placed = self._place(batch, header.header_size, owner)
        self._staged_deferred.append(DeferredBatch(due_at, placed.physical_offset, len(batch), header.count))
        return placed._replace(base_offset=NO_OFFSET)

    @property
    def staged_due(self) -> int | None:
        """When the first of the parked batches that are staged and not written yet is due; None if there is none."""
        return min(self._staged_deferred).due_at if self._staged_deferred else None

    def stage_changes(self, changes: Sequence[Change]) -> None:
        """Stage state changes after what was staged before; they are born when the clock says."""
        for body in pack_in_pieces(changes):
            batch = batches.encode("", 0, batches.Rows([body], max(self._wall_us(), 0)), kind=layout.KIND_STATE)
            self._place(batch, layout.FIXED_HEADER + layout.ALIGN, Owner(0, 0, 0, 0, layout.KIND_STATE))

    def _place(self, batch: bytes | bytearray, header_size: int, owner: Owner) -> Placed:
        log, stored_at = self.log, self._now_us()
        position = log.end
        by = layout.Stamp(self.log_epoch, position, owner.base_offset, stored_at, log.durable, *owner[1:])
        head = layout.stamp(batch, header_size, by)
        log.stage(head, memoryview(batch)[layout.BROKER_PART :], len(batch))
        self._last = (position, int.from_bytes(head[8:12], "big"))
        return Placed(owner.base_offset, position, stored_at, log.end)

    def _now_us(self) -> int:
        self.newest_us = max(self.newest_us, self._wall_us())
        return self.newest_us

    def write(self) -> None:
        """
        Append everything staged and index it.

        Raises:
            OSError: none of it exists; offsets and positions are given out again.
        """
        staged, self._staged = self._staged, []
        deferred, self._staged_deferred = self._staged_deferred, []
        try:
            self.log.write()
        except OSError:
            self._last = self._last_written
            for item in staged:
                item.place.end = item.place.published
            raise
        self._last_written = self._last
        self.batches_written += len(staged) + len(deferred)
        for item in staged:  # nothing from here on may raise: the batches exist
            queue = item.place
            if item.keyed is not None:
                self.backlog.add_keys(item.keyed)
            if self._queues.get(item.queue) is not queue:
                continue  # the topic was deleted in this turn: index files would outlive their directory
            queue.note_epoch(self.log_epoch)
            self.traffic.took(item.queue.topic, item.messages, item.size)
            self.backlog.add(queue, worth_it=queue.add(item.position, item.size, item.messages, item.tags))
            self._unexposed.append((item.position + item.size, item.queue, queue, queue.published))
        self.backlog.reach(self.log.written)
        if deferred:
            for entry in deferred:
                self.delays.add(entry)
            self.on_deferred(min(deferred).due_at)

    def turn_over(self) -> bool:
        """The turn is written, or was given up. Begins a new segment where due; says if that is to be written."""
        if self.log.full and not self.log.try_roll():
            return False  # tried again after the next turn
        if not self.log.begins_segment:
            return False
        self.stage_changes(self.snapshot())
        self.log.head_end = self.log.end
        return True

    def expose(self, until: int) -> list[MessageQueue]:
        """Make readable what lies below a log position; return the queues that grew."""
        grown: dict[MessageQueue, None] = {}
        self.exposed = max(self.exposed, until)
        while self._unexposed and self._unexposed[0][0] <= until:
            _, of, queue, end = self._unexposed.popleft()
            queue.readable = end
            if self._queues.get(of) is queue:  # else the topic was deleted since
                grown[of] = None
        return list(grown)

    # ---- read

    def read(
        self, of: MessageQueue, offset: int, max_bytes: int, out_of_time: Callable[[], bool] = lambda: False,
        wanted: Wanted | None = None,
    ) -> ReadBatches | ColdRead:  # fmt: skip
        """
        Batches from the one that holds ``offset`` on, at least one; the caller knows that ``offset`` is readable.

        With ``wanted``, those that have such a tag; perhaps none, and then ``next_offset`` says how far there is none.

        Raises:
            DamagedRange: the batch is damaged.
            OSError: the disk cannot be read.
        """
        only = None if wanted is None else Only(wanted, max_bytes)
        bounds = Bounds(max_bytes if only is None else SKIM_BYTES, MAX_PULL_BATCHES, MAX_PULL_ENTRIES)
        return read_now(
            self.log, self.files, of=of, queue=self.queue(of), offset=offset, bounds=bounds, out_of_time=out_of_time,
            faults=self.faults, only=only,
        )  # fmt: skip

    def reader(self) -> LogReader:
        """The log as it can be read now, for a thread."""
        return LogReader(self.files, self.log.extents(), self.exposed)

    def locator(self, of: MessageQueue, offset: int | None = None) -> Locator:
        """The index of a queue as it is now, for a thread; or what it says of one offset."""
        queue = self.queue(of)
        ask_log = log_asker(self.files, of, queue.generation, self.log.extents(), self.faults)
        return queue.locator(self.files, offset, ask_log)

    # ---- index files

    @property
    def index_lag(self) -> int:
        """How many bytes of the log with keys the key index does not know yet."""
        return self.backlog.lag

    def take_index_work(self, *, everything: bool) -> IndexWork:
        """What is to be written to the indexes; ``everything``, or what is worth it. One at a time."""
        return self.backlog.take(self.log.extents(), everything=everything, durable=self.log.durable)

    def checkpoint(self, changes: list[Change]) -> Checkpoint:
        """What is to be in a checkpoint; tables and log say the same now."""
        store_id = self.stores.current
        return Checkpoint(self.log.written, store_id, self.log_epoch, self.newest_us, self._last_written, changes)

    def forget_before(self, start: int, head: Sequence[Change]) -> tuple[list[Segment], list[str]]:
        """
        The log begins at ``start`` from now on, with this snapshot; returns segments and index files to be removed.

        The segments must be removed from the oldest to the newest, each durably before the next.
        """
        obsolete: list[str] = []
        for change in head:
            if isinstance(change, QueueBounds):
                queue = self.known(MessageQueue(change.topic, change.queue_id), change.generation)
                if queue is not None:
                    obsolete += queue.raise_min(change.end_offset)
        return self.log.forget_before(start), obsolete

    def stats(self) -> dict[str, int | str]:
        """Where the log begins and ends, and how much is kept of it in memory."""
        log = self.log
        return {
            "store_id": f"{self.stores.current:016x}", "log_epoch": self.log_epoch, "segments": len(log.segments),
            "log_start": log.start, "log_written": log.written, "log_durable": log.durable,
            "log_bytes": log.written - log.start, "recent_bytes": log.recent.size, "queues": len(self._queues),
            "batches_since_start": self.batches_written, "former_stores": len(self.stores.former),
            "history_accepted": self.history.accepted,
        }  # fmt: skip

    # ---- end

    def close(self) -> None:
        """Sync the log and let go of the directory."""
        try:
            self.log.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the directory as a crash would: what is not durable may be lost."""
        self.log.close()
        self.directory.close()


class Placed(NamedTuple):
    """Where a staged batch will lie; ``end`` is the log position after it. A deferred one has ``base_offset`` -1."""

    base_offset: int
    physical_offset: int
    stored_at: int
    end: int


class Owner(NamedTuple):
    """What a batch is stamped with besides its place; ``base_offset`` of a deferred one is the time it is due."""

    base_offset: int
    origin: int
    topic_gen: int
    queue_id: int
    kind: int


class Publication(NamedTuple):
    """What a batch brings into the indexes once it is written."""

    queue: MessageQueue
    place: ConsumeQueue
    position: int
    size: int
    messages: int
    tags: TagColumn | None
    keyed: KeyedBatch | None


def keyed_of(position: int, stored_at: int, columns: Columns) -> KeyedBatch | None:
    """Return a batch as the key index notes it; None without keys and index keys."""
    hashes = columns.searchable_hashes()
    return None if hashes is None else KeyedBatch(position, stored_at, hashes)


MAX_LISTED_TOPICS: Final = 1000  # in one answer


class TopicTraffic(NamedTuple):
    """
    What went in, and what readers were given.

    A batch that a reader was given for one of its messages counts whole in bytes; what a filter passed between two
    batches counts as messages out. Delayed messages count when they are delivered.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


class Traffic:
    """Counts messages and bytes by topic since the start. Deleted topics stay in the sum, so that it never falls."""

    def __init__(self) -> None:
        self._topics: dict[str, list[int]] = {}
        self._gone = [0, 0, 0, 0]

    def took(self, topic: str, messages: int, size: int) -> None:
        """A batch was written to a queue of a topic."""
        row = self._topics.get(topic) or self._row(topic)
        row[0] += messages
        row[1] += size

    def gave(self, topic: str, messages: int, size: int) -> None:
        """A reader is given batches of a queue of a topic."""
        row = self._topics.get(topic) or self._row(topic)
        row[2] += messages
        row[3] += size

    def forget(self, topic: str) -> None:
        """A topic is gone."""
        row = self._topics.pop(topic, None)
        if row is not None:
            self._gone = [was + more for was, more in zip(self._gone, row, strict=True)]

    def total(self) -> TopicTraffic:
        """All topics together."""
        return TopicTraffic(*map(sum, zip(self._gone, *self._topics.values(), strict=True)))

    def busiest(self, count: int) -> dict[str, TopicTraffic]:
        """The topics with the most messages in and out, at most so many and never more than 1000."""
        most = heapq.nlargest(
            min(count, MAX_LISTED_TOPICS), self._topics.items(), key=lambda item: item[1][0] + item[1][2]
        )
        return {topic: TopicTraffic(*row) for topic, row in most}

    def _row(self, topic: str) -> list[int]:
        return self._topics.setdefault(topic, [0, 0, 0, 0])
