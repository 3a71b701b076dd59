"""
Dead letters as operators handle them: listed, delivered again, or dropped.

A dead letter is replayed and known as replayed in one write; so it is replayed once only, however often it is requested
and whatever the broker went through in between. Copies lie in the order of the request; each message has its own
result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rmq.runtime.logging import get_broker_logger
from rmq.wire import names
from rmq.wire.errors import BadName, BadRequest, MessagesLost, OffsetOutOfRange, Refused, StoreFailed
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.redelivery import (
    DROPPED,
    REPLAYED,
    WAITING,
    DeadResult,
    DeadRow,
    DeadStates,
    DropDead,
    ListDead,
    ReplayDead,
)

from ..net.connection import DEFERRED, Connection
from ..state.dead_letters import MAX_RUNS
from ..state.offsets import Ledger
from ..state.topics import Topic, TopicTable
from ..store.changes import DeadHandled
from ..store.committer import AppendTicket, Committer
from ..store.message_store import MessageStore, Placed
from .redelivery import (
    CopyAppender,
    CopyQueue,
    LastBatch,
    MessageCopy,
    SourceMessage,
    Sources,
    check_ascending,
    replay_copy,
    returned_copy,
)
from .requests import check_entries

log = get_broker_logger(__name__)

PAGE_GROUPS: Final = 1024
PAGE_RUNS: Final = 4096


class _Replay:
    """A replay that waits or is worked off; ``results`` has what is known of its messages so far."""

    __slots__ = (
        "_handler", "ask", "asked", "connection", "generation", "group", "messages", "queue", "request_id", "results",
    )  # fmt: skip

    def __init__(
        self, handler: DeadAdminHandler, connection: Connection, request_id: int, ask: ReplayDead, topic: Topic
    ) -> None:
        self._handler = handler
        self.connection = connection
        self.request_id = request_id
        self.ask = ask
        self.group = ask.group
        self.messages = len(ask.queue_offsets)
        self.queue = MessageQueue(topic.name, 0)
        self.generation = topic.generation  # as it was when the request came
        self.asked: list[int] = []  # the messages that the job under way is to copy
        self.results: dict[int, DeadResult] = {}

    def begin(self) -> Callable[[], Any] | None:
        """The job that makes a portion of the copies."""
        return self._handler.begin(self)

    def finish(self, result: Any) -> bool:
        """Append what the job has made; says whether more is left."""
        return self._handler.finish(self, result)


class DeadAdminHandler:
    """Serves the dead letters of all groups to operators."""

    def __init__(
        self, store: MessageStore, *, topics: TopicTable, ledger: Ledger, committer: Committer, copy_queue: CopyQueue,
        appender: CopyAppender,
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._handled = ledger.handled
        self._committer = committer
        self._copy_queue = copy_queue
        self._appender = appender
        self.replayed = 0

    # ---- questions

    def list_dead(self, connection: Connection, request_id: int, payload: Any) -> object:
        """List the groups after a name that have dead letters."""
        after = decode(ListDead, payload).after
        found = [topic for topic in self._topics.all() if topic.name.startswith(names.DEAD_LETTERS)]
        page = [topic for topic in found if topic.name.removeprefix(names.DEAD_LETTERS) > after][:PAGE_GROUPS]
        return self._later(connection, request_id, [self._row(topic.name) for topic in page])

    def _row(self, topic: str) -> DeadRow:
        first, end = self._readable_range(topic)
        replayed, dropped = self._handled.counts(topic)
        waiting = end - first - replayed - dropped
        return DeadRow(topic.removeprefix(names.DEAD_LETTERS), topic, first, end, waiting, replayed, dropped)

    def dead_states(self, connection: Connection, request_id: int, payload: Any) -> object:
        """What became of the dead letters of a group, from an offset on."""
        request = decode(DeadStates, payload)
        topic = self._topic(request.group)
        self._readable_range(topic.name)
        return self._later(connection, request_id, self._handled.runs(topic.name, request.queue_offset, PAGE_RUNS))

    def _topic(self, group: str) -> Topic:
        names.check_group(group)
        return self._topics.require(names.dead_letter_topic(group))

    def _readable_range(self, topic: str) -> tuple[int, int]:
        """The dead letters that can be read; of others nothing is known."""
        first, end = self._store.readable_range(MessageQueue(topic, 0))
        self._handled.forget_below(topic, first)
        return first, end

    # ---- drop

    def drop(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Mark dead letters as dealt with; the answer follows when that is durable."""
        check_entries(payload, 1)
        request = decode(DropDead, payload)
        topic = self._topic(request.group).name
        check_ascending(request.queue_offsets)
        bounds = self._readable_range(topic)
        known = {offset: self._known(topic, offset, bounds) for offset in request.queue_offsets}
        fresh = [offset for offset, result in known.items() if result is None]
        change = self._handled.change(topic, fresh, DROPPED)
        self._check_room(change)
        if fresh and not request.dry_run:
            self._handled.apply(change)
            self._committer.record(change)
            log.info("dead_letters.dropped", group=request.group, count=len(fresh), offset=fresh[0])
        state = WAITING if request.dry_run else DROPPED
        return self._later(
            connection, request_id, [result or DeadResult(0, state, is_new=True) for result in known.values()]
        )

    def _known(self, topic: str, offset: int, bounds: tuple[int, int]) -> DeadResult | None:
        """What there is to say of a dead letter without looking at it; None if it waits."""
        first, end = bounds
        state = self._handled.state_of(topic, offset)
        if first <= offset < end:
            return None if state == WAITING else DeadResult(0, state)
        if offset < first:
            return refused(MessagesLost(f"retention removed the dead letters of {topic} up to {first}"))
        return refused(OffsetOutOfRange(f"offset {offset} is out of range: {topic}/0 holds {first} to {end}"))

    def _check_room(self, change: DeadHandled) -> None:
        """Who picks here and there makes runs; each costs memory until retention takes it."""
        if self._handled.length_after(change) > MAX_RUNS:
            known = self._handled.length(change.topic)
            many = f"the dead letters of {change.topic} were dealt with in {known} runs, {MAX_RUNS} may be so"
            raise BadRequest(f"{many}: deal with those that lie between")

    # ---- replay

    def replay(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Deliver dead letters again; the answer follows when that is durable."""
        check_entries(payload, 1)
        ask = decode(ReplayDead, payload)
        topic = self._topic(ask.group)
        check_ascending(ask.queue_offsets)
        self._copy_queue.add(_Replay(self, connection, request_id, ask, topic))
        return DEFERRED

    def begin(self, task: _Replay) -> Callable[[], Any] | None:
        """The job that makes copies of what is left; None if nothing is, and the answer follows."""
        task.asked = self._left(task)
        if not task.asked:
            self._answer(task)
            return None
        store, queue, ask = self._store, task.queue, task.ask
        self._check_room(self._handled.change(queue.topic, task.asked, REPLAYED))
        sources = Sources(queue, task.generation, store.locator(queue), store.reader(), store.stores, last=LastBatch())

        def make(found: SourceMessage) -> MessageCopy:
            return returned_copy(found) if ask.to_topic else replay_copy(found, ask.group)

        return lambda: sources.copies(task.asked, make)

    def _left(self, task: _Replay) -> list[int]:
        """The messages that are to be replayed still; the results of all others become known."""
        self._topics.require_queue(*task.queue, generation=task.generation)
        left: list[int] = []
        bounds = self._readable_range(task.queue.topic)
        for offset in task.ask.queue_offsets:
            if offset not in task.results:
                known = self._known(task.queue.topic, offset, bounds)
                if known is None:
                    left.append(offset)
                else:
                    task.results[offset] = known
        return left

    def finish(self, task: _Replay, result: list[MessageCopy | Refused] | Exception) -> bool:
        """Append the copies of what still waits; says whether more is left."""
        waiting = set(self._left(task))
        if isinstance(result, OSError):
            raise StoreFailed(f"{task.queue} cannot be read: {result.strerror}") from result
        if isinstance(result, Exception):
            raise result
        copies: list[MessageCopy] = []
        for offset, copy in zip(task.asked, result, strict=False):  # one job may not have come to the last of them
            if offset in waiting:
                self._sort(task, offset, copy, copies)
        if copies and not task.ask.dry_run:
            self._append(task, copies)
        if self._left(task):
            return True
        self._answer(task)
        return False

    def _sort(self, task: _Replay, offset: int, copy: MessageCopy | Refused, copies: list[MessageCopy]) -> None:
        """Refuse a message, or put its copy to those that are appended."""
        try:
            if isinstance(copy, Refused):
                raise copy
            if task.ask.to_topic:
                self._check_target(copy.to)
        except Refused as error:
            task.results[offset] = refused(error)
            return
        copies.append(copy)
        if task.ask.dry_run:
            task.results[offset] = DeadResult(0, WAITING, is_new=True, topic=copy.to.topic, queue_id=copy.to.queue_id)

    def _check_target(self, to: MessageQueue) -> None:
        if to.topic.startswith((names.DEAD_LETTERS, names.RETRIES)):
            raise BadName(f"it came from {to.topic!r}, which is written by the broker alone: replay it to its group")
        self._topics.require_queue(*to)

    def _append(self, task: _Replay, copies: list[MessageCopy]) -> None:
        offsets = [copy.queue_offset for copy in copies]
        change = self._handled.change(task.queue.topic, offsets, REPLAYED)
        try:
            placed = self._appender.append(copies, [change], AppendTicket(), lambda: None)
        except Refused as error:  # the next portion would not fare better
            for offset in self._left(task):
                task.results[offset] = refused(error)
            return
        for copy, place in zip(copies, placed, strict=True):
            task.results[copy.queue_offset] = _replayed(copy, place)
        self.replayed += len(copies)
        log.info("dead_letters.replayed", group=task.group, count=len(copies), offset=offsets[0])

    def _answer(self, task: _Replay) -> None:
        results = [task.results[offset] for offset in task.ask.queue_offsets]
        self._committer.when_durable(lambda: task.connection.reply(task.request_id, results))

    def _later(self, connection: Connection, request_id: int, answer: object) -> object:
        self._committer.when_durable(lambda: connection.reply(request_id, answer))
        return DEFERRED


def refused(error: Refused) -> DeadResult:
    """A dead letter that waits on, and why."""
    return DeadResult(error.code, text=error.text)


def _replayed(copy: MessageCopy, place: Placed) -> DeadResult:
    return DeadResult(0, REPLAYED, True, *copy.to, place.base_offset)
