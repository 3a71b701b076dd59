"""From the log back to the tables: what each state change and batch header means at start."""

from __future__ import annotations

from collections.abc import Callable

from rmq.wire import layout
from rmq.wire.model import MessageQueue

from .log import get_logger
from .services.attempt_table import AttemptTable
from .services.lock_table import LockTable
from .services.membership import Membership
from .services.offset_table import OffsetTable
from .services.producers import ProducerTable
from .services.sessions import SessionTable
from .services.state import (
    Attempted,
    Change,
    Committed,
    LeaseEnded,
    LeaseGranted,
    ProducerEpoch,
    ProducerKnown,
    SnapshotEnded,
    Started,
    TopicDeleted,
    TopicMade,
)
from .services.topics import TopicTable

log = get_logger(__name__)


class Replay:
    """Applies the log, in order, to the tables of a broker that starts."""

    def __init__(
        self, topics: TopicTable, offsets: OffsetTable, attempts: AttemptTable, locks: LockTable,
        producers: ProducerTable, *, now: float,
    ) -> None:  # fmt: skip
        self._topics = topics
        self._offsets = offsets
        self._attempts = attempts
        self._locks = locks
        self._producers = producers
        self._now = now
        self.grace_s = 0.0  # what clients were told before this start

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
            case Committed():
                self._offsets.apply(change)
                queue = MessageQueue(change.topic, change.queue_id)
                self._attempts.forget_below(change.group, queue, change.queue_offset)
            case Attempted():
                self._attempts.apply(change)
            case ProducerKnown():
                self._producers.apply(change, self._now)
            case ProducerEpoch():
                self._producers.apply_epoch(change, self._now)

    def _topic(self, change: TopicMade | TopicDeleted) -> None:
        ended = self._topics.apply(change) if isinstance(change, TopicMade) else self._topics.apply_deleted(change)
        if ended:  # a generation, and with it what groups knew of it
            self._offsets.forget_topic(change.topic)
            self._attempts.forget_topic(change.topic)
            self._locks.release_topic(change.topic)

    def is_live(self, header: layout.Header) -> bool:
        """
        Whether a data batch belongs to a topic that exists at this place of the log.

        A change that ends a generation stands behind all its batches, so that a batch of a living one is indexed when
        it is met and dropped when the end is; what is met behind the end, or before a snapshot that no longer knows
        the topic, belongs to nobody. Its producer's number is taken all the same.
        """
        topic = self._topics.get(header.topic)
        return topic is not None and topic.generation == header.topic_gen and header.queue_id < topic.queues

    def batch(self, header: layout.Header) -> None:
        """A data batch, of a living topic or not: its producer's number is taken."""
        if header.producer_id:
            self._producers.replay(
                header.producer_id, header.producer_epoch, header.sequence, header.batch_crc, header.base_offset,
                header.physical_offset, header.stored_at, header.physical_offset + header.size, now=self._now,
            )  # fmt: skip

    def lower_offsets(self, readable_end: Callable[[MessageQueue], int]) -> list[Change]:
        """
        A log that lost its tail may have lost messages that were consumed: a group goes on where the queue ends.

        Failed deliveries of a lost message are forgotten, since another one takes its offset. Returns the changes.
        """
        lowered: list[Change] = []
        for group, topic, queue_id, offset in list(self._offsets.rows()):
            queue = MessageQueue(topic, queue_id)
            end = readable_end(queue)
            if self._offsets.lower(group, queue, end):
                log.warning("offset.lowered", group=group, queue=str(queue), was=offset, now=end)
                lowered.append(Committed(group, queue.topic, queue.queue_id, end))
        for attempted in list(self._attempts.rows()):
            queue = MessageQueue(attempted.topic, attempted.queue_id)
            forgotten = self._attempts.forget_from(attempted.group, queue, readable_end(queue))
            if forgotten is not None:
                log.warning("attempts.forgotten", group=attempted.group, queue=str(queue), was=attempted.queue_offset)
                lowered.append(forgotten)
        return lowered

    def open_sessions(self, sessions: SessionTable, members: Membership, *, now: float) -> None:
        """
        Owners of leases may come back, and are members of their groups until it is clear that they do not.

        Their grace runs from now, when the port is open. It is the longer of the one they know and the new one: a
        client that is cut off believes in what it was told.
        """
        since = now + max(self.grace_s - sessions.grace_s, 0.0)
        self._locks.ready(now=since)
        for lease in self._locks.rows(None, now=now):
            session = sessions.restore(lease.session, lease.member, now=since)
            members.restore(lease.group, session, now=now)
