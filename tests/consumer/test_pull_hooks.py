"""What a user of a pull consumer is told when queues come and go, and may do then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import PullConsumer
from rmq.wire.model import MessageQueue

from .fake_broker import FakeBroker
from .polling import OTHER, QUEUE, MakePull, now, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


async def test_the_user_is_told_before_the_first_message_and_may_seek_there(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 6)
    told: list[Any] = []

    async def on_assigned(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(1)
        told.append((now(), queues))
        await consumer.seek(queues[0], 4)

    consumer: PullConsumer = pull(on_assigned=on_assigned)
    async with consumer:
        assert offsets(await consumer.poll(5)) == [4, 5]

    assert told == [(1.0, [QUEUE])]


async def test_a_queue_is_given_away_when_the_user_was_told_and_what_they_commit_there_counts(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 4)
    told: list[Any] = []

    async def on_revoked(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(1)
        told.append((queues, broker.holder("g", QUEUE) is not None))
        await consumer.commit()

    consumer = pull(batch=1, auto_commit_every_s=0, on_revoked=on_revoked)
    async with consumer:
        await consumer.poll(1)
        await consumer.poll(1)
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)  # changes of members are gathered for 100 ms
        assert await consumer.poll(5) == []
        assert (broker.holder("g", QUEUE), broker.offsets["g", QUEUE]) == (None, 2)

    assert told == [([QUEUE], True)]


async def test_a_commit_in_a_hook_leaves_undone_what_the_polling_task_works_on(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, b"x", b"y")

    async def on_revoked(queues: list[MessageQueue]) -> None:
        await consumer.commit()

    consumer = pull(batch=1, on_revoked=on_revoked)
    async with consumer:
        await asyncio.sleep(0.1)
        consumer.pause(OTHER)
        batch = await consumer.poll(1)
        broker.set_members("g", "z")  # who comes behind us and gets the second queue
        await asyncio.sleep(0.2)
        assert (batch.queue, broker.holder("g", OTHER)) == (QUEUE, None)
        assert broker.offsets["g", QUEUE] == 0


async def test_a_hook_that_raises_or_hangs_is_logged_and_harms_nobody(
    broker: FakeBroker, pull: MakePull, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    broker.send("t", 0, b"x")

    def on_assigned(queues: list[MessageQueue]) -> None:
        raise ValueError("from the hook")

    async def on_revoked(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(1000)

    async with pull(on_assigned=on_assigned, on_revoked=on_revoked) as consumer:
        assert offsets(await consumer.poll(1)) == [0]
        began = now()
    assert now() == began + 30

    assert "hook.raised" in caplog.text
    assert "hook.cancelled" in caplog.text
    assert broker.offsets["g", QUEUE] == 1


async def test_a_hook_that_awaits_something_cancelled_has_raised(
    broker: FakeBroker, pull: MakePull, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    broker.send("t", 0, b"x")

    async def on_revoked(queues: list[MessageQueue]) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with pull(on_revoked=on_revoked) as consumer:
        await consumer.poll(1)
        await consumer.poll(0)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert (broker.holder("g", QUEUE), broker.offsets["g", QUEUE]) == (None, 1)
    assert "hook.raised" in caplog.text


async def test_a_queue_that_is_taken_away_while_the_user_is_told_of_it_ends_that_first(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t")
    told: list[str] = []

    async def on_assigned(queues: list[MessageQueue]) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            told.append("assigned")

    async with pull(on_assigned=on_assigned, on_revoked=lambda queues: told.append("revoked")) as consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert (told, consumer.assignment, broker.holder("g", QUEUE)) == (["assigned", "revoked"], [], None)


async def test_a_hook_may_stop_the_consumer(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")

    async def on_assigned(queues: list[MessageQueue]) -> None:
        await consumer.stop()

    consumer = pull(on_assigned=on_assigned)
    async with consumer:
        assert [batch async for batch in consumer] == []
