"""What tests of the producer share: numbered messages, and a judge of their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

from rmq.client import Message, Producer, Receipt
from rmq.wire.batch import layout

from .fake_broker import FakeBroker

TOPIC = "orders"


def time() -> float:
    return asyncio.get_running_loop().time()


def message(number: int) -> Message:
    return Message(TOPIC, b"%06d" % number)


async def send_each(producer: Producer, numbers: range, *, key: str = "k") -> list[Receipt | BaseException]:
    """Send each number by a call of its own, one call a loop turn, all waiting at the same time."""
    tasks = []
    for number in numbers:
        tasks.append(asyncio.create_task(producer.send(message(number), key=key)))
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def numbers(broker: FakeBroker) -> list[int]:
    """What is stored, queue by queue."""
    return [int(body) for body in broker.bodies(TOPIC)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Script:
    """Decides the fate of batches: ``fates[n]`` is raised for the nth batch that is about to be stored, once."""

    def __init__(self, fates: dict[int, Exception]) -> None:
        self.fates = fates
        self.seen: Iterator[int] = count(1)

    def __call__(self, _header: layout.Header) -> None:
        fate = self.fates.pop(next(self.seen), None)
        if fate is not None:
            raise fate
