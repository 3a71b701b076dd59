"""
Turns: one at a time for each queue, each with its window, and races driven in exactly one order.

No batch without a lease: what a turn does while its lease is in doubt or gone.

A call whose lease is lost: told, cancelled where that is wished, and never followed before it has ended.

What a listener answers, and what becomes of it: commits, retries in place, attempts, threads.

The life of an owner, row by row: each state, what ends it, what comes next, and after which time.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import CallInfo, ConsumeContext, Consumer, ConsumeStatus, ResultType
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.dispatch.invoke import DispatchParts
from rmq.consumer.dispatch.orderly import OrderlyScheduler
from rmq.consumer.fetch.process_queue import READ_AT_ONCE, ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.consumer.introspection import Statistics
from rmq.consumer.listener import Hooks
from rmq.runtime.tasks import TaskSet
from rmq.wire.batch import batch
from rmq.wire.errors import ConnectionLost, Fenced, Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from ..fake_broker import FakeBroker
from ..recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now, occupied, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# The window


async def test_with_one_slot_a_busy_queue_gives_way_after_60_s_and_one_call(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 100)
    listener = Recorder(takes_s=7.0)

    await run_for(140, make(listener, topics={"t": "*"}, slots=1))

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

    await run_for(70, make(listener, topics={"t": "*"}, slots=1))

    # Checks at 5, 10, ..., 60: that one is not more than 60 s, so the turn ends at 65.
    second = next(at for at, queue_id, _ in listener.calls if queue_id != listener.calls[0][1])
    assert second == 65.0


async def test_a_queue_alone_goes_on_after_its_window_by_a_pause_of_10_ms(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 5)
    listener = Recorder(takes_s=31.0)

    await run_for(150, make(listener, topics={"t": "*"}, slots=1))

    assert listener.times == [0.0, 31.0, 62.01, 93.01, 124.02]


async def test_turns_share_slots_when_asked_to(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, *[b"x"] * 20)
    listener = Recorder(takes_s=0.1)

    await run_for(1.5, make(listener, topics={"t": "*"}, slots=1, turn_share_s=0.15))

    assert [queue_id for _, queue_id, _ in listener.calls][:8] == [0, 0, 1, 1, 0, 0, 1, 1]


async def test_slots_bound_how_many_queues_run_and_no_queue_runs_twice(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 8)
    for queue_id in range(8):
        broker.send("t", queue_id, *[b"x"] * 6)
    listener = Recorder(takes_s=0.5)

    await run_for(60, make(listener, topics={"t": "*"}, slots=3))

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
    assignment = harness.assignment(400)
    beside = asyncio.create_task(other())
    harness.scheduler.start(assignment)
    while assignment.cache.messages:
        await asyncio.sleep(0)
    beside.cancel()
    await harness.end(assignment)

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
        config = ConsumerConfig(**settings)
        self.scheduler = OrderlyScheduler(
            listener,
            config,
            self,  # type: ignore[arg-type]
            DispatchParts(
                tasks=self.tasks,
                leases=self,
                on_turn=lambda: None,
                hooks=Hooks(config.group, consume_timeout_s=config.consume_timeout_s),
                statistics=Statistics(config.group),
                stalled=stalled,
            ),
        )

    def assignment(self, messages: int, queue: MessageQueue = QUEUE) -> Assignment:
        lease = LeaseBelief(queue, 1, 0.0)
        assignment = Assignment(lease, ProcessQueue(0), on_lost=lambda _, reason: self.lost.append(reason))
        if messages:
            self.fill(assignment, messages)
        return assignment

    def fill(self, assignment: Assignment, messages: int) -> None:
        broker = FakeBroker()
        broker.send(*QUEUE, *[b"x"] * messages)
        assignment.cache.put(batch.read(broker.logs[QUEUE][0].data, stores=StoreIds(1)))
        assignment.arrived()

    async def end(self, *assignments: Assignment) -> None:
        for assignment in assignments:
            assignment.drop()
            await self.scheduler.finish(assignment)
        assert not self.failures
        assert occupied(self.scheduler.gates) == []
        assert self.scheduler.turns == 0

    # The lease, always believed in

    def believed_until(self, assignment: Assignment) -> float:
        return float("inf")

    def believed(self, assignment: Assignment) -> bool:
        return True

    def proven(self, assignment: Assignment) -> None:
        assignment.resumed()

    async def renew_one(self, assignment: Assignment) -> None:
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
    assignment = harness.assignment(most)
    cache = assignment.cache
    assert isinstance(cache, ProcessQueue)
    cache.line = line
    harness.scheduler.start(assignment)
    await asyncio.sleep(5)

    assert (calls, cache.commit_offset, cache.messages) == (2 * most, most, 0)
    assert sum(length > READ_AT_ONCE for length in line.slices) < 5  # to roll back, not for each call
    await harness.end(assignment)


# Races, each driven in exactly one order


async def test_dropped_before_the_turn_starts_there_is_no_call() -> None:
    listener = Recorder()
    harness = Harness(listener)
    assignment = harness.assignment(3)

    harness.scheduler.start(assignment)
    assignment.drop()  # the owner has not run yet
    await harness.scheduler.finish(assignment)

    assert listener.calls == []
    assert assignment.cache.commit_offset == 0


async def test_dropped_after_the_turn_started_the_call_ends_is_recorded_and_is_the_last() -> None:
    listener = Recorder(takes_s=5.0)
    harness = Harness(listener)
    assignment = harness.assignment(3)

    harness.scheduler.start(assignment)
    await asyncio.sleep(1)
    assignment.drop()
    await harness.scheduler.finish(assignment)

    assert now() == 5.0
    assert listener.offsets == [0]
    assert assignment.cache.commit_offset == 1


async def test_dropped_while_queueing_for_a_slot_the_hand_over_waits_for_nobody() -> None:
    listener = Recorder(takes_s=50.0)
    harness = Harness(listener, slots=1)
    first, second = harness.assignment(3), harness.assignment(3, MessageQueue("t", 1))
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
    await gate.acquire()  # a call of an earlier assignment that has not ended
    assignment = harness.assignment(2)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)
    assert listener.calls == []

    assignment.drop()
    await harness.scheduler.finish(assignment)
    gate.release()

    again = harness.assignment(2)
    harness.scheduler.start(again)
    await asyncio.sleep(1)
    assert listener.offsets == [0, 1]
    await harness.end(again)


async def test_cancelled_in_the_same_step_as_the_gate_opens_neither_gate_nor_slot_leaks() -> None:
    listener = Recorder()
    harness = Harness(listener, slots=1)
    gate = harness.scheduler.gates[QUEUE]
    await gate.acquire()
    assignment = harness.assignment(2)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)

    gate.release()  # the owner is woken,
    assignment.drop()
    await harness.scheduler.finish(assignment)  # and cancelled before it runs
    assert listener.calls == []

    again = harness.assignment(2)
    harness.scheduler.start(again)
    await asyncio.sleep(1)
    assert listener.offsets == [0, 1]
    await harness.end(again)


async def test_a_new_assignment_waits_at_the_gate_until_the_call_of_the_old_one_has_ended() -> None:
    listener = Recorder(takes_s=5.0)
    harness = Harness(listener)
    old, new = harness.assignment(1), harness.assignment(1)
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
    assignment = harness.assignment(3)
    harness.scheduler.start(assignment)
    for _ in range(steps):
        await asyncio.sleep(0.25 if steps % 2 else 0)

    assert assignment.owner is not None
    assignment.owner.cancel()
    await asyncio.wait([assignment.owner])

    assert not assignment.guard.busy
    assert listener.running == 0
    again = harness.assignment(1)
    harness.scheduler.start(again)
    await asyncio.sleep(5)
    assert again.cache.messages == 0
    await harness.end(assignment, again)


async def test_a_call_that_does_not_end_is_cancelled_after_the_drain_time() -> None:
    listener = Recorder(takes_s=1000.0)
    harness = Harness(listener)
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)

    assignment.drop()
    await harness.scheduler.finish(assignment, within_s=3.0)

    assert now() == 4.0
    assert listener.ended == [4.0]
    assert assignment.cache.commit_offset == 0


async def test_the_guard_is_free_for_several_who_wait() -> None:
    harness = Harness(Recorder(takes_s=2.0))
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)

    assignment.drop()
    await asyncio.gather(assignment.guard.free(), assignment.guard.free())

    assert now() == 2.0
    assert assignment.cache.commit_offset == 1
    await harness.end(assignment)


# Leases


async def test_no_batch_starts_after_the_belief_in_the_lease_has_run_out(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 100)
    listener = Recorder(takes_s=1.0)

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(10.5)
        connection = broker.connections[0]
        connection.reachable = False
        connection.cut()
        await asyncio.sleep(20)
        # The last ping was answered at 10 s: 14.0 is the last moment, and the broker gives the queue away at 15.
        assert listener.times[-1] == 14.0
        assert broker.holder("g", QUEUE) is None
        connection.reachable = True
        connection.dial()
        await asyncio.sleep(3)

    # Nothing was committed after 10 s but by the lease of then: the new one begins where that stood.
    assert listener.offsets[15] == 10


async def test_a_renewal_that_never_comes_ends_the_belief_after_30_s_and_is_asked_for_again(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 100)
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 4
    listener = Recorder(takes_s=1.0)

    await run_for(45, make(listener, topics={"t": "*"}))

    # Asked at 1 and 21 in vain; from 31 s on it is not believed in; then after 10 ms and every 3 s until it is granted.
    assert broker.times(Op.RENEW)[:5] == [1.0, 21.0, 31.01, 34.01, 37.01]
    assert listener.times[29:33] == [29.0, 30.0, 37.01, 38.01]
    assert listener.offsets == list(range(len(listener.offsets)))


async def test_a_call_is_told_when_its_lease_can_no_longer_be_proven(broker: FakeBroker, make: Make) -> None:
    told: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        assert not context.lost
        await context.lost.wait()
        assert context.lost
        told.append(now())
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(3.5)
        broker.go_down()
        await asyncio.sleep(10)

    # The last answered ping was sent at 3 s, the grace is 5 s: before the broker may give the queue away at 8 s.
    assert told == pytest.approx([7.0], abs=0.01)


async def test_a_call_sees_by_the_clock_that_its_lease_ran_out_before_any_timer_has_told_it(
    broker: FakeBroker, make: Make
) -> None:
    stopped_s, seen = 0.0, []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        nonlocal stopped_s
        seen.append(bool(context.lost))
        stopped_s = 40.0  # the process was stopped, and the clock of leases went on
        seen.append(context.lost.is_set())
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=lambda: now() + stopped_s,
    )  # fmt: skip
    async with consumer:
        await asyncio.sleep(0.5)

    assert seen == [False, True]


async def test_a_result_that_comes_after_the_lease_is_not_committed(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(takes_s=10.0)

    async with make(listener, topics={"t": "*"}, commit_every_s=0.05):
        await asyncio.sleep(1)
        connection = broker.connections[0]
        connection.reachable = False
        connection.cut()
        await asyncio.sleep(6)
        broker.give("g", QUEUE, "thief")
        connection.reachable = True
        connection.dial()
        await asyncio.sleep(30)
        assert listener.offsets == [0]
        assert broker.offsets["g", QUEUE] == 0
    assert broker.holder("g", QUEUE) == "thief"
    assert broker.offsets["g", QUEUE] == 0


async def test_a_blip_shorter_than_the_grace_changes_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 20)
    listener = Recorder(takes_s=3.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(4)
        broker.go_down()
        await asyncio.sleep(4)
        broker.come_up()
        await asyncio.sleep(20)

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert listener.offsets == list(range(len(listener.offsets)))
    assert len(listener.offsets) >= 9


# cancel_on_loss


class Long:
    """A listener whose first call takes long; notes when calls begin and how they end."""

    def __init__(self, takes_s: float = 50.0, *, swallows_s: float | None = None) -> None:
        self.takes_s = takes_s
        self.swallows_s = swallows_s
        self.notes: list[tuple[float, str]] = []
        self.seen: list[tuple[int, int, int]] = []  # offset, attempt, epoch

    def note(self, text: str) -> None:
        self.notes.append((round(now(), 2), text))

    async def __call__(self, messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        self.seen.append((messages[0].queue_offset, messages[0].attempt, context.epoch))
        self.note("begin")
        takes_s, self.takes_s = self.takes_s, 0.0
        try:
            await asyncio.sleep(takes_s)
        except asyncio.CancelledError:
            self.note("cancelled")
            assert context.lost
            if self.swallows_s is None:
                raise
            await asyncio.sleep(self.swallows_s)
        self.note("end")
        return SUCCESS


async def test_a_call_is_cancelled_when_its_lease_is_lost_and_that_counts_for_nothing(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Long()

    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)  # the parked pull is answered FENCED
        await asyncio.sleep(1)

    assert listener.notes == [(0.0, "begin"), (1.5, "cancelled"), (1.5, "begin"), (1.5, "end")]
    assert listener.seen == [(0, 1, 1), (0, 1, 2)]
    assert broker.sent(Op.ATTEMPT) == []


async def test_without_the_setting_a_call_is_only_told(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Long(takes_s=5.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)
        await asyncio.sleep(10)

    # The new assignment waits at the gate.
    assert listener.notes == [(0.0, "begin"), (5.0, "end"), (5.0, "begin"), (5.0, "end")]
    assert listener.seen == [(0, 1, 1), (0, 1, 2)]


async def test_a_call_is_cancelled_when_its_lease_cannot_be_proven_and_given_again_when_it_is(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 3
    listener = Long()

    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(40)
        assert broker.sent(Op.ATTEMPT) == []
        assert broker.offsets["g", QUEUE] == 2

    # Not believed in from 30 s on; asked for after 10 ms in vain, then 3 s later. The epoch is the same.
    assert listener.notes[:3] == [(0.0, "begin"), (30.0, "cancelled"), (33.01, "begin")]
    assert listener.seen == [(0, 1, 1), (0, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("swallows_s", [0.0, 4.0])
async def test_a_listener_that_swallows_the_cancellation_ends_when_it_ends(
    broker: FakeBroker, make: Make, swallows_s: float
) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Long(swallows_s=swallows_s)

    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)
        await asyncio.sleep(10)

    ended = 1.5 + swallows_s
    assert listener.notes == [(0.0, "begin"), (1.5, "cancelled"), (ended, "end"), (ended, "begin"), (ended, "end")]
    # What it answered after the loss counts for nothing either.
    assert listener.seen == [(0, 1, 1), (0, 1, 2)]
    assert broker.offsets["g", QUEUE] == 1


async def test_a_swallowed_cancellation_of_a_lease_that_was_only_doubted_leaves_a_success(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 3
    listener = Long(swallows_s=0.5)

    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(40)
        assert broker.offsets["g", QUEUE] == 2

    assert listener.seen == [(0, 1, 1), (1, 1, 1)]


async def test_a_listener_that_turns_its_cancellation_into_an_error_has_not_failed(
    broker: FakeBroker, make: Make
) -> None:
    seen: list[int] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append(messages[0].attempt)
        try:
            await asyncio.sleep(50 if len(seen) == 1 else 0)
        except asyncio.CancelledError:
            raise RuntimeError("cancelled") from None
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 2
    await run_for(40, make(listener, topics={"t": "*"}, cancel_on_loss=True))

    assert seen == [1, 1]
    assert broker.sent(Op.ATTEMPT) == []


async def test_a_listener_that_turns_the_loss_of_its_lease_into_an_error_stops_nothing(
    broker: FakeBroker, make: Make
) -> None:
    seen: list[tuple[int, int]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((messages[0].attempt, context.epoch))
        try:
            await asyncio.sleep(50 if len(seen) == 1 else 0)
        except asyncio.CancelledError:
            raise RuntimeError("as drivers of databases do") from None
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)
        await asyncio.sleep(1)

    assert seen == [(1, 1), (1, 2)]
    assert broker.sent(Op.ATTEMPT) == []
    assert broker.offsets["g", QUEUE] == 1


async def test_a_hook_sees_the_end_of_a_cancelled_call(broker: FakeBroker, make: Make) -> None:
    class Hook:
        results: list[Any] = []  # noqa: RUF012

        def after(self, info: CallInfo) -> None:
            self.results.append((info.result, type(info.exception)))

    broker.create("t", bodies=[b"a"])
    consumer = make(Long(), topics={"t": "*"}, cancel_on_loss=True)
    consumer.add_hook(Hook())
    async with consumer:
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)
        await asyncio.sleep(1)
        # It is no result: neither a success nor a failure of the listener.
        assert sum(consumer.statistics()["t@g"].results.values()) == 1

    assert Hook.results == [(ResultType.EXCEPTION, asyncio.CancelledError), (ResultType.SUCCESS, type(None))]


async def test_a_listener_in_a_thread_is_only_told(broker: FakeBroker, make: Make) -> None:
    loop, entered, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    calls: list[tuple[int, bool]] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        if len(calls) == 0:
            calls.append((context.epoch, False))
            loop.call_soon_threadsafe(entered.set)
            release.wait(20)
        calls.append((context.epoch, context.lost.was_set))
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await entered.wait()
        broker.free("g", QUEUE)
        threading.Timer(0.05, release.set).start()
        await asyncio.sleep(1)

    assert calls == [(1, False), (1, True), (2, False)]


async def test_a_lease_lost_while_a_failure_is_recorded_cancels_no_recording() -> None:
    harness = Harness(Recorder(ConsumeStatus.SUSPEND), cancel_on_loss=True)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def attempt(*args: Any) -> None:
        reached.set()
        await go_on.wait()

    harness.attempt = attempt  # type: ignore[method-assign]
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await reached.wait()

    assert assignment.called_at is None
    assignment.lost.set()
    await asyncio.sleep(1)
    assert assignment.guard.busy
    go_on.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not assignment.guard.busy
    await harness.end(assignment)


# A loop that stood still


async def test_after_a_call_that_blocked_the_loop_no_batch_starts_before_the_lease_is_proven(
    broker: FakeBroker, make: Make
) -> None:
    loop: Any = asyncio.get_running_loop()
    calls: list[tuple[float, int]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        calls.append((round(now(), 2), messages[0].queue_offset))
        if len(calls) == 2:
            loop.now += 20.0  # nothing else runs meanwhile: no ping, no renewal, no timer
        return SUCCESS

    broker.create("t", bodies=[b"a", b"b", b"c", b"d"])
    await run_for(30, make(listener, topics={"t": "*"}))

    # 20 s without an answered ping: the lease is asked for 10 ms later, and goes on under the same epoch or another.
    assert calls[:2] == [(0.0, 0), (0.0, 1)]
    assert calls[2][0] >= 20.01
    assert min(at for at in broker.times(Op.RENEW) if at > 1) <= calls[2][0]
    assert [offset for _, offset in calls] in ([0, 1, 2, 3], [0, 1, 0, 1, 2, 3])


async def test_no_batch_starts_while_the_loop_is_behind() -> None:
    listener, behind_until = Recorder(), 0.0
    harness = Harness(listener, stalled=lambda at: at < behind_until)
    assignment = harness.assignment(2)
    behind_until = 7.0

    harness.scheduler.start(assignment)
    await asyncio.sleep(20)

    assert listener.times[0] == pytest.approx(7.0, abs=0.011)  # looked at every 10 ms, without the slot
    assert listener.offsets == [0, 1]
    await harness.end(assignment)


async def test_a_call_that_makes_the_loop_late_is_the_last_until_it_has_caught_up() -> None:
    loop: Any = asyncio.get_running_loop()
    late_until = 0.0
    calls: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        nonlocal late_until
        calls.append(round(now(), 3))
        if len(calls) == 1:
            loop.now += 6.0
            late_until = now() + 0.5
        return SUCCESS

    harness = Harness(listener, stalled=lambda at: at < late_until)
    assignment = harness.assignment(3)
    harness.scheduler.start(assignment)
    await asyncio.sleep(10)

    assert calls[0] == 0.0
    assert calls[1] == pytest.approx(6.5, abs=0.011)
    await harness.end(assignment)


async def test_the_context_tells_queue_epoch_and_loss(broker: FakeBroker, make: Make) -> None:
    seen: list[Any] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((context.queue, context.epoch, bool(context.lost), context.auto_commit, context.suspend_s))
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    consumer: Consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)

    assert seen == [(QUEUE, 1, False, True, None)]


# Results


async def test_a_failed_message_is_tried_again_after_growing_pauses(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(*[SUSPEND] * 7)

    await run_for(100, make(listener, topics={"t": "*"}))

    pauses = [b - a for a, b in zip(listener.times, listener.times[1:], strict=False)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30, 0])
    assert listener.offsets == [0] * 8 + [1]
    assert listener.attempts == [1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert broker.offsets["g", QUEUE] == 2


async def test_a_failed_attempt_is_acknowledged_before_its_pause_begins(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    listener, hold = Recorder(SUSPEND), broker.hold_reply(Op.ATTEMPT)

    async with make(listener, topics={"t": "*"}, request_timeout_s=60.0):
        await hold.reached.wait()
        assert broker.attempts["g", QUEUE] == (0, 1)
        await asyncio.sleep(10)
        assert listener.times == [0.0]
        hold.let_go.set()
        await asyncio.sleep(5)

    assert listener.times == [0.0, 11.0]


@pytest.mark.parametrize("error", [ConnectionLost("x"), RequestTimeout("x")])
async def test_an_attempt_whose_answer_is_lost_is_reported_again(
    broker: FakeBroker, make: Make, error: Exception
) -> None:
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.ATTEMPT] = [error]
    listener = Recorder(SUSPEND)

    await run_for(10, make(listener, topics={"t": "*"}))

    assert broker.times(Op.ATTEMPT) == [0.0, 3.0]
    assert listener.times == [0.0, 4.0]


async def test_an_attempt_the_broker_cannot_note_does_not_stop_the_queue(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.ATTEMPT] = [Internal("log id 7")]
    listener = Recorder(SUSPEND)

    await run_for(10, make(listener, topics={"t": "*"}))

    assert listener.times == [0.0, 1.0]


async def test_a_fenced_attempt_drops_the_assignment(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.ATTEMPT] = [Fenced("stale")]
    listener = Recorder(SUSPEND)

    await run_for(10, make(listener, topics={"t": "*"}))

    # Asked for again at once, under another epoch; nobody paused for a queue that was not ours.
    assert len(broker.sent(Op.ACQUIRE)) == 2
    assert listener.times == [0.0, 0.0]


async def test_attempts_go_on_counting_after_a_take_over(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    broker.attempts["g", QUEUE] = (0, 3)
    listener = Recorder(SUSPEND)

    await run_for(10, make(listener, topics={"t": "*"}))

    assert listener.attempts == [4, 5]
    assert listener.times == [0.0, 8.0]


async def test_the_pause_the_listener_asks_for_is_taken_as_it_is(broker: FakeBroker, make: Make) -> None:
    def soon(context: ConsumeContext) -> ConsumeStatus:
        context.suspend_s = 0.5
        return SUSPEND

    broker.create("t", bodies=[b"a"])
    listener = Recorder(soon, soon, SUSPEND)

    await run_for(10, make(listener, topics={"t": "*"}))

    # What one call asks for is not kept for the next: the third pause is that of attempt 3.
    assert listener.times == [0.0, 0.5, 1.0, 5.0]


async def test_messages_that_arrive_do_not_shorten_a_pause(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Recorder(SUSPEND, SUSPEND)

    async with make(listener, topics={"t": "*"}):
        for _ in range(8):
            await asyncio.sleep(0.25)
            broker.send("t", 0, b"b")
        await asyncio.sleep(2)

    assert listener.times[:3] == [0.0, 1.0, 3.0]


async def test_a_pause_lets_others_have_the_slot(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2, bodies=[b"a"])
    broker.send("t", 1, b"a")
    listener = Recorder(SUSPEND)

    await run_for(5, make(listener, topics={"t": "*"}, slots=1))

    assert listener.calls == [(0.0, 0, [0]), (0.0, 1, [0]), (1.0, 0, [0])]


@pytest.mark.parametrize(
    "answer",
    [ValueError("no"), None, "done", asyncio.CancelledError()],
    ids=["raise", "none", "no status", "cancelled"],
)
async def test_anything_but_a_status_is_a_failure(broker: FakeBroker, make: Make, answer: Any) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(answer)

    await run_for(5, make(listener, topics={"t": "*"}))

    assert listener.offsets == [0, 0, 1]
    assert listener.times == [0.0, 1.0, 1.0]


def manual(status: ConsumeStatus) -> Callable[[ConsumeContext], ConsumeStatus]:
    def answer(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return status

    return answer


@pytest.mark.parametrize(
    ("script", "offsets", "committed"),
    [
        ([SUCCESS], [0, 1, 2], 3),
        ([COMMIT], [0, 1, 2], 3),
        ([ROLLBACK], [0, 0, 1, 2], 3),
        ([SUCCESS, SUSPEND], [0, 1, 1, 2], 3),
        ([manual(SUCCESS)] * 3, [0, 1, 2], 0),
        ([manual(SUCCESS), manual(COMMIT), manual(SUCCESS)], [0, 1, 2], 2),
        ([manual(SUCCESS), manual(ROLLBACK)], [0, 1, 0, 1, 2], 3),
        ([manual(SUCCESS), manual(SUSPEND), manual(SUCCESS), manual(SUCCESS)], [0, 1, 1, 2], 0),
        ([manual(SUCCESS), SUCCESS, manual(SUCCESS)], [0, 1, 2], 2),
    ],
)
async def test_statuses_with_auto_commit_on_and_off(
    broker: FakeBroker, make: Make, script: list[Any], offsets: list[int], committed: int
) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    listener = Recorder(*script)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == committed

    assert listener.offsets == offsets
    assert broker.offsets["g", QUEUE] == committed


async def test_a_rollback_counts_a_delivery_for_all_it_gives_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(manual(SUCCESS), manual(ROLLBACK), manual(SUCCESS), manual(COMMIT))

    await run_for(5, make(listener, topics={"t": "*"}))

    assert listener.attempts == [1, 1, 2, 2]
    assert broker.sent(Op.ATTEMPT)[0].payload.queue_offset == 0


async def test_a_batch_of_several_is_repeated_as_a_whole(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    broker.send("t", 0, b"d")
    listener = Recorder(SUSPEND)

    await run_for(5, make(listener, topics={"t": "*"}, batch=3))

    assert [offsets for _, _, offsets in listener.calls] == [[0, 1, 2], [0, 1, 2], [3]]


# Threads


async def test_a_plain_function_runs_in_a_thread(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    seen: list[tuple[bytes, bool]] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((messages[0].body, threading.current_thread() is threading.main_thread()))
        return SUCCESS

    await run_for(1, make(listener, topics={"t": "*"}))

    assert seen == [(b"a", False), (b"b", False)]
    assert broker.offsets["g", QUEUE] == 2


async def test_the_gate_opens_when_the_thread_has_ended_not_when_its_awaiter_was_cancelled(
    broker: FakeBroker, make: Make
) -> None:
    loop, release, entered = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    order: list[str] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        loop.call_soon_threadsafe(entered.set)
        release.wait(20)
        order.append("thread ended")
        return SUCCESS

    broker.create("t", bodies=[b"a"])
    consumer = make(listener, topics={"t": "*"}, drain_s=0.0)
    async with consumer:
        await entered.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        threading.Timer(0.05, release.set).start()
        await stopping
        order.append("stopped")

    assert order == ["thread ended", "stopped"]
    assert [request.op for request in broker.requests][-1] is Op.LEAVE


class Leased(Harness):
    """A scheduler whose lease is believed in as a test says; renewals are noted and answered from a script."""

    def __init__(self, listener: Any, *, until: float = float("inf"), **settings: Any) -> None:
        super().__init__(listener, **settings)
        self.until = until
        self.renewals: list[float] = []
        self.answers: list[float] = []  # until when the next renewals have it believed in

    def believed_until(self, assignment: Any) -> float:
        return self.until

    def believed(self, assignment: Any) -> bool:
        return now() <= self.until

    async def renew_one(self, assignment: Any) -> None:
        self.renewals.append(round(now(), 3))
        if self.answers:
            self.until = self.answers.pop(0)
            assignment.resumed()


def rounded(times: list[float]) -> list[float]:
    return [round(at, 3) for at in times]


# IDLE -> READY -> RUNNING -> IDLE


async def test_an_idle_queue_runs_when_messages_arrive_and_is_idle_again_without_a_slot() -> None:
    listener = Recorder(takes_s=1.0)
    harness = Harness(listener, slots=1)
    assignment = harness.assignment(0)
    harness.scheduler.start(assignment)
    await asyncio.sleep(2)
    assert (harness.scheduler.turns, occupied(harness.scheduler.gates)) == (0, [])

    harness.fill(assignment, 2)
    await asyncio.sleep(0.5)
    assert (harness.scheduler.turns, occupied(harness.scheduler.gates)) == (1, [QUEUE])
    assert (assignment.called_at, assignment.retry_at) == (2.0, None)
    await asyncio.sleep(5)

    assert listener.times == [2.0, 3.0]  # batch after batch in one turn
    assert (harness.scheduler.turns, occupied(harness.scheduler.gates), assignment.called_at) == (0, [], None)
    await harness.end(assignment)


async def test_two_owners_of_one_queue_never_call_at_the_same_time() -> None:
    """Forced double dispatch: the gate keeps them apart, whatever made there be two."""
    listener = Recorder(takes_s=1.0)
    harness = Harness(listener)
    one, two = harness.assignment(5), harness.assignment(5)
    harness.scheduler.start(one)
    harness.scheduler.start(two)
    await asyncio.sleep(30)

    assert listener.most == 1
    assert len(listener.calls) == 10
    await harness.end(one, two)


# READY, RUNNING -> LOCK_WAIT


async def test_a_turn_that_begins_without_a_proven_lease_asks_after_100_ms() -> None:
    listener = Recorder()
    harness = Leased(listener, until=-1.0)
    harness.answers = [float("inf")]
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)

    assert harness.renewals == [0.1]
    assert rounded(listener.times) == [0.1]
    await harness.end(assignment)


async def test_a_turn_whose_lease_runs_out_between_batches_asks_after_10_ms() -> None:
    listener = Recorder(takes_s=1.0)
    harness = Leased(listener, until=1.5)
    harness.answers = [float("inf")]
    assignment = harness.assignment(3)
    harness.scheduler.start(assignment)
    await asyncio.sleep(5)

    assert harness.renewals == [2.01]
    assert rounded(listener.times) == [0.0, 1.0, 2.01]
    await harness.end(assignment)


async def test_a_lease_that_is_not_proven_is_asked_for_every_3_s_without_gate_or_slot() -> None:
    listener = Recorder()
    harness = Leased(listener, until=-1.0, slots=1)
    harness.answers = [-1.0, -1.0, float("inf")]
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)
    assert (harness.scheduler.turns, occupied(harness.scheduler.gates)) == (0, [])
    await asyncio.sleep(9)

    assert harness.renewals == [0.1, 3.1, 6.1]
    assert rounded(listener.times) == [6.1]
    await harness.end(assignment)


# RUNNING -> YIELDED


@pytest.mark.parametrize(("takes_s", "second"), [(20.0 - 1e-6, 80.0), (20.0, 80.01), (20.0 + 1e-6, 60.01)])
async def test_the_window_is_looked_at_between_batches_and_is_strict(takes_s: float, second: float) -> None:
    """Three calls of just under, exactly and just over 20 s: only over 60 s in all does the turn end after them."""
    listener = Recorder(takes_s=takes_s)
    harness = Harness(listener)
    assignment = harness.assignment(5)
    harness.scheduler.start(assignment)
    await asyncio.sleep(110)

    # The call that begins after a pause of 10 ms is the fourth, or the fifth.
    gaps = [b - a for a, b in zip(listener.times, listener.times[1:], strict=False)]
    at = next(i for i, gap in enumerate(gaps) if gap > takes_s + 0.005)
    assert listener.times[at + 1] == pytest.approx(second, abs=0.011)
    await harness.end(assignment)


async def test_a_listener_is_never_interrupted_by_its_window() -> None:
    listener = Recorder(takes_s=200.0)
    harness = Harness(listener)
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await asyncio.sleep(250)

    assert listener.ended == [200.0]
    await harness.end(assignment)


async def test_a_renewal_and_a_window_that_end_together_cost_one_pause(broker: FakeBroker, make: Make) -> None:
    """Renewals are at 1, 21, 41 and 61 s; the turn of 61 s calls ends with the last of them."""
    broker.create("t", bodies=[b"x"] * 3)
    listener = Recorder(takes_s=61.0)

    await run_for(130, make(listener, topics={"t": "*"}))

    assert rounded(listener.times) == [0.0, 61.01, 122.02]
    assert broker.times(Op.RENEW)[:4] == [1.0, 21.0, 41.0, 61.0]
    assert len(broker.sent(Op.ACQUIRE)) == 1


# RUNNING -> RETRY_WAIT


@pytest.mark.parametrize(
    ("asked_s", "pause_s"),
    [(None, 1.0), (-1.0, 1.0), (0.005, 0.01), (0.01, 0.01), (2.5, 2.5), (30.0, 30.0), (99.999, 30)],
)
async def test_a_failed_batch_waits_its_pause_and_shows_when_it_is_due(asked_s: float | None, pause_s: float) -> None:
    def fail(context: ConsumeContext) -> ConsumeStatus:
        context.suspend_s = asked_s
        return SUSPEND

    listener = Recorder(fail)
    harness = Harness(listener)
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    await asyncio.sleep(0.001)
    assert assignment.retry_at == pytest.approx(pause_s)
    assert (harness.scheduler.turns, occupied(harness.scheduler.gates)) == (0, [])
    await asyncio.sleep(31)

    assert listener.times == [0.0, pytest.approx(pause_s)]
    assert assignment.retry_at is None
    await harness.end(assignment)


async def test_new_messages_do_not_end_the_wait_of_a_failed_one() -> None:
    listener = Recorder(SUSPEND)
    harness = Harness(listener)
    assignment = harness.assignment(1)
    harness.scheduler.start(assignment)
    for _ in range(9):
        await asyncio.sleep(0.1)
        assignment.arrived()
    assert len(listener.calls) == 1
    await asyncio.sleep(1)

    assert listener.times == [0.0, 1.0]
    await harness.end(assignment)


# any -> GONE


@pytest.mark.parametrize("state", ["idle", "retry", "lock", "yield", "slot"])
async def test_dropped_in_any_state_without_a_call_the_owner_ends_at_once_and_its_timer_does_nothing(
    state: str,
) -> None:
    listener = Recorder(*([SUSPEND] if state == "retry" else []), takes_s=61.0 if state == "yield" else 0.0)
    harness = Leased(listener, until=-1.0 if state == "lock" else float("inf"), slots=1)
    assignment = harness.assignment(0 if state == "idle" else 5)
    if state == "slot":
        await harness.scheduler._slots.acquire()
    harness.scheduler.start(assignment)
    await asyncio.sleep(61.005 if state == "yield" else 0.05)
    calls = len(listener.calls)

    assignment.drop()
    began = now()
    await harness.scheduler.finish(assignment)
    assert now() == began
    assert assignment.owner is not None
    assert assignment.owner.done()
    await asyncio.sleep(100)

    assert len(listener.calls) == calls
    assert harness.renewals == []
    if state == "slot":
        harness.scheduler._slots.release()
    await harness.end(assignment)


async def test_dropped_during_a_call_the_result_is_recorded_and_nothing_follows() -> None:
    listener = Recorder(takes_s=3.0)
    harness = Harness(listener)
    assignment = harness.assignment(3)
    harness.scheduler.start(assignment)
    await asyncio.sleep(1)

    assignment.drop()
    await harness.scheduler.finish(assignment)

    assert (now(), listener.offsets, assignment.cache.commit_offset) == (3.0, [0], 1)


# Fair turns


@pytest.mark.parametrize("share_s", [0.0, 0.1])
async def test_21_busy_queues_and_20_slots(broker: FakeBroker, make: Make, share_s: float) -> None:
    """Without shares the last queue waits for a window of 60 s; with them all get nearly the same."""
    broker.create("t", 21)
    for queue_id in range(21):
        broker.send("t", queue_id, *[b"x"] * 2000)
    listener = Recorder(takes_s=0.05)

    await run_for(30, make(listener, topics={"t": "*"}, slots=20, turn_share_s=share_s))

    counts = Counter(queue_id for _, queue_id, _ in listener.calls)
    assert listener.most == 20
    if share_s:
        assert len(counts) == 21
        assert min(counts.values()) > 0.9 * max(counts.values())
    else:
        assert len(counts) == 20


# Statuses


def manual_transitions(status: ConsumeStatus) -> Any:
    def answer(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return status

    return answer


@pytest.mark.parametrize(
    ("answer", "committed", "in_flight", "second"),
    [
        (SUCCESS, 2, [], (0.0, [2])),
        (COMMIT, 2, [], (0.0, [2])),  # warned of
        (ROLLBACK, 1, [], (1.0, [1])),  # warned of, and taken as SUSPEND: RocketMQ commits here
        (SUSPEND, 1, [], (1.0, [1])),
        (manual_transitions(SUCCESS), 0, [0, 1], (0.0, [2])),
        (manual_transitions(COMMIT), 2, [], (0.0, [2])),
        (manual_transitions(ROLLBACK), 0, [], (1.0, [0])),
        (manual_transitions(SUSPEND), 0, [0], (1.0, [1])),
    ],
    ids=["success", "commit", "rollback", "suspend", "m-success", "m-commit", "m-rollback", "m-suspend"],
)
async def test_eight_cells_of_status_and_auto_commit(
    answer: Any, committed: int, in_flight: list[int], second: tuple[float, list[int]]
) -> None:
    """After a first message: what is committed and in flight then, and when what is given next."""
    before = manual_transitions(SUCCESS) if callable(answer) else SUCCESS
    states: list[tuple[int, list[int]]] = []

    def look(context: ConsumeContext) -> ConsumeStatus:
        states.append((assignment.cache.commit_offset, [m.queue_offset for m in assignment.cache.in_flight[:-1]]))
        return SUCCESS

    listener = Recorder(before, answer, look)
    harness = Harness(listener)
    assignment = harness.assignment(3)
    harness.scheduler.start(assignment)
    await asyncio.sleep(5)

    assert states == [(committed, in_flight)]
    at, _, offsets = listener.calls[2]
    assert (at, offsets) == second
    await harness.end(assignment)


async def test_with_random_delays_and_batches_every_queue_is_in_order_and_complete(
    broker: FakeBroker, make: Make
) -> None:
    rng = random.Random(7)
    seen: dict[MessageQueue, list[int]] = {}

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.3]))
        seen.setdefault(context.queue, []).extend(message.queue_offset for message in messages)
        return SUCCESS

    broker.create("t", 4)
    async with make(listener, topics={"t": "*"}, batch=3, slots=2):
        for _ in range(40):
            broker.send("t", rng.randrange(4), *[b"x"] * rng.randint(1, 7))
            await asyncio.sleep(rng.random() / 10)
        await asyncio.sleep(60)

    for queue, offsets in seen.items():
        assert offsets == list(range(broker.max_offset(queue)))


async def test_a_lost_answer_to_a_renewal_is_no_refusal(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 60)
    broker.refuse[Op.RENEW] = [RequestTimeout("x")]

    listener = Recorder(takes_s=1.0)
    await run_for(50, make(listener, topics={"t": "*"}))

    assert listener.offsets == list(range(50))
    assert len(broker.sent(Op.ACQUIRE)) == 1
