"""
The pulled and unfinished messages of one assignment whose calls run concurrently. Pure.

It is the sequence of :class:`~rmq.consumer.fetch.process_queue.ProcessQueue`, cut into chunks, which end in any
order::

    done | chunk: call runs | done ahead | chunk: waits to be tried again | chunk | made, not taken | ...
         ^ first                                                                  ^ next

The progress is the first offset that is not done: what is done ahead of it stays here until it is reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rmq.wire.batch.batch import Batch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..group.tag_filter import Subscription
from .process_queue import ProcessQueue

MOST_EXPIRED = 16  # messages of a queue that are given up in one go since their calls take too long


class Chunk:
    """
    Neighbours in the line that are given to the listener in one call.

    ``begin`` is their place in the line, counted from the first message that was ever in it. What leaves a chunk early
    leaves it at its beginning; ``gone`` counts that.
    """

    __slots__ = ("asked", "begin", "called_at", "count", "gone")

    def __init__(self, begin: int, count: int) -> None:
        self.begin = begin
        self.count = count
        self.gone = 0
        self.called_at: float | None = None  # when its call began; None while none runs
        self.asked: tuple[int, str] | None = None  # level and reason of a request to take it back that is not answered

    @property
    def end(self) -> int:
        """The place after the last message."""
        return self.begin + self.count


class ConcurrentQueue(ProcessQueue):
    """
    Messages between the puller and many calls of the listener; only chunks are taken from it.

    ``messages`` counts those that are not done. ``size`` counts batches until the progress has passed them, since that
    is how long they are kept. So one message that takes long keeps at most ``max_span`` offsets, and the queue's share
    of bytes, in memory.
    """

    __slots__ = ("_ahead", "_done", "_last_offset", "_out", "_waiting", "max_span")

    def __init__(
        self,
        start_offset: int,
        *,
        subscription: Subscription | None = None,
        runs: Sequence[AttemptRun] = (),
        max_span: int = 2000,
    ) -> None:
        super().__init__(start_offset, subscription=subscription, runs=runs)
        self.max_span = max_span
        self._out: dict[int, Chunk] = {}  # taken and not done, by where they begin
        self._done: dict[int, int] = {}  # done after something that is not: places from key to before value
        self._ahead = 0  # how many messages that is
        self._waiting: deque[Chunk] = deque()  # to be taken again
        self._last_offset = NO_OFFSET  # of what was put last

    # What is there

    @property
    def may_starve(self) -> bool:
        """No: what waits here is tried again, and nothing has to be fetched for that."""
        return False

    @property
    def messages(self) -> int:
        """How many messages are not done; those not yet made count before their tags are looked at."""
        return len(self.line) - self.first + self._unread - self._ahead

    @property
    def in_flight(self) -> list[StoredMessage]:
        """The messages that were taken and are not done, whether their call runs or they wait for another."""
        return [message for _, chunk in sorted(self._out.items()) for message in self.messages_of(chunk)]

    @property
    def ready(self) -> bool:
        """Whether something may be taken."""
        return self.next < len(self.line) or bool(self._arrived) or bool(self._waiting)

    @property
    def span(self) -> int:
        """How far the first and the last message that are not done are apart."""
        if not self.messages:
            return 0
        first = self.line[self.first].queue_offset if self.first < len(self.line) else self.commit_offset
        last = self._last_offset
        if self.next == len(self.line) and not self._arrived:  # all were taken, and the last may be done
            last = self.line[max(chunk.end for chunk in self._out.values()) - self._passed - 1].queue_offset
        return max(last - first, 0)

    def messages_of(self, chunk: Chunk) -> list[StoredMessage]:
        """What is left of a chunk that is not done."""
        begin = chunk.begin - self._passed
        return self.line[begin : begin + chunk.count]

    def progress_without(self, chunk: Chunk, count: int) -> int:
        """What ``commit_offset`` will be when the first ``count`` messages of a chunk are done."""
        if chunk.begin != self._passed + self.first or not count:
            return self.commit_offset
        end = chunk.begin + count
        if count == chunk.count:
            while (further := self._done.get(end)) is not None:
                end = further
        return self.line[end - self._passed - 1].queue_offset + 1

    def expired(self, called_before: float) -> list[tuple[Chunk, int]]:
        """
        The chunks at the head whose calls began before a time, each with how many of its messages; 16 together.

        A chunk that is younger, or whose call does not run, ends them: only the head keeps the progress back.
        """
        found: list[tuple[Chunk, int]] = []
        left, place = MOST_EXPIRED, self._passed + self.first
        while left:
            chunk = self._out.get(place)
            if chunk is None or chunk.called_at is None or chunk.called_at >= called_before:
                break
            found.append((chunk, min(left, chunk.count)))
            left -= min(left, chunk.count)
            place = chunk.end
            while (further := self._done.get(place)) is not None:
                place = further
        return found

    # The puller's side

    def put(self, batch: Batch) -> bool:
        """Add a batch, as :meth:`ProcessQueue.put` does."""
        is_new = super().put(batch)
        if is_new:
            self._last_offset = self.end_offset - 1
        return is_new

    def cut(self, queue_offset: int) -> bool:
        """As :meth:`ProcessQueue.cut`; what is done after something that is not counts as the listener's."""
        is_cut = super().cut(queue_offset)
        if is_cut:
            self._last_offset = min(self._last_offset, queue_offset - 1)
        return is_cut

    def has_room(self, messages: int, size: int) -> bool:
        """As :meth:`ProcessQueue.has_room`, and whether first and last are not too far apart."""
        return super().has_room(messages, size) and self.span <= self.max_span

    # The listener's side

    def take_chunk(self, most: int) -> tuple[Chunk, list[StoredMessage]] | None:
        """
        A chunk that waits to be tried again, or up to ``most`` messages that were not taken yet.

        None if there is nothing, or a long run of unwanted messages comes first. The list is the caller's own.
        """
        if self._waiting:
            chunk = self._waiting.popleft()
            return chunk, self.messages_of(chunk)
        if most == 1 and self.next < len(self.line):  # as take() does it, without the calls
            messages, count = [self.line[self.next]], 1
            self.next += 1
        else:
            messages = self.take(most)
            count = len(messages)
            if not count:
                return None
        begin = self._passed + self.next - count
        chunk = self._out[begin] = Chunk(begin, count)
        return chunk, messages

    def done(self, chunk: Chunk) -> None:
        """All that is left of a chunk is done."""
        if not chunk.count:
            return  # the others were gone before
        begin, count = chunk.begin, chunk.count
        del self._out[begin]
        chunk.gone += count
        chunk.count = 0
        self._pass(begin, begin + count)

    def done_first(self, chunk: Chunk, count: int) -> None:
        """The first ``count`` messages of a chunk are done."""
        if count >= chunk.count:
            return self.done(chunk)
        if count <= 0:
            return
        begin = chunk.begin
        del self._out[begin]
        chunk.begin += count
        chunk.count -= count
        chunk.gone += count
        self._out[chunk.begin] = chunk
        self._pass(begin, begin + count)

    def try_again(self, chunk: Chunk) -> None:
        """A chunk that was taken is taken again, before anything else."""
        chunk.gone = 0
        if chunk.count:
            self._waiting.append(chunk)

    def discard(self) -> None:
        """As :meth:`ProcessQueue.discard`."""
        super().discard()
        self._out.clear()
        self._done.clear()
        self._waiting.clear()
        self._ahead = 0

    def _pass(self, begin: int, end: int) -> None:
        """The messages from one place to before another are done."""
        if begin == self._passed + self.first:
            while self._done and (further := self._done.pop(end, None)) is not None:
                self._ahead -= further - end
                end = further
            self.first = end - self._passed
            if self.first >= self.mark:
                self.settle()
        else:
            self._done[begin] = end
            self._ahead += end - begin
        room = self._room
        if (
            room is not None
            and len(self.line) - self.first + self._unread - self._ahead <= room.messages  # as has_room(), but cheap
            and self.has_room(room.messages, room.size)
        ):
            self.settle()
