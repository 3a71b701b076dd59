"""What the pulled and unfinished messages of a queue are to those who do not call the listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmq.wire.batch.batch import Batch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun

from ..group.log_epochs import UNKNOWN, LogEpochs
from ..group.tag_filter import Subscription


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
