"""The marks of a generation, and who is woken by them."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import ConsumeGuard, Generation, Lease, Lost
from rmq.wire.model import MessageQueue

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def generation(lost: list[str] | None = None) -> Generation:
    told = [] if lost is None else lost
    return Generation(Lease(MessageQueue("t", 0), 7, 0.0), ProcessQueue(0), on_lost=lambda _, why: told.append(why))


async def test_a_flag_is_true_once_it_is_set() -> None:
    lost = Lost()
    assert not lost
    lost.set()
    assert lost


async def test_a_flag_is_true_by_the_clock_before_anybody_has_set_it() -> None:
    clock = {"expired": False}
    one = generation()
    one.watched(lambda: clock["expired"])
    assert not one.lost

    clock["expired"] = True

    assert one.lost
    assert one.lost.is_set()
    assert not one.lost.told
    assert await one.lost.wait()


async def test_a_proof_renews_the_flag_which_goes_on_reading_the_clock() -> None:
    clock = {"expired": True}
    one = generation()
    one.watched(lambda: clock["expired"])
    one.lost.set()

    clock["expired"] = False
    one.resumed()
    assert not one.lost

    clock["expired"] = True
    assert one.lost


async def test_losing_drops_and_tells_once() -> None:
    told: list[str] = []
    one = generation(told)

    one.lose("fenced")
    one.lose("again")

    assert (one.dropped, one.lease.lost, bool(one.lost), told) == (True, True, True, ["fenced"])


async def test_a_doubt_ends_with_a_proof_and_a_loss_does_not() -> None:
    doubted, gone = generation(), generation()
    doubted.lost.set()
    gone.lose("fenced")

    doubted.resumed()
    gone.resumed()

    assert not doubted.lost
    assert gone.lost


async def test_a_drop_wakes_whoever_waits_for_work() -> None:
    one = generation()
    working = asyncio.ensure_future(one.work())
    await asyncio.sleep(1)

    one.arrived()  # for nothing
    await asyncio.sleep(1)
    assert not working.done()
    one.drop()

    assert await working is False


async def test_a_pause_is_cut_short_by_a_drop_only() -> None:
    one = generation()
    pausing = asyncio.ensure_future(one.pause(10))
    await asyncio.sleep(1)
    one.arrived()
    one.resumed()
    await asyncio.sleep(1)
    assert not pausing.done()

    one.drop()
    await pausing
    assert asyncio.get_running_loop().time() == 2.0


@pytest.mark.parametrize("event", ["resumed", "drop", "time"])
async def test_a_wait_for_a_proof_ends_with_it_with_a_drop_or_in_time(event: str) -> None:
    one = generation()
    waiting = asyncio.ensure_future(one.wait_resumed(10))
    await asyncio.sleep(1)
    if event != "time":
        getattr(one, event)()

    await waiting

    assert asyncio.get_running_loop().time() == (10.0 if event == "time" else 1.0)
    one.drop()
    await one.wait_resumed(10)
    assert asyncio.get_running_loop().time() == (10.0 if event == "time" else 1.0)


async def test_a_free_guard_is_not_waited_for_and_a_cancelled_wait_leaves_the_others() -> None:
    guard = ConsumeGuard()
    await guard.free()

    guard.since = 0.0
    first, second = asyncio.ensure_future(guard.free()), asyncio.ensure_future(guard.free())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    guard.release()
    await second

    assert guard.waiters == []


async def test_a_guard_taken_again_before_the_waiter_runs_is_waited_for_again() -> None:
    guard = ConsumeGuard()
    guard.since = 0.0
    waiting = asyncio.ensure_future(guard.free())
    await asyncio.sleep(0)

    guard.release()
    guard.since = 0.0
    await asyncio.sleep(1)
    assert not waiting.done()
    guard.release()
    await waiting


async def test_a_running_call_shows_since_when_and_one_that_is_recorded_does_not() -> None:
    one = generation()
    assert one.called_at is None

    one.guard.since = 5.0
    assert one.called_at == 5.0
    one.guard.recording = True
    assert (one.called_at, one.guard.held) == (None, True)
    one.guard.release()
    assert (one.called_at, one.guard.held, one.guard.recording) == (None, False, False)


@pytest.mark.parametrize(
    ("cancels", "since", "recording"), [(False, 1.0, False), (True, None, False), (True, 1.0, True)]
)
async def test_only_a_running_call_that_may_be_is_cancelled_by_a_loss(
    cancels: bool, since: float | None, recording: bool
) -> None:
    one = generation()
    one.owner = asyncio.ensure_future(asyncio.sleep(1))
    one.interrupt = one.cancel_owner if cancels else None
    one.guard.since, one.guard.recording = since, recording

    one.lost.set()

    await one.owner
    assert not one.interrupted


async def test_a_running_call_is_cancelled_once_however_often_it_is_told() -> None:
    one = generation()
    one.owner = asyncio.ensure_future(asyncio.sleep(1))
    one.interrupt, one.guard.since = one.cancel_owner, 0.0

    one.lost.set()
    one.lose("fenced")

    assert one.owner.cancelling() == 1
    await asyncio.wait([one.owner])
    assert one.owner.cancelled()


async def test_halted_is_dropped_or_paused() -> None:
    one = generation()

    states = [one.halted]
    one.set_paused(True)
    states.append(one.halted)
    one.set_paused(False)
    states.append(one.halted)
    one.drop()
    one.set_paused(False)
    states.append(one.halted)

    assert states == [False, True, False, True]
