"""
``PullCache``: what is held of a queue for whoever polls, and how far that has come. Pure.

Four offsets, each at most the next while nobody seeks::

    durable   <=   marked   <=   done   <=   position
    the broker     may be        finished     is returned
    has it         committed     by the user  next

Messages that were returned become done by :meth:`~PullCache.commit`; what is done is marked by a commit of the user's
or the timer's, and only that is ever told to the broker. A seek moves ``done`` and ``position``, in both directions.
``marked`` never goes back by it: messages below are delivered again, and the progress waits until they are passed.

What a poll returns: messages of one queue, and under which lease they were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rmq.wire.batch.batch import Batch
from rmq.wire.errors import RmqError
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..fetch.cache import UNKNOWN, LogEpochs
from ..fetch.process_queue import ProcessQueue
from ..group.assignment import Generation
from ..group.tag_filter import Subscription


class PullCache:
    """A process queue that tells the broker of progress only when it is marked, and can begin anew elsewhere."""

    __slots__ = ("_marked", "_queue", "_runs", "durable", "loss_noted")

    def __init__(
        self, start_offset: int, *, subscription: Subscription | None = None, runs: Sequence[AttemptRun] = ()
    ) -> None:
        self._runs = list(runs)
        self._queue = ProcessQueue(start_offset, subscription=subscription, runs=runs)
        self._marked = start_offset
        self.durable = start_offset  # written by whoever commits
        self.loss_noted = False  # that the queue went away with progress which was not committed; the same

    # Progress

    @property
    def commit_offset(self) -> int:
        """
        What the broker may be told.

        Below the mark we say only how far we hold what the broker's log does: it has the mark already, and after a
        crash of its own nothing but a pull can show that the messages up to there are still the same.
        """
        return min(self._marked, self._queue.end_offset)

    @property
    def done(self) -> int:
        """The first offset that is not finished."""
        return self._queue.commit_offset

    @property
    def position(self) -> int:
        """The offset behind what was returned last; -1 while it is not known where the group begins."""
        in_flight = self._queue.in_flight
        return in_flight[-1].queue_offset + 1 if in_flight else self._queue.commit_offset

    @property
    def unmarked(self) -> bool:
        """Whether something is done that the broker may not be told of yet."""
        return self.done > self._marked

    @property
    def uncommitted(self) -> bool:
        """Whether something is done that the broker is not known to have."""
        return self.done > self.durable

    def mark(self) -> None:
        """All that is done may be told to the broker."""
        self._marked = max(self._marked, self.done)

    def seek(self, queue_offset: int) -> None:
        """Let go of everything, what was returned included, and begin anew at an offset."""
        self._queue = ProcessQueue(queue_offset, subscription=self.subscription, runs=self._runs)

    # What is there

    @property
    def messages(self) -> int:
        """How many messages are not done."""
        return self._queue.messages

    @property
    def size(self) -> int:
        """The bytes held."""
        return self._queue.size

    @property
    def in_flight(self) -> list[StoredMessage]:
        """The messages that were returned and are not done."""
        return self._queue.in_flight

    @property
    def ready(self) -> bool:
        """Whether something may be taken."""
        return self._queue.ready

    @property
    def used(self) -> bool:
        """Whether it holds messages, or any went through it since it began."""
        return self._queue.used

    @property
    def head(self) -> tuple[int, int]:
        """The offset of the first message that is not done, and the number of its delivery."""
        return self._queue.head

    @property
    def span(self) -> int:
        """0: messages are done in the order of their offsets."""
        return 0

    @property
    def may_starve(self) -> bool:
        """No: what is returned is done at the next poll, committed or not."""
        return False

    @property
    def end_offset(self) -> int:
        """Where the next pull begins."""
        return self._queue.end_offset

    @property
    def log_epochs(self) -> LogEpochs:
        """Under which starts of the broker the messages were stored."""
        return self._queue.log_epochs

    @property
    def subscription(self) -> Subscription:
        """Which messages are wanted."""
        return self._queue.subscription

    @subscription.setter
    def subscription(self, subscription: Subscription) -> None:
        self._queue.subscription = subscription

    # The puller's side

    def put(self, batch: Batch) -> bool:
        """Add a batch; see :meth:`ProcessQueue.put <rmq.consumer.fetch.process_queue.ProcessQueue.put>`."""
        return self._queue.put(batch)

    def skip_to(self, queue_offset: int, *, passed_under: int = UNKNOWN) -> None:
        """What is put next begins at ``queue_offset``; where the group begins is recorded without a commit."""
        begins = self._queue.end_offset == NO_OFFSET
        self._queue.skip_to(queue_offset, passed_under=passed_under)
        if begins:
            self._marked = self.durable = queue_offset

    def cut(self, queue_offset: int) -> bool:
        """Let go of what the log has lost, unless it was returned and is not done; says whether that was possible."""
        if not self._queue.cut(queue_offset):
            return False
        self._marked = min(self._marked, queue_offset)
        self.durable = min(self.durable, queue_offset)
        return True

    def has_room(self, messages: int, size: int) -> bool:
        """Whether at most ``messages`` messages and less than ``size`` bytes are held."""
        return self._queue.has_room(messages, size)

    def when_room(self, messages: int, size: int, callback: Callable[[], None]) -> None:
        """Call back once, when :meth:`has_room` has become true."""
        self._queue.when_room(messages, size, callback)

    def starved(self) -> None:
        """Nothing is left to take: whoever waits for room is told."""
        self._queue.starved()

    # The user's side

    def take(self, most: int) -> list[StoredMessage]:
        """Up to ``most`` messages, now returned and not done."""
        return self._queue.take(most)

    def commit(self) -> None:
        """Everything that was returned is done."""
        self._queue.commit()

    def discard(self) -> None:
        """Let go of everything that is not done."""
        self._queue.discard()


def cache_of(generation: Generation) -> PullCache:
    """The cache of a generation of a pull consumer."""
    assert isinstance(generation.cache, PullCache)
    return generation.cache


class NotAssigned(RmqError, LookupError):
    """This consumer does not hold the queue that it was asked about."""


class PulledBatch(list[StoredMessage]):
    """
    A list of messages of one queue, in the order of their offsets; an empty one is of none.

    They count as done when the next poll begins, or at a commit. ``lost`` turns true when that can no longer be: the
    queue belongs, or may belong, to somebody else, who gets them again.
    """

    __slots__ = ("_generation", "given_back")

    def __init__(self, messages: Iterable[StoredMessage] = (), generation: Generation | None = None) -> None:
        super().__init__(messages)
        self._generation = generation
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
        """Whether the queue belongs to somebody else, or may at this moment."""
        generation = self._generation
        return self.given_back or (generation is not None and generation.lost.is_set())

    def _of(self) -> Generation:
        if self._generation is None:
            raise NotAssigned("an empty batch is of no queue")
        return self._generation
