"""The client of a profile: sends or consumes, by the public API, and tells how many messages it dealt with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rmq.client import Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, StoredMessage

from .options import Load
from .processes import go, run, say

TOPIC = "profile"


async def main(what: str, address: str, load: dict[str, Any], repeats: int) -> None:
    """Prepare, wait for the word, work, tell."""
    work = Load(**load)
    if what.startswith("send"):
        await _send(what, address, work, repeats)
    else:
        await _consume(address, work, repeats)


async def _send(what: str, address: str, load: Load, repeats: int) -> None:
    bodies = load.bodies()
    messages = [] if what == "send-bodies" else [[Message(TOPIC, body) for body in some] for some in bodies]
    send_of: dict[str, Callable[[Producer, int], Awaitable[object]]] = {
        "send-bodies": lambda producer, at: producer.send_bodies(TOPIC, bodies[at]),
        "send-messages": lambda producer, at: producer.send_many(messages[at]),
        "send-single": lambda producer, at: producer.send(messages[at][0]),
        "send-apart": lambda producer, at: producer.send(messages[at][0]),
    }
    send = send_of[what]
    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(Producer(address)) for _ in range(load.connections)]
        for producer in producers:
            await send(producer, 0)
        await go()
        calls = iter([*range(len(bodies))] * repeats)

        async def send_in_turn(producer: Producer) -> None:
            for at in calls:  # shared: each is taken once
                await send(producer, at)

        async with asyncio.TaskGroup() as tasks:
            for number in range(load.in_flight):
                tasks.create_task(send_in_turn(producers[number % len(producers)]))
        say(messages=load.messages * repeats)


async def _consume(address: str, load: Load, repeats: int) -> None:
    left, done = load.messages * repeats, asyncio.Event()

    async def listener(messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        nonlocal left
        for message in messages:
            assert len(message.body) == load.size
        left -= len(messages)
        if left <= 0:
            done.set()
        return ConsumeStatus.SUCCESS

    consumer = Consumer(address, group="profile", listener=listener, topics={TOPIC: "*"}, batch=load.batch)
    await go()
    async with consumer:
        await done.wait()
        say(messages=load.messages * repeats)


if __name__ == "__main__":
    run(main)
