"""A loop that is blocked is reported while it is, once, with the stack of what blocks it."""

from __future__ import annotations

import asyncio
import logging
import threading
from traceback import FrameSummary

import pytest

from rmq.consumer import blocked_loop
from rmq.consumer.blocked_loop import MAX_FRAMES, OURS, Blockage, LoopWatcher, users
from rmq.consumer.stall_watch import EVERY_S, StallWatch

from .recorder import now
from support.virtual_time import VirtualTimeLoop

EPS = 1e-6


# The rule


@pytest.mark.parametrize(
    ("looks", "reports"),
    [
        # (now, overdue by, in a stall) each
        ([(1, 0.0, False), (2, 5.0, False)], [False, False]),
        ([(1, 4.5, False), (2, 5.5, False)], [False, True]),
        ([(1, 5.5, False), (2, 6.5, False), (3, 7.5, False)], [True, False, False]),
        ([(1, 5.5, False), (2, -0.5, True), (3, 6.0, True)], [True, False, False]),
        ([(1, 5.5, False), (2, -0.5, True), (3, -0.5, False), (4, 5.5, False)], [True, False, False, True]),
        ([(1, -0.5, False), (101, 99.5, False)], [False, False]),
        ([(1, -0.5, False), (101, 99.5, False), (102, 100.5, False)], [False, False, True]),
        ([(1, 4.0, False), (4, 7.0, False)], [False, False]),
        ([(1, 4.0, False), (2.5, 5.5 + EPS, False)], [False, True]),
    ],
    ids=[
        "at exactly the limit it is not blocked", "beyond it it is", "it is reported once",
        "blocked again in the same stall, it is not reported again", "in another stall it is",
        "a process that was stopped has not blocked its loop", "unless the loop is still blocked afterwards",
        "the time in which nobody looked does not count", "what is left of it does",
    ],
)  # fmt: skip
def test_a_blocked_loop_is_reported_once_for_each_stall(
    looks: list[tuple[float, float, bool]], reports: list[bool]
) -> None:
    blockage = Blockage(5.0)
    blockage.look(0.0, overdue_s=-1.0, in_stall=False)

    assert [blockage.look(at, overdue_s=late, in_stall=stall) for at, late, stall in looks] == reports


@pytest.mark.parametrize(("limit_s", "every_s"), [(0.1, 0.05), (1.0, 0.25), (5.0, 1.0), (3600.0, 1.0)])
def test_it_is_looked_at_several_times_within_the_limit_and_never_more_often_than_needed(
    limit_s: float, every_s: float
) -> None:
    assert Blockage(limit_s).every_s == every_s


# The stack


def frame(path: str, name: str) -> FrameSummary:
    return FrameSummary(path, 1, name, line="")


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        ([f"{OURS[1]}/events.py", f"{OURS[0]}/orderly.py", "/app/pay.py", "/lib/db.py"], ["/app/pay.py", "/lib/db.py"]),
        (["/app/main.py", f"{OURS[1]}/events.py", "/app/task.py"], ["/app/task.py"]),
        ([f"{OURS[1]}/events.py", "/lib/selectors.py"], ["/lib/selectors.py"]),
        (["/app/main.py", f"{OURS[0]}/intake.py"], ["/app/main.py", f"{OURS[0]}/intake.py"]),
        (["/app/main.py"], ["/app/main.py"]),
        ([f"/app/{i}.py" for i in range(MAX_FRAMES + 3)], [f"/app/{i}.py" for i in range(3, MAX_FRAMES + 3)]),
    ],
    ids=["a listener", "another task", "nothing of the user", "our own code", "no loop", "the innermost of many"],
)
def test_a_stack_begins_where_the_code_of_the_user_does(stack: list[str], shown: list[str]) -> None:
    assert [found.filename for found in users([frame(path, "f") for path in stack])] == shown


def test_a_thread_that_has_ended_has_no_stack() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

    assert blocked_loop.stack_of(thread.ident or 0) == ""


# Ticks and looks together


@pytest.mark.virtual_time
async def test_what_blocks_is_logged_with_its_stack_and_the_stall_is_not_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    watch = StallWatch(5.0, now=loop.time, group="billing", calls=lambda: ["orders/0", "orders/3"])
    ticking = asyncio.create_task(watch.run())
    await asyncio.sleep(EVERY_S / 2)

    def pay_slowly() -> None:
        for _ in range(9):
            loop.now += 1.0
            looking = threading.Thread(target=watch.look, args=(threading.get_ident(),))
            looking.start()
            looking.join()

    with caplog.at_level(logging.WARNING):
        pay_slowly()
        await asyncio.sleep(5.0)
        ticking.cancel()
        await asyncio.wait([ticking])

    blocked, recovered = [record.getMessage() for record in caplog.records]
    head, *stack = blocked.splitlines()
    assert head.startswith("loop.blocked group=billing queues='orders/0, orders/3' seconds=5.5 advice='a listener that")
    assert any("in pay_slowly" in line for line in stack)
    assert not any("asyncio/" in line for line in stack)
    assert recovered.startswith("loop.recovered")


# The thread


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rmq loop watcher"]


async def test_a_thread_looks_at_the_thread_of_the_loop_until_it_is_stopped() -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Queue[int]()
    watcher = LoopWatcher(0.001, lambda thread: loop.call_soon_threadsafe(seen.put_nowait, thread))
    (thread,) = watchers()

    assert [await seen.get(), await seen.get()] == [threading.get_ident()] * 2
    watcher.stop()
    await asyncio.to_thread(thread.join, 10.0)

    assert not thread.is_alive()
    assert thread.daemon


def test_a_thread_ends_with_a_loop_that_was_closed_without_a_word() -> None:
    async def leave() -> None:
        LoopWatcher(0.001, lambda _: None)

    asyncio.run(leave())
    for thread in watchers():
        thread.join(10.0)

    assert watchers() == []


@pytest.mark.parametrize("by_thread", [False, True])
async def test_the_thread_lives_as_long_as_the_ticks_and_only_if_it_is_wanted(by_thread: bool) -> None:
    ticking = asyncio.create_task(StallWatch(5.0, now=now, by_thread=by_thread).run())
    await asyncio.sleep(0)

    threads = watchers()
    ticking.cancel()
    await asyncio.wait([ticking])
    for thread in threads:
        await asyncio.to_thread(thread.join, 10.0)

    assert len(threads) == by_thread
    assert watchers() == []


async def test_a_loop_that_no_thread_can_watch_is_reported_and_ticks_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    ticking = asyncio.create_task(StallWatch(5.0, now=now, by_thread=True).run())
    await asyncio.sleep(0)
    assert not ticking.done()
    ticking.cancel()

    assert "loop.not_watched" in caplog.text
