"""
A loop that was blocked is told of once, its recovery once; one that was only busy is not told of.

A loop that is blocked is reported while it is, once, with the stack of what blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from traceback import FrameSummary
from typing import Any

import pytest
import pytest_asyncio

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.consumer.dispatch import orderly, stall_watch
from rmq.consumer.dispatch.stall_watch import (
    EVERY_S,
    LOOK_AGAIN_S,
    MAX_FRAMES,
    OURS,
    Blockage,
    LoopLag,
    LoopWatcher,
    StallWatch,
    users,
)
from rmq.consumer.fetch import puller
from rmq.runtime.clock import boottime

from ..fake_broker import FakeBroker
from ..recorder import now
from rigs.virtual_time import VirtualTimeLoop

EPS = 1e-6


# The rule
@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize(("late_s", "stalled"), [(5 - EPS, False), (5.0, False), (5 + EPS, True)])
def test_dispatch_stops_when_the_next_tick_is_late_by_more_than_the_limit(late_s: float, stalled: bool) -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)

    assert lag.stalled(EVERY_S + late_s) is stalled
    assert lag.lag_s(EVERY_S + late_s) == pytest.approx(late_s)


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize(("late_s", "stalled"), [(5 - EPS, False), (5.0, False), (5 + EPS, True)])
def test_dispatch_goes_on_with_the_first_punctual_tick_after_a_late_one(late_s: float, stalled: bool) -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)
    at = EVERY_S + late_s

    assert lag.tick(at) == LOOK_AGAIN_S
    assert lag.stalled(at) is stalled
    assert lag.stalled(at + LOOK_AGAIN_S) is stalled  # nothing was measured since

    lag.tick(at + LOOK_AGAIN_S)
    assert not lag.stalled(at + LOOK_AGAIN_S)


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
def test_nothing_is_late_before_anybody_ticks() -> None:
    assert LoopLag(5.0).lag_s(1000.0) == 0.0


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize(("late_s", "told"), [(0.5 - EPS, False), (0.5, False), (0.5 + EPS, True)])
def test_a_tick_that_is_half_a_second_late_is_not_worth_a_word(late_s: float, told: bool) -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)

    lag.tick(EVERY_S + late_s)

    assert (lag.stall is not None) is told


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
def test_a_stall_ends_with_a_punctual_tick_after_a_whole_second() -> None:
    lag = LoopLag(5.0)
    lag.begin(0.0)
    lag.tick(4.0)
    lag.tick(4.0 + LOOK_AGAIN_S)
    assert lag.stall is not None
    lag.tick(5.0 + LOOK_AGAIN_S + 2.0)  # again: the same stall

    assert lag.stall == pytest.approx((1.0, 3.0))
    at = 5.0 + LOOK_AGAIN_S + 2.0 + LOOK_AGAIN_S
    lag.tick(at)
    lag.tick(at + EVERY_S)
    assert lag.stall is None


# The task


@pytest_asyncio.fixture
async def watch_plain() -> AsyncIterator[StallWatch]:
    watch_plain = StallWatch(5.0, now=now)
    ticking = asyncio.ensure_future(watch_plain.run())
    yield watch_plain
    ticking.cancel()
    await asyncio.wait([ticking])


def block(seconds: float) -> None:
    """What a listener that blocks does to every timer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.now += seconds


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split()[0] for record in caplog.records]


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize(
    ("blocked_s", "events"), [(3.5, ["loop.stalled", "loop.recovered"]), (0.9, [])], ids=["blocked", "busy"]
)
async def test_a_blocked_loop_is_told_of_once_and_its_recovery_once(
    watch_plain: StallWatch, blocked_s: float, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.sleep(10.5)

    with caplog.at_level(logging.WARNING):
        block(blocked_s)
        await asyncio.sleep(10)

    assert told(caplog) == events


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_a_listener_that_blocks_again_and_again_is_one_stall(
    watch_plain: StallWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            await asyncio.sleep(0.3)
            block(6.0)
        await asyncio.sleep(3)

    assert told(caplog) == ["loop.stalled", "loop.recovered"]
    assert "longest_s=5.3" in caplog.text


@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
async def test_the_lag_grows_while_nothing_runs_and_is_gone_soon_after(watch_plain: StallWatch) -> None:
    await asyncio.sleep(0.5)
    assert (watch_plain.lag_s, watch_plain.stalled(now())) == (0.0, False)

    block(6.0)  # 5.5 s beyond the tick, which had no chance yet
    assert watch_plain.lag_s == pytest.approx(5.5)
    assert watch_plain.stalled(now())

    await asyncio.sleep(LOOK_AGAIN_S + EPS)
    assert watch_plain.lag_s == pytest.approx(0.0, abs=1e-3)
    assert not watch_plain.stalled(now())


# Dispatch
@pytest.mark.virtual_time
@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize(("blocks_s", "next_at"), [(5.5 - 0.01, 5.99), (5.5 + 0.01, 6.01 + LOOK_AGAIN_S)])
async def test_no_batch_starts_while_the_loop_is_late_by_more_than_the_limit(
    broker: FakeBroker, make: Callable[..., Consumer], blocks_s: float, next_at: float
) -> None:
    """A call at 0.5 s blocks; the tick of 1 s is late by that less 0.5 s, so the limit of 5 s is just kept or not."""
    broker.create("t", 2)
    calls: list[tuple[float, int]] = []

    async def listener(messages: Any, context: ConsumeContext) -> ConsumeStatus:
        calls.append((round(now(), 2), context.queue.queue_id))
        if len(calls) == 1:
            block(blocks_s)
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}, max_continuous_s=3600.0):
        await asyncio.sleep(0.5)
        broker.send("t", 0, b"a", b"b")
        await asyncio.sleep(blocks_s + 2)

    (first, second) = calls
    assert first == (0.5, 0)
    assert second[0] == pytest.approx(next_at, abs=0.03)  # whoever found the loop late comes back every 10 ms


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
        ([(1, -0.5, False), (101, 99.5, False), (102, 100.5, False)], [False, False, False]),
        ([(1, -0.5, False), *((101 + i, 99.5 + i, False) for i in range(7))], [False] * 7 + [True]),
        ([(1, 4.0, False), (4, 7.0, False)], [False, False]),
        ([(1, 4.0, False), (2.5, 5.5 + EPS, False)], [False, True]),
    ],
    ids=[
        "at exactly the limit it is not blocked", "beyond it it is", "it is reported once",
        "blocked again in the same stall, it is not reported again", "in another stall it is",
        "a process that was stopped has not blocked its loop", "the next tick may be due a second after a suspension",
        "a loop that is still blocked afterwards is reported",
        "the time in which nobody looked does not count", "what is left of it does",
    ],
)  # fmt: skip
def test_a_blocked_loop_is_reported_once_for_each_stall(
    looks: list[tuple[float, float, bool]], reports: list[bool]
) -> None:
    blockage = Blockage(5.0, EVERY_S, 0.0)

    assert [blockage.look(at, overdue_s=late, in_stall=stall) for at, late, stall in looks] == reports


