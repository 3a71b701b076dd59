"""Queues that go while their messages are with the listener, or on their way back: each order of events by itself."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from rmq.consumer import ConcurrentContext, Consumer, ConsumeStatus
from rmq.wire.errors import Internal
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUCCESS, Make, Messages, Recorder, now
from .test_concurrent import RETRY, fill, given_back, with_context

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest.fixture
def start(make: Make) -> Make:
    """Makes concurrent consumers of ``t``."""
    return partial(make, orderly=False, topics={"t": "*"})


class Held:
    """A listener that notes its calls and answers when it is let go."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.let_go = asyncio.Event()
        self.offsets: list[int] = []
        self.lost: list[bool] = []
        self.cancelled = 0

    async def __call__(self, messages: Messages, context: ConcurrentContext) -> Any:
        self.offsets += [message.queue_offset for message in messages]
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.lost.append(bool(context.lost))
        answer = self.answers.pop(0) if self.answers else SUCCESS
        return answer(context) if callable(answer) else answer


def away(broker: FakeBroker) -> None:
    """All queues fall to another member, whose name sorts before ours."""
    broker.set_members("g", *[f"a{i}" for i in range(9)])


# Dropped


async def test_a_queue_that_is_dropped_waits_for_its_calls_and_takes_what_they_did_along(
    broker: FakeBroker, start: Make
) -> None:
    """RocketMQ ignores what ends after a drop, so that it is delivered again; here it is recorded first."""
    fill(broker, 10)
    listener = Held(SUCCESS, SUCCESS, SUCCESS, RETRY)

    async with start(listener, slots=4):
        await asyncio.sleep(1)
        away(broker)
        await asyncio.sleep(5)
        assert broker.holder("g", QUEUE) == "member-0"
        listener.let_go.set()
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None

    assert listener.offsets == [0, 1, 2, 3]  # none starts after the drop
    assert given_back(broker) == [(3, 1, 3)]
    assert broker.offsets["g", QUEUE] == 4


async def test_a_message_on_its_way_back_when_its_queue_is_dropped_arrives_before_the_lease_goes(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 2)
    hold = broker.hold_request(Op.SEND_BACK)

    async with start(Recorder(RETRY), batch=2):
        await hold.reached.wait()
        away(broker)
        await asyncio.sleep(1)
        assert broker.holder("g", QUEUE) == "member-0"
        hold.let_go.set()
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None

    assert given_back(broker) == [(0, 1, 3), (1, 1, 3)]
    assert broker.offsets["g", QUEUE] == 2


async def test_what_cannot_be_given_back_by_a_queue_that_is_dropped_is_left_to_the_next_owner(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 3)
    hold = broker.hold_request(Op.SEND_BACK)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]

    async with start(Recorder(SUCCESS, RETRY, SUCCESS)):
        await hold.reached.wait()
        away(broker)
        hold.let_go.set()
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None

    assert broker.offsets["g", QUEUE] == 1


async def test_a_stop_during_the_pause_before_a_retry_waits_for_nothing_and_leaves_the_message(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 3)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = Recorder(RETRY)
    consumer = start(listener)

    async with consumer:
        await asyncio.sleep(1)
        began = now()
    assert now() - began < 0.1
    await asyncio.sleep(10)

    assert (listener.offsets, broker.offsets.get(("g", QUEUE), 0)) == ([0, 1, 2], 0)


# Lost


async def test_a_call_that_outlives_its_lease_commits_and_gives_back_nothing(broker: FakeBroker, start: Make) -> None:
    fill(broker, 4)
    listener = Held(SUCCESS, RETRY, with_context(SUCCESS, ack_index=-1), SUCCESS)

    async with start(listener):
        await asyncio.sleep(1)
        broker.give("g", QUEUE)
        await asyncio.sleep(2)
        listener.let_go.set()
        await asyncio.sleep(1)

    assert listener.lost == [True] * 4
    assert given_back(broker) == []
    assert broker.offsets["g", QUEUE] == 0


