"""
Tests of a service against a real broker that lives as long as the test. Copy what you need.

    pip install pytest pytest-asyncio
    pytest examples/testing
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from orders import TOPIC, Billing, pay_order, place_order

from rmq import Consumer, Producer
from rmq.client.sync import Producer as BlockingProducer
from rmq.testing import BrokerThread


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an effect, but not for ever."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_order_is_announced_under_its_key(rmq_broker: BrokerThread) -> None:
    message_id = place_order(rmq_broker.address, "o-17")

    (sent,) = rmq_broker.messages(TOPIC)
    assert json.loads(sent.body) == {"order": "o-17", "step": "created"}
    assert (sent.message_id, sent.key, sent.tag) == (message_id, "o-17", "created")


def test_each_test_has_a_broker_of_its_own(rmq_broker: BrokerThread) -> None:
    assert rmq_broker.messages(TOPIC) == []


def test_an_order_that_is_announced_survives_a_restart(rmq_broker: BrokerThread) -> None:
    with BlockingProducer(rmq_broker.address) as producer:
        producer.send_bodies(TOPIC, [b"before"], queue_id=0)
        rmq_broker.restart()
        producer.send_bodies(TOPIC, [b"after"], queue_id=0)  # the producer connects again by itself

    assert [message.body for message in rmq_broker.messages(TOPIC)] == [b"before", b"after"]


@pytest.mark.parametrize("rmq_broker", [{"default_queues": 1}], indirect=True)
def test_settings_of_the_broker_can_be_given(rmq_broker: BrokerThread) -> None:
    for order in ("o-1", "o-2", "o-3"):
        place_order(rmq_broker.address, order)

    assert [message.queue_offset for message in rmq_broker.messages(TOPIC)] == [0, 1, 2]


@pytest.mark.asyncio
async def test_orders_are_billed_when_they_are_paid(rmq_broker: BrokerThread) -> None:
    billing = Billing()
    async with (
        Producer(rmq_broker.address) as producer,
        Consumer(rmq_broker.address, group="billing", listener=billing, topics={TOPIC: "paid"}),
    ):
        await pay_order(producer, "o-17")
        await pay_order(producer, "o-17")
        await pay_order(producer, "o-18")
        await until(lambda: len(billing.bills) == 2)

    assert sorted(billing.bills) == ["o-17", "o-18"]
