"""A client that sends as much as it can from before it says that it is ready until it is told to end."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle
from typing import Any

from rmq.client import Producer

from ..options import Load
from ..processes import go, run, say


async def main(address: str, topic: str, load: dict[str, Any], warm_s: float) -> None:
    """Say how many messages a second it sent while it was to."""
    asked = Load(**load)
    batches = cycle(asked.bodies())
    sent = 0
    over = False
    async with Producer(address) as producer:

        async def send_on() -> None:
            nonlocal sent
            while not over:
                bodies = next(batches)
                await producer.send_bodies(topic, bodies)
                sent += len(bodies)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(asked.in_flight):
                tasks.create_task(send_on())
            await asyncio.sleep(warm_s)
            began, before = time.perf_counter(), sent
            await go()
            rate = (sent - before) / (time.perf_counter() - began)
            over = True
    say(rate=rate)


if __name__ == "__main__":
    run(main)
