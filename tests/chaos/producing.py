"""A producer's process: ``python -m chaos.producing ADDRESS TOPIC KEYS PAUSE_S`` prints what is acknowledged."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import NamedTuple

from rmq.client import Message, Producer
from rmq.runtime.clock import boottime

from rigs.processes import Running, with_tests


class Acknowledged(NamedTuple):
    """A number of a key, and where the broker stored it."""

    at: float
    key: str
    number: int
    queue_id: int
    offset: int


async def produce(address: str, topic: str, keys: int, pause_s: float) -> None:
    """Send the numbers of every key in order; print each when it is acknowledged. Ends on SIGTERM."""
    enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, enough.set)

    async def send_numbers(key: str) -> None:
        number = 0
        while not enough.is_set():
            message = Message(topic, f"{key} {number}".encode(), index_keys=(key,))
            receipt = await producer.send(message, key=key)
            print(boottime(), key, number, receipt.queue_id, receipt.queue_offset, flush=True)
            number += 1
            await asyncio.sleep(pause_s)

    async with Producer(address) as producer:
        await asyncio.gather(*(send_numbers(f"k{i}") for i in range(keys)))


class ProducerProcess(Running):
    """This file as a process."""

    def __init__(self, address: str, topic: str, keys: int, pause_s: float) -> None:
        super().__init__("chaos.producing", address, topic, str(keys), str(pause_s), env=with_tests())

    def acknowledged(self) -> list[Acknowledged]:
        """Return what was acknowledged so far."""
        lines = (line.split() for line in list(self.lines))
        return [Acknowledged(float(at), key, int(n), int(queue_id), int(end)) for at, key, n, queue_id, end in lines]


if __name__ == "__main__":
    asyncio.run(produce(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
