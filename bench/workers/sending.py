"""
A process that sends, by one of the ways of :class:`~rmq.client.Producer`, several calls at once.

All work of the producer is inside the clock, and none of the benchmark's own: bodies (and, unless ``style`` says
otherwise, messages) are made before (see also :func:`~rmq.bench.processes.settle`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from time import monotonic
from typing import Any, Protocol

from rmq.client import Admin, FoundMessages, Producer
from rmq.wire.model import Message

from ..options import Load
from ..processes import BenchError, go, run, say, settle

STYLES = ("messages", "messages_inside", "bodies")
WARM_UP = 20_000  # messages at most
LOOK_AGAIN_S = 0.005
CATCH_UP_S = 60.0

Send = Callable[[Producer, Any], Awaitable[object]]  # one call, with one of the items


def warm_up(load: Load) -> Load:
    """Return what is sent before the clock runs: a small share of the load."""
    return dataclasses.replace(load, messages=max(min(load.messages // 5, WARM_UP), 1))


def key(part: int, number: int) -> str:
    """Return the key of a message, unique among all."""
    return f"order-{part}-{number}"


def messages_of(topic: str, load: Load, part: int = 0) -> list[list[Message]]:
    """Make all messages, in lists of ``batch``, with the tags and keys of the load."""
    tags = [f"tag-{number}" for number in range(load.tags)]
    numbers = count()

    def message(body: bytes) -> Message:
        number = next(numbers)
        tag = tags[number % len(tags)] if tags else None
        return Message(topic, body, tag=tag, index_keys=(key(part, number),) if load.keys else ())

    return [[message(body) for body in bodies] for bodies in load.bodies()]


def prepared(style: str, topic: str, load: Load, part: int = 0) -> tuple[Sequence[Any], Send]:
    """Return what is sent call by call, and the function that sends it."""
    if style == "bodies":
        return load.bodies(), lambda producer, bodies: producer.send_bodies(topic, bodies)
    if style == "messages":
        lists = messages_of(topic, load, part)
        if load.batch == 1:
            return [message for (message,) in lists], lambda producer, message: producer.send(message)
        return lists, lambda producer, messages: producer.send_many(messages)
    if load.batch == 1:
        singles = [body for (body,) in load.bodies()]
        return singles, lambda producer, body: producer.send(Message(topic, body))
    return load.bodies(), lambda producer, bodies: producer.send_many([Message(topic, body) for body in bodies])


async def send_all(producers: Sequence[Producer], items: Sequence[Any], send: Send, in_flight: int) -> None:
    """Send everything by ``in_flight`` tasks over all producers, each waiting for one receipt after the other."""
    left = iter(items)  # shared: each is taken once

    async def send_in_turn(producer: Producer) -> None:
        for item in left:
            await send(producer, item)

    async with asyncio.TaskGroup() as tasks:
        for number in range(in_flight):
            tasks.create_task(send_in_turn(producers[number % len(producers)]))


class Queried(Protocol):
    """The part of an :class:`~rmq.client.Admin` that finds messages."""

    async def query_messages(self, key: str, topic: str) -> FoundMessages:
        """The messages of a key."""


async def caught_up(admin: Queried, topic: str, last: str, now: Callable[[], float] = monotonic) -> float:
    """Return when the key of the last message finds it, and the whole log is indexed."""
    until = now() + CATCH_UP_S
    while True:
        found = await admin.query_messages(last, topic)
        if found.messages and not found.lag_bytes:
            return now()
        if now() > until:
            raise BenchError(f"the message with the key {last} was not found within {CATCH_UP_S:g} s")
        await asyncio.sleep(LOOK_AGAIN_S)


async def main(*, address: str, topic: str, warm_topic: str, style: str, load: dict[str, Any], part: int) -> None:
    """Prepare, warm up, send; report when the first call began and the last one ended."""
    work = Load(**load)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(address))
        producers = [await stack.enter_async_context(Producer(address)) for _ in range(work.connections)]
        await send_all(producers, *prepared(style, warm_topic, warm_up(work), part), work.in_flight)
        items, send = prepared(style, topic, work, part)
        settle()
        await go()
        began = monotonic()  # the machine's clock: the same in all processes
        await send_all(producers, items, send, work.in_flight)
        ended = monotonic()
        indexed = await caught_up(admin, topic, key(part, work.messages - 1)) if work.keys else ended
        say(began=began, ended=ended, indexed=indexed)


if __name__ == "__main__":
    run(main)
