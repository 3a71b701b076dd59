from __future__ import annotations

from dataclasses import asdict

import pytest

from rmq.client import Admin, Message, MessageQueue, Producer
from rmq.testing.broker import InMemoryBroker

pytestmark = pytest.mark.virtual_time


async def test_config_returns_every_setting_of_the_broker() -> None:
    async with InMemoryBroker(max_retries=3) as broker, Admin(broker.address) as admin:
        told = await admin.config()

        assert told == {**asdict(broker.broker.config), "max_retries": 3}


async def test_stats_count_what_goes_in_and_out_of_a_topic() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        async with Producer(broker.address) as producer:
            await producer.send_many([Message("orders", b"x" * 100) for _ in range(7)], queue_id=0)
        async for _ in admin.read(MessageQueue("orders", 0), 0, 7):
            pass

        told = await admin.stats(topics=10)

        flow = told["topics"]["orders"]
        assert (flow["messages_in"], flow["messages_out"]) == (7, 7)
        assert flow["bytes_in"] == flow["bytes_out"] > 0
        assert told["traffic"] == flow
        assert "topics" not in await admin.stats()

        await admin.delete_topic("orders")
        assert (await admin.stats(topics=10))["topics"] == {}
        assert (await admin.stats())["traffic"] == flow
