"""A batch whose messages are made a few at a time, when their turn comes. Pure."""

from __future__ import annotations

from itertools import accumulate

from rmq.wire.batch import Batch, BatchOrigin
from rmq.wire.model import StoredMessage

from .subscription import Subscription


class UnreadBatch:
    """
    The messages of a batch at ``from_offset`` and behind that were not made yet.

    Making all 4096 at once costs twice as much for each: they leave the processor's caches before they are used, and
    the garbage collector walks over them.
    """

    __slots__ = ("_bounds", "_index", "_origin", "batch")

    def __init__(self, batch: Batch, from_offset: int) -> None:
        self.batch = batch
        self._index = max(0, from_offset - batch.header.base_offset)
        self._bounds: list[int] | None = None  # made with the first message: a batch may wait for long
        self._origin = BatchOrigin(batch.header, batch.columns, batch.store_id)

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
        if not wanted:
            return []
        if self._bounds is None:
            self._bounds = [0, *accumulate(self.batch.columns.lengths)]
        bodies, bounds, origin = self.batch.bodies, self._bounds, self._origin
        messages = [StoredMessage(bodies[bounds[i] : bounds[i + 1]], origin, i) for i in wanted]
        if (attempts := self.batch.columns.attempts) is not None:
            for message, i in zip(messages, wanted, strict=True):
                message.attempt += attempts[i]
        return messages
