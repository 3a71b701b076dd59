"""What a listener may do to its arguments and its task without a message lost or a queue stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus, MessageQueue

from .fake_broker import FakeBroker
from .recorder import QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# The list of messages


async def test_messages_a_listener_took_out_of_its_list_are_given_again_too(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    done: list[int] = []

    async def pop(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        first = messages[0].attempt == 1
        while messages:
            if (message := messages.pop(0)).queue_offset == 2 and first:
                raise ValueError("at the third")
            done.append(message.queue_offset)
        return SUCCESS

    async with make(pop, topics={"t": "*"}, batch=5):
        await asyncio.sleep(5)

    assert done == [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert broker.attempts == {}
    assert broker.offsets["g", QUEUE] == 10


def _clear(messages: Messages) -> None:
    messages.clear()


def _double(messages: Messages) -> None:
    messages += messages


def _turn_round(messages: Messages) -> None:
    messages.reverse()


@pytest.mark.parametrize("change", [_clear, _double, _turn_round])
@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("raises", [False, True])
async def test_a_changed_list_changes_nothing_of_what_is_given_again(
    broker: FakeBroker, make: Make, change: Any, threaded: bool, raises: bool
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c", b"d")
    calls: list[list[tuple[int, int]]] = []

    def plain(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        calls.append([(message.queue_offset, message.attempt) for message in messages])
        change(messages)
        if len(calls) > 1:
            return SUCCESS
        if raises:
            raise ValueError("no")
        return SUSPEND

    async def awaited(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        return plain(messages, context)

    async with make(plain if threaded else awaited, topics={"t": "*"}, batch=2):
        await asyncio.sleep(5)

    assert calls == [[(0, 1), (1, 1)], [(0, 2), (1, 2)], [(2, 1), (3, 1)]]
    assert broker.offsets["g", QUEUE] == 4


# Exceptions


async def test_stop_iteration_of_a_plain_function_is_a_failure_like_any_other(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    attempts: list[int] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        attempts.append(messages[0].attempt)
        return SUCCESS if len(attempts) > 1 else next(iter(()))

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)

    assert attempts == [1, 2]
    assert broker.offsets["g", QUEUE] == 1


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_listener_that_cancels_its_own_task_stops_nothing(broker: FakeBroker, make: Make, awaits: bool) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    calls: list[tuple[int, int]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        calls.append((messages[0].queue_offset, messages[0].attempt))
        if len(calls) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if awaits:
                await asyncio.sleep(0)
        return SUCCESS

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(5)
        assert consumer.assignment == [QUEUE]

    # Without an await the listener has succeeded; its cancellation reaches us later, and is undone.
    assert calls == ([(0, 1), (0, 2), (1, 1)] if awaits else [(0, 1), (1, 1)])
    assert broker.offsets["g", QUEUE] == 2


async def test_a_listener_that_cancels_its_own_task_while_its_queue_is_handed_over_stops_nothing(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    broker.send("t", 1, b"a")

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        await asyncio.sleep(5)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return SUCCESS

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "z")  # queue 1 is theirs now
        await asyncio.sleep(10)
        assert consumer.assignment == [QUEUE]
        assert broker.holder("g", MessageQueue("t", 1)) is None

    assert broker.offsets["g", MessageQueue("t", 1)] == 0


@pytest.mark.parametrize("abandoned", [0, 2])
@pytest.mark.parametrize("status", [SUCCESS, SUSPEND])
@pytest.mark.parametrize("lost", [False, True])
async def test_a_listener_that_cancels_its_own_task_in_the_last_call_of_a_queue_stops_nothing(
    broker: FakeBroker, make: Make, abandoned: int, status: ConsumeStatus, lost: bool
) -> None:
    """Behind that call the owner may have nothing to wait for, where the cancellation would meet it."""
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.suspicions["g", QUEUE] = (abandoned, 0, 1 if abandoned else -1)

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        await asyncio.sleep(5)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return status

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")  # the queue is theirs now
        if lost:
            await asyncio.sleep(1)
            broker.free("g", QUEUE)
        await asyncio.sleep(10)
        assert (consumer.assignment, broker.holder("g", QUEUE)) == ([], None)


@pytest.mark.parametrize(("max_attempts", "attempts", "dead"), [(-1, [1, 2, 3, 4], []), (2, [1, 2], [0])])
async def test_a_listener_that_cancels_its_own_task_and_fails_is_counted_and_waits_as_any_other(
    broker: FakeBroker, make: Make, max_attempts: int, attempts: list[int], dead: list[int]
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    calls: list[tuple[float, int]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        calls.append((round(now(), 3), messages[0].attempt))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return SUSPEND

    async with make(listener, topics={"t": "*"}, max_attempts=max_attempts):
        await asyncio.sleep(10)

    assert calls == [(2.0 ** (attempt - 1) - 1, attempt) for attempt in attempts]
    assert [offset for _, offset, _ in broker.dead] == dead
    assert broker.runs["g", QUEUE].get(0) == (None if dead else 4)


@pytest.mark.parametrize("name", ["puller of t/0", "rebalancer", "lease keeper"])
async def test_a_task_that_somebody_else_cancels_is_a_failure_of_the_consumer(
    broker: FakeBroker, make: Make, name: str
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})
    running = asyncio.ensure_future(consumer.run())
    await asyncio.sleep(1)

    (victim,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
    victim.cancel()

    with pytest.raises(RuntimeError, match=f"'{name}' was cancelled by somebody else"):
        await running
    assert broker.leases == {}


async def test_the_end_of_the_loop_ends_a_running_call_and_everything_else(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    before = asyncio.all_tasks()

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        await asyncio.sleep(1000)
        return SUCCESS

    consumer = make(listener, topics={"t": "*"})
    consumer.start()
    await asyncio.sleep(1)
    ours = asyncio.all_tasks() - before
    for task in ours:  # as asyncio.run does
        task.cancel()
    await asyncio.wait(ours, timeout=0.1)

    assert all(task.done() for task in ours)
    await consumer.stop()


# Answers


@pytest.mark.parametrize("pause", ["5", True, [1], object()])
async def test_a_pause_that_is_no_number_is_left_out_with_one_warning(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture, pause: Any
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    times: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        times.append(now())
        context.suspend_s = pause
        return SUSPEND if len(times) < 3 else SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)

    assert times == [0.0, 1.0, 3.0]
    assert caplog.text.count("listener.bad_pause") == 1


async def test_a_rollback_with_auto_commit_on_commits_nothing_and_is_warned_of_once(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(ROLLBACK, ROLLBACK)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2)
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(3)

    assert listener.offsets == [0, 0, 0, 1]
    assert caplog.text.count("listener.rolls_back_itself") == 1
