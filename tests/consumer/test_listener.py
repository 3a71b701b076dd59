"""How listeners are called and hooked, what they may do to their arguments and task, and how answers are read."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import threading
from functools import partial
from typing import Any

import pytest

from rmq.consumer import CallInfo, ConfigError, ConsumeContext, ConsumeStatus, MessageQueue
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.consumer.listener import (
    Hooks,
    ResultType,
    Threads,
    acknowledged,
    adapt,
    failure_of,
    is_success,
    outlast,
    read_concurrent_status,
    read_status,
    result_type,
)

from .fake_broker import FakeBroker
from .recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


async def coroutine(messages: Any, context: Any) -> Any:
    return messages


def plain(messages: Any, context: Any) -> Any:
    return threading.current_thread().name


class Object:
    async def __call__(self, messages: Any, context: Any) -> Any:
        return messages

    async def method(self, messages: Any, context: Any) -> Any:
        return messages


@pytest.mark.parametrize(
    "listener", [coroutine, partial(coroutine), Object(), Object().method, partial(partial(Object()))]
)
async def test_what_is_a_coroutine_function_is_awaited_as_it_is(listener: Any) -> None:
    adapted, threads = adapt(listener, 2)

    assert adapted is listener
    assert threads is None


async def test_anything_else_runs_in_a_thread_of_ours() -> None:
    adapted, threads = adapt(plain, 2)
    assert isinstance(threads, Threads)

    name: Any = await adapted([], None)  # type: ignore[arg-type]

    assert name.startswith("rmq-listener")
    threads.close()


async def test_a_function_that_makes_a_coroutine_has_it_awaited_on_the_loop() -> None:
    adapted, threads = adapt(lambda messages, context: coroutine(messages, context), 1)  # type: ignore[arg-type,return-value]

    assert await adapted(["x"], None) == ["x"]  # type: ignore[arg-type,comparison-overlap,list-item]
    assert threads is not None
    threads.close()


@pytest.mark.parametrize(
    "listener",
    [
        "listener",
        None,
        lambda: None,
        lambda messages: None,
        lambda messages, context, more: None,
        lambda messages, *, context: None,
        partial(plain, None),
        Object,
        Object.method,
    ],
)
async def test_what_cannot_be_called_with_messages_and_context_is_refused(listener: Any) -> None:
    with pytest.raises(ConfigError, match="must be a function of"):
        adapt(listener, 1)


@pytest.mark.parametrize(
    "listener",
    [lambda *both: None, lambda messages, context, more=1: None, partial(lambda x, m, c: None, 1), max, dict.get],
)
async def test_what_can_be_called_with_two_arguments_is_taken(listener: Any) -> None:
    _, threads = adapt(listener, 1)
    assert threads is not None
    threads.close()


async def yields(messages: Any, context: Any) -> Any:
    yield None


class Yields:
    async def __call__(self, messages: Any, context: Any) -> Any:
        yield None


@pytest.mark.parametrize("listener", [yields, partial(yields), Yields()])
async def test_a_listener_that_yields_is_refused(listener: Any) -> None:
    with pytest.raises(ConfigError, match="yields: use return"):
        adapt(listener, 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_waits_for_the_end(fails: bool) -> None:
    running: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(outlast(running))
    await asyncio.sleep(1)

    waiting.cancel()
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(1)
    assert not waiting.done()
    if fails:
        running.set_exception(ValueError("too late to matter"))
    else:
        running.set_result(1)
    await asyncio.wait([waiting])

    assert waiting.cancelled()


async def test_stop_iteration_of_a_thread_arrives_as_a_runtime_error() -> None:
    def empty(messages: Any, context: Any) -> Any:
        return next(iter(()))

    adapted, threads = adapt(empty, 1)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await adapted([], None)  # type: ignore[arg-type]
    assert threads is not None
    threads.close()


@pytest.mark.parametrize("is_idle", [False, True], ids=["no thread yet", "a thread that waits"])
async def test_while_the_interpreter_exits_no_call_begins_and_none_fails(
    monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    """The loop of a consumer without asyncio runs in a thread, and so a little longer than the program."""
    listener, threads = adapt(lambda messages, context: ConsumeStatus.SUCCESS, 1)
    if is_idle:
        await listener([], None)  # type: ignore[arg-type]
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)  # as the interpreter does
    for idle in [thread for thread in threading.enumerate() if thread.name.startswith("rmq-listener")]:
        concurrent.futures.thread._threads_queues[idle].put(None)
        idle.join()

    call = asyncio.ensure_future(listener([], None))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)

    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert threads is not None
    threads.close()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await listener([], None)  # type: ignore[arg-type]


# The list of messages
async def test_messages_a_listener_took_out_of_its_list_are_given_again_too(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    done: list[int] = []

    async def pop(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        first = messages[0].attempt == 1
        while messages:
            if (message := messages.pop(0)).queue_offset == 2 and first:
                raise ValueError("at the third")
            done.append(message.queue_offset)
        return SUCCESS

    await run_for(5, make(pop, topics={"t": "*"}, batch=5))

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
    broker.create("t", bodies=[b"a", b"b", b"c", b"d"])
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

    await run_for(5, make(plain if threaded else awaited, topics={"t": "*"}, batch=2))

    assert calls == [[(0, 1), (1, 1)], [(0, 2), (1, 2)], [(2, 1), (3, 1)]]
    assert broker.offsets["g", QUEUE] == 4


# Exceptions
async def test_stop_iteration_of_a_plain_function_is_a_failure_like_any_other(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    attempts: list[int] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        attempts.append(messages[0].attempt)
        return SUCCESS if len(attempts) > 1 else next(iter(()))

    await run_for(5, make(listener, topics={"t": "*"}))

    assert attempts == [1, 2]
    assert broker.offsets["g", QUEUE] == 1


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_listener_that_cancels_its_own_task_stops_nothing(broker: FakeBroker, make: Make, awaits: bool) -> None:
    broker.create("t", bodies=[b"a", b"b"])
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
    broker.create("t", bodies=[b"a"])
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
    broker.create("t", bodies=[b"a"])
    calls: list[tuple[float, int]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        calls.append((round(now(), 3), messages[0].attempt))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return SUSPEND

    await run_for(10, make(listener, topics={"t": "*"}, max_attempts=max_attempts))

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
    broker.create("t", bodies=[b"a"])
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
    broker.create("t", bodies=[b"a"])
    times: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        times.append(now())
        context.suspend_s = pause
        return SUSPEND if len(times) < 3 else SUCCESS

    await run_for(5, make(listener, topics={"t": "*"}))

    assert times == [0.0, 1.0, 3.0]
    assert caplog.text.count("listener.bad_pause") == 1


async def test_a_rollback_with_auto_commit_on_commits_nothing_and_is_warned_of_once(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(ROLLBACK, ROLLBACK)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2)
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(3)

    assert listener.offsets == [0, 0, 0, 1]
    assert caplog.text.count("listener.rolls_back_itself") == 1


# Hooks: before and after each call, in order, with what came of it; what they raise changes nothing


class Noting:
    """A hook that notes what it is told."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self.infos: list[CallInfo] = []

    def before(self, info: CallInfo) -> None:
        assert info.result is None
        self.notes.append(f"{self.name} before")
        info.data[self.name] = now()

    def after(self, info: CallInfo) -> None:
        assert info.data[self.name] <= now()
        self.notes.append(f"{self.name} after")
        self.infos.append(info)


