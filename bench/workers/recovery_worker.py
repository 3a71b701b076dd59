"""The load under which ``recovery`` kills a broker: it sends on and on, and says how much was answered."""

from __future__ import annotations

import asyncio
import logging
from itertools import cycle
from typing import Any

from rmq.client import Admin, Producer

from .. import processes
from ..options import Load


async def main(address: str, topic: str, load: dict[str, Any]) -> None:
    """Send until somebody ends this; says once that ``load.messages`` were answered."""
    sent = Load(**load)
    calls, answered = cycle(sent.bodies()), 0

    async with Admin(address) as admin, Producer(address) as producer, asyncio.TaskGroup() as tasks:
        await admin.create_topic(topic, sent.queues)
        await processes.go()

        async def send_in_turn() -> None:
            nonlocal answered
            for bodies in calls:
                await producer.send_bodies(topic, bodies)
                before, answered = answered, answered + len(bodies)
                if before < sent.messages <= answered:
                    processes.say(answered=answered)

        for _ in range(sent.in_flight):
            tasks.create_task(send_in_turn())


if __name__ == "__main__":
    logging.getLogger("rmq.client").setLevel(logging.CRITICAL)  # that the connection is lost is what this is about
    processes.run(main)
