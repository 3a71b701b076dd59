"""Owned tasks: known while they run, and never failing unseen."""

from __future__ import annotations

import asyncio

import pytest

from rmq.runtime.tasks import TaskSet

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


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


async def test_a_cancellation_that_nobody_asked_us_for_is_a_failure() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)
    victim, other = tasks.start(asyncio.sleep(9), "victim"), tasks.start(asyncio.sleep(9), "other")
    await asyncio.sleep(1)

    victim.cancel()
    await asyncio.wait([victim])
    await tasks.cancel(other)

    assert [str(failure) for failure in failures] == ["the task 'victim' was cancelled by somebody else"]


async def test_the_end_of_the_loop_which_cancels_everything_is_no_failure() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)
    running = [tasks.start(asyncio.sleep(9), name) for name in ("one", "two", "three")]
    await asyncio.sleep(1)

    for task in running:
        task.cancel()
    await asyncio.wait(running)

    assert failures == []
