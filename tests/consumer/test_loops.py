"""The consumer in real time, on both event loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.client import Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker

pytestmark = [pytest.mark.both_loops, pytest.mark.usefixtures("nothing_left_running")]


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_is_sent_is_delivered_in_order(blocking: bool) -> None:
    loop, done, seen = asyncio.get_running_loop(), asyncio.Event(), []
    total = 200 if blocking else 10_000

    def note(messages: Any, context: Any) -> ConsumeStatus:
        seen.extend(message.queue_offset for message in messages)
        if len(seen) == total:
            loop.call_soon_threadsafe(done.set)
        return ConsumeStatus.SUCCESS

    async def note_on_loop(messages: Any, context: Any) -> ConsumeStatus:
        return note(messages, context)

    async with InMemoryBroker(min_free_bytes=0) as broker, Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"x" * 10] * total, key="1")
        listener = note if blocking else note_on_loop
        async with asyncio.timeout(20):
            async with Consumer(broker.address, group="g", listener=listener, topics={"orders": "*"}):
                await done.wait()

    assert seen == list(range(total))
