"""
DEAD_LETTER: copy messages that a group gives up to its dead-letter topic, and store its progress with that.

A thread reads the messages and makes the copies, since they may lie on the disk only. Then the loop judges the request
anew, as things are *then*, and appends the copies, what is remembered of them, and the progress in one write: all of it
is in the log or nothing is. There is one such request under way at a time, so that memory is bounded and nobody's
message is copied twice; large ones are worked off in portions, and only the last one stores the progress.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from rmq.wire import batch as batches
from rmq.wire import names
from rmq.wire.batch import Batch, Rows
from rmq.wire.codec import decode
from rmq.wire.errors import (
    BadRequest,
    BatchTooLarge,
    Damaged,
    DiskFull,
    MessagesLost,
    OffsetOutOfRange,
    Refused,
    StoreFailed,
)
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.ops import NO_OFFSET, DeadLetter, Outcome

from ..committer import Committer
from ..connection import DEFERRED, Connection
from ..log import get_logger
from ..services.dead_table import MAX_DEAD
from ..services.ledger import Ledger
from ..services.lock_table import LockTable
from ..services.state import Change, Committed
from ..services.topics import Topic, TopicTable
from ..store.log_reader import LogReader
from ..store.lookup import Locator
from ..store.message_store import MessageStore
from .limits import check_entries
from .progress import ProgressHandler, session_of

log = get_logger(__name__)

PORTION_BYTES: Final = 8 << 20  # of copies that are made before they are appended
MAX_REASON: Final = 255  # characters


class Pool(Protocol):
    """Where jobs run."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a job in a thread, and hand its result or exception to ``done`` on the loop."""


class Copy(NamedTuple):
    """A copy that is ready to be appended, of the message at ``queue_offset`` whose handle is ``origin``."""

    queue_offset: int
    origin: int
    batch: bytes
    checked: batches.Checked


class _Request:
    """A request that waits or is worked off."""

    __slots__ = ("ask", "connection", "generation", "queue", "request_id")

    def __init__(self, connection: Connection, request_id: int, ask: DeadLetter, generation: int) -> None:
        self.connection = connection
        self.request_id = request_id
        self.ask = ask
        self.generation = generation  # of the topic, as it was when the request came
        self.queue = MessageQueue(ask.topic, ask.queue_id)


