"""The fixture for users' tests; their tests as a whole run in tests/examples/test_testing.py."""

from __future__ import annotations

import pytest

from rmq.client import Message, Producer
from rmq.client.sync import Producer as BlockingProducer
from rmq.testing import BrokerThread, plugin

rmq_broker = plugin.rmq_broker


def test_a_plain_test_sends_to_it(rmq_broker: BrokerThread) -> None:
    with BlockingProducer(rmq_broker.address) as producer:
        producer.send(Message("orders", b"paid"))

    assert [message.body for message in rmq_broker.messages("orders")] == [b"paid"]


async def test_an_asynchronous_test_finds_it_empty_and_sends_to_it(rmq_broker: BrokerThread) -> None:
    assert rmq_broker.messages("orders") == []

    async with Producer(rmq_broker.address) as producer:
        await producer.send(Message("orders", b"created"))

    assert [message.body for message in rmq_broker.messages("orders")] == [b"created"]


@pytest.mark.parametrize("rmq_broker", [{"default_queues": 7}], indirect=True)
async def test_settings_reach_the_broker(rmq_broker: BrokerThread) -> None:
    async with Producer(rmq_broker.address) as producer:
        receipts = [await producer.send(Message("orders", b"")) for _ in range(7)]

    assert {receipt.queue_id for receipt in receipts} == set(range(7))
