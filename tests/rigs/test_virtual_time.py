"""The virtual clock itself: it jumps when it may, waits when it must, and fails where a real loop would hang."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import pytest
import uvloop

from rigs import virtual_time
from rigs.virtual_time import CountsThreads, Deadlock, VirtualTimeLoop


def running() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


class Worker:
    """A plain thread that runs what it is handed and posts a callback, as a flusher does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while (job := self.work.get()) is not None:
            self.loop.call_soon_threadsafe(job)

    def stop(self) -> None:
        self.work.put(None)
        self.thread.join()


@pytest.mark.virtual_time
async def test_an_hour_passes_at_once_and_exactly() -> None:
    started = perf_counter()

    await asyncio.sleep(3600.0)

    assert asyncio.get_running_loop().time() == 3600.0
    assert perf_counter() - started < 5


@pytest.mark.virtual_time
async def test_the_clock_hits_each_timer_exactly() -> None:
    loop = running()
    seen: list[float] = []
    whens = [0.1 * n for n in range(1, 700)]
    for when in whens:
        loop.call_at(when, lambda: seen.append(loop.time()))

    await asyncio.sleep(100)

    assert seen == whens


@pytest.mark.virtual_time
async def test_a_timer_is_not_run_early_because_of_another_a_hair_before_it() -> None:
    loop = running()
    seen: list[float] = []
    hair = sum([0.2] * 300)  # what many small steps come to
    assert 0 < abs(hair - 60.0) < 1e-9
    whens = sorted([hair, 60.0, 1e6, 1e6 + 1e-9])
    for when in whens:
        loop.call_at(when, lambda: seen.append(loop.time()))

    await asyncio.sleep(2e6)

    assert seen == whens


@pytest.mark.virtual_time
async def test_longer_than_a_day_is_not_cut_short() -> None:
    await asyncio.sleep(200_000.5)

    assert running().time() == 200_000.5


@pytest.mark.virtual_time
async def test_timers_run_in_their_order_and_time_outs_at_their_time() -> None:
    seen: list[str] = []

    async def tick(name: str, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            seen.append(f"{name}@{running().time():g}")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(61):
            await asyncio.gather(tick("relock", 20), tick("window", 60))

    assert running().time() == 61
    assert seen == ["relock@20", "relock@40", "window@60", "relock@60"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("size", [50, 200_000])
async def test_sockets_inside_the_process_take_no_time(size: int) -> None:
    loop = running()
    ticker = asyncio.create_task(asyncio.sleep(20))
    left, right = socket.socketpair()
    reader, receiving = await asyncio.open_connection(sock=left)
    _, writer = await asyncio.open_connection(sock=right)

    for _ in range(20):
        writer.write(b"x" * size)
        assert await reader.readexactly(size) == b"x" * size

    assert loop.time() == 0
    ticker.cancel()
    for end in (writer, receiving):
        end.close()
        await end.wait_closed()


@pytest.mark.virtual_time
async def test_executor_threads_hold_the_clock() -> None:
    loop = running()
    release = threading.Event()
    ticker = asyncio.create_task(asyncio.sleep(1))
    threading.Timer(0.05, release.set).start()

    assert await asyncio.to_thread(release.wait, 10)
    with ThreadPoolExecutor(1) as pool:
        assert await loop.run_in_executor(pool, sum, [1, 2]) == 3

    assert loop.time() == 0
    await ticker
    assert loop.time() == 1
    assert loop.threads_busy == 0


@pytest.mark.virtual_time
async def test_a_thread_is_counted_until_it_ends_though_its_awaiter_was_cancelled() -> None:
    loop = running()
    entered, release = asyncio.Event(), threading.Event()

    def listener() -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(10)

    task = asyncio.create_task(asyncio.to_thread(listener))
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])

    assert loop.threads_busy == 1
    threading.Timer(0.05, release.set).start()
    await asyncio.sleep(1)
    assert release.is_set()
    assert loop.threads_busy == 0


@pytest.mark.virtual_time
async def test_a_plain_thread_that_is_counted_holds_the_clock() -> None:
    loop = running()
    worker = Worker(loop)
    ticker = asyncio.create_task(asyncio.sleep(0.001))

    for _ in range(200):
        done = asyncio.Event()
        loop.threads_busy += 1

        def finish(done: asyncio.Event = done) -> None:
            loop.threads_busy -= 1
            done.set()

        worker.work.put(finish)
        await done.wait()
        with loop.thread_busy():
            again = asyncio.Event()
            worker.work.put(again.set)
            await again.wait()

    assert loop.time() == 0
    worker.stop()
    await ticker


@pytest.mark.virtual_time
async def test_threads_count_themselves_from_outside() -> None:
    loop = running()
    seen: list[float] = []
    release = threading.Event()

    def flush() -> None:
        release.wait(10)
        loop.call_soon_threadsafe(lambda: seen.append(loop.time()))
        loop.thread_ended()

    loop.thread_started()
    thread = threading.Thread(target=flush)
    thread.start()
    threading.Timer(0.05, release.set).start()
    await asyncio.sleep(5)
    thread.join()

    assert seen == [0]
    assert loop.time() == 5


def test_a_lost_wake_up_fails_and_names_who_waits() -> None:
    async def consumer_of_nothing() -> None:
        await asyncio.sleep(7)
        await asyncio.Event().wait()

    with (
        pytest.raises(Deadlock, match=r"at 7 s nothing can run.*\n.*consumer_of_nothing at .*test_virtual_time"),
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(consumer_of_nothing())


def test_a_silent_thread_fails_instead_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "THREAD_LIMIT_S", 0.05)

    async def wait_for_nobody() -> None:
        running().threads_busy += 1
        await asyncio.sleep(1)

    with (
        pytest.raises(Deadlock, match=r"1 busy thread\(s\), silent for 0.05 real seconds"),
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(wait_for_nobody())


def test_only_the_virtual_loop_counts_threads() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert isinstance(runner.get_loop(), CountsThreads)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert not isinstance(runner.get_loop(), CountsThreads)


async def test_the_default_loop_is_uvloop() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)


LOOPS_SEEN: list[type] = []


@pytest.mark.both_loops
async def test_both_loops_run_a_marked_test() -> None:
    LOOPS_SEEN.append(type(asyncio.get_running_loop()))

    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


def test_both_loops_were_two() -> None:
    assert len(set(LOOPS_SEEN)) == 2