class _Ticket:
    """A portion that waits for the disk; ``answer`` follows when it is durable."""

    __slots__ = ("_answer", "error")

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer
        self.error: Refused | None = None

    def stored(self) -> None:
        """The portion is durable."""
        self._answer()

    def failed(self, error: OSError) -> None:
        """Nothing of the portion exists."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = DiskFull if full else StoreFailed
        self.error = kind(f"the log could not be written: {error.strerror}")


class DeadLetterHandler:
    """
    Gives messages up, each once.

    ``make_topic`` gives the topic of a name, and makes it with one queue if it is missing; ``refusal`` says why nothing
    may be stored at present.
    """

    def __init__(
        self, store: MessageStore, *, topics: TopicTable, locks: LockTable, ledger: Ledger,
        progress: ProgressHandler, committer: Committer, pool: Pool,
        make_topic: Callable[[str], Topic], refusal: Callable[[], str | None], now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._locks = locks
        self._ledger = ledger
        self._progress = progress
        self._committer = committer
        self._pool = pool
        self._make_topic = make_topic
        self._refusal = refusal
        self._now = now
        self._line: deque[_Request] = deque()
        self._is_busy = False
        self.copied = 0

    def dead_letter(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Copy messages and store progress; the answer follows when both are durable."""
        check_entries(payload, 4)
        ask = decode(DeadLetter, payload)
        _check(ask)
        generation = self._topics.require_queue(ask.topic, ask.queue_id).generation
        request = _Request(connection, request_id, ask, generation)
        self._judge(request)  # nobody who may not ask stands in line
        self._line.append(request)
        self._work()
        return DEFERRED

    def _work(self) -> None:
        """Begin with the next request that somebody still waits for, unless one is under way."""
        while self._line and not self._is_busy:
            request = self._line.popleft()
            if not request.connection.closing:
                self._guard(request, partial(self._begin, request))

    def _guard(self, request: _Request, step: Callable[[], None]) -> None:
        try:
            step()
        except Refused as error:
            request.connection.refuse(request.request_id, error)
        except Exception as error:
            request.connection.refuse(request.request_id, request.connection.defect(error, request.request_id))

    def _begin(self, request: _Request) -> None:
        left = self._judge(request)
        if not left:
            self._progress.pass_to(request.ask.group, request.queue, request.ask.commit_offset)
            self._committer.when_durable(partial(self._answer, request))
            return
        self._pool.submit(self._job(request, left), lambda result: self._done(request, len(left), result))
        self._is_busy = True

    def _job(self, request: _Request, left: list[int]) -> Callable[[], list[Copy]]:
        """Made on the loop, run in a thread."""
        ask, queue, store = request.ask, request.queue, self._store
        attempts = {offset: self._ledger.attempts.of_message(ask.group, queue, offset) for offset in left}
        locator, reader, store_id = store.locator(queue), store.reader(), store.store_id
        return lambda: _copies(ask, attempts, locator, reader, store_id)

    def _done(self, request: _Request, wanted: int, result: list[Copy] | Exception) -> None:
        """The copies are there, or cannot be made. What held when they were asked for may not hold any more."""
        self._is_busy = False
        if not request.connection.closing:
            self._guard(request, lambda: self._finish(request, wanted, result))
        self._work()

    def _finish(self, request: _Request, wanted: int, result: list[Copy] | Exception) -> None:
        self._judge(request)
        if isinstance(result, OSError):
            raise StoreFailed(f"{request.queue} cannot be read: {result.strerror}") from result
        if isinstance(result, Exception):
            raise result
        is_last = len(result) == wanted
        self._append(request, result, is_last=is_last)
        if not is_last:
            self._line.appendleft(request)  # the rest; what is appended by now is known as done

    def _judge(self, request: _Request) -> list[int]:
        """What is left to be done of a request; refuses one that does not hold (any more)."""
        ask, queue = request.ask, request.queue
        self._topics.require_queue(*queue, generation=request.generation)
        self._locks.check(ask.group, queue, session_of(request.connection).id, ask.epoch, now=self._now())
        if ask.commit_offset != NO_OFFSET:
            self._progress.check_offset(queue, ask.commit_offset)
        left, index = self._left(request), self._store.queue(queue)
        if left and left[0] < index.min_offset:
            raise MessagesLost(f"retention removed {queue} from offset {left[0]} to {index.min_offset}")
        if left and left[-1] >= index.readable:
            held = f"{queue} holds {index.min_offset} to {index.readable}"
            raise OffsetOutOfRange(f"offset {left[-1]} is out of range: {held}")
        if left and (dead := len(self._ledger.dead.offsets(ask.group, queue))) + len(left) > MAX_DEAD:
            raise BadRequest(f"{dead} dead letters of {queue} are not committed, {MAX_DEAD} may be so: commit progress")
        return left

    def _left(self, request: _Request) -> list[int]:
        """What is not done already: committed, or given up before."""
        group, queue = request.ask.group, request.queue
        done, dead = self._progress.committed(group, queue), self._ledger.dead.offsets(group, queue)
        return [offset for offset in request.ask.queue_offsets if offset >= done and offset not in dead]

    def _append(self, request: _Request, copies: list[Copy], *, is_last: bool) -> None:
        ask, queue = request.ask, request.queue
        self._progress.settle(ask.group, queue)
        self._stage(ask.group, copies)
        changes: list[Change] = [self._ledger.dead.change(ask.group, queue, [copy.queue_offset for copy in copies])]
        if is_last and ask.commit_offset > self._ledger.offsets.get(ask.group, queue):
            changes.append(Committed(ask.group, *queue, ask.commit_offset))
        ticket = _Ticket(lambda: self._answer(request) if is_last else None)
        self._committer.append_now(changes, ticket, lambda: self._written(request, copies, changes))
        if ticket.error is not None:
            raise ticket.error

    def _stage(self, group: str, copies: list[Copy]) -> None:
        if (refusal := self._refusal()) is not None:
            raise DiskFull(refusal)
        topic = self._make_topic(names.dead_letter_topic(group))
        self._committer.in_order()
        for copy in copies:
            to = MessageQueue(topic.name, 0)
            self._store.stage(to, topic.generation, copy.batch, copy.checked, origin=copy.origin)

    def _written(self, request: _Request, copies: list[Copy], changes: list[Change]) -> None:
        """All of it is in the log: now it is true."""
        for change in changes:
            self._ledger.apply(change)  # type: ignore[arg-type]  # dead letters and progress
        self.copied += len(copies)
        log.warning(  # one line for all of them: each takes its time, and they may be a thousand
            "message.dead", group=request.ask.group, queue=str(request.queue), offset=copies[0].queue_offset,
            count=len(copies), reason=request.ask.reason,
        )  # fmt: skip

    @staticmethod
    def _answer(request: _Request) -> None:
        request.connection.reply(request.request_id, Outcome())


