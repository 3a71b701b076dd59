"""Admin calls."""

from __future__ import annotations

import pytest

from rmq.client import Admin, MessageQueue, Producer
from rmq.wire import errors
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker

pytestmark = pytest.mark.virtual_time


async def test_topics_are_made_found_and_listed(broker: FakeBroker) -> None:
    async with Admin(broker.address) as admin:
        made = await admin.create_topic("orders", queues=3)
        assert [queue.queue_id for queue in made.queues] == [0, 1, 2]
        assert await admin.topic("orders") == made
        assert await admin.list_topics() == [made]
        with pytest.raises(errors.TopicNotFound):
            await admin.topic("other")


async def test_a_topic_is_described_grown_and_deleted(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"1", b"2"], queue_id=1)
    async with Admin(broker.address) as admin:
        told = await admin.describe_topic("orders")
        grown = await admin.grow_topic("orders", 6)
        gone = await admin.delete_topic("orders", told.generation)

    assert (told.messages, told.lags(told.groups[0])) == (2, [0, 2, 0, 0])
    assert (len(grown.queues), grown.shards) == (6, 4)
    assert gone == ("orders", 1)
    assert broker.topics == {}
    assert [payload for _, op, payload in broker.requests if op == Op.DELETE_TOPIC] == [["orders", 1]]


async def test_ranges_come_in_the_order_asked_for(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"1", b"2"], queue_id=1)
    async with Admin(broker.address) as admin:
        ranges = await admin.ranges([MessageQueue("orders", 1), MessageQueue("orders", 0)], group="g")

    assert [(found.min_offset, found.max_offset) for found in ranges] == [(0, 2), (0, 0)]


async def test_ranges_of_many_queues_are_asked_for_in_parts(broker: FakeBroker) -> None:
    broker.create("wide", 1024)
    queues = [MessageQueue("wide", i % 1024) for i in range(2500)]

    async with Admin(broker.address) as admin:
        assert len(await admin.ranges(queues)) == 2500
        assert await admin.ranges([]) == []

    assert [len(payload[1]) for _, op, payload in broker.requests if op == Op.RANGES] == [1024, 1024, 452]


async def test_lock_status_is_a_list_of_rows(broker: FakeBroker) -> None:
    async with Admin(broker.address) as admin:
        (row,) = await admin.lock_status()

    assert (row.group, row.topic, row.queue_id, row.state) == ("g", "t", 0, "held")


async def test_without_a_broker_it_says_so_soon() -> None:
    async with FakeBroker() as broker:
        address = broker.address

    with pytest.raises(errors.ConnectionLost, match="start one with"):
        async with Admin(address):
            pass
