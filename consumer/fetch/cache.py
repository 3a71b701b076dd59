"""
What the pulled and unfinished messages of a queue are to those who do not call the listener.

Under which start of the broker the messages were stored that a reader has fetched. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from rmq.wire.batch.batch import Batch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun

from ..group.tag_filter import Subscription

UNKNOWN = 0  # no log epoch: the reader has no such message


class Cache(Protocol):
    """
    Messages between the puller and the listener: see :class:`~rmq.consumer.fetch.process_queue.ProcessQueue`.

    How they are taken and finished is between each kind of cache and the service that calls the listener.
    """

    subscription: Subscription

    @property
    def end_offset(self) -> int:
        """What is put next begins here."""
        ...

    @property
    def size(self) -> int:
        """The bytes of the batches that are held."""
        ...

    @property
    def log_epochs(self) -> LogEpochs:
        """Under which starts of the broker the messages were stored."""
        ...

    @property
    def messages(self) -> int:
        """How many messages are not done."""
        ...

    @property
    def in_flight(self) -> list[StoredMessage]:
        """The messages that the listener has."""
        ...

    @property
    def ready(self) -> bool:
        """Whether something may be taken."""
        ...

    @property
    def used(self) -> bool:
        """Whether it holds messages, or any went through it."""
        ...

    @property
    def commit_offset(self) -> int:
        """The next offset to deliver if somebody else took over now."""
        ...

    @property
    def head(self) -> tuple[int, int]:
        """The offset of the first message that is not done, and the number of its delivery, under way or next."""
        ...

    @property
    def span(self) -> int:
        """How far the first and the last held offset are apart; 0 where that is no reason not to pull."""
        ...

    @property
    def may_starve(self) -> bool:
        """Whether the listener may need more than a full cache before it finishes anything."""
        ...

    def put(self, batch: Batch) -> bool:
        """Add a batch that reaches beyond the end; says whether there was anything new in it."""
        ...

    def skip_to(self, queue_offset: int, *, passed_under: int = UNKNOWN) -> None:
        """What is put next begins at ``queue_offset``."""
        ...

    def cut(self, queue_offset: int) -> bool:
        """Let go of everything from ``queue_offset`` on; False, and nothing has changed, if that cannot be."""
        ...

    def has_room(self, messages: int, size: int) -> bool:
        """Whether at most ``messages`` messages and less than ``size`` bytes are held."""
        ...

    def when_room(self, messages: int, size: int, callback: Callable[[], None]) -> None:
        """Call back once, when there is room."""
        ...

    def starved(self) -> None:
        """Nothing is left to take: whoever waits for room is told."""
        ...

    def discard(self) -> None:
        """Let go of everything that is not done; ``commit_offset`` stays."""
        ...


class MakeCache(Protocol):
    """Makes the cache of a generation; the class of a cache is one."""

    def __call__(
        self, start_offset: int, *, subscription: Subscription | None = None, runs: Sequence[AttemptRun] = ()
    ) -> Cache: ...


MOST_RUNS = 64  # kept; what lies before them is as if it had not been fetched


class LogEpochs:
    """
    The log epoch of every message that was fetched, as runs of equal ones: it changes only where the broker restarted.

    A broker that lost the end of its log gives the same offsets to other messages, under a higher epoch. So the epoch
    of the message before an offset tells whether reader and log agree up to there. It is remembered for more than the
    last message, since what is left after a cut has to be compared as well.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque(maxlen=MOST_RUNS)  # first offset, epoch; both ascend

    def fetched(self, queue_offset: int, log_epoch: int) -> None:
        """
        Messages from ``queue_offset`` on were stored under ``log_epoch``.

        Of some, which were passed over since nobody wants them, only a bound is known, the epoch of the broker that
        did so: what follows them in the log may lower it.
        """
        while self._runs and self._runs[-1][1] > log_epoch > UNKNOWN:
            queue_offset = self._runs.pop()[0]
        if not self._runs or self._runs[-1][1] != log_epoch:
            self._runs.append((queue_offset, log_epoch))

    def skipped(self, queue_offset: int) -> None:
        """Nothing was fetched from ``queue_offset`` on, up to what is fetched next."""
        if self._runs:
            self.fetched(queue_offset, UNKNOWN)

    def before(self, queue_offset: int) -> int:
        """The log epoch of the message before ``queue_offset``; 0 if it was not fetched."""
        for first, log_epoch in reversed(self._runs):
            if first < queue_offset:
                return log_epoch
        return UNKNOWN

    def cut(self, queue_offset: int) -> None:
        """Forget everything from ``queue_offset`` on."""
        while self._runs and self._runs[-1][0] >= queue_offset:
            self._runs.pop()