def _check(ask: DeadLetter) -> None:
    names.check_group(ask.group)
    if len(ask.reason) > MAX_REASON:
        raise BadRequest(f"the reason has {len(ask.reason)} characters, at most {MAX_REASON} are allowed")
    behind = -1
    if not ask.queue_offsets:
        raise BadRequest("a dead letter names no message")
    for offset in ask.queue_offsets:
        if offset <= behind:
            raise BadRequest(f"the offset {offset} is negative, or not behind the one before it")
        behind = offset


def _copies(
    ask: DeadLetter, attempts: dict[int, int], locator: Locator, reader: LogReader, store_id: int
) -> list[Copy]:
    """Copies of the messages that failed so often, in order, as many as go into one portion. Runs in a thread."""
    copies: list[Copy] = []
    source: Batch | None = None
    size = 0
    with reader:
        for offset, failed in attempts.items():
            if source is None or offset >= source.header.end_offset:
                source = _source(ask, offset, locator, reader, store_id)
            (message,) = source.pick([offset - source.header.base_offset])
            copy = _copy(ask, message, source, failed)
            if copies and size + len(copy.batch) > PORTION_BYTES:
                break
            copies.append(copy)
            size += len(copy.batch)
    return copies


def _source(ask: DeadLetter, offset: int, locator: Locator, reader: LogReader, store_id: int) -> Batch:
    """The batch that holds an offset, judged."""
    damaged = f"{ask.topic}/{ask.queue_id} is damaged at offset {offset}"
    place = locator.position_of(offset)
    data = None if place is None else reader.batch(place[0])
    if data is None:
        raise Damaged(f"{damaged}: the message cannot be copied")
    try:
        source = batches.read(data, store_id=store_id)
    except Refused as error:
        raise Damaged(f"{damaged}: {error.text}") from error
    header = source.header
    is_here = header.topic == ask.topic and header.queue_id == ask.queue_id
    if not is_here or not header.base_offset <= offset < header.end_offset:
        raise Damaged(f"{damaged}: another message lies in its place")
    return source


def _copy(ask: DeadLetter, message: StoredMessage, source: Batch, attempts: int) -> Copy:
    header, index = source.header, message.queue_offset - source.header.base_offset
    said = {
        "RMQ_ORIGIN_TOPIC": ask.topic,
        "RMQ_ORIGIN_QUEUE": str(ask.queue_id),
        "RMQ_ORIGIN_OFFSET": str(message.queue_offset),
        "RMQ_ORIGIN_ID": message.message_id,
        "RMQ_ATTEMPTS": str(attempts),
        "RMQ_DEAD_REASON": ask.reason,
        "RMQ_GROUP": ask.group,
    }
    rows = Rows(
        [message.body], source.columns.born_at_of(index), tags=[message.tag], keys=[message.keys],
        ordering_keys=[message.ordering_key], properties=[{**message.properties, **said}],
    )  # fmt: skip
    topic = names.dead_letter_topic(ask.group)
    try:
        data = bytes(batches.encode(topic, 0, rows))
    except BatchTooLarge:  # it was as large as a message can be, and what we say of it comes on top
        said["RMQ_LEFT_OUT"] = f"{len(message.properties)} properties: the copy would be too large"
        data = bytes(batches.encode(topic, 0, rows._replace(properties=[said])))
    origin = batches.handle(header.physical_offset, index)
    return Copy(message.queue_offset, origin, data, batches.check(data, stamped=False))
