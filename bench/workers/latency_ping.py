"""A client that pings by a schedule, whether or not the ping before was answered."""

from __future__ import annotations

import asyncio
import time

from rmq.client import Connection
from rmq.wire.protocol.ops.core import Op

from ..processes import go, run, say
from .schedule import SECOND, Schedule

WARM = 50
LEAD_NS = SECOND // 20
PATIENCE_S = 60.0


async def main(address: str, per_second: float, count: int) -> None:
    """Say how long after it was due each ping was answered, and how late it was sent, in microseconds."""
    took: list[float] = []
    behind: list[float] = []
    connection = Connection(address)
    await connection.open(timeout_s=PATIENCE_S)

    async def ping(due: int) -> None:
        await connection.request(Op.PING, (), timeout_s=PATIENCE_S)
        took.append((time.monotonic_ns() - due) / 1000)

    try:
        for _ in range(WARM):
            await connection.request(Op.PING, (), timeout_s=PATIENCE_S)
        await go()
        schedule = Schedule(time.monotonic_ns() + LEAD_NS, per_second, count)
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                await asyncio.sleep(schedule.wait_s(number, time.monotonic_ns()))
                now, due = time.monotonic_ns(), schedule.due(number)
                behind.append((now - due) / 1000)
                tasks.create_task(ping(min(now, due)))  # the loop may be early by half a millisecond
    finally:
        await connection.close()
    say(us=took, behind_us=behind)


if __name__ == "__main__":
    run(main)
