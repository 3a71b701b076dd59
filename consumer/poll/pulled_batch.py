"""What a poll returns: messages of one queue, and under which lease they were taken."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.wire.errors import RmqError
from rmq.wire.model import MessageQueue, StoredMessage

from ..group.assignment import Generation


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
