"""Clients of ``rmq-bench scale``: ``produce`` and ``consume``, over all queues; both report messages a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from time import monotonic
from typing import Any, Final

from rmq.broker.process import raise_open_files
from rmq.client import Admin, Producer
from rmq.consumer import Consumer

from .. import processes
from ..options import Load
from .receiving import BATCH, LOOK_AGAIN_S, Tally

OPENING = 32  # connections that are opened at once
WARM = [b"warm", b"up"]  # two messages: single ones of one moment would all go to one queue
TOO_LONG_S: Final = 120.0


async def produce(address: str, topics: Sequence[tuple[str, int]], load: dict[str, Any]) -> None:
    """Create the topics (name and queues of each), open all connections, touch every queue, then send."""
    raise_open_files()
    sent = Load(**load)
    async with Admin(address, timeout_s=60) as admin:
        for topic, queues in topics:
            await admin.create_topic(topic, queues)
    bodies = sent.bodies()
    async with AsyncExitStack() as stack:
        producers = [Producer(address) for _ in range(sent.connections)]
        for at in range(0, len(producers), OPENING):
            opened = producers[at : at + OPENING]
            await asyncio.gather(*(stack.enter_async_context(producer) for producer in opened))
        names = [topic for topic, _ in topics]
        await send_in_turns(producers[:1], names, [WARM] * sum(queues for _, queues in topics), sent.in_flight)
        for name in names:  # each asks for the route of each
            await send_in_turns(producers, [name], [WARM] * len(producers), sent.in_flight)
        await processes.go()
        began = time.perf_counter()
        await send_in_turns(producers, names, bodies, sent.in_flight)
        processes.say(per_s=sent.messages / (time.perf_counter() - began))


async def send_in_turns(
    producers: list[Producer], topics: Sequence[str], calls: Iterable[list[bytes]], in_flight: int
) -> None:
    """Send each list by a call, ``in_flight`` at once, spread evenly over producers, topics and queues."""
    free = deque(producers * -(-in_flight // len(producers)))  # each as often as it may have a call in flight
    turns = zip(calls, cycle(topics), strict=False)

    async def send_in_turn() -> None:
        for bodies, topic in turns:  # shared: each is taken once
            producer = free.popleft()
            await producer.send_bodies(topic, bodies)
            free.append(producer)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(send_in_turn())


async def consume(address: str, topics: Sequence[str], queues: int, group: str, messages: int) -> None:
    """Read ``messages`` in order from the start; the clock runs from owning all queues to the last message."""
    tally = Tally()
    tally.expect(messages)
    await processes.go()
    asked = dict.fromkeys(topics, "*")
    consumer = Consumer(address, group=group, listener=tally.listen_to_many, topics=asked, batch=BATCH)
    consumer.pause()
    async with asyncio.timeout(TOO_LONG_S), consumer:
        while len(consumer.assignment) < queues:
            await asyncio.sleep(LOOK_AGAIN_S)
        began = monotonic()
        consumer.resume()
        await tally.done.wait()
        processes.say(per_s=tally.count / (tally.last_at - began))


if __name__ == "__main__":
    # So many queues of one member fill its cache and keep it busy, of which it warns: that is what is measured.
    logging.getLogger("rmq.consumer").setLevel(logging.ERROR)
    processes.run(processes.roles(produce=produce, consume=consume))
