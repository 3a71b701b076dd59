"""
A hundred messages of ten orders under five tags; a consumer that wants three of the tags gets sixty, order by order.

    python examples/seed_orders.py                              # with a broker of its own, in memory
    python examples/seed_orders.py --broker 127.0.0.1:10911     # with one that runs, as RMQ_BROKER=... does

The number of the order is the key: all messages of an order are in one queue, in the order they were sent.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections import defaultdict

from rmq import Consumer, ConsumeStatus, Message, Producer, RmqError
from rmq.client import by_int
from rmq.consumer import ConsumeContext, StoredMessage
from rmq.testing import InMemoryBroker

TOPIC = GROUP = "seed_orders"
COUNT, ORDERS = 100, 10
TAGS = ("TagA", "TagB", "TagC", "TagD", "TagE")
WANTED = "TagA || TagC || TagD"
EXPECTED = {order: list(range(order, COUNT, ORDERS)) for order in range(ORDERS) if TAGS[order % 5] in WANTED}
PATIENCE_S = 30.0


async def produce(broker: str, run: str) -> None:
    """Send one after the other; the property tells this run from earlier ones with the same broker."""
    async with Producer(broker, delivery_timeout_s=5) as producer:
        for i in range(COUNT):
            message = Message(
                TOPIC, f"message {i}".encode(), key=str(i % ORDERS), tag=TAGS[i % 5], index_keys=(f"KEY{i}",),
                properties={"run": run},
            )  # fmt: skip
            await producer.send(message, selector=by_int)  # as a Java producer does with an order id that is an Integer


async def consume(broker: str, run: str) -> dict[int, list[int]]:
    """Print what comes until all that is wanted was there; returns the numbers of each order as they came."""
    seen: dict[int, list[int]] = defaultdict(list)
    done = asyncio.Event()

    async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        for message in messages:
            if message.properties["run"] != run:
                continue  # left over from a run that was interrupted
            number = int(message.index_keys[0].removeprefix("KEY"))
            order = int(message.key or -1)
            (index_key,) = message.index_keys
            print(f"order {order}: {message.body.decode()}, {message.tag}, {index_key}, queue {message.queue_id}")
            seen[order].append(number)
        if sum(map(len, seen.values())) >= sum(map(len, EXPECTED.values())):
            done.set()
        return ConsumeStatus.SUCCESS

    async with Consumer(broker, group=GROUP, listener=on_messages, topics={TOPIC: WANTED}), asyncio.timeout(PATIENCE_S):
        await done.wait()
    return dict(seen)


async def seed(broker: str) -> None:
    """Produce, consume, and compare."""
    run = secrets.token_hex(8)
    await produce(broker, run)
    seen = await consume(broker, run)
    if seen != EXPECTED:
        sys.exit(f"seed_orders: the orders were not in sequence: {seen}")
    print(f"{sum(map(len, seen.values()))} messages of {len(seen)} orders, each order in sequence")


async def main() -> None:
    """With the broker that was named, or one of our own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        default=os.environ.get("RMQ_BROKER"),
        help="a broker that runs; without, and without RMQ_BROKER, one is started in memory",
    )
    named = parser.parse_args().broker
    if named:
        await seed(named)
        return
    async with InMemoryBroker() as own:
        await seed(own.address)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RmqError as error:
        sys.exit(f"seed_orders: {error}")
    except TimeoutError:
        sys.exit(f"seed_orders: not all messages came within {PATIENCE_S:g} s")
