"""
The pulled and unfinished messages of one assignment: put, take, commit, roll back, take again. Pure.

Batches wait as they came; their messages are made when their turn comes. Taken messages are in flight until they are
committed or put back. All of that is one sequence of messages with two cursors::

    done | in flight | made, not taken | batches and holes, not read to their end
         ^ first     ^ next
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq.wire.batch.batch import Batch
from rmq.wire.errors import BadBatch
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.hello import AttemptRun

from ..group.tag_filter import Subscription

UNKNOWN = 0  # no log epoch: the reader has no such message


class _Read(NamedTuple):
    """A batch that was read to its end, with unfinished messages: where it ends in line and queue, what it weighs."""

    end: int
    end_offset: int
    size: int


READ_AT_ONCE = 256  # messages made at a time
READ_MOST = 8192  # messages looked at in one go for wanted ones


class _Room(NamedTuple):
    """A task waits until the queue has no more than this."""

    messages: int
    size: int
    callback: Callable[[], None]


class ProcessQueue:
    """
    Messages between the puller and the listener, in the order of their offsets.

    ``messages`` counts those that are not done; ``size`` counts whole batches from arrival until their last message
    is done, since that is how long the memory is used.

    ``line``, ``first``, ``next`` and ``mark`` are for the dispatch that gives the messages to the listener only: it
    may do itself what :meth:`take` does with what :meth:`fill` has made, up to ``mark``, and what :meth:`commit` does.
    """

    __slots__ = (
        "_arrived", "_behind", "_done_offset", "_passed", "_read", "_room", "_runs", "_unread", "end_offset", "first",
        "line", "log_epochs", "mark", "next", "size", "subscription",
    )  # fmt: skip

    def __init__(
        self,
        start_offset: int,
        *,
        subscription: Subscription | None = None,
        runs: Sequence[AttemptRun] = (),
    ) -> None:
        self.subscription = subscription or Subscription()
        self.end_offset = start_offset  # what is put next begins here
        self.size = 0
        self.log_epochs = LogEpochs()
        self._runs = sorted(runs)  # what owners before us failed at, for messages that are not made yet
        self._behind: dict[int, int] = {}  # offset of a message -> where the removed ones after it end
        self._done_offset = start_offset  # everything below it is done, up to the last whole batch
        self._arrived: deque[UnreadBatch | Hole] = deque()
        self._unread = 0
        self._read: deque[_Read] = deque()
        self.line: list[StoredMessage] = []
        self._passed = 0  # how many messages were in the line before its first
        self.first = 0
        self.next = 0
        self.mark = 0  # settle() has something to do when ``first`` gets here
        self._room: _Room | None = None

    # What is there

    @property
    def messages(self) -> int:
        """How many messages are not done; those not yet made count before their tags are looked at."""
        return len(self.line) - self.first + self._unread

    @property
    def in_flight(self) -> list[StoredMessage]:
        """The messages that were taken and neither committed nor put back."""
        return self.line[self.first : self.next]

    @property
    def ready(self) -> bool:
        """Whether something may be taken."""
        return self.next < len(self.line) or bool(self._arrived)

    @property
    def used(self) -> bool:
        """Whether it has messages, or any went through it."""
        return bool(self._passed or self.line or self._arrived)

    @property
    def finished_offset(self) -> int:
        """The first offset that is not done: the next one to deliver if another owner took over now."""
        if not self.first:
            return self._done_offset
        last = self.line[self.first - 1].queue_offset
        return max(self._done_offset, self._behind.get(last, last + 1))

    commit_offset = finished_offset  # what is reported to the broker; a subclass may report less

    @property
    def head(self) -> tuple[int, int]:
        """The offset of the first message that is not done, and the number of its delivery, under way or next."""
        if self.first < len(self.line):
            return self.line[self.first].queue_offset, self.line[self.first].attempt
        offset = self.finished_offset  # it is not made yet; what owners before us failed at is known all the same
        failed = (run.attempts for run in self._runs if run.from_offset <= offset < run.end_offset)
        return offset, max(failed, default=0) + 1

    @property
    def span(self) -> int:
        """0: messages are done in the order of their offsets, so how far they are apart does not matter."""
        return 0

    @property
    def may_starve(self) -> bool:
        """Whether the listener may need more than a full cache before it finishes anything."""
        return True

    # The puller's side

    def put(self, batch: Batch) -> bool:
        """
        Add a batch that reaches beyond the end; what of it is already here, or not asked for, is left out.

        Raises:
            BadBatch: there would be a hole between the end and the batch.
        """
        if batch.header.base_offset > self.end_offset:
            raise BadBatch(f"the batch begins at {batch.header.base_offset}, and {self.end_offset} was asked for")
        unread = UnreadBatch(batch, self.end_offset)
        if unread.left <= 0:
            return False
        self._arrived.append(unread)
        self._unread += unread.left
        self.size += batch.header.open_size
        self.log_epochs.fetched(self.end_offset, batch.header.log_epoch)
        self.end_offset = unread.end_offset
        return True

    def skip_to(self, queue_offset: int, *, passed_under: int = UNKNOWN) -> None:
        """
        What is put next begins at ``queue_offset``; the progress gets there when all before it is done.

        ``passed_under`` is the log epoch of a broker that has looked at what lies between, and found nothing wanted.
        """
        if not self.messages:
            self._done_offset = queue_offset
        elif self._arrived and isinstance(self._arrived[-1], Hole):
            self._arrived[-1].end_offset = queue_offset  # after a message that waits they would become many
        else:
            self._arrived.append(Hole(self.end_offset, queue_offset))
        if passed_under:
            self.log_epochs.fetched(self.end_offset, passed_under)
        else:
            self.log_epochs.skipped(self.end_offset)
        self.end_offset = queue_offset

    def cut(self, queue_offset: int) -> bool:
        """
        Let go of everything from ``queue_offset`` on, since the log has lost it, and lower the progress to there.

        False, and nothing has changed, if the listener has some of it: what it answers could not be distinguished from
        an answer about the messages that get these offsets next.
        """
        if self.next > self.first and self.line[self.next - 1].queue_offset >= queue_offset:
            return False
        self.log_epochs.cut(queue_offset)
        self._runs = [
            run._replace(end_offset=min(run.end_offset, queue_offset))
            for run in self._runs
            if run.from_offset < queue_offset
        ]
        self._behind = {offset: min(end, queue_offset) for offset, end in self._behind.items()}
        if self.finished_offset > queue_offset:  # so nothing is in flight, and all that is here lies after it
            self.discard()
            self._done_offset = self.end_offset = queue_offset
            return True
        self.end_offset = min(self.end_offset, queue_offset)
        while len(self.line) > self.next and self.line[-1].queue_offset >= queue_offset:
            self.line.pop()
        through: _Read | None = None  # the first of those that reach beyond: it may have begun before
        while self._read and self._read[-1].end_offset > queue_offset:
            through = self._read.pop()
            self.size -= through.size
        if through is not None:
            self._read.append(_Read(self._passed + len(self.line), queue_offset, through.size))
            self.size += through.size
        while self._arrived and self._arrived[-1].base_offset >= queue_offset:
            self.size -= self._arrived.pop().size
        if self._arrived:
            self._arrived[-1].cut(queue_offset)
        self._unread = sum(unread.left for unread in self._arrived)
        self.settle()
        return True

    def has_room(self, messages: int, size: int) -> bool:
        """Whether at most ``messages`` messages and less than ``size`` bytes are here."""
        return self.messages <= messages and (self.size < size or not self.size)

    def when_room(self, messages: int, size: int, callback: Callable[[], None]) -> None:
        """Call back once, when :meth:`has_room` has become true by a commit."""
        self._room = _Room(messages, size, callback)
        self._set_mark()

    def starved(self) -> None:
        """Nothing is left to take: wake what waits for room, since a commit may need more messages first."""
        if self._room is not None:
            callback, self._room = self._room.callback, None
            callback()
            self._set_mark()

    # The listener's side

    def take(self, most: int) -> list[StoredMessage]:
        """Up to ``most`` messages, now in flight; fewer if no more are here, or after a long run of unwanted ones."""
        start = self.fill(most)
        self.next = end = min(start + most, len(self.line))
        # A list made of one item costs half of a slice, and batches of one are the rule.
        return [self.line[start]] if end - start == 1 else self.line[start:end]

    def fill(self, most: int = 1) -> int:
        """See to it that ``most`` messages can be taken, if so many are here; returns their place in the line."""
        if self.next + most > len(self.line) and self._arrived:
            self._fill(most)
        return self.next

    def commit(self) -> None:
        """Everything in flight is done."""
        self.first = self.next
        if self.first >= self.mark:
            self.settle()

    def rollback(self) -> list[StoredMessage]:
        """Everything in flight is taken again; returns it."""
        messages = self.in_flight
        self.next = self.first
        return messages

    def again(self, count: int) -> list[StoredMessage]:
        """The last ``count`` messages that were taken are taken again; returns them."""
        end, self.next = self.next, self.next - count
        assert self.next >= self.first, "only what is in flight can be put back"
        return self.line[self.next : end]

    def commit_offset_without(self, messages: Sequence[StoredMessage]) -> int:
        """What ``commit_offset`` will be when these, none of them in flight, are removed."""
        gone, at, progress = set(map(id, messages)), self.first, self.finished_offset
        while at < len(self.line) and id(self.line[at]) in gone:
            progress = self._end_of(self.line[at])
            at += 1
        return progress

    def remove(self, messages: Sequence[StoredMessage]) -> None:
        """
        Let go of messages that are put back and done in another way: they are not taken again.

        Progress passes each with the message before it, so that one that waits keeps those after it back.
        """
        gone = set(map(id, messages))
        kept = self.line[: self.next]
        lost: list[int] = []  # the places of those that go
        for at, message in enumerate(self.line[self.next :], self.next):
            if id(message) not in gone:
                kept.append(message)
                continue
            lost.append(self._passed + at)
            end = self._end_of(message)
            self._behind.pop(message.queue_offset, None)
            if len(kept) == self.first:  # everything before it is done
                self._done_offset = end
            else:
                self._behind[kept[-1].queue_offset] = end
        self.line = kept
        self._read = deque(
            read._replace(end=read.end - sum(1 for place in lost if place < read.end)) for read in self._read
        )
        self.settle()

    def still_queued(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Those of them that are put back; the log may have lost some meanwhile, and they with it."""
        line = set(map(id, self.line[self.next :]))
        return [message for message in messages if id(message) in line]

    def discard(self) -> None:
        """Let go of everything that is not done; ``commit_offset`` stays."""
        self._done_offset = self.finished_offset
        self._arrived.clear()
        self._read.clear()
        self._behind.clear()
        self.line = []
        self.first = self.next = self._unread = self.mark = self.size = 0
        self.end_offset = self._done_offset

    # Batches

    def _fill(self, most: int) -> None:
        """Make messages until ``most`` can be taken or many were passed; what is done leaves the line."""
        self._forget_done()
        stop_at = self._unread - READ_MOST
        while self._arrived and len(self.line) - self.next < most and self._unread > stop_at:
            head = self._arrived[0]
            left = head.left
            self.line += self._number(head.read(max(most, READ_AT_ONCE), self.subscription))
            self._unread -= left - head.left
            if not head.left:
                self._arrived.popleft()
                self._read.append(_Read(self._passed + len(self.line), head.end_offset, head.size))
        self.settle()

    def _number(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Number the messages that an owner before us failed at by how often they were delivered."""
        while self._runs and messages and self._runs[0].from_offset <= messages[-1].queue_offset:
            run = self._runs[0]
            for message in messages:
                if run.from_offset <= message.queue_offset < run.end_offset:
                    message.attempt = max(message.attempt, run.attempts + 1)
            if run.end_offset > messages[-1].queue_offset + 1:
                break  # it goes on in what is made next
            del self._runs[0]
        return messages

    def _end_of(self, message: StoredMessage) -> int:
        """Where the progress is when this message is done."""
        offset = message.queue_offset
        return self._behind.get(offset, offset + 1)

    def settle(self) -> None:
        """Let go of the batches that are done, and wake what waits for room."""
        done = self._passed + self.first
        while self._read and self._read[0].end <= done:
            finished = self._read.popleft()
            self._done_offset = max(self._done_offset, finished.end_offset)
            self.size -= finished.size
        if self.first == len(self.line):
            self._forget_done()
        if self._room is not None and self.has_room(self._room.messages, self._room.size):
            callback, self._room = self._room.callback, None
            callback()
        self._set_mark()

    def _forget_done(self) -> None:
        if self.first:
            self._done_offset = self.finished_offset
            if self._behind:
                self._behind = {offset: end for offset, end in self._behind.items() if offset >= self._done_offset}
            del self.line[: self.first]
            self._passed += self.first
            self.next -= self.first
            self.first = 0
            self._set_mark()

    def _set_mark(self) -> None:
        self.mark = self._read[0].end - self._passed if self._read else len(self.line)
        if self._room is not None:
            enough = len(self.line) + self._unread - self._room.messages
            # Where the messages are few enough and only the bytes too many, the end of a batch is the next chance.
            if enough > self.first:
                self.mark = min(self.mark, enough)


class UnreadBatch:
    """
    The messages of a batch at ``from_offset`` and after that were not made yet.

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
        """The bytes it takes, as long as any message of it is not done."""
        return self.batch.header.open_size

    @property
    def base_offset(self) -> int:
        """The offset of the first message, made or not."""
        return self.batch.header.base_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
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


MOST_RUNS = 64  # kept; what lies before them is as if it had not been fetched


class LogEpochs:
    """
    The log epoch of every message that was fetched, as runs of equal ones: it changes only where the broker restarted.

    A broker that lost the end of its log gives the same offsets to other messages, under a higher epoch. So the epoch
    of the message before an offset tells whether reader and log agree up to there. It is remembered for more than the
    last message, since what is left after a cut has to be compared as well.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque(maxlen=MOST_RUNS)  # first offset, epoch; both ascend

    def fetched(self, queue_offset: int, log_epoch: int) -> None:
        """
        Messages from ``queue_offset`` on were stored under ``log_epoch``.

        Of some, which were passed over since none is wanted, only a bound is known, the epoch of the broker that
        did so: what follows them in the log may lower it.
        """
        while self._runs and self._runs[-1][1] > log_epoch > UNKNOWN:
            queue_offset = self._runs.pop()[0]
        if not self._runs or self._runs[-1][1] != log_epoch:
            self._runs.append((queue_offset, log_epoch))

    def skipped(self, queue_offset: int) -> None:
        """Nothing was fetched from ``queue_offset`` on, up to what is fetched next."""
        if self._runs:
            self.fetched(queue_offset, UNKNOWN)

    def before(self, queue_offset: int) -> int:
        """The log epoch of the message before ``queue_offset``; 0 if it was not fetched."""
        for first, log_epoch in reversed(self._runs):
            if first < queue_offset:
                return log_epoch
        return UNKNOWN

    def cut(self, queue_offset: int) -> None:
        """Forget everything from ``queue_offset`` on."""
        while self._runs and self._runs[-1][0] >= queue_offset:
            self._runs.pop()


MakeCache = Callable[..., ProcessQueue]  # takes the arguments of ProcessQueue; the class of a cache is one
