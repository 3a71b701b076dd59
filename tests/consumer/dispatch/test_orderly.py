"""Turns: one at a time for each queue, each with its window, and races driven in exactly one order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.dispatch.orderly import OrderlyScheduler
from rmq.consumer.fetch.process_queue import READ_AT_ONCE, ProcessQueue
from rmq.consumer.group.assignment import Generation, Lease
from rmq.runtime.tasks import TaskSet
from rmq.wire.batch import batch
from rmq.wire.model import MessageQueue
from rmq.wire.stores import StoreIds

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUCCESS, SUSPEND, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# The window


async def test_with_one_slot_a_busy_queue_gives_way_after_60_s_and_one_call(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 100)
    listener = Recorder(takes_s=7.0)

    async with make(listener, topics={"t": "*"}, slots=1):
        await asyncio.sleep(140)

    queues = [queue_id for _, queue_id, _ in listener.calls]
    changes = [i for i in range(1, len(queues)) if queues[i] != queues[i - 1]]
    assert listener.most == 1
    # 7 s calls: the first check past 60 s is at 63 s, the next turn begins at once.
    assert [listener.times[i] for i in changes] == [63.0, 126.0]


async def test_at_exactly_60_s_a_turn_goes_on(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 100)
    listener = Recorder(takes_s=5.0)

    async with make(listener, topics={"t": "*"}, slots=1):
        await asyncio.sleep(70)

    # Checks at 5, 10, ..., 60: that one is not more than 60 s, so the turn ends at 65.
    second = next(at for at, queue_id, _ in listener.calls if queue_id != listener.calls[0][1])
    assert second == 65.0


async def test_a_queue_alone_goes_on_after_its_window_by_a_pause_of_10_ms(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 5)
    listener = Recorder(takes_s=31.0)

    async with make(listener, topics={"t": "*"}, slots=1):
        await asyncio.sleep(150)

    assert listener.times == [0.0, 31.0, 62.01, 93.01, 124.02]


async def test_turns_share_slots_when_asked_to(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 20)
    listener = Recorder(takes_s=0.1)

    async with make(listener, topics={"t": "*"}, slots=1, turn_share_s=0.15):
        await asyncio.sleep(1.5)

    assert [queue_id for _, queue_id, _ in listener.calls][:8] == [0, 0, 1, 1, 0, 0, 1, 1]


async def test_slots_bound_how_many_queues_run_and_no_queue_runs_twice(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 8)
    for queue_id in range(8):
        broker.send("t", queue_id, *[b"x"] * 6)
    listener = Recorder(takes_s=0.5)

    async with make(listener, topics={"t": "*"}, slots=3):
        await asyncio.sleep(60)

    assert listener.most == 3
    for queue_id in range(8):
        assert [offsets for _, of, offsets in listener.calls if of == queue_id] == [[i] for i in range(6)]


# The loop


async def test_a_listener_that_never_suspends_leaves_the_loop_its_turn() -> None:
    ticks = 0
    clock = Ticking(0.0005)

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        return SUCCESS

    async def other() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    harness = Harness(listener, clock=clock)
    generation = harness.generation(400)
    beside = asyncio.create_task(other())
    harness.scheduler.start(generation)
    while generation.cache.messages:
        await asyncio.sleep(0)
    beside.cancel()
    await harness.end(generation)

    # Two readings a call, half a millisecond each: the loop gets its turn every third call or so.
    assert ticks >= 80


class Ticking:
    """A clock that moves by a step with each reading."""

    def __init__(self, step: float) -> None:
        self.at, self.step = 0.0, step

    def __call__(self) -> float:
        self.at += self.step
        return self.at


class Harness:
    """A scheduler without a consumer around it, for orders that a consumer makes only by chance."""

    connected = True
    log_epoch = 0

    def __init__(
        self,
        listener: Any,
        *,
        clock: Callable[[], float] | None = None,
        stalled: Callable[[float], bool] = lambda _: False,
        **settings: Any,
    ) -> None:
        self.now = clock or now
        self.failures: list[BaseException] = []
        self.lost: list[str] = []
        self.tasks = TaskSet(self.failures.append)
        self.scheduler = OrderlyScheduler(
            listener,
            ConsumerConfig(**settings),
            self,  # type: ignore[arg-type]
            tasks=self.tasks,
            leases=self,
            on_turn=lambda: None,
            stalled=stalled,
        )

    def generation(self, messages: int, queue: MessageQueue = QUEUE) -> Generation:
        lease = Lease(queue, 1, 0.0)
        generation = Generation(lease, ProcessQueue(0), on_lost=lambda _, reason: self.lost.append(reason))
        if messages:
            self.fill(generation, messages)
        return generation

    def fill(self, generation: Generation, messages: int) -> None:
        broker = FakeBroker()
        broker.send(*QUEUE, *[b"x"] * messages)
        generation.cache.put(batch.read(broker.logs[QUEUE][0].data, stores=StoreIds(1)))
        generation.arrived()

    async def end(self, *generations: Generation) -> None:
        for generation in generations:
            generation.drop()
            await self.scheduler.finish(generation)
        assert not self.failures
        assert self.scheduler.gates.held() == []
        assert self.scheduler.turns == 0

    # The lease, always believed in

    def believed_until(self, generation: Generation) -> float:
        return float("inf")

    def believed(self, generation: Generation) -> bool:
        return True

    def proven(self, generation: Generation) -> None:
        generation.resumed()

    async def renew_one(self, generation: Generation) -> None:
        raise AssertionError("a lease that is believed in is not renewed by a turn")

    async def attempt(self, *args: Any) -> None:
        pass


# What a call costs


class Watched(list[Any]):
    """Knows how long its slices were."""

    def __init__(self) -> None:
        super().__init__()
        self.slices: list[int] = []

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if isinstance(key, slice):
            self.slices.append(len(part))
        return part


async def test_what_a_call_costs_does_not_grow_with_how_much_was_rolled_back() -> None:
    line, calls, most = Watched(), 0, 3 * READ_AT_ONCE

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        context.auto_commit = False
        return ConsumeStatus.ROLLBACK if calls == most else ConsumeStatus.COMMIT if calls == 2 * most else SUCCESS

    harness = Harness(listener)
    generation = harness.generation(most)
    cache = generation.cache
    assert isinstance(cache, ProcessQueue)
    cache.line = line
    harness.scheduler.start(generation)
    await asyncio.sleep(5)

    assert (calls, cache.commit_offset, cache.messages) == (2 * most, most, 0)
    assert sum(length > READ_AT_ONCE for length in line.slices) < 5  # to roll back, not for each call
    await harness.end(generation)


# Races, each driven in exactly one order


async def test_dropped_before_the_turn_starts_there_is_no_call() -> None:
    listener = Recorder()
    harness = Harness(listener)
    generation = harness.generation(3)

    harness.scheduler.start(generation)
    generation.drop()  # the owner has not run yet
    await harness.scheduler.finish(generation)

    assert listener.calls == []
    assert generation.cache.commit_offset == 0


async def test_dropped_after_the_turn_started_the_call_ends_is_recorded_and_is_the_last() -> None:
    listener = Recorder(takes_s=5.0)
    harness = Harness(listener)
    generation = harness.generation(3)

    harness.scheduler.start(generation)
    await asyncio.sleep(1)
    generation.drop()
    await harness.scheduler.finish(generation)

    assert now() == 5.0
    assert listener.offsets == [0]
    assert generation.cache.commit_offset == 1


async def test_dropped_while_queueing_for_a_slot_the_hand_over_waits_for_nobody() -> None:
    listener = Recorder(takes_s=50.0)
    harness = Harness(listener, slots=1)
    first, second = harness.generation(3), harness.generation(3, MessageQueue("t", 1))
    harness.scheduler.start(first)
    await asyncio.sleep(1)
    harness.scheduler.start(second)
    await asyncio.sleep(1)

    second.drop()
    await harness.scheduler.finish(second)
    assert now() == 2.0

    await harness.end(first)
    assert listener.offsets == [0]


async def test_cancelled_inside_the_gate_neither_gate_nor_slot_leaks() -> None:
    listener = Recorder()
    harness = Harness(listener, slots=1)
    gate = harness.scheduler.gates[QUEUE]
    await gate.acquire()  # a call of an earlier generation that has not ended
    generation = harness.generation(2)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)
    assert listener.calls == []

    generation.drop()
    await harness.scheduler.finish(generation)
    gate.release()

    again = harness.generation(2)
    harness.scheduler.start(again)
    await asyncio.sleep(1)
    assert listener.offsets == [0, 1]
    await harness.end(again)


async def test_cancelled_in_the_same_step_as_the_gate_opens_neither_gate_nor_slot_leaks() -> None:
    listener = Recorder()
    harness = Harness(listener, slots=1)
    gate = harness.scheduler.gates[QUEUE]
    await gate.acquire()
    generation = harness.generation(2)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)

    gate.release()  # the owner is woken,
    generation.drop()
    await harness.scheduler.finish(generation)  # and cancelled before it runs
    assert listener.calls == []

    again = harness.generation(2)
    harness.scheduler.start(again)
    await asyncio.sleep(1)
    assert listener.offsets == [0, 1]
    await harness.end(again)


async def test_a_new_generation_waits_at_the_gate_until_the_call_of_the_old_one_has_ended() -> None:
    listener = Recorder(takes_s=5.0)
    harness = Harness(listener)
    old, new = harness.generation(1), harness.generation(1)
    harness.scheduler.start(old)
    await asyncio.sleep(1)
    old.lose("fenced")
    harness.scheduler.start(new)
    await asyncio.sleep(20)

    assert listener.times == [0.0, 5.0]
    assert listener.most == 1
    await harness.end(old, new)


@pytest.mark.parametrize("steps", range(12))
async def test_cancelled_at_any_step_an_owner_leaves_nothing_behind(steps: int) -> None:
    listener = Recorder(SUSPEND, takes_s=1.0)
    harness = Harness(listener, slots=1)
    generation = harness.generation(3)
    harness.scheduler.start(generation)
    for _ in range(steps):
        await asyncio.sleep(0.25 if steps % 2 else 0)

    assert generation.owner is not None
    generation.owner.cancel()
    await asyncio.wait([generation.owner])

    assert not generation.guard.held
    assert listener.running == 0
    again = harness.generation(1)
    harness.scheduler.start(again)
    await asyncio.sleep(5)
    assert again.cache.messages == 0
    await harness.end(generation, again)


async def test_a_call_that_does_not_end_is_cancelled_after_the_drain_time() -> None:
    listener = Recorder(takes_s=1000.0)
    harness = Harness(listener)
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)

    generation.drop()
    await harness.scheduler.finish(generation, within_s=3.0)

    assert now() == 4.0
    assert listener.ended == [4.0]
    assert generation.cache.commit_offset == 0


async def test_the_guard_is_free_for_several_who_wait() -> None:
    harness = Harness(Recorder(takes_s=2.0))
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)

    generation.drop()
    await asyncio.gather(generation.guard.free(), generation.guard.free())

    assert now() == 2.0
    assert generation.cache.commit_offset == 1
    await harness.end(generation)
