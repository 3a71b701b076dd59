"""A client that sends one message after the other, each when the one before was answered."""

from __future__ import annotations

import time
from itertools import cycle, islice

from rmq.client import Message, Producer

from ..processes import go, run, say
from .schedule import WARM_UP, Bodies

DIFFERENT = 1000
WARM = 200


async def main(address: str, topic: str, size: int, seconds: float) -> None:
    """Say how long each round trip took, in microseconds; messages are made before the clock runs."""
    bodies = Bodies(size)
    messages = cycle([Message(topic, bodies.stamped(WARM_UP)) for _ in range(DIFFERENT)])
    took = []
    async with Producer(address) as producer:
        for message in islice(messages, WARM):
            await producer.send(message)
        await go()
        began = before = time.perf_counter_ns()
        until = began + int(seconds * 1e9)
        while before < until:
            message = next(messages)
            before = time.perf_counter_ns()
            await producer.send(message)
            took.append((time.perf_counter_ns() - before) / 1000)
    say(us=took)


if __name__ == "__main__":
    run(main)
