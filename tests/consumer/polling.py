"""What tests of pull consumers share: a consumer of the scripted broker, and the offsets that were returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import PullConsumer, PulledBatch
from rmq.wire.model import MessageQueue

from .fake_broker import FakeBroker

MakePull = Callable[..., PullConsumer]
QUEUE, OTHER = MessageQueue("t", 0), MessageQueue("t", 1)


@pytest.fixture
def pull(broker: FakeBroker) -> MakePull:
    """Makes pull consumers of the scripted broker; ``t`` is subscribed unless something else is given."""

    def consumer(*, group: str = "g", **settings: Any) -> PullConsumer:
        settings.setdefault("topics", {"t": "*"})
        settings.setdefault("now", asyncio.get_running_loop().time)
        return PullConsumer("fake:1", group=group, connect=broker.connect, **settings)

    return consumer


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


def offsets(batch: PulledBatch) -> list[int]:
    return [message.queue_offset for message in batch]


async def drained(consumer: PullConsumer, timeout_s: float = 0.5) -> list[tuple[int, int]]:
    """Everything that comes until nothing does for a while: queue and offset of each message."""
    found = []
    while batch := await consumer.poll(timeout_s):
        found += [(message.queue_id, message.queue_offset) for message in batch]
    return found
