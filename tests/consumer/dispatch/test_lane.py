"""What is known of a queue with many calls: since when the oldest runs, and when something is tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer.dispatch.concurrent import Call, Calls, Lane
from rmq.consumer.fetch.concurrent_queue import Chunk, ConcurrentQueue
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Generation, Lease
from rmq.consumer.introspection import TopicMeter
from rmq.wire.model import MessageQueue

from ..fetch.test_process_queue import made
from ..recorder import now

pytestmark = pytest.mark.virtual_time


def call(began_at: float) -> Call:
    task: Any = asyncio.current_task()
    return Call(Chunk(0, 1), task, began_at)


def lane(cache: Any = None) -> Lane:
    generation = Generation(Lease(MessageQueue("t", 0), 1, 0.0), cache or ConcurrentQueue(0), on_lost=lambda *_: None)
    return Lane(generation, TopicMeter())


async def test_calls_are_held_since_the_oldest_that_runs_until_the_last_has_ended() -> None:
    calls, first, second = Calls(), call(1.0), call(2.0)
    free = asyncio.create_task(calls.free())
    await free  # nothing runs

    calls.began(first)
    calls.began(second)
    assert (calls.held, calls.since, calls.running()) == (True, 1.0, [first, second])
    free = asyncio.create_task(calls.free())
    calls.ended(first)
    await asyncio.sleep(0)
    assert (calls.held, calls.since, free.done()) == (True, 2.0, False)
    calls.ended(second)
    await free
    assert (calls.held, calls.since) == (False, None)


async def test_a_chunk_that_is_held_falls_due_after_its_pause_and_the_first_of_them_is_told() -> None:
    one = lane()
    one.cache.put(made(0, 2))
    chunks = [taken[0] for _ in range(2) if (taken := one.cache.take_chunk(1)) is not None]

    one.hold(chunks[0], 5.0, now())
    one.hold(chunks[1], 3.0, now())
    assert one.generation.retry_at == 3.0
    await asyncio.sleep(2.999)
    assert not one.cache.ready
    await asyncio.sleep(0.002)
    assert one.cache.ready
    assert one.generation.retry_at == 5.0
    assert await one.generation.work()

    one.forget_held()
    await asyncio.sleep(5)
    assert one.generation.retry_at is None
    assert [one.cache.take_chunk(1) is None for _ in range(2)] == [False, True]


async def test_only_a_call_that_runs_is_interrupted_and_only_once() -> None:
    task = asyncio.create_task(asyncio.sleep(1))
    running = Call(Chunk(0, 1), task, 0.0)  # type: ignore[arg-type]

    running.interrupt()  # its result is being recorded
    assert task.cancelling() == 0
    running.chunk.called_at = 0.0
    running.interrupt()
    running.interrupt()
    assert task.cancelling() == 1
    await asyncio.wait([task])


async def test_calls_are_counted_together_and_told_at_the_end_of_the_work_or_every_2_ms() -> None:
    meter = TopicMeter()
    one = lane()
    one._meter = meter

    one.offer()
    one.count(1.0, 2, 0.1)
    told = [meter.ok.calls]
    one.count(1.001, 2, 0.1)
    told.append(meter.ok.calls)
    one.count(1.0021, 2, 0.1)
    told.append(meter.ok.calls)
    one.withdraw()
    one.count(1.0022, 2, 0.1)
    told.append(meter.ok.calls)

    assert told == [1, 1, 3, 4]
    assert (meter.ok.total, meter.ok.rate(1.1).mean_s) == (8, pytest.approx(0.1))


async def test_the_cache_of_another_service_is_refused() -> None:
    with pytest.raises(AssertionError, match="another service"):
        lane(ProcessQueue(0))
