"""
A loop in a thread: the order of calls, wake-ups, interruptions, errors, and all the ways to its end.

Calls of one thread are those of one task, which ends with its thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from rmq.runtime.loop_thread import LoopEnded, LoopThread, ThreadTasks
from rmq.wire.errors import TopicNotFound

from rigs.interrupts import interrupt
from rigs.stalling_broker import eventually

DEADLINE_S = 20.0


def made(what: str = "producer", close: Callable[[], Coroutine[Any, Any, None]] | None = None) -> LoopThread:
    return LoopThread(what, instead=f"rmq.client.{what.title()}", close=close or partial(echo, None))


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    running = made()
    running.start()
    yield running
    running.end()


async def echo(value: Any) -> Any:
    return value


def in_threads(*functions: Callable[[], object]) -> list[threading.Thread]:
    started = [threading.Thread(target=function, daemon=True) for function in functions]
    for one in started:
        one.start()
    return started


def test_a_call_returns_what_the_coroutine_returns(thread: LoopThread) -> None:
    assert thread.call(echo, 17) == 17
    assert thread.run(lambda: threading.current_thread().name) == "rmq-producer"


def test_calls_of_many_threads_reach_the_loop_with_one_wake_up(thread: LoopThread) -> None:
    busy, go_on = threading.Event(), threading.Event()
    turns: list[int] = []
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    async def note() -> None:
        turns.append(turn)

    def block() -> None:
        asyncio.get_running_loop().call_soon(count)
        busy.set()
        go_on.wait(DEADLINE_S)

    blocker = in_threads(lambda: thread.run(block))
    busy.wait(DEADLINE_S)
    callers = in_threads(*[lambda: thread.call(note)] * 20)
    eventually(lambda: len(thread._calls) == 20, "the calls of 20 threads")
    go_on.set()
    for caller in blocker + callers:
        caller.join(DEADLINE_S)

    assert len(turns) == 20
    assert len(set(turns)) == 1


def test_calls_of_one_thread_begin_in_their_order(thread: LoopThread) -> None:
    begun: list[int] = []

    async def begin(number: int) -> None:
        begun.append(number)

    for number in range(100):
        thread.post(begin, number)
    thread.call(echo, None)

    assert begun == list(range(100))


def test_an_error_is_raised_where_the_call_was_made(thread: LoopThread) -> None:
    async def fail() -> None:
        raise TopicNotFound("there is no topic 'x'", code=777)

    with pytest.raises(TopicNotFound, match="no topic 'x'") as raised:
        thread.call(fail)  # this line

    shown = "".join(traceback.format_exception(raised.value))
    assert "thread.call(fail)  # this line" in shown
    assert 'raise TopicNotFound("there is no topic' in shown
    assert raised.value.code == 777


def test_callers_of_one_error_have_tracebacks_of_their_own(thread: LoopThread) -> None:
    shared = TopicNotFound("there is no topic 'x'")
    shared.__cause__ = ValueError("why")

    async def fail() -> None:
        raise shared

    raised = []
    for _ in range(2):
        with pytest.raises(TopicNotFound) as caught:
            thread.call(fail)
        raised.append(caught.value)

    assert raised[0] is not raised[1]
    assert all(error is not shared and error.__cause__ is shared.__cause__ for error in raised)


def test_an_interruption_cancels_the_call_and_waits_for_its_end(thread: LoopThread) -> None:
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            interrupt()
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append("cleanly")

    with pytest.raises(KeyboardInterrupt):
        thread.call(wait_for_ever)

    assert ended == ["cleanly"]
    assert thread.call(echo, "goes on") == "goes on"


def test_a_second_interruption_does_not_wait() -> None:
    thread = made("consumer")
    thread.start()
    let_go = threading.Event()

    async def stubborn() -> None:
        interrupt()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            interrupt()
            let_go.wait(DEADLINE_S)  # the whole loop hangs

    with pytest.raises(KeyboardInterrupt):
        thread.call(stubborn)
    thread.end()  # does not wait either
    with pytest.raises(LoopEnded):
        thread.call(echo, 1)

    let_go.set()
    thread._thread.join(DEADLINE_S)
    assert not thread._thread.is_alive()


def test_a_handler_of_a_signal_may_call_while_its_thread_waits(thread: LoopThread) -> None:
    heard: list[object] = []
    released = asyncio.Event()

    async def wait() -> str:
        interrupt(signal.SIGUSR1)
        await released.wait()
        return "released"

    def handler(*_: object) -> None:
        heard.append(thread.call(echo, "heard"))
        thread.run(released.set)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert thread.call(wait) == "released"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == ["heard"]


def test_before_the_start_plain_functions_are_called_on_the_spot() -> None:
    thread = made("consumer")

    assert thread.run(threading.get_ident) == threading.get_ident()
    thread.start()
    assert thread.run(threading.get_ident) != threading.get_ident()
    thread.end()
    with pytest.raises(LoopEnded):
        thread.run(threading.get_ident)


def test_what_runs_on_the_loop_may_call_plain_functions_and_not_wait_for_others(thread: LoopThread) -> None:
    async def inside() -> int:
        with pytest.raises(RuntimeError, match=r"use rmq\.client\.Producer with it"):
            thread.call(echo, 1)
        return thread.run(threading.get_ident)

    assert thread.call(inside) == thread._thread.ident


def test_the_context_of_the_start_is_that_of_all_calls_and_tells_what_runs_for_the_loop() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")
    variable.set("of the start")
    thread = made("consumer")
    thread.start()
    variable.set("of the call")

    async def look() -> tuple[str, bool]:
        return await asyncio.to_thread(lambda: (variable.get(), thread.is_inside()))

    assert thread.call(look) == ("of the start", True)
    assert not thread.is_inside()
    thread.end()


def test_an_end_cancels_what_is_under_way_and_tells_who_waits() -> None:
    thread = made()
    thread.start()
    begun, raised = threading.Event(), []

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            thread.call(wait_for_ever)
        except LoopEnded as error:
            raised.append(error)

    (caller,) = in_threads(call)
    begun.wait(DEADLINE_S)
    thread.end()
    thread.end()
    caller.join(DEADLINE_S)

    assert len(raised) == 1
    assert not thread._thread.is_alive()
    thread.post(echo, 1)
    with pytest.raises(LoopEnded):
        thread.start()


def test_the_thread_ends_with_its_owner() -> None:
    class Owner:
        pass

    owner, closed = Owner(), threading.Event()

    async def close() -> None:
        closed.set()

    thread = made(close=close)
    thread.end_with(owner)
    thread.start()
    running, gone = thread._thread, weakref.ref(owner)

    del owner
    gc.collect()
    running.join(DEADLINE_S)

    assert gone() is None
    assert closed.is_set()
    assert not running.is_alive()


def test_in_a_running_loop_it_is_refused() -> None:
    async def inside() -> None:
        made("consumer").start()

    with pytest.raises(RuntimeError, match=r"this consumer blocks, .*: use rmq\.client\.Consumer with it"):
        asyncio.run(inside())


def test_after_a_fork_it_is_refused_and_its_end_is_nothing(thread: LoopThread) -> None:
    ours, thread._pid = thread._pid, -1  # as it looks in a fork
    try:
        for use in (thread.start, lambda: thread.call(echo, 1), lambda: thread.run(int), lambda: thread.post(int)):
            with pytest.raises(RuntimeError, match="this producer belongs to process -1: after a fork make another"):
                use()
        thread.end()
        assert thread.is_forked()
    finally:
        thread._pid = ours

    assert thread.call(echo, "unharmed") == "unharmed"


MAIN = threading.main_thread()


async def me() -> asyncio.Task[Any] | None:
    return asyncio.current_task()


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def ended_thread() -> threading.Thread:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return thread


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_calls_of_a_thread_run_in_one_task_that_goes_on() -> None:
    tasks = ThreadTasks()

    first, second = await tasks.run(MAIN, me), await tasks.run(MAIN, me)

    assert first is second is not asyncio.current_task()
    assert first is not None
    assert not first.done()
    await tasks.end()
    assert first.done()


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_the_task_of_a_thread_that_has_ended_is_done_before_another_call_begins() -> None:
    tasks = ThreadTasks()
    gone = ended_thread()
    first = await tasks.run(gone, me)
    assert first is not None

    async def look() -> bool:
        return first.done()

    assert await tasks.run(MAIN, look)
    await tasks.end()


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_an_error_is_the_callers_and_the_task_goes_on() -> None:
    tasks = ThreadTasks()

    async def fail() -> None:
        raise ValueError("why")

    before = await tasks.run(MAIN, me)
    with pytest.raises(ValueError, match="why"):
        await tasks.run(MAIN, fail)

    assert await tasks.run(MAIN, me) is before
    await tasks.end()


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize("turns", range(5))
async def test_a_caller_that_is_cancelled_cancels_the_call_and_nothing_else(turns: int) -> None:
    tasks = ThreadTasks()
    before = await tasks.run(MAIN, me)
    seen: list[str] = []

    async def noting() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            seen.append("ended")

    caller = asyncio.create_task(tasks.run(MAIN, noting))
    for _ in range(turns):
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert seen in ([], ["ended"])  # nothing, if it had not begun
    assert await tasks.run(MAIN, me) is before
    assert before is not None
    assert before.cancelling() == 0
    await tasks.end()


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_a_thread_in_the_middle_of_a_call_gets_another_task() -> None:
    tasks = ThreadTasks()
    waiting = asyncio.create_task(tasks.run(MAIN, for_ever))
    await asyncio.sleep(0)

    other = await tasks.run(MAIN, me)

    assert other is asyncio.current_task()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await tasks.end()


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_an_end_cancels_calls_under_way() -> None:
    tasks = ThreadTasks()
    waiting = asyncio.create_task(tasks.run(MAIN, for_ever))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await tasks.end()

    with pytest.raises(asyncio.CancelledError):
        await waiting
