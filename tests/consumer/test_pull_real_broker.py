"""Pull consumers against the real broker on virtual time: sharing, hand-overs, crashes, restarts, assignments."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from rmq.client import Admin, Message, Producer
from rmq.consumer import PullConsumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import Fenced, GroupMismatch, OffsetOutOfRange
from rmq.wire.model import MessageQueue

from .polling import now, offsets
from .recorder import SUSPEND, Recorder
from .test_real_broker import Cuttable, consumer

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

QUEUE = MessageQueue("orders", 0)


@pytest_asyncio.fixture
async def real() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as broker:
        yield broker


def pulling(broker: InMemoryBroker, **settings: Any) -> PullConsumer:
    settings = {"topics": {"orders": "*"}, "group": "g", "now": asyncio.get_running_loop().time, **settings}
    return PullConsumer(broker.address, **settings)


async def send(broker: InMemoryBroker, count: int, *, queues: int = 1) -> None:
    """
    Messages to the queues in turn, numbered in their bodies.

    One batch for each queue: of several, a broker that the machine keeps waiting may give some, and those behind later.
    """
    async with Admin(broker.address) as admin:
        await admin.create_topic("orders", queues)
    async with Producer(broker.address) as producer:
        for queue_id in range(queues):
            messages = [Message("orders", b"%d" % i) for i in range(queue_id, count, queues)]
            await producer.send_many(messages, queue_id=queue_id)


class Worker:
    """A task that iterates over a consumer, takes its time for each batch, and notes the messages when it is done."""

    def __init__(self, of: PullConsumer, *, takes_s: float = 0.1) -> None:
        self.of = of
        self.takes_s = takes_s
        self.got: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        of.start()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for batch in self.of:
            messages = [(message.queue_id, message.queue_offset) for message in batch]
            self.got += messages
            await asyncio.sleep(self.takes_s)
            self.done += messages

    async def stop(self) -> None:
        await self.of.stop()
        await self.task


async def committed(broker: InMemoryBroker, queues: int = 1, group: str = "g") -> list[int]:
    async with Admin(broker.address) as admin:
        held = await admin.ranges([MessageQueue("orders", i) for i in range(queues)], group)
    return [each.committed for each in held]


async def test_two_consumers_share_and_hand_over_without_loss_or_duplicates(real: InMemoryBroker) -> None:
    await send(real, 400, queues=4)
    a = Worker(pulling(real, connect=Cuttable("a"), batch=5))
    await asyncio.sleep(1.05)
    b = Worker(pulling(real, connect=Cuttable("b"), batch=5))
    await asyncio.sleep(1)
    assert (len(a.of.assignment), len(b.of.assignment)) == (2, 2)
    await a.stop()  # with a batch in hand
    await asyncio.sleep(10)
    await b.stop()

    assert a.got == a.done
    assert b.got
    assert Counter(a.done + b.done) == Counter((queue_id, offset) for queue_id in range(4) for offset in range(100))
    assert await committed(real, 4) == [100] * 4


@pytest.mark.parametrize("seed", range(4))
async def test_any_coming_and_going_delivers_every_message_once_and_each_queue_in_order(
    real: InMemoryBroker, seed: int
) -> None:
    rng, workers, everybody = random.Random(seed), list[Worker](), list[Worker]()
    await send(real, 240, queues=4)
    for step in range(12):
        if workers and rng.random() < 0.4:
            await workers.pop(rng.randrange(len(workers))).stop()
        else:
            worker = Worker(pulling(real, batch=rng.choice([1, 3])), takes_s=rng.choice([0.0, 0.05, 0.7]))
            workers.append(worker)
            everybody.append(worker)
        await asyncio.sleep(rng.random() * 2)
        if step == 6:
            await real.restart()
    if not workers:
        workers.append(Worker(pulling(real)))
        everybody += workers
    await asyncio.sleep(60)
    for worker in workers:
        await worker.stop()

    done = [message for worker in everybody for message in worker.done]
    assert Counter(done) == Counter((queue_id, offset) for queue_id in range(4) for offset in range(60))
    for worker in everybody:
        for queue_id in range(4):
            seen = [offset for of, offset in worker.done if of == queue_id]
            assert seen == sorted(seen)
    assert await committed(real, 4) == [60] * 4


async def test_after_a_crash_at_most_what_was_not_committed_comes_again(real: InMemoryBroker) -> None:
    await send(real, 200)
    cuttable = Cuttable("a")
    a = Worker(pulling(real, connect=cuttable, batch=2))
    await asyncio.sleep(7.33)
    cuttable.cut()
    a.task.cancel()
    (known,) = await committed(real)
    b = Worker(pulling(real, connect=Cuttable("b"), batch=10))
    await asyncio.sleep(30)
    await b.stop()
    await a.of.stop()

    assert 90 <= known <= 102  # of 5 s, at 20 messages a second
    assert b.done == [(0, offset) for offset in range(known, 200)]
    assert known <= a.done[-1][1] + 1


async def test_a_consumer_that_calls_a_listener_and_one_that_polls_share_a_group(real: InMemoryBroker) -> None:
    await send(real, 200, queues=4)
    listener = Recorder(takes_s=0.05)
    async with consumer(real, listener) as other:
        await asyncio.sleep(0.5)
        worker = Worker(pulling(real), takes_s=0.05)
        await asyncio.sleep(2)
        assert (len(other.assignment), len(worker.of.assignment)) == (2, 2)
        await asyncio.sleep(5)
        await worker.stop()
        await asyncio.sleep(5)

    called = [(queue_id, offset) for _, queue_id, found in listener.calls for offset in found]
    assert Counter(called + worker.done) == Counter((i, offset) for i in range(4) for offset in range(50))


async def test_a_restart_of_the_broker_moves_no_queue_and_repeats_nothing(real: InMemoryBroker) -> None:
    await send(real, 100, queues=2)
    worker = Worker(pulling(real, batch=2))
    await asyncio.sleep(1)
    await real.restart()
    await asyncio.sleep(10)
    assert len(worker.of.assignment) == 2
    await worker.stop()

    assert sorted(worker.done) == [(queue_id, offset) for queue_id in range(2) for offset in range(50)]


async def test_a_commit_is_there_after_a_restart_of_the_broker(real: InMemoryBroker) -> None:
    await send(real, 10)
    async with pulling(real, batch=4, auto_commit_every_s=0) as one:
        await one.poll(1)
        await one.commit()
        assert await one.committed(QUEUE) == 4
        await one.poll(1)
        await real.restart()
        await asyncio.sleep(5)
        await one.commit()
        assert await one.committed(QUEUE) == 8
        await one.poll(1)

    async with pulling(real) as next_one:
        assert offsets(await next_one.poll(1)) == [8, 9]  # what nobody committed


async def test_assigned_consumers_take_what_they_were_told_and_wait_for_what_another_has(real: InMemoryBroker) -> None:
    await send(real, 40, queues=2)
    async with Admin(real.address) as admin:
        await admin.create_topic("other", 1)
    one, two = pulling(real, topics={}), pulling(real, topics={}, batch=100)
    one.assign([("orders", 0), ("orders", 1)])
    two.assign([("orders", 1), ("other", 0)])  # another subscription than that of the first
    async with one:
        await asyncio.sleep(1)
        assert one.assignment == [("orders", 0), ("orders", 1)]
        async with two:
            assert await two.poll(10) == []
            assert two.assignment == [("other", 0)]
            one.assign([("orders", 0)])
            batch = await two.poll(1)
            assert (batch.queue, len(batch)) == (("orders", 1), 20)
            assert (one.assignment, two.assignment) == ([("orders", 0)], [("orders", 1), ("other", 0)])

        with pytest.raises(GroupMismatch, match="give all members the same settings"):
            async with pulling(real) as sharing:
                await sharing.poll(None)


async def test_seeks_in_the_real_log(real: InMemoryBroker) -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    await send(real, 20)
    async with pulling(real, batch=5) as one:
        assert offsets(await one.poll(1)) == [0, 1, 2, 3, 4]
        assert await one.seek(QUEUE, "last") == 20
        assert await one.poll(0.5) == []
        assert await one.seek(QUEUE, "first") == 0
        assert offsets(await one.poll(1)) == [0, 1, 2, 3, 4]
        await one.seek(QUEUE, 17)
        assert offsets(await one.poll(1)) == [17, 18, 19]
        with pytest.raises(OffsetOutOfRange, match="offset 21 is out of range: orders/0 holds 0 to 20"):
            await one.seek(QUEUE, 21)
        assert await one.seek_to_time("orders", before) == {QUEUE: 0}
        assert await one.seek_to_time(QUEUE, before + timedelta(days=1)) == {QUEUE: 20}
        await one.commit()
        assert await one.committed(QUEUE) == 20


async def test_an_offset_reset_takes_the_queue_away_and_begins_it_anew(real: InMemoryBroker) -> None:
    await send(real, 10)
    async with pulling(real, batch=4) as one, Admin(real.address) as admin:
        batch = await one.poll(1)
        await admin.reset_offsets("g", {QUEUE: 1})
        await asyncio.sleep(0.5)
        assert batch.lost
        with pytest.raises(Fenced, match="orders/0 went to another owner"):
            await one.commit()
        assert offsets(await one.poll(5)) == [1, 2, 3, 4]
        assert now() < 10


async def test_a_message_that_comes_later_is_returned_at_once(real: InMemoryBroker) -> None:
    async with pulling(real, start_from="last") as one:
        poll = asyncio.create_task(one.poll(None))
        await asyncio.sleep(3)
        async with Producer(real.address) as producer:
            await producer.send(Message("orders", b"a"))
        assert [message.body for message in await poll] == [b"a"]
        assert now() < 4.2


async def test_a_replayed_dead_letter_is_returned_with_the_topic_it_came_from(real: InMemoryBroker) -> None:
    await send(real, 3)
    async with consumer(real, Recorder(SUSPEND), max_attempts=1):
        await asyncio.sleep(2)

    async with pulling(real) as one, Admin(real.address) as admin:
        await asyncio.sleep(1)
        await admin.replay_dead_letters("g", [0])
        batch = await one.poll(5)
        assert [(message.topic, message.body) for message in batch] == [("orders", b"0")]
        assert batch.queue.topic == "%RETRY%g"
