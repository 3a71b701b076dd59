"""The parts of a pull consumer: those of any other, with polls in the place of the listener."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.poll.queue import PullCache
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..polling import QUEUE, MakePull, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest.mark.parametrize(("every_s", "runs"), [(5.0, True), (0.0, False)])
async def test_there_is_a_task_that_commits_only_if_that_is_wished(
    broker: FakeBroker, pull: MakePull, every_s: float, runs: bool
) -> None:
    async with pull(auto_commit_every_s=every_s):
        await asyncio.sleep(1)
        assert any(task.get_name() == "auto-commit" for task in asyncio.all_tasks()) == runs


async def test_there_is_no_task_for_a_queue_but_its_puller(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 5)
    async with pull():
        await asyncio.sleep(1)
        names = [task.get_name() for task in asyncio.all_tasks() if " of t/" in task.get_name()]
        assert sorted(names) == [f"puller of t/{queue_id}" for queue_id in range(5)]


async def test_queues_are_rebalanced_leased_and_pulled_as_those_of_a_listener(
    broker: FakeBroker, pull: MakePull
) -> None:
    broker.create("t")
    broker.send("t", 0, b"x")
    async with pull() as consumer:
        assert offsets(await consumer.poll(1)) == [0]
        steps = dict.fromkeys(request.op for request in broker.requests)
        assert list(steps) == [Op.JOIN, Op.ACQUIRE, Op.RANGES, Op.PULL]
        assert consumer._runtime is not None
        assert isinstance(consumer._runtime.assignments[QUEUE].cache, PullCache)
        await asyncio.sleep(65)
        assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0]
        assert consumer.assignment == [QUEUE]


async def test_the_limits_of_the_cache_are_those_of_any_consumer(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    for _ in range(6):
        broker.send("t", 0, b"x")
    async with pull(batch=2, cache_messages=1, pull_bytes=1) as consumer:
        await asyncio.sleep(20)
        assert len(broker.sent(Op.PULL)) == 2  # with two messages held no other is asked for
        assert offsets(await consumer.poll(1)) == [0, 1]
        assert offsets(await consumer.poll(1)) == [2]  # what is done makes room, committed or not
