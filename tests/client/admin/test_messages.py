"""Stored messages as a client of the real broker finds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from rmq.client import (
    Admin,
    ConfigError,
    Head,
    Message,
    MessageNotFound,
    MessageQueue,
    Producer,
    QueueNotFound,
    TopicNotFound,
)
from rmq.testing.broker import InMemoryBroker
from rmq.wire.protocol.ops.core import EMPTY

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with InMemoryBroker() as broker:
        yield broker.address


async def test_messages_are_found_by_key(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        sent = [Message("orders", b"%d" % i, tag="t", index_keys=(f"o-{i % 10}",)) for i in range(30)]
        receipts = await producer.send_many(sent, key="s")

        found = await admin.query_messages("o-7", topic="orders")

        assert [message.body for message in found.messages] == [b"27", b"17", b"7"]
        assert [message.message_id for message in found.messages] == [receipts[i].message_id for i in (27, 17, 7)]
        assert (found.more, found.lag_bytes) == (False, 0)
        assert found.messages[0].index_keys == ("o-7",)
        assert found.messages[0].key == "s"


async def test_messages_are_found_by_what_orders_them_and_by_index_keys_alone(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        await producer.send(Message("orders", b"1", key="o-17", index_keys=("c-3",)))
        await producer.send(Message("orders", b"2", key="c-3", index_keys=("o-17", "x")))
        await producer.send(Message("orders", b"3", key="order 17"))

        async def found(key: str | None = None, **more: Any) -> list[bytes]:
            return [message.body for message in (await admin.query_messages(key, **more)).messages]

        assert await found("o-17") == [b"2", b"1"]
        assert await found(index_key="o-17") == [b"2"]
        assert await found(index_key="c-3", limit=1) == [b"1"]
        assert await found("order 17") == [b"3"]
        assert await found(index_key="order 17") == []
        for wrong in ({}, {"key": "a", "index_key": "b"}):
            with pytest.raises(ConfigError, match="give one of key and index_key"):
                await admin.query_messages(**wrong)


async def test_more_messages_than_one_answer_holds_are_asked_for_in_parts(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        for part in range(3):
            sent = [Message("orders", b"%d" % (part * 1000 + i), index_keys=("k",)) for i in range(1000)]
            await producer.send_many(sent, queue_id=part)

        found = await admin.query_messages("k", limit=2500)
        everything = await admin.query_messages("k", limit=10_000)

        assert [int(message.body) for message in found.messages] == list(range(2999, 499, -1))
        assert found.more
        assert [int(message.body) for message in everything.messages] == list(range(2999, -1, -1))
        assert not everything.more


async def test_a_query_has_bounds_in_time(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        receipt = await producer.send(Message("orders", b"x", index_keys=("k",)))
        at = (await admin.message(receipt.message_id)).stored_at
        moment = timedelta(microseconds=1)

        assert len((await admin.query_messages("k", since=at)).messages) == 1
        assert len((await admin.query_messages("k", since=at + moment)).messages) == 0
        assert len((await admin.query_messages("k", until=at)).messages) == 0
        assert len((await admin.query_messages("k", until=at + moment)).messages) == 1


async def test_an_id_finds_its_message_whatever_the_address(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("store"))
    async with InMemoryBroker(data_dir=path) as broker, Producer(broker.address) as producer:
        receipt = await producer.send(Message("orders", b"here"))
    async with InMemoryBroker(data_dir=path) as moved, Admin(moved.address) as admin:
        assert (await admin.message(receipt.message_id)).body == b"here"
    async with InMemoryBroker() as other, Admin(other.address) as admin:
        with pytest.raises(MessageNotFound, match="ask the broker that has it"):
            await admin.message(receipt.message_id)


async def test_offsets_by_time(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        receipt = await producer.send(Message("orders", b"x"), queue_id=1)
        at = (await admin.message(receipt.message_id)).stored_at
        queues = [MessageQueue("orders", 1), MessageQueue("orders", 0)]

        assert [found.offset for found in await admin.offsets_at(queues, at)] == [0, 0]
        assert [found.offset for found in await admin.offsets_at(queues, at + timedelta(seconds=1))] == [1, 0]
        many = await admin.offsets_at(queues * 600, at)
        assert len(many) == 1200


async def test_the_head_of_each_queue(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        receipt = await producer.send(Message("orders", b"x"), queue_id=1)
        held, empty, unknown = MessageQueue("orders", 1), MessageQueue("orders", 0), MessageQueue("orders", 77)

        more = [MessageQueue("orders", 100 + i) for i in range(1100)]  # than go into one request
        heads = await admin.heads({held: 0, empty: 0, unknown: 0, **dict.fromkeys(more, 0)})

        stored_at = (await admin.message(receipt.message_id)).stored_at
        assert heads[held] == Head(0, 0, stored_at, receipt.message_id, None)
        assert heads[empty] == Head(EMPTY, 0, None, None, None)
        assert heads[unknown].status == QueueNotFound.code
        assert len(heads) == 1103


async def test_what_makes_no_sense_is_refused(address: str) -> None:
    async with Admin(address) as admin:
        with pytest.raises(ValueError, match="at least 1"):
            await admin.query_messages("k", limit=0)
        with pytest.raises(TopicNotFound):
            await admin.query_messages("k", topic="none")


async def test_a_range_of_a_queue_is_read_in_order_and_ends_with_the_queue(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        for first in range(0, 300, 100):
            await producer.send_bodies("orders", [b"%d" % i * 5000 for i in range(first, first + 100)], queue_id=1)
        queue = MessageQueue("orders", 1)

        async def offsets(start: int, end: int) -> list[int]:
            return [message.queue_offset async for some in admin.read(queue, start, end) for message in some]

        assert await offsets(0, 300) == list(range(300))
        assert await offsets(17, 217) == list(range(17, 217))
        assert await offsets(250, 1 << 40) == list(range(250, 300))
        assert await offsets(300, 301) == await offsets(301, 305) == await offsets(5, 5) == []
        assert [len(some) async for some in admin.read(queue, 0, 300)] != [300]  # not all at once


async def test_what_cannot_be_read_is_said(address: str) -> None:
    async with Admin(address) as admin:
        with pytest.raises(TopicNotFound):
            await anext(admin.read(MessageQueue("nowhere", 0), 0, 1))
