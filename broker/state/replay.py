"""
From the log back to the tables: what each state change and batch header means at start.

:class:`DeferredLog` finds which deferred batches wait and which were delivered. The origin of a copy names the place of
the deferred batch it was made from. Places only rise along the log, so a binary search decides whether a copy was a
delivery, and of what; its time then moves the watermark.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq.wire import names
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import Refused
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.redelivery import REPLAYED

from ..store.changes import (
    Attempted,
    Change,
    Committed,
    Copied,
    DeadHandled,
    DelaysReached,
    DelaysWaiting,
    LeaseEnded,
    LeaseGranted,
    ProducerEpoch,
    ProducerKnown,
    SnapshotEnded,
    Started,
    Suspected,
    TopicDeleted,
    TopicMade,
)
from ..store.lookup import LogReader
from .deferred import ENTRY, DeferredBatch, DelayTable, DeliveryMark
from .groups import Membership
from .leases import LeaseTable
from .offsets import Entry, Ledger
from .producers import ProducerTable
from .sessions import SessionTable
from .topics import TopicTable


class _FoundCopy(NamedTuple):
    """A copy in a topic, of the message with the handle ``origin``; ``is_parked``: it waits to be delivered."""

    topic: str
    origin: int
    is_deferred: bool


class Replay:
    """Applies the log, in order, to the tables of a broker that starts."""

    def __init__(
        self, topics: TopicTable, ledger: Ledger, locks: LeaseTable, producers: ProducerTable, deferred: DeferredLog,
        *, now: float,
    ) -> None:  # fmt: skip
        self._topics = topics
        self._ledger = ledger
        self._locks = locks
        self._producers = producers
        self._deferred = deferred
        self._now = now
        self._unnamed: list[_FoundCopy] = []  # copies without a change that names them so far
        self.grace_s = 0.0  # what clients know from before this start

    def change(self, change: Change) -> None:
        """A change that was true when the broker went away."""
        match change:
            case Started():
                self.grace_s = change.grace_s
            case TopicMade() | TopicDeleted():
                self._topic(change)
            case SnapshotEnded():
                self._topics.restore_generation(change.last_generation)
                self._producers.covers(change.position)
            case LeaseGranted():
                self._locks.restore(change, now=self._now)
            case LeaseEnded():
                self._locks.restore_end(change)
            case Committed() | Attempted() | Suspected() | Copied() | DeadHandled():
                self._ledger.apply(change)
                self._named(change)
            case ProducerKnown():
                self._producers.apply(change, self._now)
            case ProducerEpoch():
                self._producers.apply_epoch(change, self._now)
            case DelaysReached() | DelaysWaiting():
                self._deferred.apply(change)

    def _topic(self, change: TopicMade | TopicDeleted) -> None:
        ended = self._topics.apply(change) if isinstance(change, TopicMade) else self._topics.apply_deleted(change)
        if ended:  # a generation, and with it what groups knew of it
            self._unnamed = [copy for copy in self._unnamed if copy.topic != change.topic]
            self._ledger.forget_topic(change.topic)
            self._locks.release_topic(change.topic)

    def is_live(self, header: layout.Header) -> bool:
        """
        Whether a data batch belongs to a topic that exists at this place of the log.

        A change that ends a generation stands after all its batches, so that a batch of a living one is indexed when
        it is met and dropped when the end is; what is met after the end, or before a snapshot that no longer knows
        the topic, is dropped. Its producer's number is taken all the same.
        """
        topic = self._topics.get(header.topic)
        return topic is not None and topic.generation == header.topic_gen and header.queue_id < topic.queues

    def batch(self, header: layout.Header) -> None:
        """A data batch, of a living topic or not: its producer's number is taken, and a copy is known as one."""
        if header.origin:
            if not self._deferred.delivered(header.origin):
                self._found_copy(header)
            return  # the original has the number
        self._number(header, header.base_offset)

    def deferred(self, header: layout.Header) -> None:
        """A parked batch, of a living topic or not: it waits, and has no offset yet."""
        self._deferred.deferred(header)
        if header.origin:
            self._found_copy(header)
        else:
            self._number(header, NO_OFFSET)

    def _number(self, header: layout.Header, base_offset: int) -> None:
        if header.producer_id:
            self._producers.replay(
                header.producer_id, header.producer_epoch, header.sequence, header.batch_crc, base_offset,
                header.physical_offset, header.stored_at, header.physical_offset + header.size, now=self._now,
            )  # fmt: skip

    def _found_copy(self, header: layout.Header) -> None:
        """A copy; what it was copied for comes after it, unless the log was torn there."""
        is_deferred = header.kind == layout.KIND_PARKED
        if is_deferred or not (header.delay_level or header.deliver_at):  # else it was parked before, and is delivered
            self._unnamed.append(_FoundCopy(header.topic, header.origin, is_deferred))

    def _named(self, change: Entry) -> None:
        """Copies and the change that names them stand in one write, one such write after the other."""
        match change:
            case Copied(is_all=False) | DeadHandled(is_again=False):
                self._unnamed.clear()

    def name_copies(self, reader: LogReader) -> list[Change]:
        """
        The log is read: a write that was torn off may have left copies without the change that names them.

        Returns the changes that do; they belong into the log before anything else of the group can.

        Raises:
            OSError: the disk cannot read what was copied: without its name it would be copied once more.
        """
        unnamed, self._unnamed = self._unnamed, []
        found: list[Change] = []
        with reader:
            for copy in unnamed:
                position, index = batches.place_of(copy.origin)
                header = _header(reader, position)
                if header is None or not self.is_live(header):
                    continue  # it cannot be copied again
                queue, offset = MessageQueue(header.topic, header.queue_id), header.base_offset + index
                change = self._name(copy, queue, offset)
                if change is not None:
                    self._ledger.apply(change)
                    found.append(change)
        return found

    def _name(self, copy: _FoundCopy, queue: MessageQueue, offset: int) -> Copied | DeadHandled | None:
        """What a copy of the message at an offset says: given up, sent back, or a dead letter that was replayed."""
        for prefix in (names.DEAD_LETTERS, names.RETRIES):
            if copy.topic.startswith(prefix) and (copy.is_deferred or prefix == names.DEAD_LETTERS):
                group = copy.topic.removeprefix(prefix)
                is_done = offset < self._ledger.offsets.get(group, queue)
                return None if is_done else self._ledger.copied.change(group, queue, [offset])
        if queue.topic.startswith(names.DEAD_LETTERS):
            return self._ledger.handled.change(queue.topic, [offset], REPLAYED)
        return None

    def open_sessions(self, sessions: SessionTable, members: Membership, *, now: float) -> None:
        """
        Owners of leases may come back, and are members of their groups until it is clear that they do not.

        Their grace runs from now, when the port is open. It is the longer of the one they know and the new one: a
        client that is cut off trusts the grace it knows.
        """
        since = now + max(self.grace_s - sessions.grace_s, 0.0)
        self._locks.ready(now=since)
        for lease in self._locks.rows(None, now=now):
            session = sessions.restore(lease.session, lease.member, now=since)
            members.restore(lease.group, session, now=now)


