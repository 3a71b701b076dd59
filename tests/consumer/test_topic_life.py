"""Topics that are deleted, made again and grown on the real broker, under running consumers, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rmq.client import Admin, Message, Producer
from rmq.consumer import ConsumeContext, Consumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue

from .recorder import Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest_asyncio.fixture
async def real() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as broker:
        yield broker


@pytest_asyncio.fixture
async def admin(real: InMemoryBroker) -> AsyncIterator[Admin]:
    async with Admin(real.address) as admin:
        yield admin


class Bodies(Recorder):
    """A recorder that keeps what it was given, and whether each call was told that its queue is lost."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(takes_s=takes_s)
        self.got: list[tuple[int, int, bytes]] = []
        self.lost: list[bool] = []

    async def __call__(self, messages: Messages, context: ConsumeContext) -> Any:
        self.got += [(message.queue_id, message.queue_offset, message.body) for message in messages]
        answer = await super().__call__(messages, context)
        self.lost.append(bool(context.lost))
        return answer


def consumer(real: InMemoryBroker, listener: Any, **settings: Any) -> Consumer:
    settings = {"topics": {"orders": "*"}, "group": "g", "now": asyncio.get_running_loop().time, **settings}
    return Consumer(real.address, listener=listener, **settings)


async def send(real: InMemoryBroker, *bodies: bytes, queue_id: int = 0) -> None:
    async with Producer(real.address) as producer:
        for body in bodies:
            await producer.send(Message("orders", body), queue_id=queue_id)


async def committed(admin: Admin, queue_id: int = 0) -> int:
    (held,) = await admin.ranges([MessageQueue("orders", queue_id)], "g")
    return held.committed


@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_a_topic_that_is_deleted_and_made_again_is_consumed_from_0(
    real: InMemoryBroker, admin: Admin, start_from: str
) -> None:
    await admin.create_topic("orders", 2)
    listener = Bodies()

    async with consumer(real, listener, start_from=start_from) as one:
        await asyncio.sleep(1)
        await send(real, b"old 0", b"old 1", b"old 2")
        await asyncio.sleep(1)
        assert await committed(admin) == 3

        await admin.delete_topic("orders")
        await asyncio.sleep(0.1)
        assert one.assignment == []
        await asyncio.sleep(60)
        assert one.assignment == []

        await admin.create_topic("orders", 2)
        await send(real, b"new 0", b"new 1")
        await asyncio.sleep(1)
        assert len(one.assignment) == 2
        assert await committed(admin) == 2

    assert [body for _, _, body in listener.got] == [b"old 0", b"old 1", b"old 2", b"new 0", b"new 1"]
    assert [offset for _, offset, _ in listener.got] == [0, 1, 2, 0, 1]


async def test_a_call_that_runs_while_its_topic_is_replaced_counts_for_nothing_in_the_new_one(
    real: InMemoryBroker, admin: Admin
) -> None:
    await admin.create_topic("orders", 1)
    await send(real, b"old 0", b"old 1", b"old 2")
    listener = Bodies(takes_s=3.0)

    async with consumer(real, listener):
        await asyncio.sleep(4)  # the second call runs
        await admin.delete_topic("orders")
        await admin.create_topic("orders", 1)
        await send(real, b"new 0", b"new 1")
        await asyncio.sleep(3)
        assert await committed(admin) <= 0
        await asyncio.sleep(7)
        assert await committed(admin) == 2

    assert [body for _, _, body in listener.got] == [b"old 0", b"old 1", b"new 0", b"new 1"]
    assert listener.lost == [False, True, False, False]
    assert listener.most == 1


async def test_a_topic_made_again_with_fewer_queues_is_shared_anew(real: InMemoryBroker, admin: Admin) -> None:
    await admin.create_topic("orders", 4)
    first, second = consumer(real, Bodies()), consumer(real, Bodies())

    async with first, second:
        await asyncio.sleep(1)
        assert sorted([*first.assignment, *second.assignment]) == [MessageQueue("orders", i) for i in range(4)]
        await admin.delete_topic("orders")
        await admin.create_topic("orders", 2)
        await asyncio.sleep(1)
        assert (len(first.assignment), len(second.assignment)) == (1, 1)


async def test_a_topic_that_went_or_was_replaced_around_a_restart_is_noticed(
    real: InMemoryBroker, admin: Admin
) -> None:
    await admin.create_topic("orders", 1)
    await send(real, b"old")
    listener = Bodies()

    async with consumer(real, listener) as one:
        await asyncio.sleep(1)
        await admin.delete_topic("orders")
        await real.restart()
        await asyncio.sleep(3)
        assert one.assignment == []
    async with Admin(real.address) as again:
        await again.create_topic("orders", 1)
    await send(real, b"new")
    async with consumer(real, listener):
        await asyncio.sleep(1)

    assert [body for _, _, body in listener.got] == [b"old", b"new"]


@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_the_queues_a_topic_grows_by_are_consumed_within_a_second_and_from_0(
    real: InMemoryBroker, admin: Admin, start_from: str
) -> None:
    await admin.create_topic("orders", 1)
    listener = Bodies()

    async with consumer(real, listener, start_from=start_from) as one:
        await asyncio.sleep(2)
        await admin.grow_topic("orders", 3)
        grown_at = now()
        await send(real, b"x", queue_id=2)
        await asyncio.sleep(1)
        assert one.assignment == [MessageQueue("orders", i) for i in range(3)]

    assert listener.got == [(2, 0, b"x")]
    assert listener.times[0] - grown_at < 1


async def test_last_passes_no_message_of_a_queue_that_is_younger_than_the_group(
    real: InMemoryBroker, admin: Admin
) -> None:
    """A member that comes after the queue was made cannot tell by itself whether the group has seen it."""
    await admin.create_topic("orders", 1)
    await send(real, b"old")
    listener = Bodies()

    async with consumer(real, listener, start_from="last"):
        await asyncio.sleep(1)
    await admin.grow_topic("orders", 2)
    await send(real, b"while nobody was there", queue_id=1)
    async with consumer(real, listener, start_from="last"):
        await asyncio.sleep(1)
        await admin.grow_topic("orders", 3)
        await send(real, b"right after", queue_id=2)
        async with consumer(real, listener, start_from="last"):
            await asyncio.sleep(2)

    assert sorted(listener.got) == [(1, 0, b"while nobody was there"), (2, 0, b"right after")]


async def test_a_group_begins_at_a_point_in_time(real: InMemoryBroker, admin: Admin) -> None:
    await admin.create_topic("orders", 1)
    await send(real, b"a", b"b")
    past, future = Bodies(), Bodies()

    async with (
        consumer(real, past, start_from="2020-01-01T00:00Z"),
        consumer(real, future, group="h", start_from="timestamp:2990-01-01T00:00Z"),
    ):
        await asyncio.sleep(1)
        await send(real, b"c")
        await asyncio.sleep(1)

    assert [body for _, _, body in past.got] == [b"a", b"b", b"c"]
    assert [body for _, _, body in future.got] == [b"c"]
