"""
The cache of a polled queue, how far that has come, and what a poll returns of it. Pure.

Four offsets, each at most the next while no seek intervenes::

    durable   <=   marked   <=   finished   <=   position
    the broker     may be        finished        is returned
    has it         committed     by the user     next

Messages that were returned are finished by :meth:`~PullCache.commit`; what is finished is marked by a commit of the
user's or the timer's, and only that is ever reported. A seek moves ``finished`` and ``position``, in both directions.
``marked`` never goes back by it: messages below are delivered again, and the progress waits until they are passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq.wire.errors import RmqError
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..fetch.process_queue import UNKNOWN, ProcessQueue
from ..group.assignment import Assignment
from ..group.tag_filter import Subscription


class PullCache(ProcessQueue):
    """A process queue that reports only progress that is marked, and can start again at another offset."""

    __slots__ = ("_given_runs", "_marked", "durable", "loss_noted")

    def __init__(
        self, start_offset: int, *, subscription: Subscription | None = None, runs: Sequence[AttemptRun] = ()
    ) -> None:
        super().__init__(start_offset, subscription=subscription, runs=runs)
        self._given_runs = list(runs)
        self._marked = start_offset
        self.durable = start_offset  # written by PullCommits
        self.loss_noted = False  # the queue went away with uncommitted progress, and that is noted; the same

    @property
    def commit_offset(self) -> int:
        """
        The progress that may be reported.

        Below the mark we say only how far we have what the broker's log has: it has the mark already, and after a
        crash of its own nothing but a pull can show that the messages up to there are still the same.
        """
        return min(self._marked, self.end_offset)

    @property
    def position(self) -> int:
        """The offset after what was returned last; -1 while it is not known where the group begins."""
        in_flight = self.in_flight
        return in_flight[-1].queue_offset + 1 if in_flight else self.finished_offset

    @property
    def unmarked(self) -> bool:
        """Whether something is done that may not be reported yet."""
        return self.finished_offset > self._marked

    @property
    def uncommitted(self) -> bool:
        """Whether something is done that the broker is not known to have."""
        return self.finished_offset > self.durable

    @property
    def may_starve(self) -> bool:
        """No: what is returned is done at the next poll, committed or not."""
        return False

    def mark_done(self) -> None:
        """Let everything that is done be reported."""
        self._marked = max(self._marked, self.finished_offset)

    def seek(self, queue_offset: int) -> None:
        """Drop everything, what was returned included, and start again at an offset."""
        super().__init__(queue_offset, subscription=self.subscription, runs=self._given_runs)

    def skip_to(self, queue_offset: int, *, passed_under: int = UNKNOWN) -> None:
        """Continue at ``queue_offset``; where the group begins is recorded without a commit."""
        begins = self.end_offset == NO_OFFSET
        super().skip_to(queue_offset, passed_under=passed_under)
        if begins:
            self._marked = self.durable = queue_offset

    def cut(self, queue_offset: int) -> bool:
        """Drop what the log has lost, unless it was returned and is not done; says whether that was possible."""
        if not super().cut(queue_offset):
            return False
        self._marked = min(self._marked, queue_offset)
        self.durable = min(self.durable, queue_offset)
        return True


def cache_of(assignment: Assignment) -> PullCache:
    """The cache of an assignment of a pull consumer."""
    assert isinstance(assignment.cache, PullCache)
    return assignment.cache


class NotAssigned(RmqError, LookupError):
    """This consumer does not own the queue that it was asked about."""


class PulledBatch(list[StoredMessage]):
    """
    A list of messages of one queue, in the order of their offsets; an empty one is of none.

    They count as done when the next poll begins, or at a commit. ``lost`` turns true when that can no longer be: the
    queue belongs, or may belong, to another member, which gets them again.
    """

    __slots__ = ("_assignment", "given_back")

    def __init__(self, messages: Iterable[StoredMessage] = (), assignment: Assignment | None = None) -> None:
        super().__init__(messages)
        self._assignment = assignment
        self.given_back = False  # the queue was handed over without waiting for these any longer; the service's

    @property
    def queue(self) -> MessageQueue:
        """
        The queue of the messages.

        Raises:
            NotAssigned: the batch is empty.
        """
        return self._of().shown

    @property
    def epoch(self) -> int:
        """
        The fencing token: it grows with every owner, so that a sink can refuse the writes of an older one.

        Raises:
            NotAssigned: the batch is empty.
        """
        return self._of().epoch

    @property
    def lost(self) -> bool:
        """Whether the queue belongs to another member, or may at this moment."""
        assignment = self._assignment
        return self.given_back or (assignment is not None and assignment.lost.is_set())

    def _of(self) -> Assignment:
        if self._assignment is None:
            raise NotAssigned("an empty batch is of no queue")
        return self._assignment