async def test_a_lease_lost_while_a_message_is_on_its_way_back_gives_back_nothing(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 2)
    hold = broker.hold_request(Op.SEND_BACK)
    listener = Recorder(RETRY)

    async with start(listener) as consumer:
        await hold.reached.wait()
        broker.give("g", QUEUE)
        hold.let_go.set()
        await asyncio.sleep(1)
        assert consumer.assignment == []

    assert (given_back(broker), listener.offsets) == ([], [0, 1])


@pytest.mark.parametrize("cancel_on_loss", [True, False])
async def test_calls_are_cancelled_by_a_loss_only_if_that_is_wished(
    broker: FakeBroker, start: Make, cancel_on_loss: bool
) -> None:
    fill(broker, 3)
    listener = Held()

    async with start(listener, cancel_on_loss=cancel_on_loss):
        await asyncio.sleep(1)
        broker.give("g", QUEUE)
        await asyncio.sleep(2)
        assert listener.cancelled == (3 if cancel_on_loss else 0)
        listener.let_go.set()

    assert given_back(broker) == []


async def test_calls_cancelled_for_a_lease_that_was_only_doubted_are_made_again_as_the_same_delivery(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 3)
    listener, attempts = Held(), []

    async def counting(messages: Messages, context: ConcurrentContext) -> Any:
        attempts.append(messages[0].attempt)
        return await listener(messages, context)

    async with start(counting, cancel_on_loss=True, lock_ttl_s=2.0, relock_every_s=1.9) as consumer:
        await asyncio.sleep(1.5)
        hold = broker.hold_request(Op.RENEW)
        await hold.reached.wait()
        while listener.cancelled < 3:
            await asyncio.sleep(0.1)
        hold.let_go.set()
        listener.let_go.set()
        await asyncio.sleep(5)
        assert len(consumer.assignment) == 1

    assert (sorted(listener.offsets), attempts) == ([0, 0, 1, 1, 2, 2], [1] * 6)
    assert broker.offsets["g", QUEUE] == 3


async def test_no_call_starts_under_a_lease_that_is_not_proven(broker: FakeBroker, start: Make) -> None:
    fill(broker, 40)
    listener = Recorder(takes_s=1.0)

    async with start(listener, slots=2):
        await asyncio.sleep(2.5)
        broker.go_down()
        await asyncio.sleep(7)  # the grace of 5 s, less its margin, has passed since the last answer
        started = len(listener.calls)
        await asyncio.sleep(10)
        assert len(listener.calls) == started
        broker.come_up()
        await asyncio.sleep(20)

    assert broker.offsets["g", QUEUE] == 40
    assert max(second - first for first, second in zip(listener.times, listener.times[1:], strict=False)) > 10


