"""Owned tasks: known while they run, and never failing unseen."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.tasks import TaskSet, cancel_all

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


async def test_a_failure_is_told_and_a_cancellation_is_none() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)

    async def fail() -> None:
        raise ValueError("x")

    failing, sleeping = tasks.start(fail(), "failing"), tasks.start(asyncio.sleep(9), "sleeping")
    await asyncio.wait([failing])
    assert tasks.others() == [sleeping]
    await cancel_all(sleeping, None, failing)

    assert [str(failure) for failure in failures] == ["x"]
    assert tasks.others() == []
