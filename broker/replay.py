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
from .services.state import Attempted, Change, Committed, LeaseEnded, LeaseGranted, Started, TopicMade
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
            case TopicMade():
                self._topics.apply(change)
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

    def is_live(self, header: layout.Header) -> bool:
        """Whether the topic of a batch still exists, in that generation."""
        topic = self._topics.get(header.topic)
        return topic is not None and topic.generation == header.topic_gen

    def batch(self, header: layout.Header) -> None:
        """A data batch: its producer's number is taken."""
        if header.producer_id:
            self._producers.record(
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
