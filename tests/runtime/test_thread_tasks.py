"""Calls of one thread are those of one task, which ends with its thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rmq.runtime.loop_thread import ThreadTasks

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

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


async def test_calls_of_a_thread_run_in_one_task_that_goes_on() -> None:
    tasks = ThreadTasks()

    first, second = await tasks.run(MAIN, me), await tasks.run(MAIN, me)

    assert first is second is not asyncio.current_task()
    assert first is not None
    assert not first.done()
    await tasks.end()
    assert first.done()


async def test_the_task_of_a_thread_that_has_ended_is_done_before_another_call_begins() -> None:
    tasks = ThreadTasks()
    gone = ended_thread()
    first = await tasks.run(gone, me)
    assert first is not None

    async def look() -> bool:
        return first.done()

    assert await tasks.run(MAIN, look)
    await tasks.end()


async def test_an_error_is_the_callers_and_the_task_goes_on() -> None:
    tasks = ThreadTasks()

    async def fail() -> None:
        raise ValueError("why")

    before = await tasks.run(MAIN, me)
    with pytest.raises(ValueError, match="why"):
        await tasks.run(MAIN, fail)

    assert await tasks.run(MAIN, me) is before
    await tasks.end()


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


async def test_an_end_cancels_calls_under_way() -> None:
    tasks = ThreadTasks()
    waiting = asyncio.create_task(tasks.run(MAIN, for_ever))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await tasks.end()

    with pytest.raises(asyncio.CancelledError):
        await waiting
