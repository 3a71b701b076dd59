"""
From the log back to queues and tables: what each batch means to a store that starts.

A start begins with a snapshot: that of the checkpoint, or the one at the head of the oldest segment. Then it walks the
log after it. The same rules hold for a snapshot in the middle of the walk, which says nothing new, and for damage:
the offsets of lost messages are never given to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.columns import Columns
from rmq.wire.errors import WireError
from rmq.wire.model import MessageQueue

from .changes import (
    Change,
    DelaysWaiting,
    ProducerKnown,
    QueueBounds,
    SnapshotEnded,
    Started,
    TopicDeleted,
    TopicMade,
    unpack_changes,
)
from .commitlog import Extent
from .consume_queue import ConsumeQueue
from .directory import StoreError
from .files import Files
from .recovery import LogDamage
from .scan import Good, Scan

log = get_broker_logger(__name__)


class StateTables(Protocol):
    """The broker's tables, as far as a start fills them."""

    def change(self, change: Change) -> None:
        """A change that was true when the broker went away."""

    def batch(self, header: layout.Header) -> None:
        """A data batch, also of a topic that is gone."""

    def deferred(self, header: layout.Header) -> None:
        """A parked batch, also of a topic that is gone."""

    def is_live(self, header: layout.Header) -> bool:
        """Whether the topic of a batch still exists, in that generation."""


class Queues(Protocol):
    """The store's queues, as far as a start fills them."""

    def queue_of(self, of: MessageQueue, generation: int) -> ConsumeQueue:
        """The index of a queue of this generation."""

    def known(self, of: MessageQueue, generation: int) -> ConsumeQueue | None:
        """The index of a queue, if there is one of just this generation."""

    def index_gap(self, queue: ConsumeQueue, position: int, end_offset: int) -> None:
        """Index messages that are damaged."""

    def index(self, queue: ConsumeQueue, header: layout.Header, columns: Columns) -> None:
        """Index a batch that the log holds."""

    def drop_topic(self, topic: str, generation: int) -> None:
        """Forget the queues of a topic up to this generation."""


