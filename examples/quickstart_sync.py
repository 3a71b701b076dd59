"""
The quickstart for code without asyncio: the same names, and calls that block.

Start a broker with ``rmq-broker start``, then run this; ``RMQ_BROKER`` names another address than 127.0.0.1:10911.
"""

from __future__ import annotations

import os
import sys

from rmq import ConsumeStatus, Message, RmqError
from rmq.client.sync import Producer
from rmq.consumer import ConsumeContext, StoredMessage
from rmq.consumer.sync import Consumer

BROKER = os.environ.get("RMQ_BROKER", "127.0.0.1:10911")
TOPIC = "quickstart-sync"
STEPS = ("created", "paid", "shipped")
ORDERS = ("o-1", "o-2", "o-3")


def produce() -> None:
    """One message a step; the key brings all steps of an order into one queue."""
    with Producer(BROKER, delivery_timeout_s=5) as producer:
        for step in STEPS:
            for order in ORDERS:
                message = Message(TOPIC, f"{order} {step}".encode(), key=order, tag=step)
                receipt = producer.send(message)
                print(f"sent      {order} {step:8} queue {receipt.queue_id} offset {receipt.queue_offset}")


def consume(wanted: int) -> None:
    """Until as many messages were seen; a real consumer runs until Ctrl-C."""
    seen: list[str] = []

    def on_event(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        for message in messages:
            # With its newline in one piece: calls for different queues run in different threads.
            line = f"consumed  {message.body.decode():12} queue {message.queue_id} offset {message.queue_offset}\n"
            print(line, end="")
            seen.append(message.message_id)
        if len(seen) >= wanted:
            consumer.stop()
        return ConsumeStatus.SUCCESS

    with Consumer(BROKER, group="quickstart-sync", listener=on_event, orderly=True) as consumer:
        consumer.subscribe(TOPIC)
        consumer.run()


if __name__ == "__main__":
    try:
        produce()
        consume(len(STEPS) * len(ORDERS))
    except RmqError as error:
        sys.exit(f"quickstart_sync: {error}")
