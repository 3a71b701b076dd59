"""Makes the log of a broker as long as wanted, with large messages since that is quicker, and waits for the disk."""

from __future__ import annotations

import asyncio
from typing import Final

from rmq.client import Admin, Producer

from .. import processes
from ..options import Load

TOPIC: Final = "filling"
QUEUES: Final = 8
IN_FLIGHT: Final = 8
CALL: Final = Load(messages=16 * 64, size=1 << 16, batch=16)  # 1 MiB a call; the same 64 MiB again and again
PAUSE_S: Final = 0.05


async def main(address: str, log_bytes: int) -> None:
    """Send until the log has ``log_bytes``; says when all of it is on the disk."""
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


if __name__ == "__main__":
    processes.run(main)
