"""Jobs in threads, answers on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from rmq.broker.jobs.read_pool import ReadPool
from rmq.wire.errors import TooManyInFlight


@pytest.fixture
async def pool() -> AsyncIterator[ReadPool]:
    pool = ReadPool(asyncio.get_running_loop(), threads=1, most=3)
    yield pool
    await asyncio.to_thread(pool.close)


@pytest.mark.both_loops
async def test_a_job_runs_in_a_thread_and_its_answer_comes_on_the_loop(pool: ReadPool) -> None:
    came: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    pool.submit(threading.get_ident, lambda worker: came.set_result((worker, threading.get_ident())))  # type: ignore[arg-type]

    worker, here = await came

    assert here == threading.get_ident() != worker
    assert pool.jobs == 0


async def test_what_a_job_raises_is_its_answer(pool: ReadPool) -> None:
    came: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    pool.submit(lambda: 1 // 0, came.set_result)

    assert isinstance(await came, ZeroDivisionError)


async def test_beyond_a_number_of_jobs_the_next_is_refused(pool: ReadPool) -> None:
    go, ended = threading.Event(), asyncio.Event()
    done: list[object] = []
    for _ in range(3):
        pool.submit(go.wait, lambda answer: (done.append(answer), len(done) == 3 and ended.set()))  # type: ignore[func-returns-value,arg-type,return-value]

    with pytest.raises(TooManyInFlight, match="3 reads of the disk wait already"):
        pool.submit(go.wait, done.append)
    go.set()
    await ended.wait()

    assert (done, pool.jobs) == ([True] * 3, 0)


async def test_a_closed_pool_ends_what_runs_and_begins_nothing(pool: ReadPool) -> None:
    began, go = threading.Event(), threading.Event()
    done: list[object] = []

    def first() -> str:
        began.set()
        go.wait()
        return "first"

    pool.submit(first, done.append)
    pool.submit(lambda: "second", done.append)
    await asyncio.to_thread(began.wait)
    closing = asyncio.create_task(asyncio.to_thread(pool.close))
    while pool.jobs == 2:  # what waited is given up at once
        await asyncio.sleep(0)
    go.set()
    await closing
    await asyncio.sleep(0)

    assert done == ["first"]
    assert pool.jobs == 0


@pytest.mark.virtual_time
async def test_the_clock_of_a_test_waits_for_jobs(pool: ReadPool) -> None:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[object] = loop.create_future()
    pool.submit(lambda: 7, came.set_result)

    assert (await asyncio.wait_for(came, 0.001), loop.time()) == (7, 0.0)
