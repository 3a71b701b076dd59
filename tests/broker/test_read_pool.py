from __future__ import annotations

import asyncio
import threading

import pytest

from rmq.broker.read_pool import MAX_WAITING, ReadPool
from rmq.wire.errors import TooManyInFlight


async def test_a_job_runs_in_a_thread_and_its_result_is_told_on_the_loop() -> None:
    loop = asyncio.get_running_loop()
    pool, told = ReadPool(loop, name="reader"), loop.create_future()

    pool.submit(
        lambda: threading.current_thread().name, lambda name: told.set_result((name, threading.current_thread().name))
    )
    assert len(pool) == 1
    ran_in, told_in = await told

    assert ran_in.startswith("reader")
    assert told_in == threading.main_thread().name
    assert len(pool) == 0
    pool.close()


async def test_what_a_job_raises_is_its_result() -> None:
    loop = asyncio.get_running_loop()
    pool, told = ReadPool(loop), loop.create_future()

    def broken() -> None:
        raise OSError("a bad place")

    pool.submit(broken, told.set_result)

    assert isinstance(await told, OSError)
    assert len(pool) == 0
    pool.close()


async def test_more_jobs_than_may_wait_are_refused() -> None:
    loop = asyncio.get_running_loop()
    pool, gate = ReadPool(loop, 1), threading.Event()
    ended: list[object] = []
    for _ in range(MAX_WAITING):
        pool.submit(gate.wait, ended.append)

    with pytest.raises(TooManyInFlight):
        pool.submit(gate.wait, ended.append)
    gate.set()
    while len(ended) < MAX_WAITING:
        await asyncio.sleep(0)

    assert len(pool) == 0
    pool.close()


async def test_closing_lets_running_jobs_end_and_drops_those_that_wait() -> None:
    loop = asyncio.get_running_loop()
    pool, started, gate = ReadPool(loop, 1), threading.Event(), threading.Event()
    ended: list[object] = []

    def job() -> str:
        started.set()
        gate.wait()
        return "done"

    for _ in range(5):
        pool.submit(job, ended.append)
    started.wait()
    loop.call_later(0.0, gate.set)
    await loop.run_in_executor(None, pool.close)
    for _ in range(10):
        await asyncio.sleep(0)

    assert ended == ["done"]
