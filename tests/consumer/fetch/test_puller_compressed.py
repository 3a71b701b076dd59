"""Compressed batches are consumed as others are, and take no more memory than others do."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from rmq.client import Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.compression import CODECS
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import Make, Messages, Recorder
from support.batches import every_codec

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

MIB = 1 << 20
ZLIB = CODECS.by_name("zlib")


@every_codec
async def test_messages_of_a_producer_that_compresses_are_delivered_in_order(name: str) -> None:
    bodies = [b"%d " % i * 50 for i in range(3000)]
    seen: list[bytes] = []

    async def listener(messages: Messages, context: Any) -> ConsumeStatus:
        seen.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    async with InMemoryBroker(min_free_bytes=0) as broker:
        async with Producer(broker.address, compression=name) as producer:
            await producer.send_bodies("orders", bodies, queue_id=0)
        now = asyncio.get_running_loop().time
        async with Consumer(
            broker.address, group="g", listener=listener, topics={"orders": "*"}, now=now, orderly=True
        ):
            await asyncio.sleep(2)

    assert seen == bodies


async def test_what_was_pulled_is_unpacked_only_as_there_is_room(broker: FakeBroker, make: Make) -> None:
    """One pull may hold a thousand times the bytes that were asked for."""
    broker.create("t")
    for _ in range(60):
        broker.send("t", 0, bytes(MIB), codec=ZLIB)
    listener = Recorder(takes_s=0.1)

    tracemalloc.start()
    try:
        async with make(listener, topics={"t": "*"}, cache_bytes=3 * MIB):
            await asyncio.sleep(20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert listener.offsets == list(range(60))
    assert listener.times[-1] == pytest.approx(listener.times[0] + 5.9, abs=0.2), "never left waiting for messages"
    asked = [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]
    assert asked == [0, 60], "all of the first answer was used"
    assert peak < 10 * MIB


async def test_a_listener_that_commits_late_gets_more_than_there_is_room_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    for _ in range(12):
        broker.send("t", 0, bytes(10_000), codec=ZLIB)
    calls = 0

    async def listener(messages: Messages, context: Any) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        context.auto_commit = False
        return ConsumeStatus.SUCCESS if calls < 12 else ConsumeStatus.COMMIT

    async with make(listener, topics={"t": "*"}, cache_bytes=20_000):
        await asyncio.sleep(1)
        assert calls == 12


async def test_a_stop_does_not_wait_for_what_is_still_packed(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    for _ in range(20):
        broker.send("t", 0, bytes(10_000), codec=ZLIB)
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, cache_bytes=20_000):
        await asyncio.sleep(2.5)

    assert listener.offsets == [0, 1, 2]
