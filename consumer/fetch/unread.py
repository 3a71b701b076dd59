"""What stands in line for the listener and is not made yet: batches, and the holes between them. Pure."""

from __future__ import annotations

from rmq.wire.batch.batch import Batch
from rmq.wire.model import StoredMessage

from ..group.tag_filter import Subscription


class UnreadBatch:
    """
    The messages of a batch at ``from_offset`` and behind that were not made yet.

    Making all 4096 at once costs twice as much for each: they leave the processor's caches before they are used, and
    the garbage collector walks over them.
    """

    __slots__ = ("_end", "_index", "batch")

    def __init__(self, batch: Batch, from_offset: int) -> None:
        self.batch = batch
        self._index = max(0, from_offset - batch.header.base_offset)
        self._end = batch.header.count

    @property
    def left(self) -> int:
        """How many messages were not made yet, wanted or not."""
        return self._end - self._index

    @property
    def size(self) -> int:
        """The bytes it holds, as long as any message of it is not done."""
        return self.batch.header.open_size

    @property
    def base_offset(self) -> int:
        """The offset of the first message, made or not."""
        return self.batch.header.base_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last message."""
        return self.batch.header.base_offset + self._end

    def cut(self, queue_offset: int) -> None:
        """Leave out the messages from ``queue_offset`` on."""
        self._end = max(0, min(self._end, queue_offset - self.base_offset))
        self._index = min(self._index, self._end)

    def read(self, most: int, subscription: Subscription) -> list[StoredMessage]:
        """The wanted ones of the next ``most`` messages, each with a body of its own."""
        start, end = self._index, min(self._index + most, self._end)
        self._index = end
        wanted = subscription.select(self.batch.columns.tags, start, end)
        return self.batch.pick(wanted) if wanted else []


class Hole:
    """Offsets that nothing is delivered of, lost or not wanted: progress passes them when their turn comes."""

    __slots__ = ("base_offset", "end_offset")

    left = 0
    size = 0

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset

    def cut(self, queue_offset: int) -> None:
        """Leave out the offsets from ``queue_offset`` on."""
        self.end_offset = min(self.end_offset, queue_offset)

    def read(self, most: int, subscription: Subscription) -> list[StoredMessage]:
        """No messages."""
        return []
