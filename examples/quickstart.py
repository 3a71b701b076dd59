"""
Send the events of three orders and consume each order's in order.

Start a broker with ``rmq-broker start``, then run this; ``RMQ_BROKER`` names another address than 127.0.0.1:10911.
"""

from __future__ import annotations

import asyncio
import os
import sys

from rmq import Consumer, ConsumeStatus, Message, Producer, RmqError
from rmq.consumer import ConsumeContext, StoredMessage

BROKER = os.environ.get("RMQ_BROKER", "127.0.0.1:10911")
TOPIC = "quickstart"
STEPS = ("created", "paid", "shipped")
ORDERS = ("o-1", "o-2", "o-3")


async def produce() -> None:
    """One message a step; the key brings all steps of an order into one queue."""
    async with Producer(BROKER, delivery_timeout_s=5) as producer:
        for step in STEPS:
            for order in ORDERS:
                message = Message(TOPIC, f"{order} {step}".encode(), key=order, tag=step)
                receipt = await producer.send(message)
                print(f"sent      {order} {step:8} queue {receipt.queue_id} offset {receipt.queue_offset}")


async def consume(wanted: int) -> None:
    """Until as many messages were seen; a real consumer just awaits ``consumer.run()``."""
    seen, done = 0, asyncio.Event()

    async def on_event(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        nonlocal seen
        for message in messages:
            print(f"consumed  {message.body.decode():12} queue {message.queue_id} offset {message.queue_offset}")
        seen += len(messages)
        if seen >= wanted:
            done.set()
        return ConsumeStatus.SUCCESS

    async with Consumer(BROKER, group="quickstart", listener=on_event, orderly=True) as consumer:
        consumer.subscribe(TOPIC)
        await done.wait()


async def main() -> None:
    """Produce, then consume."""
    await produce()
    await consume(len(STEPS) * len(ORDERS))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RmqError as error:
        sys.exit(f"quickstart: {error}")
