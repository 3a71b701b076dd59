"""
Operations on stored messages: found by key, by id and by time.

Messages travel as the whole batches that hold them, with their places in each, so that a reader checks and decodes
them as those of a pull.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .core import QueueRef

MAX_FOUND: Final = 1024  # messages in one answer
MAX_FOUND_BYTES: Final = 8 << 20  # of batches in one answer
NO_TIME: Final = -1


class QueryMessages(NamedTuple):
    """
    Find the messages of a key, newest first, stored in ``[since_us, until_us)``; -1 is no bound.

    ``before`` goes on where an answer ended: only messages with a lower handle; 0 begins with the newest.
    """

    topic: str | None
    key: str
    since_us: int = NO_TIME
    until_us: int = NO_TIME
    limit: int = 64
    before: int = 0


class FoundBatch(NamedTuple):
    """A stored batch, and the places in it of the messages that were asked for."""

    batch: bytes
    indexes: list[int]


class QueryReply(NamedTuple):
    """
    What was found. If ``before`` is not 0 there may be more: ask again from there.

    ``lag_bytes`` is how much of the log's end was not looked at, since its keys were not indexed in time.
    """

    found: list[FoundBatch]
    before: int = 0
    lag_bytes: int = 0


class GetMessage(NamedTuple):
    """The message of an id; answered with a FoundBatch, or MESSAGE_NOT_FOUND."""

    message_id: str


class OffsetsAt(NamedTuple):
    """The first offset of each queue that was stored at a time or later."""

    time_us: int
    queues: list[QueueRef]


class OffsetAt(NamedTuple):
    """``offset`` lies in ``[min_offset, max_offset]``; it is ``max_offset`` if all messages are older."""

    status: int
    offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    text: str | None = None


class HeadAt(NamedTuple):
    """An offset of a queue."""

    topic: str
    queue_id: int
    queue_offset: int


class Heads(NamedTuple):
    """When the message at an offset of each queue was stored."""

    entries: list[HeadAt]


class Head(NamedTuple):
    """
    The first message of a queue at the offset that was asked for, or behind it where that one is no longer stored.

    The ``status`` is EMPTY (-1) where the queue ends before, and the code of why where nothing can be told.
    """

    status: int
    queue_offset: int = 0
    stored_at: int = 0
    handle: int = 0
    text: str | None = None
