"""Traces of messages in a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rmq.client import Admin, Connection, Message, Producer
from rmq.client.admin.trace import trace
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadRequest, MessageNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import SendBack

from support.dead_letters import bury_now


class Member:
    """A member of a concurrent group that has one queue, and fails."""

    def __init__(self, connection: Connection, group: str, topic: str, queue_id: int, epoch: int) -> None:
        self._connection = connection
        self._group = group
        self._queue = (topic, queue_id)
        self._epoch = epoch

    async def fail(self, offset: int, attempt: int = 1) -> None:
        asked = SendBack(self._group, *self._queue, self._epoch, [offset], [attempt], 0, 9, offset + 1, "fails")
        await self._connection.request(Op.SEND_BACK, asked)

    async def commit(self, offset: int) -> None:
        entry = ops.CommitEntry(*self._queue, self._epoch, offset)
        await self._connection.request(Op.COMMIT, ops.Commit(self._group, [entry]))


@asynccontextmanager
async def member(address: str, group: str, topic: str, queue_id: int, expression: str = "*") -> AsyncIterator[Member]:
    connection = Connection(address, client="member", keep_alive=True)
    await connection.open(timeout_s=5.0)
    try:
        subscribed = {topic: expression, f"%RETRY%{group}": "*"}
        await connection.request(Op.JOIN, ops.Join(group, False, "clustering", "average", subscribed))
        (grant,) = await connection.request(Op.ACQUIRE, ops.Acquire(group, [ops.QueueRef(topic, queue_id)]))
        yield Member(connection, group, topic, queue_id, decode(ops.Grant, grant).epoch)
    finally:
        await connection.close()


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


@pytest.fixture
async def admin(broker: InMemoryBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address) as running:
        yield running


async def send(broker: InMemoryBroker, *messages: Message) -> list[str]:
    async with Producer(broker.address) as producer:
        return [(await producer.send(message, queue_id=1)).message_id for message in messages]


async def test_groups_are_before_at_and_past_a_message(broker: InMemoryBroker, admin: Admin) -> None:
    ids = await send(broker, *[Message("orders", b"%d" % i, tag="paid") for i in range(3)])
    async with member(broker.address, "g", "orders", 1) as one, member(broker.address, "new", "orders", 0, "created"):
        await one.commit(1)
        told = [await trace(admin, message_id) for message_id in ids]

    assert [found.standings[0].position for found in told] == ["past", "at", "before"]
    assert {found.standings[1].position for found in told} == {"unwanted"}
    first, other = told[0].standings
    assert (first.group, first.committed, first.owner is not None) == ("g", 1, True)
    assert (other.group, other.committed, other.owner) == ("new", None, None)
    assert told[0].origin == ("orders", 1, 0, ids[0])
    assert [(found.copies, found.remarks, found.is_copy) for found in told] == [([], [], False)] * 3


@pytest.mark.virtual_time
async def test_a_delayed_message_waits_and_becomes_another() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        (name,) = await send(broker, Message("orders", b"later", delay_s=5))
        waiting = await trace(admin, name)
        await asyncio.sleep(6)
        done = await trace(admin, name)
        assert done.became is not None
        copy = await trace(admin, done.became.message_id)

    assert (waiting.is_waiting, waiting.became, waiting.standings) == (True, None, [])
    assert waiting.message.due_at is not None
    assert (done.is_waiting, done.origin.queue_offset) == (False, 0)
    assert done.became.copy_of == name
    assert copy.source is not None
    assert (copy.source.message_id, copy.is_copy) == (name, False)


@pytest.mark.virtual_time
async def test_retries_are_found_while_they_wait_and_when_they_are_stored() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        name, other = await send(broker, Message("orders", b"a"), Message("orders", b"b"))
        async with member(broker.address, "g", "orders", 1) as one:
            await one.fail(0)
            await one.fail(1)
        waiting = await trace(admin, name)
        (put_off,) = waiting.copies
        await asyncio.sleep(11)
        stored = await trace(admin, name)
        (retry,) = stored.copies
        by_retry, by_parked = await trace(admin, retry.message_id), await trace(admin, put_off.message_id)

    assert (put_off.kind, put_off.group, put_off.state, put_off.queue_offset) == ("retry", "g", "waiting", None)
    assert put_off.delivery == 2
    assert (retry.state, retry.queue_offset, retry.copy_of) == ("at", 0, put_off.message_id)
    for found in (by_retry, by_parked):
        assert (found.origin.message_id, found.is_copy) == (name, True)
        assert (found.copies, found.standings) == (stored.copies, stored.standings)
    assert by_parked.became is not None
    assert by_parked.became.message_id == retry.message_id
    assert other != name


@pytest.mark.virtual_time
async def test_each_retry_that_failed_again_is_told_as_failed() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        (name,) = await send(broker, Message("orders", b"a"))
        async with member(broker.address, "g", "orders", 1) as one:
            await one.fail(0)
        await asyncio.sleep(11)
        for delivery in (2, 3):
            async with member(broker.address, "g", "%RETRY%g", 0) as one:
                await one.fail(delivery - 2, delivery)
            await asyncio.sleep(61)
        told = await trace(admin, name)

    assert [(copy.delivery, copy.state) for copy in told.copies] == [(2, "failed"), (3, "failed"), (4, "at")]


async def test_dead_letters_are_followed_to_where_they_were_replayed(broker: InMemoryBroker, admin: Admin) -> None:
    ids = await bury_now(broker.address, "g", [Message("orders", b"%d" % i) for i in range(3)], "poison", 1)
    await admin.replay_dead("g", [0])
    await admin.replay_dead("g", [1], to_topic=True)
    told = [await trace(admin, message_id) for message_id in ids]
    letter, returned = told[1].copies
    by_letter, by_returned = await trace(admin, letter.message_id), await trace(admin, returned.message_id)

    assert [[copy.kind for copy in found.copies] for found in told] == [
        ["dead_letter", "replay"],
        ["dead_letter", "returned"],
        ["dead_letter"],
    ]
    assert [found.copies[0].state for found in told] == ["replayed", "replayed", "waiting"]
    assert {found.copies[0].reason for found in told} == {"poison"}
    assert (returned.topic, returned.queue_id, returned.queue_offset) == ("orders", 1, 3)
    assert by_letter.copies == told[1].copies
    assert by_letter.source is not None
    assert by_returned.source is not None
    assert (by_letter.source.message_id, by_returned.source.message_id) == (ids[1], letter.message_id)


async def test_of_a_topic_that_is_gone_the_dead_letters_are_left(broker: InMemoryBroker, admin: Admin) -> None:
    (name,) = await bury_now(broker.address, "g", [Message("orders", b"x")], "poison", 1)
    (letter,) = (await trace(admin, name)).copies
    await admin.delete_topic("orders")
    told = await trace(admin, letter.message_id)

    assert told.copies == [letter]
    assert told.origin == ("orders", 1, 0, name)
    assert "the topic 'orders' was deleted" in told.remarks
    assert any("the original cannot be read" in remark for remark in told.remarks)
    with pytest.raises(MessageNotFound):
        await trace(admin, name)


async def test_what_was_not_looked_at_is_said(broker: InMemoryBroker, admin: Admin) -> None:
    ids = await bury_now(broker.address, "g", [Message("orders", b"%d" % i) for i in range(5)], "poison", 1)
    told = await trace(admin, ids[4], max_read=2)

    assert told.copies == []
    assert told.remarks == ["only 2 of 5 messages of %DLQ%g/0 were looked at"]
    assert told.unsure == ["g"]
    assert (await trace(admin, ids[4])).unsure == []


async def test_every_group_is_looked_at_also_where_a_topic_has_more_than_it_tells_of(
    broker: InMemoryBroker, admin: Admin
) -> None:
    await admin.create_topic("orders", 1024)
    (name,) = await send(broker, Message("orders", b"a"))
    for i in range(20):
        await admin.reset_offsets(f"g{i:02}", {MessageQueue("orders", 1): i % 2})
    assert (await admin.describe_topic("orders")).more_groups

    told = await trace(admin, name)

    assert [(each.group, each.position) for each in told.standings] == [
        (f"g{i:02}", "past" if i % 2 else "at") for i in range(20)
    ]
    assert told.remarks == []


async def test_an_id_of_no_message_is_refused_as_get_does(admin: Admin) -> None:
    with pytest.raises(BadRequest, match="32 hex digits"):
        await trace(admin, "17")
    with pytest.raises(MessageNotFound, match="ask the broker that has it"):
        await trace(admin, "f" * 32)