@pytest.mark.parametrize(("limit_s", "every_s"), [(0.1, 0.05), (1.0, 0.25), (5.0, 1.0), (3600.0, 1.0)])
def test_it_is_looked_at_several_times_within_the_limit_and_never_more_often_than_needed(
    limit_s: float, every_s: float
) -> None:
    assert Blockage(limit_s, EVERY_S, 0.0).every_s == every_s


# The stack


def frame(path: str, name: str) -> FrameSummary:
    return FrameSummary(path, 1, name, line="")


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        ([f"{OURS[1]}/events.py", orderly.__file__, "/app/pay.py", "/lib/db.py"], ["/app/pay.py", "/lib/db.py"]),
        (["/app/main.py", f"{OURS[1]}/events.py", "/app/task.py"], ["/app/task.py"]),
        ([f"{OURS[1]}/events.py", "/lib/selectors.py"], ["/lib/selectors.py"]),
        (["/app/main.py", puller.__file__], ["/app/main.py", puller.__file__]),
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

    assert stall_watch.stack_of(thread.ident or 0) == ""


# Ticks and looks together: under a virtual clock, by which the thread itself hardly ever looks


def look(watch: StallWatch) -> None:
    """Look from another thread, as the watcher does."""
    assert watch.watcher is not None
    looking = threading.Thread(target=watch.watcher.look)
    looking.start()
    looking.join()


def virtual() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


async def ended(*ticking: asyncio.Task[None]) -> None:
    for task in ticking:
        task.cancel()
    await asyncio.wait(ticking)


@pytest.mark.virtual_time
async def test_what_blocks_is_logged_with_its_stack_and_the_stall_is_not_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = virtual()
    watch = StallWatch(5.0, now=loop.time, group="billing", calls=lambda: ["orders/0", "orders/3"], by_thread=True)
    ticking = asyncio.create_task(watch.run())
    await asyncio.sleep(EVERY_S / 2)

    def pay_slowly() -> None:
        for _ in range(9):
            loop.now += 1.0
            look(watch)

    with caplog.at_level(logging.WARNING):
        pay_slowly()
        await asyncio.sleep(5.0)
        await ended(ticking)

    blocked, recovered = [record.getMessage() for record in caplog.records]
    head, *stack = blocked.splitlines()
    assert head.startswith("loop.blocked group=billing queues='orders/0, orders/3' seconds=5.5 advice='a listener that")
    assert any("in pay_slowly" in line for line in stack)
    assert not any("asyncio/" in line for line in stack)
    assert recovered.startswith("loop.recovered")


