"""
SEND_BACK and DEAD_LETTER: messages that a group fails at are delivered to it again later, or become dead letters.

A thread reads the messages and makes the copies. Then the loop checks the request again, as things are *then*, and
appends the copies, what is remembered of them, and the progress of the group in one write: all of it is in the log or
nothing is. One request is worked off at a time, so that memory is bounded and no message is copied twice. Groups take
turns, and a large request is done in portions, of which only the last stores the progress.

A copy keeps key, tag, index keys, body, properties and the time of birth. Properties of ours say where the message
came from at first, through however many copies. What does not fit in addition is left out, and the copy says so.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from rmq.runtime.logging import get_broker_logger
from rmq.wire import names
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Batch, Rows
from rmq.wire.errors import (
    BadRequest,
    BatchTooLarge,
    Damaged,
    DiskFull,
    MessagesLost,
    OffsetOutOfRange,
    Refused,
    StoreFailed,
    TooManyInFlight,
)
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import NO_OFFSET, DeadLetter, Outcome
from rmq.wire.protocol.ops.redelivery import DEAD, DONE_BEFORE, SendBack, SentBack
from rmq.wire.stores import StoreIds

from ..jobs.read_pool import ReadPool
from ..net.connection import DEFERRED, Connection
from ..state.dead_letters import MAX_COPIED
from ..state.deferred import Delays
from ..state.leases import LeaseTable
from ..state.offsets import Entry, Ledger
from ..state.topics import Topic, TopicTable
from ..store.changes import Committed
from ..store.committer import AppendTicket, Committer, refusal_of
from ..store.lookup import Locator, LogReader
from ..store.message_store import MessageStore, Placed
from .progress import MAX_ATTEMPTS, ProgressHandler, session_of
from .requests import check_entries

log = get_broker_logger(__name__)
MAX_REASON: Final = 255  # characters
FIRST_RETRY: Final = 3  # the level of a message that failed for the first time


def fate(deliveries: int, *, delay_level: int, max_attempts: int, last_level: int) -> int:
    """What becomes of a message that was delivered so often: the level it waits with, or ``DEAD``."""
    if delay_level < 0 or deliveries >= max_attempts:
        return DEAD
    return min(delay_level or FIRST_RETRY - 1 + deliveries, last_level)


class _Request:
    """Messages of a queue that are to be copied for a group, under its lease; ``fates`` is what became of them."""

    __slots__ = (
        "_handler", "attempts", "commit_offset", "connection", "delay_level", "epoch", "fates", "generation", "group",
        "is_dead_letter", "max_attempts", "messages", "offsets", "queue", "reason", "request_id", "wanted",
    )  # fmt: skip

    def __init__(
        self, handler: SendBackHandler, connection: Connection, request_id: int, ask: SendBack | DeadLetter,
        *, generation: int, max_attempts: int,
    ) -> None:  # fmt: skip
        self._handler = handler
        self.connection = connection
        self.request_id = request_id
        self.group = ask.group
        self.queue = MessageQueue(ask.topic, ask.queue_id)
        self.generation = generation  # of the topic, as it was when the request came
        self.epoch = ask.epoch
        self.offsets = ask.queue_offsets
        self.messages = len(ask.queue_offsets)
        self.commit_offset = ask.commit_offset
        self.reason = ask.reason
        self.is_dead_letter = isinstance(ask, DeadLetter)
        self.attempts = dict(zip(ask.queue_offsets, ask.attempts, strict=bool(ask.attempts)))
        self.delay_level = DEAD if isinstance(ask, DeadLetter) else ask.delay_level
        self.max_attempts = max_attempts
        self.wanted = 0  # messages that the job under way is to copy
        self.fates: dict[int, int] = {}

    def begin(self) -> Callable[[], Any] | None:
        """The job that makes a portion of the copies."""
        return self._handler.begin(self)

    def finish(self, result: Any) -> bool:
        """Append what the job has made; says whether more is left."""
        return self._handler.finish(self, result)

    def answer(self) -> None:
        """All of it is durable."""
        fates = [self.fates.get(offset, DONE_BEFORE) for offset in self.offsets]
        self.connection.reply(self.request_id, Outcome() if self.is_dead_letter else SentBack(fates))


class SendBackHandler:
    """Copies messages that failed, each once. One that was given back more than ``max_retries`` times is given up."""

    def __init__(
        self, store: MessageStore, *, topics: TopicTable, locks: LeaseTable, ledger: Ledger,
        progress: ProgressHandler, committer: Committer, copy_queue: CopyQueue, appender: CopyAppender, delays: Delays,
        max_retries: int, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._locks = locks
        self._ledger = ledger
        self._progress = progress
        self._committer = committer
        self._copy_queue = copy_queue
        self._appender = appender
        self._delays = delays
        self._max_retries = max_retries
        self._now = now
        self._last = LastBatch()
        self.dead = 0
        self.sent_back = 0

    def dead_letter(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Give messages up and store progress; the answer follows when both are durable."""
        check_entries(payload, 4)
        check_entries(payload, 7)
        ask = decode(DeadLetter, payload)
        if ask.attempts:
            _check_attempts(ask)
        return self._add(connection, request_id, ask, 0)

    def send_back(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Put messages off and store progress; the answer follows when both are durable."""
        check_entries(payload, 4)
        check_entries(payload, 5)
        ask = decode(SendBack, payload)
        _check_attempts(ask)
        if ask.max_attempts < -1:
            raise BadRequest(f"max_attempts must be -1 or more, not {ask.max_attempts}")
        most = self._max_retries + 1 if ask.max_attempts == -1 else ask.max_attempts
        return self._add(connection, request_id, ask, most)

    def _add(self, connection: Connection, request_id: int, ask: SendBack | DeadLetter, max_attempts: int) -> object:
        _check(ask)
        generation = self._topics.require_queue(ask.topic, ask.queue_id).generation
        request = _Request(self, connection, request_id, ask, generation=generation, max_attempts=max_attempts)
        self._judge(request)  # an invalid request is refused before it is queued
        self._copy_queue.add(request)
        return DEFERRED

    def begin(self, request: _Request) -> Callable[[], list[MessageCopy]] | None:
        """The job that makes copies of what is left; None if nothing is, and the answer follows."""
        left = self._judge(request)
        request.wanted = len(left)
        if left:
            return self._job(request, left)
        self._progress.pass_to(request.group, request.queue, request.commit_offset)
        self._committer.when_durable(request.answer)
        return None

    def _job(self, request: _Request, left: list[int]) -> Callable[[], list[MessageCopy]]:
        """Made on the loop, run in a thread."""
        store, group, queue = self._store, request.group, request.queue
        failed = {offset: self._ledger.attempts.of_message(group, queue, offset) for offset in left}
        last_level = self._delays.last_level
        sources = Sources(
            queue, request.generation, store.locator(queue), store.reader(), store.stores, last=self._last
        )

        def make(found: SourceMessage) -> MessageCopy:
            if request.is_dead_letter:
                offset = found.message.queue_offset
                attempts = max(failed[offset], found.attempts, request.attempts.get(offset, 0))
                return dead_copy(found, group, attempts, request.reason)
            # What the message itself says counts too: a consumer that forgets must not retry for ever.
            attempts = max(request.attempts[found.message.queue_offset], found.attempts + 1)
            level = fate(
                attempts, delay_level=request.delay_level, max_attempts=request.max_attempts, last_level=last_level
            )
            if level == DEAD:
                return dead_copy(found, group, attempts, request.reason)
            return retry_copy(found, group, attempts, level)

        return lambda: _whole(sources.copies(left, make))

    def finish(self, request: _Request, result: list[MessageCopy] | Exception) -> bool:
        """Append the copies, unless something has ended meanwhile; says whether more is left."""
        self._judge(request)
        if isinstance(result, OSError):
            raise StoreFailed(f"{request.queue} cannot be read: {result.strerror}") from result
        if isinstance(result, Exception):
            raise result
        is_last = len(result) == request.wanted
        self._append(request, result, is_last=is_last)
        return not is_last  # what is appended by now is known as done

    def _judge(self, request: _Request) -> list[int]:
        """What is left to be done of a request; refuses one that does not hold (any more)."""
        group, queue = request.group, request.queue
        self._topics.require_queue(*queue, generation=request.generation)
        self._locks.check(group, queue, session_of(request.connection).id, request.epoch, now=self._now())
        if request.commit_offset != NO_OFFSET:
            self._progress.check_offset(queue, request.commit_offset)
        left, index = self._left(request), self._store.queue(queue)
        if left and left[0] < index.min_offset:
            raise MessagesLost(f"retention removed {queue} from offset {left[0]} to {index.min_offset}")
        if left and left[-1] >= index.readable:
            bounds = f"{queue} holds {index.min_offset} to {index.readable}"
            raise OffsetOutOfRange(f"offset {left[-1]} is out of range: {bounds}")
        if left and (copied := len(self._ledger.copied.offsets(group, queue))) + len(left) > MAX_COPIED:
            gone = f"{copied} messages of {queue} were sent back or given up and are not committed"
            raise BadRequest(f"{gone}, {MAX_COPIED} may be so: commit progress")
        return left

    def _left(self, request: _Request) -> list[int]:
        """What is not done already: committed, sent back or given up before."""
        group, queue = request.group, request.queue
        done, copied = self._progress.committed(group, queue), self._ledger.copied.offsets(group, queue)
        return [offset for offset in request.offsets if offset >= done and offset not in copied]

    def _append(self, request: _Request, copies: list[MessageCopy], *, is_last: bool) -> None:
        group, queue = request.group, request.queue
        self._progress.settle(group, queue)
        changes: list[Entry] = [self._ledger.copied.change(group, queue, [copy.queue_offset for copy in copies])]
        if is_last and request.commit_offset > self._ledger.offsets.get(group, queue):
            changes.append(Committed(group, *queue, request.commit_offset))
        ticket = AppendTicket(request.answer if is_last else lambda: None)
        self._appender.append(copies, changes, ticket, lambda: self._written(request, copies))

    def _written(self, request: _Request, copies: list[MessageCopy]) -> None:
        """All of it is in the log: now it is true."""
        request.fates.update((copy.queue_offset, copy.level or DEAD) for copy in copies)
        dead = [copy.queue_offset for copy in copies if not copy.level]
        self.dead += len(dead)
        self.sent_back += len(copies) - len(dead)
        group, queue, reason = request.group, str(request.queue), request.reason
        if dead:  # one line for all of them: each takes its time, and they may be a thousand
            log.warning("message.dead", group=group, queue=queue, offset=dead[0], count=len(dead), reason=reason)
        if len(copies) > len(dead):
            log.debug("message.sent_back", group=group, queue=queue, count=len(copies) - len(dead), reason=reason)

    def stats(self) -> dict[str, int]:
        """How many messages failed since the start, and how many requests wait in line."""
        return {"sent_back": self.sent_back, "dead_letters": self.dead, "copy_requests_waiting": len(self._copy_queue)}


def _whole(made: list[MessageCopy | Refused]) -> list[MessageCopy]:
    """All copies; raises why there is none of the first that cannot be made."""
    copies: list[MessageCopy] = []
    for copy in made:
        if isinstance(copy, Refused):
            raise copy
        copies.append(copy)
    return copies


def _check_attempts(ask: SendBack | DeadLetter) -> None:
    if len(ask.attempts) != len(ask.queue_offsets):
        raise BadRequest(f"there are {len(ask.attempts)} attempts for {len(ask.queue_offsets)} messages")
    for attempts in ask.attempts:
        if not 1 <= attempts <= MAX_ATTEMPTS:
            raise BadRequest(f"attempts must be 1 to {MAX_ATTEMPTS}, not {attempts}: this delivery counts")


def _check(ask: SendBack | DeadLetter) -> None:
    names.check_group(ask.group)
    if len(ask.reason) > MAX_REASON:
        raise BadRequest(f"the reason has {len(ask.reason)} characters, at most {MAX_REASON} are allowed")
    check_ascending(ask.queue_offsets)


def check_ascending(offsets: Sequence[int]) -> None:
    """Refuse offsets that name nothing, are negative, or out of order."""
    if not offsets:
        raise BadRequest("the request names no message")
    previous = -1
    for offset in offsets:
        if offset <= previous:
            raise BadRequest(f"the offset {offset} is negative, or not after the one before it")
        previous = offset


PORTION_BYTES: Final = 8 << 20  # of copies that are made before they are appended
PORTION_COPIES: Final = 128  # appending so many takes about 2 ms
MAX_COPY_ATTEMPTS: Final = (1 << 16) - 1  # that the column of a batch can hold
ORIGIN_QUEUE: Final = "RMQ_ORIGIN_QUEUE"
ORIGIN_OFFSET: Final = "RMQ_ORIGIN_OFFSET"
ORIGIN_ID: Final = "RMQ_ORIGIN_ID"
ORIGIN: Final = (names.ORIGIN_TOPIC, ORIGIN_QUEUE, ORIGIN_OFFSET, ORIGIN_ID)
GROUP: Final = "RMQ_GROUP"
ATTEMPTS: Final = "RMQ_ATTEMPTS"
REASON: Final = "RMQ_DEAD_REASON"
LEFT_OUT: Final = "RMQ_LEFT_OUT"


class SourceMessage(NamedTuple):
    """A message that is to be copied, and the batch it lies in."""

    message: StoredMessage
    source: Batch

    @property
    def place(self) -> int:
        """Its place in the batch."""
        return self.message.queue_offset - self.source.header.base_offset

    @property
    def origin(self) -> int:
        """Its handle."""
        return batches.handle(self.source.header.physical_offset, self.place)

    @property
    def attempts(self) -> int:
        """How often it was delivered before its batch was made."""
        return self.source.columns.attempts_of(self.place)


class MessageCopy(NamedTuple):
    """A copy that is ready to be appended to ``to``, of the message at ``queue_offset``; ``level`` 0: at once."""

    queue_offset: int
    origin: int
    to: MessageQueue
    batch: bytes
    checked: batches.Checked
    level: int = 0


class LastBatch:
    """
    Keeps the batch that was read last for the next reader.

    When all messages fail, as they do when a database is down, they are sent back one by one: then the next one lies
    in the same batch. It belongs to one reader at a time.
    """

    __slots__ = ("batch",)

    def __init__(self) -> None:
        self.batch: Batch | None = None


class Sources:
    """The messages of a queue as they could be read when this was made; a batch is read once for those in a row."""

    def __init__(
        self, queue: MessageQueue, generation: int, locator: Locator, reader: LogReader, stores: StoreIds,
        *, last: LastBatch,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._generation = generation
        self._locator = locator
        self._reader = reader
        self._stores = stores
        self._last = last

    def find(self, offset: int) -> SourceMessage:
        """
        The message at an offset.

        Raises:
            Damaged: it cannot be read, or something else lies in its place.
        """
        source = self._last.batch
        if source is None or not self._contains(source, offset):
            source = self._last.batch = self._batch(offset)
        (message,) = source.pick([offset - source.header.base_offset])
        return SourceMessage(message, source)

    def _contains(self, source: Batch, offset: int) -> bool:
        header = source.header
        is_here = (header.topic, header.queue_id, header.topic_gen) == (*self._queue, self._generation)
        return is_here and header.base_offset <= offset < header.end_offset

    def _batch(self, offset: int) -> Batch:
        damaged = f"{self._queue} is damaged at offset {offset}"
        place = self._locator.position_of(offset)
        data = None if place is None else self._reader.batch(place[0])
        if data is None:
            raise Damaged(f"{damaged}: the message cannot be copied")
        try:
            source = batches.read(data, stores=self._stores)
        except Refused as error:
            raise Damaged(f"{damaged}: {error.text}") from error
        if not self._contains(source, offset):
            raise Damaged(f"{damaged}: another message lies in its place")
        return source

    def copies(
        self, offsets: Iterable[int], make: Callable[[SourceMessage], MessageCopy]
    ) -> list[MessageCopy | Refused]:
        """
        Copies of messages, in order, as many as go into one portion.

        In the place of one that cannot be made stands why: ``Damaged``, or what ``make`` raised.
        """
        made: list[MessageCopy | Refused] = []
        size = 0
        with self._reader:
            for offset in offsets:
                try:
                    copy = make(self.find(offset))
                except Refused as error:
                    made.append(error)
                    continue
                size += len(copy.batch)
                if made and (size > PORTION_BYTES or len(made) == PORTION_COPIES):
                    break
                made.append(copy)
        return made


def dead_copy(found: SourceMessage, group: str, attempts: int, reason: str) -> MessageCopy:
    """A copy for the dead letters of a group that has failed at a message so often."""
    to = MessageQueue(names.dead_letter_topic(group), 0)
    said = {**came_from(found), ATTEMPTS: str(attempts), REASON: reason, GROUP: group}
    return _copy(found, to, {**found.message.properties, **said}, said)


def retry_copy(found: SourceMessage, group: str, attempts: int, level: int) -> MessageCopy:
    """A copy that is delivered to a group again later, after so many deliveries."""
    to = MessageQueue(names.retry_topic(group), 0)
    said = {**came_from(found), GROUP: group}
    return _copy(found, to, {**found.message.properties, **said}, said, attempts=attempts, level=level)


def replay_copy(found: SourceMessage, group: str) -> MessageCopy:
    """A copy of a dead letter that is delivered to its group at once, as if it had never failed."""
    kept = {name: text for name, text in found.message.properties.items() if name not in (ATTEMPTS, REASON)}
    said = {name: kept[name] for name in (*ORIGIN, GROUP) if name in kept}
    return _copy(found, MessageQueue(names.retry_topic(group), 0), kept, said)


def returned_copy(found: SourceMessage) -> MessageCopy:
    """
    A copy of a dead letter for the queue it came from, as it was before we wrote into it.

    Raises:
        Damaged: the dead letter does not say where it came from.
    """
    properties = found.message.properties
    try:
        to = MessageQueue(properties[names.ORIGIN_TOPIC], int(properties[ORIGIN_QUEUE]))
    except (KeyError, ValueError) as error:
        raise Damaged(
            f"the dead letter at offset {found.message.queue_offset} does not say where it is from"
        ) from error
    ours = (*ORIGIN, GROUP, ATTEMPTS, REASON)
    return _copy(found, to, {name: text for name, text in properties.items() if name not in ours}, {})


def came_from(found: SourceMessage) -> dict[str, str]:
    """The properties that say where a message was sent to at first; those of a retry are kept."""
    message, header = found.message, found.source.header
    properties = message.properties
    if header.topic.startswith(names.RETRIES) and all(name in properties for name in ORIGIN):
        return {name: properties[name] for name in ORIGIN}
    origin = (header.topic, str(header.queue_id), str(message.queue_offset), message.message_id)
    return dict(zip(ORIGIN, origin, strict=True))


def _copy(
    found: SourceMessage, to: MessageQueue, properties: Mapping[str, str], said: Mapping[str, str],
    *, attempts: int = 0, level: int = 0,
) -> MessageCopy:  # fmt: skip
    """A batch of one message; ``said`` are the properties that it cannot do without."""
    message = found.message
    rows = Rows(
        [message.body], found.source.columns.born_at_of(found.place), tags=[message.tag],
        index_keys=[message.index_keys], keys=[message.key], properties=[properties],
        attempts=[min(attempts, MAX_COPY_ATTEMPTS)] if attempts else None,
    )  # fmt: skip
    data = _encode_what_fits(rows, to, said, len(properties) - len(said), level)
    return MessageCopy(message.queue_offset, found.origin, to, data, batches.check(data, stamped=False), level)


def _encode_what_fits(rows: Rows, to: MessageQueue, said: Mapping[str, str], more: int, level: int) -> bytes:
    """The message was as large as one can be, and what we say of it comes on top: the least needed goes first."""
    left_out: list[str] = []
    while True:
        try:
            return bytes(batches.encode(*to, rows, delay_level=level))
        except BatchTooLarge:
            if more:
                left_out.append(f"{more} properties")
                more = 0
            elif rows.index_keys is not None and rows.index_keys[0]:
                left_out.append(f"{len(rows.index_keys[0])} index keys")
                rows = rows._replace(index_keys=None)
            elif rows.keys is not None and rows.keys[0]:
                left_out.append("the key")
                rows = rows._replace(keys=None)
            else:
                raise
            kept = {**said, LEFT_OUT: f"{', '.join(left_out)}: the copy would be too large"}
            rows = rows._replace(properties=[kept])


MAX_MESSAGES: Final = 1 << 18  # that all requests in line name together; each takes about 100 bytes


class Task(Protocol):
    """A request that copies. What it raises is its answer; ``messages`` is how many it names."""

    group: str
    messages: int
    connection: Connection
    request_id: int

    def begin(self) -> Callable[[], Any] | None:
        """Judge what is left to be done: the job that reads a portion; None if there is nothing, and it is answered."""

    def finish(self, result: Any) -> bool:
        """Judge again, and append what the job made; return whether more is left."""


class CopyQueue:
    """Tasks by group, the oldest of a group first."""

    def __init__(self, pool: ReadPool, most: int = MAX_MESSAGES) -> None:
        self._pool = pool
        self._most = most
        self._messages = 0  # that the tasks in line name
        self._groups: OrderedDict[str, deque[Task]] = OrderedDict()  # the one whose turn is next comes first
        self._is_busy = False

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def add(self, task: Task) -> None:
        """
        Put a task in line, and begin with it if nothing is under way.

        Raises:
            TooManyInFlight: too many messages wait already.
        """
        if self._messages + task.messages > self._most:
            raise TooManyInFlight(f"{self._messages} messages wait to be copied already: try again soon")
        self._groups.setdefault(task.group, deque()).append(task)
        self._messages += task.messages
        self._work()

    def _next(self) -> Task:
        group, tasks = self._groups.popitem(last=False)
        task = tasks.popleft()
        self._messages -= task.messages
        if tasks:
            self._groups[group] = tasks  # after all others
        return task

    def _again(self, task: Task) -> None:
        """The rest of a task comes before others of its group, and after other groups."""
        self._groups.setdefault(task.group, deque()).appendleft(task)
        self._messages += task.messages

    def _work(self) -> None:
        """Begin the next task whose client still waits, unless one is under way."""
        while self._groups and not self._is_busy:
            task = self._next()
            if not task.connection.closing:
                self._guard(task, partial(self._begin, task))

    def _begin(self, task: Task) -> None:
        job = task.begin()
        if job is not None:
            self._pool.submit(job, partial(self._done, task))
            self._is_busy = True

    def _done(self, task: Task, result: Any) -> None:
        """The job is done. What held when it began may not hold any more."""
        self._is_busy = False
        if not task.connection.closing:
            self._guard(task, lambda: self._finish(task, result))
        self._work()

    def _finish(self, task: Task, result: Any) -> None:
        if task.finish(result):
            self._again(task)

    @staticmethod
    def _guard(task: Task, step: Callable[[], None]) -> None:
        try:
            step()
        except Refused as error:
            task.connection.refuse(task.request_id, error)
        except Exception as error:
            task.connection.refuse(task.request_id, task.connection.defect(error, task.request_id))


class CopyAppender:
    """
    Puts copies into the log, together with the changes that hold only with them.

    ``make_topic`` gives the topic of a name, and makes it with one queue if it is missing; ``refusal`` says why nothing
    may be stored at present.
    """

    def __init__(
        self, store: MessageStore, committer: Committer, delays: Delays, ledger: Ledger,
        *, make_topic: Callable[[str], Topic], refusal: Callable[[], str | None],
    ) -> None:  # fmt: skip
        self._store = store
        self._committer = committer
        self._delays = delays
        self._ledger = ledger
        self._make_topic = make_topic
        self._refusal = refusal

    def append(
        self, copies: Sequence[MessageCopy], changes: Sequence[Entry], ticket: AppendTicket, written: Callable[[], None]
    ) -> list[Placed]:
        """
        Write copies and changes; return where the copies lie. ``written`` runs before any other callback can see them.

        Raises:
            DiskFull, StoreFailed: nothing of it exists.
        """
        if (refusal := self._refusal()) is not None:
            raise DiskFull(refusal)
        # A topic must be made before what lies in it: all of them first.
        topics = {name: self._make_topic(name) for name in dict.fromkeys(copy.to.topic for copy in copies)}
        self._committer.in_order()
        placed = [self._stage(copy, topics[copy.to.topic]) for copy in copies]
        self._committer.append_now(changes, ticket, lambda: self._apply(changes, written))
        if ticket.error is not None:
            raise refusal_of(ticket.error)
        return placed

    def _stage(self, copy: MessageCopy, topic: Topic) -> Placed:
        due_at = self._delays.due_of_level(copy.level) if copy.level else 0
        return self._store.stage(copy.to, topic.generation, copy.batch, copy.checked, copy.origin, due_at)

    def _apply(self, changes: Sequence[Entry], written: Callable[[], None]) -> None:
        for change in changes:
            self._ledger.apply(change)
        written()
