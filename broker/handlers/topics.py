"""Topics: routes, creation, growth, end, lists, and what their queues hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from rmq.runtime.logging import get_broker_logger
from rmq.wire import names
from rmq.wire.errors import DiskFull, Refused
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import NO_OFFSET, CreateTopic, ListTopics, QueueInfo, Range, Ranges, Route, TopicInfo
from rmq.wire.protocol.ops.topics import (
    DeletedTopic,
    DeleteTopic,
    DescribeTopic,
    GrowTopic,
    QueueState,
    TopicDescription,
)

from ..net.connection import DEFERRED, Connection
from ..state.topics import Topic, TopicTable
from ..store.committer import Committer
from ..store.message_store import MessageStore
from .progress import ProgressHandler
from .requests import check_entries

log = get_broker_logger(__name__)

LISTED_QUEUES: Final = 1 << 15  # a page of a list ends with the topic that brings it to so many queues
MAX_OFFSETS: Final = 1 << 14  # that one description reports, over all groups: the loop stands still meanwhile


class TopicHandler:
    """
    Locates, creates and deletes topics and their queues. The composition root connects the listeners.

    ``changed`` and ``deleted`` notify subscribers when it is durable; ``ended`` takes with a topic, at once, all
    that hangs on it; ``made`` gets at once the queues from a number on, which are new. ``refusal`` returns why
    nothing may be stored at present.
    """

    def __init__(
        self, topics: TopicTable, store: MessageStore, committer: Committer,
        *, broker: str, default_queues: int, auto_create: bool, wall_us: Callable[[], int],
        refusal: Callable[[], str | None],
    ) -> None:  # fmt: skip
        self._topics = topics
        self._store = store
        self._committer = committer
        self._broker = broker
        self._default_queues = default_queues
        self._auto_create = auto_create
        self._wall_us = wall_us
        self._refusal = refusal
        self._queues: dict[int, list[QueueInfo]] = {}  # by their number; the lists are never changed
        self.progress: ProgressHandler
        self.changed: Callable[[TopicInfo], None] = lambda info: None
        self.deleted: Callable[[DeletedTopic], None] = lambda gone: None
        self.ended: Callable[[Topic], None] = lambda topic: None
        self.made: Callable[[Topic, int], None] = lambda topic, first: None

    def info(self, name: str) -> TopicInfo:
        """A topic as clients see it."""
        return self._info(self._topics.require(name))

    def _info(self, topic: Topic) -> TopicInfo:
        queues = self._queues.get(topic.queues)
        if queues is None:  # equal for all topics of a shape; made each time, a list of wide topics takes long
            queues = [QueueInfo(queue_id, self._broker) for queue_id in range(topic.queues)]
            self._queues[topic.queues] = queues
        return TopicInfo(topic.name, topic.generation, topic.shards, queues)

    def route(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Where a topic's queues are; makes it when asked to and allowed to, unless nothing could be stored in it."""
        request = decode(Route, payload)
        if request.create and self._auto_create and self._topics.get(request.topic) is None:
            self._check_room()
            self._make(request.topic, self._default_queues)
        # A producer asks again: a refusal gives it the reason, and waiting for the disk would look like no answer.
        refuse = partial(connection.refuse, request_id) if request.create else None
        return self._later(connection, request_id, self.info(request.topic), refuse)

    def _check_room(self) -> None:
        if (scarce := self._refusal()) is not None:
            raise DiskFull(scarce)
        if (failure := self._committer.refusal) is not None:
            raise failure

    def create(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Make a topic."""
        request = decode(CreateTopic, payload)
        return self._later(connection, request_id, self._info(self._make(request.topic, request.queues)))

    def _make(self, name: str, queues: int) -> Topic:
        topic, made = self._topics.create(name, queues, created_at=self._wall_us())
        if made:
            log.info("topic.created", topic=name, queues=queues, generation=topic.generation)
            self._change(topic)
        return topic

    def own(self, name: str) -> Topic:
        """A topic that the broker itself writes to, made at once if it is missing."""
        topic, made = self._topics.make_own(name, created_at=self._wall_us())
        if made:
            log.info("topic.created", topic=name, queues=topic.queues, generation=topic.generation)
            self._change(topic)
        return topic

    def grow(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Give a topic more queues."""
        request = decode(GrowTopic, payload)
        before = self._topics.get(request.topic)
        topic, grown = self._topics.grow(request.topic, request.queues)
        if grown:
            log.info("topic.grown", topic=topic.name, queues=topic.queues, generation=topic.generation)
            self._change(topic, 0 if before is None else before.queues)
        return self._later(connection, request_id, self._info(topic))

    def _change(self, topic: Topic, first: int = 0) -> None:
        info = self._info(topic)
        self._committer.record(topic.made())
        self.made(topic, first)
        self._committer.when_durable(lambda: self.changed(info))

    def delete(self, connection: Connection, request_id: int, payload: Any) -> object:
        """
        End a topic.

        From here on nothing finds it, and what hangs on it is gone. Its last batches may still be on their way to
        the log: they were staged before the change that ends it, so that it stands after them.
        """
        request = decode(DeleteTopic, payload)
        topic = self._topics.delete(request.topic, request.generation)
        gone = DeletedTopic(topic.name, topic.generation)
        log.info("topic.deleted", topic=topic.name, generation=topic.generation)
        self._committer.record(topic.deleted())
        self.ended(topic)
        self._committer.when_durable(lambda: self.deleted(gone))
        return self._later(connection, request_id, gone)

    def list(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Reply with the topics after a name, as many as fit one reply without delaying other connections."""
        after = decode(ListTopics, payload).after
        page, queues = [], 0
        for topic in self._topics.all():
            if topic.name > after:
                page.append(self._info(topic))
                queues += topic.queues
                if queues >= LISTED_QUEUES:
                    break
        return self._later(connection, request_id, page)

    def describe(self, connection: Connection, request_id: int, payload: Any) -> object:
        """What a topic holds, and how far each group has come."""
        topic = self._topics.require(decode(DescribeTopic, payload).topic)
        queues = [MessageQueue(topic.name, queue_id) for queue_id in range(topic.queues)]
        groups = self.progress.groups_of(topic.name)
        listed = groups[: MAX_OFFSETS // topic.queues]
        answer = TopicDescription(
            topic.name, topic.generation, topic.shards, topic.created_at, len(groups) - len(listed),
            [self._state(queue) for queue in queues], [self.progress.state_of(group, queues) for group in listed],
        )  # fmt: skip
        return self._later(connection, request_id, answer)

    def _state(self, queue: MessageQueue) -> QueueState:
        index = self._store.queue(queue)
        return QueueState(queue.queue_id, self._broker, index.min_offset, index.readable)

    def ranges(self, connection: Connection, request_id: int, payload: Any) -> object:
        """What queues hold, and how far a group got."""
        check_entries(payload, 1)
        request = decode(Ranges, payload)
        if request.group is not None:
            names.check_group(request.group)
        return [self._range(request, MessageQueue(*ref)) for ref in request.queues]

    def _range(self, request: Ranges, queue: MessageQueue) -> Range:
        try:
            self._topics.require_queue(*queue)
        except Refused as error:
            return Range(error.code, text=error.text)
        index = self._store.queue(queue)
        return Range(
            0,
            index.min_offset,
            index.readable,
            NO_OFFSET if request.group is None else self.progress.committed(request.group, queue),
            None,
            self._store.stores.current,
            index.epoch_before(index.readable),
            self._store.end_since(queue, request.log_epoch) if request.log_epoch else NO_OFFSET,
        )

    def _later(
        self, connection: Connection, request_id: int, answer: object, refuse: Callable[[Refused], None] | None = None
    ) -> object:
        # Also a topic that exists is reported only when that is durable: its creator may still wait for the disk.
        self._committer.when_durable(lambda: connection.reply(request_id, answer), refuse)
        return DEFERRED
