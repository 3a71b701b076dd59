"""Clients of ``rmq-bench recovery``: ``fill`` makes a log long, ``send`` is the load under which a broker is killed."""

from __future__ import annotations

import asyncio
import logging
from itertools import cycle
from typing import Any, Final

from rmq.client import Admin, Producer

from .. import processes
from ..options import Load

TOPIC: Final = "filling"
QUEUES: Final = 8
IN_FLIGHT: Final = 8
CALL: Final = Load(messages=16 * 64, size=1 << 16, batch=16)  # 1 MiB a call; the same 64 MiB again and again
PAUSE_S: Final = 0.05


async def fill(address: str, log_bytes: int) -> None:
    """Send large messages, since that is quicker, until the log has ``log_bytes``; report once all are on the disk."""
    bodies = CALL.bodies()
    async with Admin(address, timeout_s=60) as admin, Producer(address, delivery_timeout_s=120) as producer:
        await admin.create_topic(TOPIC, QUEUES)
        await processes.go()
        while (missing := log_bytes - (await admin.stats())["log"]["log_bytes"]) > 0:
            calls = iter(range(-(-missing // (CALL.size * CALL.batch))))

            async def send_in_turn(calls: object = calls) -> None:
                for call in calls:  # type: ignore[attr-defined]
                    await producer.send_bodies(TOPIC, bodies[call % len(bodies)])

            async with asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(send_in_turn())
        while (log := (await admin.stats())["log"])["log_durable"] < log["log_written"]:
            await asyncio.sleep(PAUSE_S)
        processes.say(log_bytes=log["log_bytes"])


async def send(address: str, topic: str, load: dict[str, Any]) -> None:
    """Send until killed; report once that ``load.messages`` were acknowledged."""
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
    logging.getLogger("rmq.client").setLevel(logging.CRITICAL)  # the sender loses its broker on purpose
    processes.run(processes.roles(fill=fill, send=send))
