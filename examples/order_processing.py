"""
A service of two workers that takes orders through their steps: each order's events one after the other.

    python examples/order_processing.py                                # with a broker of its own, in memory
    RMQ_BROKER=127.0.0.1:10911 python examples/order_processing.py     # with one that runs

The order is the key, so its events are in one queue, and a queue belongs to one worker at a time. The payment
of ``o-2`` fails twice: it is tried again in place, the later events of ``o-2`` wait for it, and other queues go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from dataclasses import dataclass, field

from rmq import Consumer, ConsumeStatus, Message, Producer, RmqError
from rmq.consumer import ConsumeContext, StoredMessage
from rmq.testing import InMemoryBroker

TOPIC = GROUP = "order_processing"
STEPS = ("created", "paid", "packed", "shipped")
ORDERS = ("o-1", "o-2", "o-3", "o-4")
PATIENCE_S = 30.0


class PaymentProviderAway(Exception):
    """The kind of failure that is better later."""


@dataclass
class Shop:
    """What a database would hold: the steps that each order has been through."""

    run: str  # tells the orders of this run from earlier ones with the same broker
    orders: dict[str, list[str]] = field(default_factory=lambda: {order: [] for order in ORDERS})
    failures_left: int = 2
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def advance(self, order: str, step: str) -> None:
        """Take an order one step on; out of turn is impossible while the broker keeps the order."""
        taken = self.orders[order]
        if step in taken:
            return  # delivered again after a take-over: it has had its effect
        if step != STEPS[len(taken)]:
            raise SystemExit(f"order_processing: {order} was {step} after {taken}")
        if (order, step) == ("o-2", "paid") and self.failures_left:
            self.failures_left -= 1
            raise PaymentProviderAway("the bank does not answer")
        taken.append(step)
        if all(len(steps) == len(STEPS) for steps in self.orders.values()):
            self.done.set()


@dataclass
class Worker:
    """The listener of one worker."""

    name: str
    shop: Shop

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """One step of an order. What raises has failed: it comes again, and nothing behind it comes before."""
        for message in messages:
            event = json.loads(message.body)
            if event["run"] != self.shop.run:
                continue
            told = f"{self.name}  queue {message.queue_id}  {event['order']} {event['step']:8}"
            try:
                self.shop.advance(event["order"], event["step"])
            except PaymentProviderAway as error:
                print(f"{told} attempt {message.attempt} failed: {error}")
                context.suspend_s = 0.1  # without this: 1 s, 2 s, 4 s and so on, up to 30 s
                return ConsumeStatus.SUSPEND
            print(f"{told} attempt {message.attempt}" if message.attempt > 1 else told.rstrip())
        return ConsumeStatus.SUCCESS


async def place(broker: str, run: str) -> None:
    """All orders, their steps interleaved."""
    async with Producer(broker, delivery_timeout_s=5) as producer:
        for step in STEPS:
            for order in ORDERS:
                body = json.dumps({"order": order, "step": step, "run": run}).encode()
                await producer.send(Message(TOPIC, body, key=order, tag=step))


async def process(broker: str) -> None:
    """Two workers of one group, until every order was shipped."""
    shop = Shop(run=secrets.token_hex(8))
    await place(broker, shop.run)
    first, second = (
        Consumer(broker, group=GROUP, listener=Worker(name, shop), topics={TOPIC: "*"})
        for name in ("worker-1", "worker-2")
    )
    async with asyncio.timeout(PATIENCE_S), first, second:
        await shop.done.wait()
    print(f"each of {len(shop.orders)} orders: {', '.join(STEPS)}")


async def main() -> None:
    """With the broker that was named, or one of our own."""
    if named := os.environ.get("RMQ_BROKER"):
        await process(named)
        return
    async with InMemoryBroker() as own:
        await process(own.address)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RmqError as error:
        sys.exit(f"order_processing: {error}")
    except TimeoutError:
        sys.exit(f"order_processing: not every order was shipped within {PATIENCE_S:g} s")
