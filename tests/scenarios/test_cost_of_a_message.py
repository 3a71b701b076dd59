"""
What a message costs the loop, counted: tasks, futures and locks of the consumer and of the broker next to it.

100,000 messages go from a real broker through a public consumer over real sockets. The loop counts the tasks and
futures that are made, the broker's included, so that what is counted is more than what the consumer makes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq.client import Admin, Producer
from rmq.consumer import CallInfo, ConsumeContext, Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import StoredMessage

pytestmark = pytest.mark.virtual_time

MESSAGES = 100_000
QUEUES = 4


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("orders", QUEUES)
        async with Producer(running.address) as producer:
            for at in range(0, MESSAGES, 2000):
                await producer.send_bodies("orders", [b"x" * 100] * 2000, queue_id=at // 2000 % QUEUES)
        yield running


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts every acquisition of a lock or semaphore of asyncio; tasks and futures are counted by :func:`count`."""
    counted: Counter[str] = Counter()

    def counting(kind: type, name: str) -> None:
        acquire = kind.acquire  # type: ignore[attr-defined]

        async def acquired(self: Any) -> Any:
            counted[name] += 1
            return await acquire(self)

        monkeypatch.setattr(kind, "acquire", acquired)

    for kind in (asyncio.Lock, asyncio.Semaphore):
        counting(kind, "locks")
    return counted


def count(loop: Any, counted: Counter[str]) -> None:
    """Count the tasks and futures that are made on a loop from here on."""
    create_future = loop.create_future

    def future() -> Any:
        counted["futures"] += 1
        return create_future()

    def task(loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any) -> Any:
        counted["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **settings)

    loop.create_future = future
    loop.set_task_factory(task)


class Ticking:
    """The loop's clock, 10 us further at each reading: work takes time, as it does in production."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._readings = 0

    def __call__(self) -> float:
        self._readings += 1
        return self._loop.time() + self._readings * 1e-5


class Auditor:
    """A hook that counts calls."""

    def __init__(self) -> None:
        self.calls = 0

    def after(self, info: CallInfo) -> None:
        self.calls += 1


@pytest.mark.parametrize(
    ("orderly", "batch", "audited"),
    [(True, 1, False), (True, 1, True), (True, 500, False), (True, 500, True), (False, 1, False), (False, 500, True)],
)
async def test_at_most_one_task_future_or_lock_for_a_hundred_messages(
    broker: InMemoryBroker, made: Counter[str], orderly: bool, batch: int, audited: bool
) -> None:
    done = calls = 0
    finished, auditor = asyncio.Event(), Auditor()

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        nonlocal done, calls
        done += len(messages)
        calls += 1
        if done >= MESSAGES:
            finished.set()
        return ConsumeStatus.SUCCESS

    consumer = Consumer(
        broker.address,
        group="g",
        listener=listener,
        topics={"orders": "*"},
        batch=batch,
        now=Ticking(),
        orderly=orderly,
    )
    if audited:
        consumer.add_hook(auditor)
    count(asyncio.get_running_loop(), made)
    async with consumer:
        await finished.wait()

    print(f"\nbatch {batch}: {MESSAGES} messages in {calls} calls made {dict(made)}")
    assert made["tasks"] + made["futures"] + made["locks"] <= 0.01 * MESSAGES
    assert min(made["tasks"], made["futures"]) > 0  # it does count
    assert bool(made["locks"]) is orderly  # many at a time need none
    assert MESSAGES // batch <= calls <= MESSAGES
    assert auditor.calls == (calls if audited else 0)
    consumed = consumer.statistics()["orders@g"].consumed_ok
    assert (consumed.total, consumed.calls) == (MESSAGES, calls)
