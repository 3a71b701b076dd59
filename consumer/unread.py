"""A batch whose messages are made a few at a time, when their turn comes. Pure."""

from __future__ import annotations

from rmq.wire.batch import Batch
from rmq.wire.model import StoredMessage

from .subscription import Subscription


class UnreadBatch:
    """
    The messages of a batch at ``from_offset`` and behind that were not made yet.

    Making all 4096 at once costs twice as much for each: they leave the processor's caches before they are used, and
    the garbage collector walks over them.
    """

    __slots__ = ("_index", "batch")

    def __init__(self, batch: Batch, from_offset: int) -> None:
        self.batch = batch
        self._index = max(0, from_offset - batch.header.base_offset)

    @property
    def left(self) -> int:
        """How many messages were not made yet, wanted or not."""
        return self.batch.header.count - self._index

    @property
    def end_offset(self) -> int:
        """The offset behind the last message."""
        return self.batch.header.base_offset + self.batch.header.count

    def read(self, most: int, subscription: Subscription) -> list[StoredMessage]:
        """The wanted ones of the next ``most`` messages, each with a body of its own."""
        start, end = self._index, min(self._index + most, self.batch.header.count)
        self._index = end
        wanted = subscription.select(self.batch.columns.tags, start, end)
        return self.batch.pick(wanted) if wanted else []
