"""
SEND_BACK and DEAD_LETTER: what a group fails at is delivered to it again later, or given up; its progress with that.

A thread reads the messages and makes the copies. Then the loop judges the request anew, as things are *then*, and
appends the copies, what is remembered of them, and the progress in one write: all of it is in the log or nothing is.
Large requests are worked off in portions, and only the last one stores the progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rmq.runtime.logging import get_broker_logger
from rmq.wire import names
from rmq.wire.errors import BadRequest, MessagesLost, OffsetOutOfRange, Refused, StoreFailed
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import NO_OFFSET, DeadLetter, Outcome
from rmq.wire.protocol.ops.redelivery import DEAD, DONE_BEFORE, SendBack, SentBack

from ..net.connection import DEFERRED, Connection
from ..state.copied_table import MAX_COPIED
from ..state.delays import Delays
from ..state.leases import LockTable
from ..state.ledger import Entry, Ledger
from ..state.topics import TopicTable
from ..store.changes import Committed
from ..store.committer import Committer
from ..store.message_store import MessageStore
from .appending import Appending, Ticket
from .copies import Copy, Found, LastBatch, Sources, dead_copy, retry_copy
from .copy_line import CopyLine
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
        self, store: MessageStore, *, topics: TopicTable, locks: LockTable, ledger: Ledger,
        progress: ProgressHandler, committer: Committer, line: CopyLine, appending: Appending, delays: Delays,
        max_retries: int, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._locks = locks
        self._ledger = ledger
        self._progress = progress
        self._committer = committer
        self._line = line
        self._appending = appending
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
        self._judge(request)  # nobody who may not ask stands in line
        self._line.add(request)
        return DEFERRED

    def begin(self, request: _Request) -> Callable[[], list[Copy]] | None:
        """The job that makes copies of what is left; None if nothing is, and the answer follows."""
        left = self._judge(request)
        request.wanted = len(left)
        if left:
            return self._job(request, left)
        self._progress.pass_to(request.group, request.queue, request.commit_offset)
        self._committer.when_durable(request.answer)
        return None

    def _job(self, request: _Request, left: list[int]) -> Callable[[], list[Copy]]:
        """Made on the loop, run in a thread."""
        store, group, queue = self._store, request.group, request.queue
        failed = {offset: self._ledger.attempts.of_message(group, queue, offset) for offset in left}
        last_level = self._delays.last_level
        sources = Sources(
            queue, request.generation, store.locator(queue), store.reader(), store.stores, last=self._last
        )

        def make(found: Found) -> Copy:
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

    def finish(self, request: _Request, result: list[Copy] | Exception) -> bool:
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
            held = f"{queue} holds {index.min_offset} to {index.readable}"
            raise OffsetOutOfRange(f"offset {left[-1]} is out of range: {held}")
        if left and (copied := len(self._ledger.copied.offsets(group, queue))) + len(left) > MAX_COPIED:
            gone = f"{copied} messages of {queue} were sent back or given up and are not committed"
            raise BadRequest(f"{gone}, {MAX_COPIED} may be so: commit progress")
        return left

    def _left(self, request: _Request) -> list[int]:
        """What is not done already: committed, sent back or given up before."""
        group, queue = request.group, request.queue
        done, copied = self._progress.committed(group, queue), self._ledger.copied.offsets(group, queue)
        return [offset for offset in request.offsets if offset >= done and offset not in copied]

    def _append(self, request: _Request, copies: list[Copy], *, is_last: bool) -> None:
        group, queue = request.group, request.queue
        self._progress.settle(group, queue)
        changes: list[Entry] = [self._ledger.copied.change(group, queue, [copy.queue_offset for copy in copies])]
        if is_last and request.commit_offset > self._ledger.offsets.get(group, queue):
            changes.append(Committed(group, *queue, request.commit_offset))
        ticket = Ticket(request.answer if is_last else lambda: None)
        self._appending.append(copies, changes, ticket, lambda: self._written(request, copies))

    def _written(self, request: _Request, copies: list[Copy]) -> None:
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
        return {"sent_back": self.sent_back, "dead_letters": self.dead, "copy_requests_waiting": len(self._line)}


def _whole(made: list[Copy | Refused]) -> list[Copy]:
    """All copies; raises why there is none of the first that cannot be made."""
    copies: list[Copy] = []
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
    behind = -1
    for offset in offsets:
        if offset <= behind:
            raise BadRequest(f"the offset {offset} is negative, or not behind the one before it")
        behind = offset
