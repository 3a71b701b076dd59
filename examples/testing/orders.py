"""A small service to be tested: it announces orders, and bills them once they are paid."""

from __future__ import annotations

import json

from rmq import ConsumeStatus, Message, Producer
from rmq.client.sync import Producer as BlockingProducer
from rmq.consumer import ConsumeContext, StoredMessage

TOPIC = "orders"


def event(order: str, step: str) -> Message:
    """One step in the life of an order."""
    return Message(TOPIC, json.dumps({"order": order, "step": step}).encode(), key=order, tag=step)


def place_order(broker: str, order: str) -> str:
    """For the part of the service that knows no asyncio; returns the id of the message."""
    with BlockingProducer(broker, delivery_timeout_s=5) as producer:
        return producer.send(event(order, "created")).message_id


async def pay_order(producer: Producer, order: str) -> None:
    """For the part that does."""
    await producer.send(event(order, "paid"))


class Billing:
    """The listener: writes a bill for every order that was paid. What is delivered again is billed once."""

    def __init__(self) -> None:
        self.bills: list[str] = []

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Bill the orders of these messages."""
        for message in messages:
            order = json.loads(message.body)["order"]
            if order not in self.bills:
                self.bills.append(order)
        return ConsumeStatus.SUCCESS
