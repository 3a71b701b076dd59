"""The producer of ``scale``: some connections, some topics, all of their queues in turn; says messages a second."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

from rmq.broker.process import raise_open_files
from rmq.client import Admin, Producer

from .. import processes
from ..options import Load

OPENING = 32  # connections that are opened at once
WARM = [b"warm", b"up"]  # two messages: single ones of one moment would all go to one queue


async def main(address: str, topics: Sequence[tuple[str, int]], load: dict[str, Any]) -> None:
    """Make the topics (name and queues of each), open all connections, touch every queue, then send."""
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
        await send(producers[:1], names, [WARM] * sum(queues for _, queues in topics), sent.in_flight)
        for name in names:  # each asks for the route of each
            await send(producers, [name], [WARM] * len(producers), sent.in_flight)
        await processes.go()
        began = time.perf_counter()
        await send(producers, names, bodies, sent.in_flight)
        processes.say(per_s=sent.messages / (time.perf_counter() - began))


async def send(producers: list[Producer], topics: Sequence[str], calls: Iterable[list[bytes]], in_flight: int) -> None:
    """One call for each list, so many at once, spread evenly over the producers; topics and queues take turns."""
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


if __name__ == "__main__":
    processes.run(main)