def _header(reader: LogReader, position: int) -> layout.Header | None:
    """The header of the batch at a place of the log; None if it is gone, or damaged."""
    try:
        data = reader.batch(position)
        return None if data is None else batches.check(data, stamped=True, unpack=False).header
    except Refused:
        return None


TIDY: Final = 100_000  # batches more than after the last time: what was delivered is forgotten


class DeferredLog:
    """Collects deferred batches from the log in order; :meth:`fill` puts those that are left into the table."""

    def __init__(self, tidy: int = TIDY) -> None:
        self._tidy = tidy
        self._limit = tidy
        self._in_order = True
        self._positions = array("Q")
        self._dues = array("Q")
        self._sizes = array("I")
        self._messages = array("I")
        self.reached = DeliveryMark()

    def apply(self, change: DelaysReached | DelaysWaiting) -> None:
        """Repeat a change."""
        if isinstance(change, DelaysReached):
            self._reach(DeliveryMark(change.due_at, change.position))
            return
        for entry in map(DeferredBatch._make, ENTRY.iter_unpack(change.entries)):
            self._append(*entry)
        self._in_order = False

    def deferred(self, header: layout.Header) -> None:
        """A parked batch; whether it can still be read is seen when it is due."""
        if header.base_offset < self.reached.due_at:  # a start found that the clock had been ahead until then
            self._forget_delivered()
            self.reached = DeliveryMark(header.base_offset)
        self._append(header.base_offset, header.physical_offset, header.size, header.count)
        if len(self._positions) > self._limit:
            self._forget_delivered()
            self._limit = 2 * len(self._positions) + self._tidy

    def delivered(self, origin: int) -> bool:
        """A copy: whether it is a parked batch that became due."""
        if not self._in_order:  # a checkpoint has them by their time
            self._keep(sorted(range(len(self._positions)), key=self._positions.__getitem__))
            self._in_order = True
        position, _ = batches.place_of(origin)
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] != position:
            return False
        self._reach(DeliveryMark(self._dues[at], position))
        return True

    def fill(self, table: DelayTable) -> None:
        """The log is read: this is how far delivery had come, and what waits."""
        table.reach(self.reached)
        table.load(entry for entry in self._entries() if entry[:2] > self.reached)
        self._keep([])

    def _forget_delivered(self) -> None:
        self._keep([i for i, entry in enumerate(self._entries()) if entry[:2] > self.reached])

    def _reach(self, mark: DeliveryMark) -> None:
        self.reached = max(self.reached, mark)

    def _append(self, due_at: int, position: int, size: int, messages: int) -> None:
        self._dues.append(due_at)
        self._positions.append(position)
        self._sizes.append(size)
        self._messages.append(messages)

    def _entries(self) -> Iterator[DeferredBatch]:
        return map(DeferredBatch, self._dues, self._positions, self._sizes, self._messages)

    def _keep(self, places: list[int]) -> None:
        """Keep the batches at these places, in this order; there may be a million, so nothing is made of each."""
        self._dues = array("Q", map(self._dues.__getitem__, places))
        self._positions = array("Q", map(self._positions.__getitem__, places))
        self._sizes = array("I", map(self._sizes.__getitem__, places))
        self._messages = array("I", map(self._messages.__getitem__, places))
