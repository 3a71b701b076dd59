"""What a listener answers, and what becomes of it: commits, retries in place, attempts, threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.wire.errors import ConnectionLost, Fenced, Internal, RequestTimeout
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# Results


async def test_a_failed_message_is_tried_again_after_growing_pauses(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(*[SUSPEND] * 7)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(100)

    pauses = [b - a for a, b in zip(listener.times, listener.times[1:], strict=False)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30, 0])
    assert listener.offsets == [0] * 8 + [1]
    assert listener.attempts == [1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert broker.offsets["g", QUEUE] == 2


async def test_a_failed_attempt_is_acknowledged_before_its_pause_begins(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
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
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.refuse[Op.ATTEMPT] = [error]
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(10)

    assert broker.times(Op.ATTEMPT) == [0.0, 3.0]
    assert listener.times == [0.0, 4.0]


async def test_an_attempt_the_broker_cannot_note_does_not_stop_the_queue(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.refuse[Op.ATTEMPT] = [Internal("log id 7")]
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(10)

    assert listener.times == [0.0, 1.0]


async def test_a_fenced_attempt_drops_the_generation(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.refuse[Op.ATTEMPT] = [Fenced("stale")]
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(10)

    # Asked for again at once, under another epoch; nobody paused for a queue that was not ours.
    assert len(broker.sent(Op.ACQUIRE)) == 2
    assert listener.times == [0.0, 0.0]


async def test_attempts_go_on_counting_after_a_take_over(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.attempts["g", QUEUE] = (0, 3)
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(10)

    assert listener.attempts == [4, 5]
    assert listener.times == [0.0, 8.0]


async def test_the_pause_the_listener_asks_for_is_taken_as_it_is(broker: FakeBroker, make: Make) -> None:
    def soon(context: ConsumeContext) -> ConsumeStatus:
        context.suspend_s = 0.5
        return SUSPEND

    broker.create("t")
    broker.send("t", 0, b"a")
    listener = Recorder(soon, soon, SUSPEND)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(10)

    # What one call asks for is not kept for the next: the third pause is that of attempt 3.
    assert listener.times == [0.0, 0.5, 1.0, 5.0]


async def test_messages_that_arrive_do_not_shorten_a_pause(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    listener = Recorder(SUSPEND, SUSPEND)

    async with make(listener, topics={"t": "*"}):
        for _ in range(8):
            await asyncio.sleep(0.25)
            broker.send("t", 0, b"b")
        await asyncio.sleep(2)

    assert listener.times[:3] == [0.0, 1.0, 3.0]


async def test_a_pause_lets_others_have_the_slot(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a")
    broker.send("t", 1, b"a")
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}, slots=1):
        await asyncio.sleep(5)

    assert listener.calls == [(0.0, 0, [0]), (0.0, 1, [0]), (1.0, 0, [0])]


@pytest.mark.parametrize(
    "answer",
    [ValueError("no"), None, "done", asyncio.CancelledError()],
    ids=["raise", "none", "no status", "cancelled"],
)
async def test_anything_but_a_status_is_a_failure(broker: FakeBroker, make: Make, answer: Any) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(answer)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)

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
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c")
    listener = Recorder(*script)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == committed

    assert listener.offsets == offsets
    assert broker.offsets["g", QUEUE] == committed


async def test_a_rollback_counts_a_delivery_for_all_it_gives_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(manual(SUCCESS), manual(ROLLBACK), manual(SUCCESS), manual(COMMIT))

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)

    assert listener.attempts == [1, 1, 2, 2]
    assert broker.sent(Op.ATTEMPT)[0].payload.queue_offset == 0


async def test_a_batch_of_several_is_repeated_as_a_whole(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c")
    broker.send("t", 0, b"d")
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}, batch=3):
        await asyncio.sleep(5)

    assert [offsets for _, _, offsets in listener.calls] == [[0, 1, 2], [0, 1, 2], [3]]


# Threads


async def test_a_plain_function_runs_in_a_thread(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    seen: list[tuple[bytes, bool]] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((messages[0].body, threading.current_thread() is threading.main_thread()))
        return SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)

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

    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(listener, topics={"t": "*"}, drain_s=0.0)
    async with consumer:
        await entered.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        threading.Timer(0.05, release.set).start()
        await stopping
        order.append("stopped")

    assert order == ["thread ended", "stopped"]
    assert [request.op for request in broker.requests][-1] is Op.LEAVE