class Rebuild:
    """Shown the log in order, it fills queues and tables. ``needs_head``: nothing lies before this log any more."""

    def __init__(
        self, queues: Queues, tables: StateTables, *, needs_head: bool, after_batch: Callable[[], None]
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._in_head = needs_head
        self._after_batch = after_batch
        self._damaged_at = 0
        self._expected: list[Change] = []
        self._expected_at = 0
        self.batches = 0
        self.messages = 0
        self.damages: list[LogDamage] = []
        self.started: Started | None = None  # the last one
        self.log_epoch = 0
        self.stored_at = 0
        self.last = (-1, 0)

    # ---- snapshots

    def restore(self, changes: Iterable[Change]) -> None:
        """Restore everything in a snapshot."""
        for change in changes:
            self._restore(change)

    def _restore(self, change: Change) -> None:
        if isinstance(change, QueueBounds):
            queue = self._queues.queue_of(MessageQueue(change.topic, change.queue_id), change.generation)
            # At the head of the oldest segment, what the queue held before is gone with the segments before it.
            first = change.end_offset if self._in_head else change.min_offset
            queue.restore(first, change.end_offset, list(change.epochs))
            return
        if isinstance(change, Started):
            self.started = change
        self._tables.change(change)

    def expect(self, position: int, changes: list[Change]) -> None:
        """
        Repeat the changes of a checkpoint when the walk comes to its position.

        Where the log before it is damaged, they name the offsets that were given. The walk has met what waits itself.
        """
        self._expected = [change for change in changes if not isinstance(change, DelaysWaiting)]
        self._expected_at = position

    def _reached(self, position: int) -> None:
        if self._expected and position >= self._expected_at:
            expected, self._expected = self._expected, []
            for change in expected:
                self._change(change)

    def raise_minimums(self, head: Iterable[Change]) -> list[str]:
        """
        The log begins with this head: what its queues held before is gone, whatever the checkpoint says.

        A topic may have been deleted or made again since. Returns the index files that can go.
        """
        obsolete: list[str] = []
        for change in head:
            if isinstance(change, QueueBounds):
                queue = self._queues.known(MessageQueue(change.topic, change.queue_id), change.generation)
                if queue is not None:
                    obsolete += queue.raise_min(change.end_offset)
        return obsolete

    # ---- the walk

    def batch(self, checked: batches.Checked, data: memoryview) -> None:
        """A sound batch."""
        header = checked.header
        self._reached(header.physical_offset)
        self.log_epoch = max(self.log_epoch, header.log_epoch)
        self.stored_at = max(self.stored_at, header.stored_at)
        self.last = (header.physical_offset, header.header_crc)
        if header.kind == layout.KIND_STATE:
            for change in changes_of(header, data):
                self._change(change)
            return
        if self._in_head:
            raise _headless(header.physical_offset)
        self.batches += 1
        self.messages += header.count
        if header.kind == layout.KIND_PARKED:  # in no queue and no index, until it is due
            self._tables.deferred(header)
            return
        if not self._tables.is_live(header):
            self._tables.batch(header)  # its number is spent all the same
            return
        queue = self._queues.queue_of(MessageQueue(header.topic, header.queue_id), header.topic_gen)
        self._pass_gap(queue, header)
        queue.note_epoch(header.log_epoch)
        queue.end += header.count
        self._queues.index(queue, header, checked.columns)
        queue.readable = queue.published
        self._tables.batch(header)
        self._after_batch()

    def _change(self, change: Change) -> None:
        if self._in_head:
            self._restore(change)
            self._in_head = not isinstance(change, SnapshotEnded)
            return
        match change:
            case QueueBounds():
                of = MessageQueue(change.topic, change.queue_id)
                queue = self._queues.queue_of(of, change.generation)
                if queue.generation == change.generation and queue.end < change.end_offset:
                    self._queues.index_gap(queue, self._damaged_at, change.end_offset)
                    queue.readable = queue.published
            case ProducerKnown():
                return  # the headers before it say the same, and more
            case TopicDeleted():
                self._queues.drop_topic(change.topic, change.generation)
            case TopicMade():
                self._queues.drop_topic(change.topic, change.generation - 1)
            case Started():
                self.started = change
        if not isinstance(change, QueueBounds):
            self._tables.change(change)

    def _pass_gap(self, queue: ConsumeQueue, header: layout.Header) -> None:
        if header.base_offset == queue.end:
            return
        place = f"{header.topic}/{header.queue_id}"
        if header.base_offset < queue.end and self._replaces(queue, header):
            log.error("log.messages_replaced", queue=place, first=header.base_offset, position=header.physical_offset)
            return
        if header.base_offset < queue.end:
            raise StoreError(
                f"the batch at {header.physical_offset} begins at offset {header.base_offset} of {place}, which has "
                f"{queue.end} messages already: restore the log from a copy"
            )
        lost = header.base_offset - queue.end
        log.error("log.messages_damaged", queue=place, first=queue.end, end=header.base_offset, messages=lost)
        self._queues.index_gap(queue, self._damaged_at or header.physical_offset - layout.ALIGN, header.base_offset)

    @staticmethod
    def _replaces(queue: ConsumeQueue, header: layout.Header) -> bool:
        """
        Whether a later run gave the offsets of messages to others, which take their place now.

        It could not read the header of those messages, nor know that they were there; the disk can read it again.
        """
        return bool(queue.epochs) and queue.epochs[-2] < header.log_epoch and queue.go_back(header.base_offset)

    def damaged(self, damage: LogDamage) -> None:
        """A place that had been synced and cannot be read any more."""
        log.error("log.damaged", position=damage.position, end=damage.end, reason=damage.reason)
        self.damages.append(damage)
        self._damaged_at = damage.position
        if self._in_head:
            raise _headless(damage.position)
        self._reached(damage.position)
        header = damage.header
        if header is not None and header.kind == layout.KIND_PARKED:
            self._tables.deferred(header)  # it is passed when it is due
        if header is None or header.kind != layout.KIND_DATA:
            return
        self._tables.batch(header)  # its number is spent all the same
        if not self._tables.is_live(header):
            return
        queue = self._queues.queue_of(MessageQueue(header.topic, header.queue_id), header.topic_gen)
        self._pass_gap(queue, header)
        queue.note_epoch(header.log_epoch)
        self._queues.index_gap(queue, damage.position, header.end_offset)
        queue.readable = queue.published

    def ended(self) -> None:
        """The walk is over."""
        if self._in_head:
            raise _headless(0)
        self._reached(self._expected_at)


def _headless(position: int) -> StoreError:
    return StoreError(
        f"the oldest segment of the log has no whole snapshot at its head (read up to {position}): "
        "restore the segments before it from a copy"
    )


def changes_of(header: layout.Header, batch: memoryview) -> list[Change]:
    """
    The changes of a state batch.

    Raises:
        StoreError: they cannot be used.
    """
    body = bytes(batch[header.header_size + header.meta_size :][: header.body_size])
    try:
        return unpack_changes(body)
    except WireError as error:
        raise StoreError(f"the state batch at {header.physical_offset} cannot be used: {error.text}") from error


class SegmentHead(NamedTuple):
    """The snapshot that a segment begins with, and the position after it."""

    changes: list[Change]
    end: int


def read_head(files: Files, path: str, start: int) -> SegmentHead | None:
    """The snapshot at the head of a segment; None if there is none that is whole."""
    changes: list[Change] = []
    fd = files.open_to_read(path)
    try:
        scan = Scan(files, fd, start, files.size(path))
        for found in scan.batches(start):
            if not isinstance(found, Good) or found.checked.header.kind != layout.KIND_STATE:
                return None
            header = found.checked.header
            changes += changes_of(header, found.data)
            if isinstance(changes[-1], SnapshotEnded):
                return (
                    SegmentHead(changes, header.physical_offset + header.size)
                    if changes[-1].position == start
                    else None
                )
    finally:
        files.close(fd)
    return None


def first_store_id(files: Files, oldest: Extent) -> int | None:
    """The id of the store that the first batch of a log names; None if it names none, or is damaged."""
    fd = files.open_to_read(oldest.path)
    try:
        size = files.size(oldest.path)
        first = Scan(files, fd, oldest.start, size, window=layout.MAX_BATCH).judge(oldest.start) if size else None
    finally:
        files.close(fd)
    if not isinstance(first, Good) or first.checked.header.kind != layout.KIND_STATE:
        return None
    started = next(iter(changes_of(first.checked.header, first.data)), None)
    return started.store_id if isinstance(started, Started) else None
