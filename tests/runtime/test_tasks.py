"""Owned tasks: known while they run, and never failing unseen."""

from __future__ import annotations

import asyncio

import pytest

from rmq.runtime.tasks import TaskSet, Timers


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_a_failure_is_told_and_a_cancellation_is_none() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)

    async def fail() -> None:
        raise ValueError("x")

    failing, sleeping = tasks.start(fail(), "failing"), tasks.start(asyncio.sleep(9), "sleeping")
    await asyncio.wait([failing])
    assert tasks.others() == [sleeping]
    await tasks.cancel(sleeping, None, failing)

    assert [str(failure) for failure in failures] == ["x"]
    assert tasks.others() == []


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_a_cancellation_that_nobody_asked_us_for_is_a_failure() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)
    victim, other = tasks.start(asyncio.sleep(9), "victim"), tasks.start(asyncio.sleep(9), "other")
    await asyncio.sleep(1)

    victim.cancel()
    await asyncio.wait([victim])
    await tasks.cancel(other)

    assert [str(failure) for failure in failures] == ["the task 'victim' was cancelled by somebody else"]


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_the_end_of_the_loop_which_cancels_everything_is_no_failure() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)
    running = [tasks.start(asyncio.sleep(9), name) for name in ("one", "two", "three")]
    await asyncio.sleep(1)

    for task in running:
        task.cancel()
    await asyncio.wait(running)

    assert failures == []


@pytest.mark.virtual_time
async def test_an_action_is_called_at_its_pace_until_cancelled() -> None:
    timers, calls = Timers(), list[float]()
    loop = asyncio.get_running_loop()
    timers.every(0.5, lambda: calls.append(loop.time()))

    await asyncio.sleep(1.6)
    timers.cancel()
    await asyncio.sleep(1)

    assert calls == [0.5, 1.0, 1.5]
    assert len(timers) == 0


@pytest.mark.virtual_time
async def test_a_defect_in_one_pass_does_not_end_a_timer() -> None:
    timers, calls = Timers(), list[int]()

    def action() -> None:
        calls.append(1)
        raise ValueError("a defect")

    timers.every(1.0, action)
    await asyncio.sleep(3.5)
    timers.cancel()

    assert len(calls) == 3


@pytest.mark.virtual_time
async def test_work_that_ended_is_not_kept() -> None:
    timers = Timers()
    timers.keep(asyncio.sleep(1))
    assert len(timers) == 1

    await asyncio.sleep(2)

    assert len(timers) == 0