async def test_hooks_run_in_the_order_they_were_added_around_the_call(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    notes: list[str] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        notes.append("call")
        return SUCCESS

    consumer = make(listener, topics={"t": "*"})
    for name in ("one", "two"):
        consumer.add_hook(Noting(name, notes))
    async with consumer:
        await asyncio.sleep(1)

    assert notes == ["one before", "two before", "call", "one after", "two after"]


def manual(status: ConsumeStatus) -> Any:
    def answer(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return status

    return answer


@pytest.mark.parametrize(
    ("answer", "takes_s", "expected"),
    [
        (SUCCESS, 2.0 - 1e-6, (SUCCESS, ResultType.SUCCESS, True)),
        (SUCCESS, 2.0 + 1e-6, (SUCCESS, ResultType.TIME_OUT, True)),
        (COMMIT, 0.0, (COMMIT, ResultType.SUCCESS, True)),
        (manual(COMMIT), 0.0, (COMMIT, ResultType.SUCCESS, True)),
        (SUSPEND, 0.0, (SUSPEND, ResultType.FAILED, False)),
        (manual(ROLLBACK), 0.0, (ROLLBACK, ResultType.FAILED, False)),
        (None, 0.0, (None, ResultType.RETURNED_NULL, False)),
        ("what", 0.0, (None, ResultType.FAILED, False)),
        (ValueError("no"), 0.0, (None, ResultType.EXCEPTION, False)),
    ],
)
async def test_a_hook_is_told_what_came_of_the_call(
    broker: FakeBroker, make: Make, answer: Any, takes_s: float, expected: tuple[ConsumeStatus | None, ResultType, bool]
) -> None:
    _, result, success = expected
    broker.create("t", bodies=[b"a", b"b"])
    hook = Noting("hook", [])
    consumer = make(Recorder(answer, takes_s=takes_s), topics={"t": "*"}, batch=2, consume_timeout_s=2.0)
    consumer.add_hook(hook)

    async with consumer:
        await asyncio.sleep(takes_s + 0.5)
        first = hook.infos[0]
        assert (first.group, first.queue, first.epoch) == ("g", QUEUE, 1)
        assert [message.queue_offset for message in first.messages] == [0, 1]
        assert (first.status, first.result, first.success) == expected
        assert first.elapsed_s == pytest.approx(takes_s)
        assert first.exception is (answer if isinstance(answer, Exception) else None)
        # What took too long and succeeded is committed all the same.
        assert broker.offsets.get(("g", QUEUE), 0) == (2 if success else 0)
        assert {kind: n for kind, n in consumer.statistics()["t@g"].results.items() if n} == {result: 1}


@pytest.mark.parametrize(
    ("ended", "result"),
    [(2.0 - 1e-9, ResultType.SUCCESS), (2.0, ResultType.TIME_OUT), (2.0 + 1e-9, ResultType.TIME_OUT)],
)
async def test_a_call_of_exactly_the_limit_is_too_long(ended: float, result: ResultType) -> None:
    clock = iter([0.0, ended])
    hooks, hook = Hooks("g", consume_timeout_s=2.0), Noting("hook", [])
    hooks.add(hook)
    assignment = Assignment(LeaseBelief(QUEUE, 1, 0.0), ProcessQueue(0), on_lost=lambda _, reason: None)

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        return SUCCESS

    assert await hooks.around(listener, lambda: next(clock))([], ConsumeContext(assignment)) is SUCCESS
    assert hook.infos[0].result is result


async def test_what_a_hook_raises_is_logged_and_changes_nothing(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def before(self, info: CallInfo) -> None:
            raise RuntimeError("before")

        after = before

    broker.create("t", bodies=[b"x"] * 8)
    hook, listener = Noting("hook", []), Recorder()
    consumer = make(listener, topics={"t": "*"})
    consumer.add_hook(Broken())
    consumer.add_hook(hook)

    async with consumer:
        await asyncio.sleep(1)

    assert listener.offsets == list(range(8))
    assert len(hook.infos) == 8
    assert broker.offsets["g", QUEUE] == 8
    assert caplog.text.count("hook.raised") == 5  # the 1st, 2nd, 4th, 8th and 16th failure


async def test_a_hook_may_have_one_of_the_two_and_may_come_while_the_consumer_runs(
    broker: FakeBroker, make: Make
) -> None:
    class After:
        seen: list[int] = []  # noqa: RUF012

        def after(self, info: CallInfo) -> None:
            self.seen.append(info.messages[0].queue_offset)

    broker.create("t", bodies=[b"a"])
    consumer = make(Recorder(takes_s=1.0), topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1.5)
        consumer.add_hook(After())
        broker.send("t", 0, b"b")
        await asyncio.sleep(1.5)

    assert After.seen == [1]


async def test_what_is_no_hook_is_refused(make: Make) -> None:
    class Awaited:
        async def before(self, info: CallInfo) -> None: ...

    class AwaitedObject:
        class Before:
            async def __call__(self, info: CallInfo) -> None: ...

        before = Before()

    class Number:
        after = 7

    consumer = make()
    with pytest.raises(ConfigError, match="has neither"):
        consumer.add_hook(object())
    for hook in (Awaited(), AwaitedObject(), Number()):
        with pytest.raises(ConfigError, match="must be plain functions"):
            consumer.add_hook(hook)


# How an answer of the listener is read: one row for each cell, and the type of each result


RETRY = ConsumeStatus.RETRY


@pytest.mark.parametrize(
    ("auto_commit", "status", "read", "warning"),
    [
        (True, SUCCESS, COMMIT, None),
        (True, COMMIT, COMMIT, "listener.commits_itself"),
        # RocketMQ commits here; whoever asks for messages again does not want them committed.
        (True, ROLLBACK, SUSPEND, "listener.rolls_back_itself"),
        (True, SUSPEND, SUSPEND, None),
        (False, SUCCESS, SUCCESS, None),
        (False, COMMIT, COMMIT, None),
        (False, ROLLBACK, ROLLBACK, None),
        (False, SUSPEND, SUSPEND, None),
        # In order nothing is given back: the message itself is tried again.
        (True, RETRY, SUSPEND, "listener.asks_to_retry"),
        (False, RETRY, SUSPEND, "listener.asks_to_retry"),
        (True, None, SUSPEND, "listener.returned_nothing"),
        (False, None, SUSPEND, "listener.returned_nothing"),
        (True, "success", SUSPEND, "listener.returned_no_status"),
        (False, 0, SUSPEND, "listener.returned_no_status"),
    ],
)
async def test_the_eight_cells_of_status_and_auto_commit(
    auto_commit: bool, status: Any, read: ConsumeStatus, warning: str | None
) -> None:
    reading = read_status(status, auto_commit)

    assert reading.status is read
    assert (reading.warning and reading.warning[0]) == warning


@pytest.mark.parametrize(
    ("status", "error", "timed_out", "expected", "success"),
    [
        (SUCCESS, None, False, ResultType.SUCCESS, True),
        (COMMIT, None, False, ResultType.SUCCESS, True),
        (SUCCESS, None, True, ResultType.TIME_OUT, True),
        (SUSPEND, None, True, ResultType.TIME_OUT, False),
        (SUSPEND, None, False, ResultType.FAILED, False),
        (ROLLBACK, None, False, ResultType.FAILED, False),
        ("done", None, False, ResultType.FAILED, False),
        (None, None, False, ResultType.RETURNED_NULL, False),
        (None, None, True, ResultType.RETURNED_NULL, False),
        (None, ValueError(), False, ResultType.EXCEPTION, False),
        (None, ValueError(), True, ResultType.EXCEPTION, False),
    ],
)
async def test_types_of_results(
    status: Any, error: BaseException | None, timed_out: bool, expected: ResultType, success: bool
) -> None:
    assert result_type(status, error, timed_out=timed_out) is expected
    assert is_success(status, error) is success


@pytest.mark.parametrize(
    ("status", "read", "warning"),
    [
        (SUCCESS, SUCCESS, None),
        (RETRY, RETRY, None),
        (SUSPEND, RETRY, "listener.returned_ordered_status"),
        (ROLLBACK, RETRY, "listener.returned_ordered_status"),
        (COMMIT, SUCCESS, "listener.returned_ordered_status"),
        (None, RETRY, "listener.returned_nothing"),
        (True, RETRY, "listener.returned_no_status"),
    ],
)
async def test_where_messages_are_finished_in_any_order_an_answer_is_success_or_retry(
    status: Any, read: ConsumeStatus, warning: str | None
) -> None:
    reading = read_concurrent_status(status)

    assert reading.status is read
    assert (reading.warning and reading.warning[0]) == warning


@pytest.mark.parametrize(
    ("ack_index", "done"),
    [(None, 4), (3, 4), (4, 4), (99, 4), (1, 2), (0, 1), (-1, 0), (-9, 0), (True, None), ("1", None), (1.0, None)],
)
async def test_an_ack_index_counts_the_messages_up_to_it(ack_index: Any, done: int | None) -> None:
    assert acknowledged(ack_index, 4) == done


class Unreadable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (None, ValueError("no such order: 17"), "ValueError: no such order: 17"),
        (None, TimeoutError(), "TimeoutError"),
        (None, Unreadable(), "Unreadable: its text cannot be read"),
        (
            None,
            None,
            "the listener returned nothing; it must return ConsumeStatus.SUCCESS when messages are done",
        ),
        (True, None, "the listener returned a bool, which is not a ConsumeStatus"),
        (0, None, "the listener returned an int, which is not a ConsumeStatus"),
        (SUSPEND, None, "the listener asked for it again"),
        (ROLLBACK, None, "the listener asked for it again"),
        (SUCCESS, None, "the listener asked for it again"),  # with an ack_index before the last
    ],
)
async def test_a_failure_tells_whether_the_listener_raised_forgot_to_answer_or_asked_again(
    status: object, error: Exception | None, told: str
) -> None:
    assert failure_of(status, error) == told