async def test_a_log_that_lost_what_a_call_has_ends_the_lease_and_the_call_counts_for_nothing(
    broker: FakeBroker, start: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.send("t", 0, b"b")
    listener = Held(SUCCESS, RETRY)

    async with start(listener):
        await asyncio.sleep(1)
        broker.crash(QUEUE, 1)
        broker.send("t", 0, b"other")
        broker.come_up()
        await asyncio.sleep(1)
        assert given_back(broker) == []
        listener.let_go.set()
        await asyncio.sleep(1)

    assert given_back(broker) == []
    assert listener.offsets.count(1) == 2  # the first was about the message that is gone
    assert broker.offsets["g", QUEUE] == 2


# The end


async def test_a_stop_lets_running_calls_end_and_records_them(broker: FakeBroker, start: Make) -> None:
    fill(broker, 30)
    listener = Recorder(takes_s=5.0)
    consumer = start(listener, slots=10)

    async with consumer:
        await asyncio.sleep(1)

    assert now() == pytest.approx(5.0, abs=0.01)
    assert len(listener.calls) == 10
    assert broker.offsets["g", QUEUE] == 10
    assert len(broker.sent(Op.LEAVE)) == 1


async def test_calls_that_do_not_end_in_time_are_cancelled_and_not_recorded(broker: FakeBroker, start: Make) -> None:
    fill(broker, 3)
    listener = Held()

    async with start(listener, drain_s=2.0):
        await asyncio.sleep(1)

    assert now() == pytest.approx(3.0, abs=0.01)
    assert (listener.cancelled, given_back(broker)) == (3, [])
    assert broker.offsets.get(("g", QUEUE), 0) == 0


async def test_a_listener_may_stop_its_consumer(broker: FakeBroker, start: Make) -> None:
    fill(broker, 3)
    consumer: Consumer

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        await consumer.stop()
        return SUCCESS

    consumer = start(listener)
    await asyncio.wait_for(consumer.run(), 10)

    assert broker.offsets["g", QUEUE] == 1  # no call starts after that


async def test_threads_are_waited_for_at_the_end(broker: FakeBroker, start: Make) -> None:
    fill(broker, 2)
    go_on, started = threading.Event(), []

    def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        started.append(messages[0].queue_offset)
        go_on.wait(10)
        return SUCCESS

    consumer = start(listener)
    consumer.start()
    while len(started) < 2:
        await asyncio.sleep(0)
    stop = asyncio.create_task(consumer.stop())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not stop.done()
    go_on.set()
    await stop

    assert broker.offsets["g", QUEUE] == 2


# Misuse


async def test_a_listener_that_cancels_its_task_ends_no_worker(
    broker: FakeBroker, start: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, 6)
    calls: list[int] = []

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        offset = messages[0].queue_offset
        calls.append(offset)
        task = asyncio.current_task()
        assert task is not None
        if offset < 4:
            task.cancel()
        if offset == 1:
            await asyncio.sleep(1)  # raises
        return RETRY if offset == 2 else SUCCESS

    async with start(listener, slots=1):
        await asyncio.sleep(1)

    assert calls == [0, 1, 2, 3, 4, 5]
    assert [offset for offset, _, _ in given_back(broker)] == [1, 2]
    assert broker.offsets["g", QUEUE] == 6
    assert caplog.text.count("listener.cancelled_its_task") == 1


async def test_what_is_no_exception_of_a_listener_ends_the_consumer(broker: FakeBroker, start: Make) -> None:
    fill(broker, 1)

    class Fatal(BaseException):
        pass

    consumer = start(Recorder(Fatal("no more")))
    with pytest.raises(Fatal):
        await asyncio.wait_for(consumer.run(), 100)
    assert ("g", MessageQueue("t", 0)) not in broker.leases


async def test_no_call_starts_while_the_loop_is_behind(broker: FakeBroker, start: Make) -> None:
    fill(broker, 6)
    loop: Any = asyncio.get_running_loop()
    times: list[float] = []

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        times.append(round(now(), 2))
        if len(times) == 2:
            loop.now += 3.0  # nothing else runs meanwhile
        return SUCCESS

    async with start(listener, slots=1, stall_limit_s=1.0):
        await asyncio.sleep(10)

    assert len(times) == 6
    assert times[2] > times[1] + 3.0


async def test_after_a_crash_everything_behind_a_message_that_was_not_done_comes_again(
    broker: FakeBroker, start: Make
) -> None:
    """RocketMQ: a low offset that is stuck has all behind it delivered again; so listeners have to be idempotent."""
    fill(broker, 10)
    stuck, second = asyncio.Event(), Recorder()

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 2:
            await stuck.wait()
        return SUCCESS

    async with start(listener, drain_s=0.0, request_timeout_s=0.1):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 2
        (crashed,) = broker.connections
        crashed.cut()
        broker.end_session(crashed.session)
        async with start(second):
            await asyncio.sleep(1)

    assert (second.offsets, set(second.attempts)) == (list(range(2, 10)), {1})
    assert broker.offsets["g", QUEUE] == 10