@pytest.mark.virtual_time
async def test_a_blocked_loop_of_several_consumers_is_logged_once_with_the_name_of_each_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, ticking = virtual(), []
    watches = [
        StallWatch(limit_s, now=loop.time, group=group, calls=partial(list, [f"{group}/0"]), by_thread=True)
        for group, limit_s in (("pay", 60.0), ("mail", 5.0), ("audit", 10.0))
    ]
    for watch in watches:
        ticking.append(asyncio.create_task(watch.run()))
        await asyncio.sleep(EVERY_S / 4)

    with caplog.at_level(logging.WARNING):
        for _ in range(70):
            loop.now += 1.0
            look(watches[0])
        await asyncio.sleep(0.05)
        for _ in range(8):  # it blocks again before it has caught up
            loop.now += 1.0
            look(watches[0])
        await asyncio.sleep(5.0)
        await ended(*ticking)

    (blocked,) = [record.getMessage() for record in caplog.records if "loop.blocked" in record.getMessage()]
    assert "group='audit, mail, pay' queues='pay/0, mail/0, audit/0' seconds=5." in blocked
    assert "loop.stalled" not in caplog.text


@pytest.mark.virtual_time
@pytest.mark.parametrize("limit_s", [0.1, 1.0, 5.0])
async def test_a_machine_that_was_suspended_has_not_blocked_its_loop(
    limit_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Timers of the loop stand still while it is suspended, and our clock goes on."""
    loop, suspended_s = virtual(), 0.0
    watch = StallWatch(limit_s, now=lambda: loop.time() + suspended_s, by_thread=True)
    ticking = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    assert watch.watcher is not None
    with caplog.at_level(logging.WARNING):
        for step in range(20):
            await asyncio.sleep(watch.watcher.blockage.every_s)
            if step == 5:
                suspended_s = 3600.0
            look(watch)
        await ended(ticking)

    assert "loop.blocked" not in caplog.text


# The thread


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rmq loop watcher"]


@pytest.fixture
def no_watcher_yet() -> None:
    """Nobody waits for the thread of a consumer that was stopped, so those of tests before may still be ending."""
    for thread in watchers():
        thread.join(10.0)


@pytest.mark.usefixtures("no_watcher_yet")
def test_a_thread_ends_with_a_loop_that_was_closed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave() -> None:
        monkeypatch.setattr(LoopWatcher, "remove", lambda self, watch: None)
        watching = asyncio.create_task(StallWatch(0.1, now=boottime, by_thread=True).run())
        await asyncio.sleep(0)
        assert len(watchers()) == 1
        watching.cancel()

    asyncio.run(leave())
    for thread in watchers():
        thread.join(10.0)

    assert watchers() == []


@pytest.mark.usefixtures("no_watcher_yet")
@pytest.mark.parametrize("by_thread", [False, True])
async def test_one_thread_lives_as_long_as_the_ticks_of_any_consumer_and_only_if_it_is_wanted(by_thread: bool) -> None:
    for _ in range(2):
        ticking = [asyncio.create_task(StallWatch(5.0, now=boottime, by_thread=by_thread).run()) for _ in range(3)]
        await asyncio.sleep(0)
        threads = watchers()
        assert len(threads) == by_thread

        for left in (2, 1, 0):
            await ended(ticking.pop())
            for thread in threads:
                await asyncio.to_thread(thread.join, 0.05 if left else 10.0)
            assert len(watchers()) == (by_thread and left > 0)


async def test_the_loops_of_several_threads_have_a_watcher_each() -> None:
    async def watched() -> tuple[asyncio.Task[None], LoopWatcher | None]:
        watch = StallWatch(5.0, now=boottime, by_thread=True)
        ticking = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        return ticking, watch.watcher

    async def elsewhere() -> LoopWatcher | None:
        ticking, watcher = await watched()
        await ended(ticking)
        return watcher

    ticking, here = await watched()
    there = [await asyncio.to_thread(asyncio.run, elsewhere()) for _ in range(2)]
    await ended(ticking)

    assert len({here, *there}) == 3


async def test_a_loop_that_no_thread_can_watch_is_reported_and_ticks_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    ticking = asyncio.create_task(StallWatch(5.0, now=boottime, by_thread=True).run())
    await asyncio.sleep(0)
    assert not ticking.done()
    ticking.cancel()

    assert "loop.not_watched" in caplog.text
