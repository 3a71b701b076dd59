"""
The newest messages of a topic over all its queues, and those that come after them, without being in any group.

How far back the newest ones lie is found by time: the broker is asked which offsets were stored since then, for spans
that grow, until there are enough. So only about as many messages are read as are wanted, however many queues there are.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from rmq.engine.native.connection import Connection
from rmq.wire.batch import tags
from rmq.wire.errors import OK, ConnectionLost, LogTruncated, QueueNotFound, RequestTimeout, TopicNotFound, from_wire
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.hello import HelloReply
from rmq.wire.protocol.ops.core import Range, TopicInfo
from rmq.wire.protocol.ops.messages import OffsetAt

from .topic_reader import DELETED, MADE_AGAIN, TopicReader, order

HOLD_S: Final = 5.0  # of one long poll; new queues are noticed as often
KEPT_BYTES: Final = 64 << 20  # of bodies that the newest messages may have
LOOK_BACK: Final = 200_000  # messages that are looked at for those that are wanted
ENOUGH: Final = 256  # so many are read without looking for fewer
WIDER: Final = 16  # times as long is the next span that is looked at
LONGEST_S: Final = 3.2e8  # ten years: beyond that, everything
_SHORTEST_S: Final = 1e-4

Offsets = Mapping[int, int]  # by queue


class Questions(Protocol):
    """What is asked of an :class:`~rmq.client.Admin`."""

    async def topic(self, topic: str) -> TopicInfo: ...
    async def ranges(self, queues: Iterable[MessageQueue], group: str | None = None) -> list[Range]: ...
    async def offsets_at(self, queues: Iterable[MessageQueue], time: datetime) -> list[OffsetAt]: ...


class Newest(NamedTuple):
    """Messages in the order they were stored. ``left_out`` says in a sentence why there are not more; or is empty."""

    messages: list[StoredMessage]
    left_out: str = ""


class Kept:
    """The newest of the messages that were seen: at most so many, with at most so many bytes of bodies."""

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
        """See one more."""
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
        self, admin: Questions, connection: Connection, topic: str, *, queues: Iterable[int] = (),
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
        """Look at what the queues hold; :meth:`follow` goes on behind that."""
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
        """Offsets behind which so many messages lie, or a few more; ``first`` if that is everything."""
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
        """The first offset of each queue that was stored at a time or later, not before ``first``."""
        asked = [queue_id for queue_id, end in ends.items() if first[queue_id] < end]  # the others hold nothing
        found = await self._admin.offsets_at((MessageQueue(self._topic, queue_id) for queue_id in asked), time)
        at = {queue_id: item.offset for queue_id, item in zip(asked, found, strict=True) if item.status == OK}
        return {q: min(max(at.get(q, first[q]), first[q]), end) for q, end in ends.items()}

    async def _collect(self, starts: Offsets, ends: Offsets, kept: Kept) -> None:
        left = {queue_id: start for queue_id, start in starts.items() if start < ends[queue_id]}
        reader = self._reader(left)
        while reader.places:
            before = dict(reader.places)
            for message in await reader.read():
                if message.queue_offset < ends[message.queue_id] and self._wanted(message):
                    kept.add(message)
            for queue_id, place in list(reader.places.items()):
                if place.offset >= ends[queue_id] or before == reader.places:  # or the broker has no more to tell
                    del reader.places[queue_id]

    def _reader(self, places: Offsets) -> TopicReader:
        return TopicReader(
            self._connection, self._topic, places, expression=self._expression, generation=self._generation,
            log_epoch=self._log_epoch, notice=self._notice,
        )  # fmt: skip

    # ---- what comes

    async def follow(self) -> AsyncIterator[list[StoredMessage]]:
        """
        Messages as they come, behind what :meth:`newest` or :meth:`begin` looked at; without an end.

        A broker that is gone is waited for, a topic that grows is followed in its new queues.

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

    async def _look_for_queues(self, reader: TopicReader) -> None:
        try:
            info = await self._admin.topic(self._topic)
        except TopicNotFound as error:
            raise TopicNotFound(DELETED.format(self._topic)) from error
        if info.generation != self._generation:
            raise TopicNotFound(MADE_AGAIN.format(self._topic))
        if not self._queues:
            for queue in info.queues:
                reader.add(queue.queue_id)

    async def _wait_for_broker(self, error: Exception, before: HelloReply, reader: TopicReader) -> None:
        self._notice(f"{error}; waiting for the broker")
        await self._connection.wait_connected()
        assert self._connection.hello is not None
        hello = self._connection.hello
        if hello.is_rolled_back(before) or not hello.stores.has(before.store_id):
            raise LogTruncated("the broker is back with another store: read the topic anew")
        reader.bound_epochs(hello.stores.common_epoch(before.stores, hello.log_epoch))
        self._notice("the broker is there again")


def _count(starts: Offsets, ends: Offsets) -> int:
    return sum(end - starts[queue_id] for queue_id, end in ends.items())
