"""
Reads the queues of a topic on from their places, without being a member of any group: nothing is locked or committed.

What lies between a place and the next message (removed by retention, damaged, lost by a crash) is passed, and whoever
reads is told. Memory is bounded by one answer of the broker, and by :data:`MOST_BYTES` of what that unpacks to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.batch import tags
from rmq.wire.errors import OK, Damaged, LogTruncated, MessagesLost, OffsetOutOfRange, TopicNotFound, from_wire
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.hello import HelloReply
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, Pull, PullQueue, PullResult

READ_BYTES: Final = 1 << 20  # of one answer, but for a batch that is larger
MOST_BYTES: Final = 16 << 20  # that one answer may unpack to, but for its first batch
DELETED: Final = "the topic {!r} was deleted"
MADE_AGAIN: Final = "the topic {!r} was deleted, and made again since: read it anew"
TIMEOUT_S: Final = 10.0  # beyond the time that the broker is asked to wait
_PASSED: Final = frozenset({MessagesLost.code, Damaged.code, LogTruncated.code})


class Place(NamedTuple):
    """
    Where a queue is read on, and the log epoch of the message before; 0: none was read.

    Of a message that was not read, the epoch of the broker that named the place is as good: it stored none later.
    """

    offset: int
    log_epoch: int = 0


def order(message: StoredMessage) -> tuple[datetime, int, int]:
    """Messages of a topic in the order they were stored; those of one moment by their queues."""
    return message.stored_at, message.queue_id, message.queue_offset


class TopicReader:
    """
    The places of queues, moved on by every read. ``notice`` is told, in a sentence, what had to be passed.

    ``expression`` wants only messages with such a tag, ``generation`` (0: any) only the topic as it is now, and not
    another that is given its name later. ``log_epoch`` is that of the broker that named the places. Queues that were
    read come last in the next answer, so that a busy one does not hold up the others.
    """

    def __init__(
        self, connection: Connection, topic: str, places: Mapping[int, int], *, expression: str = tags.ALL,
        generation: int = 0, log_epoch: int = 0, notice: Callable[[str], object] = lambda text: None,
    ) -> None:  # fmt: skip
        self.places = {queue_id: Place(offset, log_epoch if offset else 0) for queue_id, offset in places.items()}
        self._connection = connection
        self._topic = topic
        self._wanted = tags.parse(expression)
        self._expression = None if self._wanted is None else expression
        self._generation = generation
        self._notice = notice

    def add(self, queue_id: int) -> None:
        """Read a queue from its beginning, unless it is read already."""
        self.places.setdefault(queue_id, Place(0))

    def bound_epochs(self, log_epoch: int) -> None:
        """The broker's store is a copy that has no later epoch in common with what was read."""
        self.places = {q: at._replace(log_epoch=min(at.log_epoch, log_epoch)) for q, at in self.places.items()}

    async def read(self, wait_s: float = 0.0) -> list[StoredMessage]:
        """
        What the queues hold next, in the order it was stored; waits so long for something if there is nothing.

        Cancelling is safe: the same is read again.

        Raises:
            TopicNotFound: the topic was deleted, whether or not there is another of its name by now.
            OtherHistory: the broker's store is a copy that has other messages at the places.
            ConnectionLost, RequestTimeout: the places are as they were.
        """
        queues = list(self.places)
        wanted = [PullQueue(self._topic, q, at.offset, None, NO_OFFSET, at.log_epoch) for q, at in self.places.items()]
        asked = Pull(None, int(wait_s * 1000), READ_BYTES, wanted, self._expression)
        try:
            reply = await self._connection.request(Op.PULL, asked, timeout_s=wait_s + TIMEOUT_S)
        except TopicNotFound as error:
            raise TopicNotFound(DELETED.format(self._topic)) from error
        found: list[StoredMessage] = []
        room = MOST_BYTES
        for answer in decode_list(PullResult, reply):
            room -= self._take(queues[answer.index], answer, found, room)
        return sorted(found, key=order)

    def _take(self, queue_id: int, answer: PullResult, found: list[StoredMessage], room: int) -> int:
        """Read an answer for a queue; tells how much memory that took."""
        at = self.places[queue_id]
        if answer.status == OK:
            return self._read(queue_id, answer.batches, found, room)
        if answer.status == EMPTY:
            if answer.next_offset > at.offset:  # behind what has no wanted tag
                self._move(queue_id, answer.next_offset, self._log_epoch)
            return 0
        if answer.status == TopicNotFound.code:
            raise TopicNotFound(DELETED.format(self._topic))
        if answer.status in _PASSED:
            self._notice(answer.text or f"{MessageQueue(self._topic, queue_id)} lost messages at offset {at.offset}")
            self._move(queue_id, answer.next_offset, self._log_epoch)
            return 0
        if answer.status == OffsetOutOfRange.code:
            self._notice(f"{answer.text}: going on at {answer.max_offset}")
            self._move(queue_id, answer.max_offset, self._log_epoch)
            return 0
        raise from_wire(answer.status, answer.text or f"{MessageQueue(self._topic, queue_id)} cannot be read")

    def _read(self, queue_id: int, data: Any, found: list[StoredMessage], room: int) -> int:
        """Take batches as long as there is room for what they unpack to; the rest is asked for again."""
        stores, position, taken = self._hello.stores, 0, 0
        while position < len(data) and (taken < room or (not position and room == MOST_BYTES)):
            batch = batches.read(data, position, stores=stores)
            if self._generation and batch.header.topic_gen != self._generation:
                raise TopicNotFound(MADE_AGAIN.format(self._topic))
            position += batch.header.size
            taken += batch.header.raw_size
            start = self.places[queue_id].offset
            found += [message for message in batch.messages(start) if self._is_wanted(message)]
            self._move(queue_id, batch.header.end_offset, batch.header.log_epoch)
        return taken

    @property
    def _hello(self) -> HelloReply:
        assert self._connection.hello is not None  # the connection was open to be asked
        return self._connection.hello

    @property
    def _log_epoch(self) -> int:
        return self._hello.log_epoch

    def _is_wanted(self, message: StoredMessage) -> bool:
        return self._wanted is None or message.tag in self._wanted

    def _move(self, queue_id: int, offset: int, log_epoch: int) -> None:
        del self.places[queue_id]
        self.places[queue_id] = Place(offset, log_epoch)
