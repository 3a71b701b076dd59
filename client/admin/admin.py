"""Admin requests: topics, groups, messages, deferred messages and dead letters of a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from rmq.engine.native.connection import Connection
from rmq.engine.native.requests import request_all, request_for_each
from rmq.wire.batch.batch import split_message_id
from rmq.wire.deferral import to_us
from rmq.wire.errors import BadRequest, ConfigError
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops.core import (
    CreateTopic,
    HistoryAccepted,
    ListTopics,
    LockRow,
    LockStatus,
    Op,
    QueueRef,
    Range,
    Ranges,
    ResetEntry,
    ResetOffsets,
    ResetResult,
    Route,
    Stats,
    TopicInfo,
)
from rmq.wire.protocol.ops.groups import (
    ANSWER_S,
    DescribeGroup,
    GroupDescription,
    GroupRow,
    ListGroups,
    MemberInfo,
    MemberReport,
)
from rmq.wire.protocol.ops.messages import OffsetAt
from rmq.wire.protocol.ops.redelivery import DeadResult, DeadRow, DeadRun
from rmq.wire.protocol.ops.topics import DeletedTopic, DeleteTopic, DescribeTopic, GrowTopic, TopicDescription
from rmq.wire.stores import StoreIds

from ..explain.collect import WATCH_S, Explanation, explain_group
from . import dead_letters, deferrals, messages, trace
from .deferrals import DeferredBatches
from .messages import FoundMessages, Head
from .tail import Tail
from .trace import Trace

E = TypeVar("E")
T = TypeVar("T")
OPEN_TIMEOUT_S: Final = 3.0
CHANGE_TIMEOUT_S: Final = 30.0  # a topic of many queues makes, or removes, as many files


class Admin:
    """
    A connection for admin requests; use it as ``async with Admin("127.0.0.1:10911") as admin``.

    Every call raises ConnectionLost without a broker, RequestTimeout without an answer, and the broker's refusals by
    their classes. Cancelling is safe, although a change may have been made by then.
    """

    def __init__(self, address: str, *, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        self._connection = Connection(address)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Admin:
        await self._connection.open(timeout_s=self._timeout_s)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._connection.close()

    async def create_topic(self, topic: str, queues: int = 4) -> TopicInfo:
        """Create a topic. If it exists with as many queues nothing changes; with another number raises TopicExists."""
        return decode(TopicInfo, await self._change(Op.CREATE_TOPIC, CreateTopic(topic, queues)))

    async def grow_topic(self, topic: str, queues: int) -> TopicInfo:
        """
        Give a topic more queues; returns when that is durable.

        ``shards`` stays, so that no key moves: only messages without one go to the new queues. The present
        number of queues is accepted, a lower one raises BadRequest. Raises TopicNotFound if the topic does not exist.
        """
        return decode(TopicInfo, await self._change(Op.GROW_TOPIC, GrowTopic(topic, queues)))

    async def delete_topic(self, topic: str, generation: int = 0) -> DeletedTopic:
        """
        Delete a topic with its messages and all progress in it; returns when that is durable.

        With ``generation`` (of :meth:`describe_topic`) only that one: a later topic of the same name stays. A producer
        that continues to send creates the topic again, unless it was opened with ``auto_create=False``. Raises
        TopicNotFound if the topic does not exist.
        """
        return decode(DeletedTopic, await self._change(Op.DELETE_TOPIC, DeleteTopic(topic, generation)))

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic, what its queues hold, and the progress of groups. Raises TopicNotFound."""
        reply = await self._connection.request(Op.DESCRIBE_TOPIC, DescribeTopic(topic), timeout_s=self._timeout_s)
        return decode(TopicDescription, reply)

    async def list_topics(self) -> list[TopicInfo]:
        """Return all topics, by name; they come in pages, so one that is created meanwhile may be missing."""
        return await self._all(Op.LIST_TOPICS, lambda last: ListTopics(last.topic if last else ""), TopicInfo)

    async def topic(self, topic: str) -> TopicInfo:
        """Return one topic. Raises TopicNotFound if it does not exist."""
        return decode(TopicInfo, await self._connection.request(Op.ROUTE, Route(topic), timeout_s=self._timeout_s))

    async def ranges(
        self, queues: Iterable[MessageQueue | QueueRef], group: str | None = None, *, log_epoch: int = 0
    ) -> list[Range]:
        """
        Return the offsets that each queue holds, in the given order, and the committed ones of ``group``.

        With ``log_epoch`` also the offset up to which each queue equals what it was under that start of the broker.
        """
        refs = [QueueRef(*queue) for queue in queues]
        return await self._each(Op.RANGES, refs, lambda part: Ranges(group, part, log_epoch), Range)

    async def accept_history(self) -> HistoryAccepted:
        """Let readers of another history of this store continue in this one, where the two diverge."""
        return decode(HistoryAccepted, await self._change(Op.ACCEPT_HISTORY, ()))

    @property
    def stores(self) -> StoreIds:
        """The ids of the broker's store: the current one, and those from before it was copied."""
        assert self._connection.hello is not None  # the connection was opened
        return self._connection.hello.stores

    async def lock_status(self, group: str | None = None) -> list[LockRow]:
        """Return the leases of ``group``, or of all groups."""
        reply = await self._connection.request(Op.LOCK_STATUS, LockStatus(group), timeout_s=self._timeout_s)
        return decode_list(LockRow, reply)

    async def list_groups(self) -> list[GroupRow]:
        """Return all groups with members, leases or progress, by name; they come in pages, as topics do."""
        return await self._all(Op.LIST_GROUPS, lambda last: ListGroups(last.group if last else ""), GroupRow)

    async def describe_group(self, group: str, topic: str | None = None) -> GroupDescription:
        """
        Return the members of a group, their leases, and its progress in each queue, of one topic or of all.

        Raises GroupNotFound if the broker does not know the group, TopicNotFound if the topic does not exist.
        """
        asked = DescribeGroup(group, topic)
        reply = await self._connection.request(Op.DESCRIBE_GROUP, asked, timeout_s=self._timeout_s)
        return decode(GroupDescription, reply)

    async def member_info(self, group: str, member: str) -> dict[str, Any]:
        """
        Return what a member of a group reports about itself at this moment; names may change between versions.

        Raises MemberSilent if it does not answer within 1 s, MemberNotFound if it does not exist or is not connected.
        """
        timeout_s = self._timeout_s + ANSWER_S  # the broker waits for members as long as that
        reply = await self._connection.request(Op.MEMBER_INFO, MemberInfo(group, member), timeout_s=timeout_s)
        (report,) = decode_list(MemberReport, reply)
        return report.info

    async def members_info(self, group: str) -> list[MemberReport]:
        """
        Return what each member of a group reports about itself, by name; without a report ``status`` says why.

        Raises GroupNotFound if the broker does not know the group.
        """

        def page(last: MemberReport | None) -> MemberInfo:
            return MemberInfo(group, after=last.member if last else "")

        timeout_s = self._timeout_s + ANSWER_S
        return await request_all(self._connection, Op.MEMBER_INFO, page, MemberReport, timeout_s=timeout_s)

    async def explain(self, group: str, topic: str | None = None, *, watch_s: float = WATCH_S) -> Explanation:
        """
        Explain why each queue of a group, of one topic or of all, moves or does not, and what to do; worst first.

        Looks twice, ``watch_s`` apart, where only that shows whether a queue moves. Raises GroupNotFound if the broker
        does not know the group, TopicNotFound if the topic does not exist or the group does not consume it.
        """
        return await explain_group(self, group, topic, watch_s=watch_s)

    async def stats(self, *, topics: int = 0) -> dict[str, dict[str, Any]]:
        """
        Return the broker's metrics by part and name; names may change between versions.

        The part ``topics`` has up to that many of the busiest topics since the start, at most 1000.
        """
        reply = await self._connection.request(Op.STATS, Stats(topics), timeout_s=self._timeout_s)
        if not isinstance(reply, dict):
            raise BadRequest("the broker's metrics cannot be read")
        return reply

    async def query_messages(
        self,
        key: str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 64,
        *,
        index_key: str | None = None,
    ) -> FoundMessages:
        """
        Return the newest messages whose key, or one of whose index keys, is ``key``, of one topic or of all.

        ``index_key`` in place of ``key`` searches the index keys alone. The messages were stored at ``since`` or later
        and before ``until``; a time without a zone is local. Raises TopicNotFound if the topic does not exist.
        """
        wanted = key if index_key is None else index_key
        if wanted is None or (key is not None and index_key is not None):
            raise ConfigError("give one of key and index_key: by which of them messages are searched")
        asked = messages.question(wanted, topic, since, until)
        return await messages.query(self._connection, asked, limit, index_keys_only=index_key is not None)

    async def message(self, message_id: str) -> StoredMessage:
        """Return the message with an id. Raises MessageNotFound if the broker does not have it."""
        return await messages.get(self._connection, message_id)

    def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[StoredMessage]]:
        """
        Yield the messages of a queue from offset ``start`` to before ``end``, in order, several at a time.

        Messages that retention removed are left out. Raises Damaged if a part of the queue cannot be read.
        """
        return messages.read(self._connection, queue, start, end)

    def tail(
        self, topic: str, *, queues: Iterable[int] = (), expression: str = "*",
        wanted: Callable[[StoredMessage], bool] | None = None, notice: Callable[[str], object] = lambda text: None,
    ) -> Tail:  # fmt: skip
        """Return a reader of a topic's newest messages and of those that follow, over all or some of its queues."""
        return Tail(
            self, self._connection, topic, queues=queues, expression=expression, wanted=wanted, notice=notice
        )  # fmt: skip

    async def list_deferred(self, topic: str | None = None, limit: int = 100) -> DeferredBatches:
        """
        Return the next deferred batches, of one topic or of all, in the order they become due.

        Raises TopicNotFound if the topic does not exist.
        """
        if topic is not None:
            await self.topic(topic)
        return await deferrals.list_deferred(self._connection, topic, limit)

    async def is_deferred(self, message: StoredMessage) -> bool:
        """Return whether a deferred message (:attr:`StoredMessage.due_at`) has not been delivered yet."""
        if message.due_at is None:
            return False
        _, position, _ = split_message_id(message.message_id)
        return await deferrals.is_deferred(self._connection, to_us(message.due_at), position)

    async def trace(self, message_id: str) -> Trace:
        """Return what happened to a message, as far as stored data shows it; raises as :meth:`message` does."""
        return await trace.trace(self, message_id)

    async def offsets_at(self, queues: Iterable[MessageQueue | QueueRef], time: datetime) -> list[OffsetAt]:
        """Return the first offset of each queue that was stored at a time or later, in the given order."""
        return await messages.offsets_at(self._connection, [QueueRef(*queue) for queue in queues], time)

    async def heads(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Head]:
        """
        Return the id of the message at an offset of each queue, and when it was stored.

        If that offset is not stored any more, it is the first one that is; at the end of a queue ``status`` is EMPTY.
        """
        return await messages.heads(self._connection, offsets)

    async def config(self) -> dict[str, Any]:
        """Return the settings of the broker; names may change between versions."""
        reply = await self._connection.request(Op.CONFIG, (), timeout_s=self._timeout_s)
        if not isinstance(reply, dict):
            raise BadRequest("the broker's settings cannot be read")
        return reply

    async def reset_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, dry_run: bool = False
    ) -> dict[MessageQueue, ResetResult]:
        """
        Make a group continue at other offsets, in either direction; its members lose these queues for a moment.

        The result of a queue has its old and new offset, or the code of its refusal as ``status``. ``dry_run`` changes
        nothing.
        """
        entries = [ResetEntry(*queue, offset) for queue, offset in offsets.items()]
        results = await self._each(
            Op.RESET_OFFSETS, entries, lambda part: ResetOffsets(group, part, dry_run), ResetResult
        )
        return dict(zip(offsets, results, strict=True))

    async def list_dead_letters(self) -> list[DeadRow]:
        """Return all groups that have dead letters, by name, with how many wait, were replayed, were dropped."""
        return await dead_letters.list_dead(self._connection, timeout_s=self._timeout_s)

    async def dead_letter_states(self, group: str) -> list[DeadRun]:
        """
        Return which dead letters of a group were replayed or dropped, in order; the others wait for a decision.

        Raises TopicNotFound if the group has no dead letters.
        """
        return await dead_letters.dead_states(self._connection, group, timeout_s=self._timeout_s)

    async def replay_dead_letters(
        self, group: str, queue_offsets: Iterable[int], *, to_topic: bool = False, dry_run: bool = False
    ) -> dict[int, DeadResult]:
        """
        Have dead letters delivered again, in the order of their offsets: to the group alone, or to their old topic.

        The result of each has its present state, or the code of its refusal as ``status``. One that was replayed or
        dropped before stays as it is, so that repeating a call is safe. ``dry_run`` changes nothing. Raises
        TopicNotFound if the group has no dead letters.
        """
        return await dead_letters.replay_dead(
            self._connection, group, queue_offsets, to_topic=to_topic, dry_run=dry_run
        )

    async def drop_dead_letters(
        self, group: str, queue_offsets: Iterable[int], *, dry_run: bool = False
    ) -> dict[int, DeadResult]:
        """Mark dead letters as dealt with, so that they are not replayed. Returns as :meth:`replay_dead_letters`."""
        return await dead_letters.drop_dead(self._connection, group, queue_offsets, dry_run=dry_run)

    async def _all(self, op: Op, payload: Callable[[T | None], Sequence[Any]], shape: type[T]) -> list[T]:
        return await request_all(self._connection, op, payload, shape, timeout_s=self._timeout_s)

    async def _each(
        self, op: Op, entries: Sequence[E], payload: Callable[[list[E]], Sequence[Any]], shape: type[T]
    ) -> list[T]:
        return await request_for_each(self._connection, op, entries, payload, shape, timeout_s=self._timeout_s)

    async def _change(self, op: Op, payload: CreateTopic | GrowTopic | DeleteTopic | tuple[()]) -> Any:
        return await self._connection.request(op, payload, timeout_s=max(CHANGE_TIMEOUT_S, self._timeout_s))
