"""
Carries out a plan through the public producer and admin calls.

It sends every message of every queue, in order; then the deferred ones; then it sets the progress of groups. So a run
that was interrupted anywhere has done a prefix of that, and the next run continues after it. The producer's id is
derived from the store, and its epoch is above all earlier ones: the broker refuses what an earlier run still sends.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from rmq.wire.batch.layout import MAX_BODY
from rmq.wire.errors import ProducerFenced, SequenceConflict, from_wire
from rmq.wire.model import Message, MessageQueue
from rmq.wire.rocketmq.record import Record

from ..admin.admin import Admin
from ..producer.producer import Producer
from .messages import born_us, content, identity_of, key_of, message_of
from .plan import GroupPlan, Plan, Queue, Wishes
from .present import TURN, ImportRefused, Present, look
from .survey import QUEUED, RocketMQStore, Survey, SurveyedRecord

PORTION: Final = 1024  # messages sent and awaited together
PORTION_BYTES: Final = 8 << 20
_EPOCHS: Final = (1 << 16) - 1


class Portion(NamedTuple):
    """How much is sent before its answers are awaited; so much is in memory."""

    messages: int = PORTION
    size: int = PORTION_BYTES


WHOLE: Final = Portion()


@dataclass(slots=True)
class ImportResult:
    """What was done: by this run, and by runs before it."""

    sent: int = 0
    before: int = 0
    deferred_sent: int = 0
    deferred_before: int = 0
    groups: list[tuple[GroupPlan, int]] = field(default_factory=list)  # with the committed offset now


class TakeOver:
    """One run; ``progress`` counts messages, those of earlier runs too. ``after_portion`` is called after each one."""

    def __init__(
        self, store: RocketMQStore, plan: Plan, wishes: Wishes, address: str, *,
        portion: Portion = WHOLE, after_portion: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._store = store
        self._plan = plan
        self._wishes = wishes
        self._address = address
        self._portion = portion
        self._after_portion = after_portion
        self._born = 0
        self._producer: Producer
        self.outcome = ImportResult()

    @property
    def total(self) -> int:
        """What ``progress`` ends with."""
        return self._plan.messages + len(self._plan.deferred)

    @property
    def progress(self) -> int:
        """How many messages the broker has."""
        done = self.outcome
        return done.sent + done.before + done.deferred_sent + done.deferred_before

    async def run(self) -> ImportResult:
        """
        Do all of it. Cancelling leaves a beginning, which the next run completes.

        Raises:
            ImportRefused: the broker holds something else, or the store is damaged; nothing was sent. Or another
                import of the store began, and goes on.
            RmqError: as sending does.
        """
        if self._plan.damage and not self._wishes.skip_damaged:
            raise ImportRefused(f"the store is damaged: {self._plan.damage[0]}")
        try:
            await self._send_all()
        except (ProducerFenced, SequenceConflict) as error:  # the second where both began at the same moment
            text = "another import of this store has begun: let it end, then run this one again"
            raise ImportRefused(f"{text} to see that all is there") from error
        async with Admin(self._address) as admin:  # a new one: the first may have been idle for hours
            await self._place_groups(admin)
        return self.outcome

    async def _send_all(self) -> None:
        async with Admin(self._address) as admin:
            self._producer = await self._open_producer()
            try:
                present = await look(admin, self._plan, self._survey)  # after the fence, so nothing comes in between
                await self._check_delays(admin)
                await self._make_topics(admin)
                await self._send_queued(present)
                await self._send_deferred(present)
            finally:
                await self._producer.close()

    def _survey(self) -> Survey:
        return Survey(self._store, self._wishes.topics)

    async def _open_producer(self) -> Producer:
        first = self._plan.first
        name = "an empty store" if first is None else identity_of(first)
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1 or 1
        for epoch in range(_EPOCHS):
            try:
                async with Producer(self._address, producer_id=number, producer_epoch=epoch):
                    pass
            except ProducerFenced:
                continue
            producer = Producer(
                self._address, producer_id=number, producer_epoch=epoch + 1, auto_create=False,
                wall_us=lambda: self._born,
            )  # fmt: skip
            await producer.open()
            return producer
        raise ImportRefused(f"this store was imported {_EPOCHS} times: this broker takes no more runs of it")

    async def _check_delays(self, admin: Admin) -> None:
        """Before anything is sent: whether the broker lets all messages wait for as long as they have to."""
        if not self._plan.deferred:
            return
        most_s, now_us = (await admin.config())["max_delay_s"], (await admin.stats())["broker"]["time_us"]
        too_late = sum(each.due_ms * 1000 > now_us + most_s * 1_000_000 for each in self._plan.deferred)
        if too_late:
            text = f"{too_late} messages wait for longer than this broker lets them (max_delay_s = {most_s:g})"
            raise ImportRefused(f"{text}: start it with a larger one, then import")

    async def _make_topics(self, admin: Admin) -> None:
        self._shards = {info.topic: info.shards for info in await admin.list_topics()}
        for topic in self._plan.topics.values():
            if topic.new not in self._shards:
                self._shards[topic.new] = (await admin.create_topic(topic.new, topic.queues)).shards

    async def _send_queued(self, present: Present) -> None:
        self.outcome.before = sum(present.messages.values())
        numbers: Counter[Queue] = Counter()
        load = _Load(self._portion)
        for found in self._survey():
            if not (isinstance(found, SurveyedRecord) and found.kind == QUEUED):
                continue
            queue, number = found.target, numbers[found.target]
            numbers[queue] += 1
            if number < present.messages.get(queue, 0):
                if not number % TURN:
                    await asyncio.sleep(0)
                continue
            topic = self._plan.topics[queue[0]]
            key = key_of(found.record.properties, queue[1], self._shards[topic.new])
            load.add(queue, number, found.record, message_of(found.record, found.body, topic.new, key=key))
            if load.is_full:
                self.outcome.sent += await self._deliver(load)
        self.outcome.sent += await self._deliver(load)
        for queue, plan in self._plan.queues.items():
            if numbers[queue] != plan.messages:
                text = (
                    f"{queue[0]}/{queue[1]} had {plan.messages} messages when the store was read, and {numbers[queue]} "
                )
                raise ImportRefused(
                    f"{text}when they were sent: stop whatever writes there, delete the topic here, and import again"
                )

    async def _send_deferred(self, present: Present) -> None:
        self.outcome.deferred_before = len(present.deferred)
        walk, load = self._store.walk(), _Load(self._portion)
        for each in self._plan.deferred:
            if each.physical_offset in present.deferred:
                continue
            record = walk.record_at(each.physical_offset)
            topic = self._plan.topics[each.topic]
            key = key_of(record.properties, each.queue_id, self._shards[topic.new])
            message = message_of(record, content(record, MAX_BODY), topic.new, each.due_ms, key=key)
            load.add((each.topic, each.queue_id), None, record, message)
            if load.is_full:
                self.outcome.deferred_sent += await self._deliver(load)
        self.outcome.deferred_sent += await self._deliver(load)

    async def _deliver(self, load: _Load) -> int:
        """Send a portion, wait until it is stored, and empty it."""
        count = load.messages
        if not count:
            return 0
        try:
            async with asyncio.TaskGroup() as group:
                for queue, rows in load.rows.items():
                    # Tasks begin in the order they are made, and so the runs of a queue keep theirs.
                    for born, run in groupby(rows, key=lambda row: row.born):
                        group.create_task(self._send(queue[1], born, list(run)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        load.clear()
        self._after_portion()
        return count

    async def _send(self, queue_id: int, born: int, rows: list[_Row]) -> None:
        """Send messages that were born together; the producer asks for that time before it waits for anything."""
        self._born = born
        receipts = await self._producer.send_many([row.message for row in rows], queue_id=queue_id)
        for row, receipt in zip(rows, receipts, strict=True):
            if row.number not in (None, receipt.queue_offset):
                where = f"{row.message.topic}/{queue_id}"
                raise ImportRefused(
                    f"{where}: a message came to offset {receipt.queue_offset} instead of {row.number}, so another "
                    "program sends to that topic: stop it, delete the topic, and import again"
                )

    async def _place_groups(self, admin: Admin) -> None:
        """Let groups go on where they were; progress that a group has here already is never moved."""
        by_group: dict[str, list[GroupPlan]] = defaultdict(list)
        for each in self._plan.groups:
            by_group[each.new_group].append(each)
        for group, rows in by_group.items():
            queues = [MessageQueue(self._plan.target(row.topic), row.queue_id) for row in rows]
            held = [found.committed for found in await admin.ranges(queues, group)]
            wanted = {queue: row.new_offset for queue, row, at in zip(queues, rows, held, strict=True) if at < 0}
            for result in (await admin.reset_offsets(group, wanted) if wanted else {}).values():
                if result.status:
                    raise from_wire(result.status, result.text or f"the progress of {group} was refused")
            self.outcome.groups += [(row, row.new_offset if at < 0 else at) for row, at in zip(rows, held, strict=True)]


class _Row(NamedTuple):
    """A message of a portion; ``number`` is the offset that it must get, ``born`` in microseconds."""

    number: int | None
    born: int
    message: Message


class _Load:
    """The messages of a portion, queue by queue."""

    def __init__(self, limits: Portion) -> None:
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Remove all messages."""
        self.rows: dict[Queue, list[_Row]] = defaultdict(list)
        self.messages = self._size = 0

    def add(self, queue: Queue, number: int | None, record: Record, message: Message) -> None:
        """One more."""
        self.rows[queue].append(_Row(number, born_us(record), message))
        self.messages += 1
        self._size += record.size + len(message.body)

    @property
    def is_full(self) -> bool:
        """Whether it is time to send them."""
        return self.messages >= self._limits.messages or self._size >= self._limits.size
