"""A call whose lease is lost: told, cancelled where that is wished, and never followed before it has ended."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rmq.consumer import CallInfo, ConsumeContext, Consumer, ConsumeStatus, ResultType
from rmq.wire.errors import RequestTimeout
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUCCESS, Make, Messages, Recorder, now
from .test_orderly import Harness

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


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
    broker.create("t")
    broker.send("t", 0, b"a")
    listener = Long()

    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)  # the parked pull is answered FENCED
        await asyncio.sleep(1)

    assert listener.notes == [(0.0, "begin"), (1.5, "cancelled"), (1.5, "begin"), (1.5, "end")]
    assert listener.seen == [(0, 1, 1), (0, 1, 2)]
    assert broker.sent(Op.ATTEMPT) == []


async def test_without_the_setting_a_call_is_only_told(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    listener = Long(takes_s=5.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1.5)
        broker.free("g", QUEUE)
        await asyncio.sleep(10)

    # The new generation waits at the gate.
    assert listener.notes == [(0.0, "begin"), (5.0, "end"), (5.0, "begin"), (5.0, "end")]
    assert listener.seen == [(0, 1, 1), (0, 1, 2)]


async def test_a_call_is_cancelled_when_its_lease_cannot_be_proven_and_given_again_when_it_is(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
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
    broker.create("t")
    broker.send("t", 0, b"a")
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
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
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

    broker.create("t")
    broker.send("t", 0, b"a")
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 2
    async with make(listener, topics={"t": "*"}, cancel_on_loss=True):
        await asyncio.sleep(40)

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

    broker.create("t")
    broker.send("t", 0, b"a")
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

    broker.create("t")
    broker.send("t", 0, b"a")
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
        calls.append((context.epoch, context.lost.told))
        return SUCCESS

    broker.create("t")
    broker.send("t", 0, b"a")
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
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await reached.wait()

    assert generation.called_at is None
    generation.lost.set()
    await asyncio.sleep(1)
    assert generation.guard.held
    go_on.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not generation.guard.held
    await harness.end(generation)


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

    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c", b"d")
    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(30)

    # 20 s without an answered ping: the lease is asked for 10 ms later, and goes on under the same epoch or another.
    assert calls[:2] == [(0.0, 0), (0.0, 1)]
    assert calls[2][0] >= 20.01
    assert min(at for at in broker.times(Op.RENEW) if at > 1) <= calls[2][0]
    assert [offset for _, offset in calls] in ([0, 1, 2, 3], [0, 1, 0, 1, 2, 3])


async def test_no_batch_starts_while_the_loop_is_behind() -> None:
    listener, behind_until = Recorder(), 0.0
    harness = Harness(listener, stalled=lambda at: at < behind_until)
    generation = harness.generation(2)
    behind_until = 7.0

    harness.scheduler.start(generation)
    await asyncio.sleep(20)

    assert listener.times[0] == pytest.approx(7.0, abs=0.011)  # looked at every 10 ms, without the slot
    assert listener.offsets == [0, 1]
    await harness.end(generation)


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
    generation = harness.generation(3)
    harness.scheduler.start(generation)
    await asyncio.sleep(10)

    assert calls[0] == 0.0
    assert calls[1] == pytest.approx(6.5, abs=0.011)
    await harness.end(generation)


async def test_the_context_tells_queue_epoch_and_loss(broker: FakeBroker, make: Make) -> None:
    seen: list[Any] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((context.queue, context.epoch, bool(context.lost), context.auto_commit, context.suspend_s))
        return SUCCESS

    broker.create("t")
    broker.send("t", 0, b"a")
    consumer: Consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)

    assert seen == [(QUEUE, 1, False, True, None)]
