"""
The tail of a topic: its newest messages over all queues, and those that follow, without a group, lock or commit.

How far back the newest messages lie is found by time: the broker returns the offsets that were stored since then, for
growing spans, until there are enough. So it reads about as many messages as are wanted, however many queues there are.

A :class:`TopicCursor` skips what cannot be read (removed by retention, damaged, lost by a crash) and reports it through
``notice``. Memory is bounded by one answer of the broker, and by :data:`MOST_BYTES` of what that unpacks to.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.batch import tags
from rmq.wire.errors import (
    OK,
    ConnectionLost,
    Damaged,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    QueueNotFound,
    RequestTimeout,
    TopicNotFound,
    from_wire,
)
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.hello import HelloReply
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, Pull, PullQueue, PullResult, Range

if TYPE_CHECKING:
    from .admin import Admin

HOLD_S: Final = 5.0  # of one long poll; new queues are noticed as often
KEPT_BYTES: Final = 64 << 20  # of bodies that the newest messages may have
LOOK_BACK: Final = 200_000  # messages that are looked at for those that are wanted
ENOUGH: Final = 256  # so many are read without searching for fewer
WIDER: Final = 16  # times as long is the next span that is looked at
LONGEST_S: Final = 3.2e8  # ten years: beyond that, everything
_SHORTEST_S: Final = 1e-4
Offsets = Mapping[int, int]  # by queue


class Newest(NamedTuple):
    """Messages in the order they were stored. ``left_out`` is empty, or a sentence why there are not more."""

    messages: list[StoredMessage]
    left_out: str = ""


class Kept:
    """Keeps the newest of the messages that it sees, up to a count and up to a size of bodies."""

    def __init__(self, most: int, max_bytes: int = KEPT_BYTES) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._heap: list[tuple[tuple[datetime, int, int], StoredMessage]] = []
        self._bytes = 0
        self._dropped: tuple[datetime, int, int] | None = None  # the newest that was left out: none before it is kept
        self.is_too_large = False  # bodies alone were the reason to leave some out

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, message: StoredMessage) -> None:
        """Keep a message if it is new enough."""
        at = order(message)
        if self._dropped is not None and at < self._dropped:
            return
        heapq.heappush(self._heap, (at, message))
        self._bytes += len(message.body)
        while len(self._heap) > self._most or (self._bytes > self._max_bytes and len(self._heap) > 1):
            self.is_too_large |= len(self._heap) <= self._most
            self._dropped, dropped = heapq.heappop(self._heap)
            self._bytes -= len(dropped.body)

    def messages(self) -> list[StoredMessage]:
        """Those that are left, in order."""
        return [message for _, message in sorted(self._heap, key=lambda item: item[0])]


class Tail:
    """
    The end of a topic, or of some of its queues.

    ``tags`` is an expression, ``wanted`` a further condition. ``notice`` is told, in a sentence, what whoever reads
    must know besides: messages that had to be passed, a broker that is gone and back. For messages that are wanted at
    most about ``look_back`` are looked at, unless it is said since when.
    """

    def __init__(
        self, admin: Admin, connection: Connection, topic: str, *, queues: Iterable[int] = (),
        expression: str = tags.ALL, wanted: Callable[[StoredMessage], bool] | None = None,
        notice: Callable[[str], object] = lambda text: None, look_back: int = LOOK_BACK,
    ) -> None:  # fmt: skip
        self._admin = admin
        self._connection = connection
        self._topic = topic
        self._queues = sorted(set(queues))
        self._expression = expression
        self._is_filtered = tags.parse(expression) is not None or wanted is not None
        self._wanted = wanted or (lambda message: True)
        self._notice = notice
        self._look_back = look_back
        self._generation = 0
        self._log_epoch = 0  # of the broker that named the ends
        self._ends: Offsets = {}

    # ---- what is there

    async def newest(self, lines: int, *, now: datetime, since: datetime | None = None) -> Newest:
        """
        The newest ``lines`` messages that are wanted, stored at ``since`` or later.

        Raises:
            TopicNotFound, QueueNotFound: there is no such topic, or not such a queue.
        """
        held = await self.begin()
        first: Offsets = {queue_id: at.min_offset for queue_id, at in held.items()}
        if since is not None:
            first = await self._at(since, first, self._ends)
        kept = Kept(lines)
        behind, want = self._ends, lines
        while lines and behind != first:
            starts = await self._back(first, want, now)
            await self._collect(starts, behind, kept)
            if len(kept) >= lines or kept.is_too_large:
                break
            looked_at = _count(starts, self._ends)
            if since is None and looked_at >= self._look_back and starts != first:
                text = f"only the newest {looked_at} messages were looked at: --since looks as far back as it says"
                return Newest(kept.messages(), text)
            behind, want = starts, want * WIDER
            if since is None:
                want = max(lines, min(want, self._look_back))
        return Newest(kept.messages(), self._left_out(kept, lines, asked_since=since is not None))

    def _left_out(self, kept: Kept, lines: int, *, asked_since: bool) -> str:
        if kept.is_too_large:
            return f"only the newest {len(kept)} are shown: more have over {KEPT_BYTES >> 20} MiB"
        if asked_since and len(kept) == lines:
            return f"there may be more than these {lines} since then: raise --lines"
        return ""

    async def begin(self) -> dict[int, Range]:
        """Request what the queues hold; :meth:`follow` starts after that."""
        info = await self._admin.topic(self._topic)
        self._generation = info.generation
        self._log_epoch = 0 if self._connection.hello is None else self._connection.hello.log_epoch
        known = {queue.queue_id for queue in info.queues}
        for queue_id in self._queues:
            if queue_id not in known:
                raise QueueNotFound(f"the topic {self._topic!r} has the queues 0 to {len(known) - 1}, not {queue_id}")
        queues = self._queues or sorted(known)
        ranges = await self._admin.ranges(MessageQueue(self._topic, queue_id) for queue_id in queues)
        for found in ranges:
            if found.status != OK:
                raise from_wire(found.status, found.text or f"the topic {self._topic!r} cannot be read")
        held = dict(zip(queues, ranges, strict=True))
        self._ends = {queue_id: at.max_offset for queue_id, at in held.items()}
        return held

    async def _back(self, first: Offsets, want: int, now: datetime) -> Offsets:
        """Return offsets that ``want`` messages follow, or a few more; ``first`` if that is everything."""
        ends = self._ends
        if not self._is_filtered and want * len(ends) <= ENOUGH:
            return {queue_id: max(first[queue_id], end - want) for queue_id, end in ends.items()}
        if _count(first, ends) <= max(want, ENOUGH):
            return first
        too_short, span = _SHORTEST_S, 1.0
        while _count(starts := await self._at(now - timedelta(seconds=span), first, ends), ends) < want:
            too_short, span = span, span * WIDER
            if span > LONGEST_S:
                return first
        while _count(starts, ends) > 2 * want + ENOUGH and span > 1.05 * too_short:
            middle = math.sqrt(too_short * span)
            fewer = await self._at(now - timedelta(seconds=middle), starts, ends)
            if _count(fewer, ends) < want:
                too_short = middle
            else:
                span, starts = middle, fewer
        return starts

    async def _at(self, time: datetime, first: Offsets, ends: Offsets) -> Offsets:
        """Return the first offset of each queue that was stored at a time or later, not before ``first``."""
        asked = [queue_id for queue_id, end in ends.items() if first[queue_id] < end]  # the others hold nothing
        found = await self._admin.offsets_at((MessageQueue(self._topic, queue_id) for queue_id in asked), time)
        at = {queue_id: item.offset for queue_id, item in zip(asked, found, strict=True) if item.status == OK}
        return {q: min(max(at.get(q, first[q]), first[q]), end) for q, end in ends.items()}

    async def _collect(self, starts: Offsets, ends: Offsets, kept: Kept) -> None:
        left = {queue_id: start for queue_id, start in starts.items() if start < ends[queue_id]}
        reader = self._reader(left)
        while reader.positions:
            before = dict(reader.positions)
            for message in await reader.read():
                if message.queue_offset < ends[message.queue_id] and self._wanted(message):
                    kept.add(message)
            for queue_id, place in list(reader.positions.items()):
                if place.offset >= ends[queue_id] or before == reader.positions:  # or the broker has no more
                    del reader.positions[queue_id]

    def _reader(self, positions: Offsets) -> TopicCursor:
        return TopicCursor(
            self._connection, self._topic, positions, expression=self._expression, generation=self._generation,
            log_epoch=self._log_epoch, notice=self._notice,
        )  # fmt: skip

    # ---- what comes

    async def follow(self) -> AsyncIterator[list[StoredMessage]]:
        """
        Yield messages as they come, after what :meth:`newest` or :meth:`begin` looked at; without an end.

        It waits for a broker that is gone, and follows the new queues of a topic that grows.

        Raises:
            TopicNotFound: the topic was deleted.
            LogTruncated: the broker came back with another store.
            OtherHistory: the broker came back with an older copy of its store.
        """
        assert self._connection.hello is not None  # it was asked before
        hello = self._connection.hello
        reader = self._reader(self._ends)
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while True:
            try:
                if clock() - looked_at >= HOLD_S:
                    await self._look_for_queues(reader)
                    looked_at = clock()
                messages = await reader.read(HOLD_S)
            except (ConnectionLost, RequestTimeout) as error:
                await self._wait_for_broker(error, hello, reader)
                continue
            if found := [message for message in messages if self._wanted(message)]:
                yield found

    async def _look_for_queues(self, reader: TopicCursor) -> None:
        try:
            info = await self._admin.topic(self._topic)
        except TopicNotFound as error:
            raise TopicNotFound(DELETED.format(self._topic)) from error
        if info.generation != self._generation:
            raise TopicNotFound(MADE_AGAIN.format(self._topic))
        if not self._queues:
            for queue in info.queues:
                reader.add(queue.queue_id)

    async def _wait_for_broker(self, error: Exception, before: HelloReply, reader: TopicCursor) -> None:
        self._notice(f"{error}; waiting for the broker")
        await self._connection.wait_connected()
        assert self._connection.hello is not None
        hello = self._connection.hello
        if hello.is_rolled_back(before) or not hello.stores.has(before.store_id):
            raise LogTruncated("the broker is back with another store: read the topic again")
        reader.bound_epochs(hello.stores.common_epoch(before.stores, hello.log_epoch))
        self._notice("the broker is back")


def _count(starts: Offsets, ends: Offsets) -> int:
    return sum(end - starts[queue_id] for queue_id, end in ends.items())


READ_BYTES: Final = 1 << 20  # of one answer, but for a batch that is larger
MOST_BYTES: Final = 16 << 20  # that one answer may unpack to, but for its first batch
DELETED: Final = "the topic {!r} was deleted"
MADE_AGAIN: Final = "the topic {!r} was deleted and created again: read it again"
TIMEOUT_S: Final = 10.0  # beyond the time that the broker is asked to wait
_PASSED: Final = frozenset({MessagesLost.code, Damaged.code, LogTruncated.code})


class ReadPosition(NamedTuple):
    """
    The next offset of a queue, and the log epoch of the message before; 0: none was read.

    If that message was not read, the epoch of the broker that named the offset serves: it stored no later one.
    """

    offset: int
    log_epoch: int = 0


def order(message: StoredMessage) -> tuple[datetime, int, int]:
    """Sort key: messages of a topic in the order they were stored; those of one moment by queue."""
    return message.stored_at, message.queue_id, message.queue_offset


class TopicCursor:
    """
    Reads queues from positions that every read advances. ``notice`` gets a sentence about everything it skips.

    ``expression`` selects messages by tag, ``generation`` (0: any) the present topic, as opposed to a later one of the
    same name. ``log_epoch`` is that of the broker that named the positions. Queues that were read come last in the next
    answer, so that a busy one does not delay the others.
    """

    def __init__(
        self, connection: Connection, topic: str, positions: Mapping[int, int], *, expression: str = tags.ALL,
        generation: int = 0, log_epoch: int = 0, notice: Callable[[str], object] = lambda text: None,
    ) -> None:  # fmt: skip
        self.positions = {
            queue_id: ReadPosition(offset, log_epoch if offset else 0) for queue_id, offset in positions.items()
        }
        self._connection = connection
        self._topic = topic
        self._wanted = tags.parse(expression)
        self._expression = None if self._wanted is None else expression
        self._generation = generation
        self._notice = notice

    def add(self, queue_id: int) -> None:
        """Read a queue from its start, unless it is read already."""
        self.positions.setdefault(queue_id, ReadPosition(0))

    def bound_epochs(self, log_epoch: int) -> None:
        """Limit the epochs, as the broker's store is a copy that shares no later epoch with what was read."""
        self.positions = {q: at._replace(log_epoch=min(at.log_epoch, log_epoch)) for q, at in self.positions.items()}

    async def read(self, wait_s: float = 0.0) -> list[StoredMessage]:
        """
        Return the next messages of the queues in the order they were stored; wait up to ``wait_s`` for some.

        Cancelling is safe: the same messages are read again.

        Raises:
            TopicNotFound: the topic was deleted, whether or not another has its name by now.
            OtherHistory: the broker's store is a copy that has other messages at the positions.
            ConnectionLost, RequestTimeout: the positions did not change.
        """
        queues = list(self.positions)
        wanted = [
            PullQueue(self._topic, q, at.offset, None, NO_OFFSET, at.log_epoch) for q, at in self.positions.items()
        ]
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
        """Read the answer for a queue, and return how much memory that took."""
        at = self.positions[queue_id]
        if answer.status == OK:
            return self._read(queue_id, answer.batches, found, room)
        if answer.status == EMPTY:
            if answer.next_offset > at.offset:  # after messages without a wanted tag
                self._move(queue_id, answer.next_offset, self._log_epoch)
            return 0
        if answer.status == TopicNotFound.code:
            raise TopicNotFound(DELETED.format(self._topic))
        if answer.status in _PASSED:
            self._notice(answer.text or f"{MessageQueue(self._topic, queue_id)} lost messages at offset {at.offset}")
            self._move(queue_id, answer.next_offset, self._log_epoch)
            return 0
        if answer.status == OffsetOutOfRange.code:
            self._notice(f"{answer.text}: continuing at {answer.max_offset}")
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
            start = self.positions[queue_id].offset
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
        del self.positions[queue_id]
        self.positions[queue_id] = ReadPosition(offset, log_epoch)
