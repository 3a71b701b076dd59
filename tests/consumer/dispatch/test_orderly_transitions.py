"""The life of an owner, row by row: each state, what ends it, what comes next, and after which time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.wire.errors import RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now
from .test_orderly import Harness

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


class Leased(Harness):
    """A scheduler whose lease is believed in as a test says; renewals are noted and answered from a script."""

    def __init__(self, listener: Any, *, until: float = float("inf"), **settings: Any) -> None:
        super().__init__(listener, **settings)
        self.until = until
        self.renewals: list[float] = []
        self.answers: list[float] = []  # until when the next renewals have it believed in

    def believed_until(self, generation: Any) -> float:
        return self.until

    def believed(self, generation: Any) -> bool:
        return now() <= self.until

    async def renew_one(self, generation: Any) -> None:
        self.renewals.append(round(now(), 3))
        if self.answers:
            self.until = self.answers.pop(0)
            generation.resumed()


def rounded(times: list[float]) -> list[float]:
    return [round(at, 3) for at in times]


# IDLE -> READY -> RUNNING -> IDLE


async def test_an_idle_queue_runs_when_messages_arrive_and_is_idle_again_without_a_slot() -> None:
    listener = Recorder(takes_s=1.0)
    harness = Harness(listener, slots=1)
    generation = harness.generation(0)
    harness.scheduler.start(generation)
    await asyncio.sleep(2)
    assert (harness.scheduler.turns, harness.scheduler.gates.held()) == (0, [])

    harness.fill(generation, 2)
    await asyncio.sleep(0.5)
    assert (harness.scheduler.turns, harness.scheduler.gates.held()) == (1, [QUEUE])
    assert (generation.called_at, generation.retry_at) == (2.0, None)
    await asyncio.sleep(5)

    assert listener.times == [2.0, 3.0]  # batch after batch in one turn
    assert (harness.scheduler.turns, harness.scheduler.gates.held(), generation.called_at) == (0, [], None)
    await harness.end(generation)


async def test_two_owners_of_one_queue_never_call_at_the_same_time() -> None:
    """Forced double dispatch: the gate keeps them apart, whatever made there be two."""
    listener = Recorder(takes_s=1.0)
    harness = Harness(listener)
    one, two = harness.generation(5), harness.generation(5)
    harness.scheduler.start(one)
    harness.scheduler.start(two)
    await asyncio.sleep(30)

    assert listener.most == 1
    assert len(listener.calls) == 10
    await harness.end(one, two)


# READY, RUNNING -> LOCK_WAIT


async def test_a_turn_that_begins_without_a_proven_lease_asks_after_100_ms() -> None:
    listener = Recorder()
    harness = Leased(listener, until=-1.0)
    harness.answers = [float("inf")]
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)

    assert harness.renewals == [0.1]
    assert rounded(listener.times) == [0.1]
    await harness.end(generation)


async def test_a_turn_whose_lease_runs_out_between_batches_asks_after_10_ms() -> None:
    listener = Recorder(takes_s=1.0)
    harness = Leased(listener, until=1.5)
    harness.answers = [float("inf")]
    generation = harness.generation(3)
    harness.scheduler.start(generation)
    await asyncio.sleep(5)

    assert harness.renewals == [2.01]
    assert rounded(listener.times) == [0.0, 1.0, 2.01]
    await harness.end(generation)


async def test_a_lease_that_is_not_proven_is_asked_for_every_3_s_without_gate_or_slot() -> None:
    listener = Recorder()
    harness = Leased(listener, until=-1.0, slots=1)
    harness.answers = [-1.0, -1.0, float("inf")]
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)
    assert (harness.scheduler.turns, harness.scheduler.gates.held()) == (0, [])
    await asyncio.sleep(9)

    assert harness.renewals == [0.1, 3.1, 6.1]
    assert rounded(listener.times) == [6.1]
    await harness.end(generation)


# RUNNING -> YIELDED


@pytest.mark.parametrize(("takes_s", "second"), [(20.0 - 1e-6, 80.0), (20.0, 80.01), (20.0 + 1e-6, 60.01)])
async def test_the_window_is_looked_at_between_batches_and_is_strict(takes_s: float, second: float) -> None:
    """Three calls of just under, exactly and just over 20 s: only over 60 s in all does the turn end after them."""
    listener = Recorder(takes_s=takes_s)
    harness = Harness(listener)
    generation = harness.generation(5)
    harness.scheduler.start(generation)
    await asyncio.sleep(110)

    # The call that begins after a pause of 10 ms is the fourth, or the fifth.
    gaps = [b - a for a, b in zip(listener.times, listener.times[1:], strict=False)]
    at = next(i for i, gap in enumerate(gaps) if gap > takes_s + 0.005)
    assert listener.times[at + 1] == pytest.approx(second, abs=0.011)
    await harness.end(generation)


async def test_a_listener_is_never_interrupted_by_its_window() -> None:
    listener = Recorder(takes_s=200.0)
    harness = Harness(listener)
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await asyncio.sleep(250)

    assert listener.ended == [200.0]
    await harness.end(generation)


async def test_a_renewal_and_a_window_that_end_together_cost_one_pause(broker: FakeBroker, make: Make) -> None:
    """Renewals are at 1, 21, 41 and 61 s; the turn of 61 s calls ends with the last of them."""
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 3)
    listener = Recorder(takes_s=61.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(130)

    assert rounded(listener.times) == [0.0, 61.01, 122.02]
    assert broker.times(Op.RENEW)[:4] == [1.0, 21.0, 41.0, 61.0]
    assert len(broker.sent(Op.ACQUIRE)) == 1


# RUNNING -> RETRY_WAIT


@pytest.mark.parametrize(
    ("asked_s", "pause_s"),
    [(None, 1.0), (-1.0, 1.0), (0.005, 0.01), (0.01, 0.01), (2.5, 2.5), (30.0, 30.0), (99.999, 30)],
)
async def test_a_failed_batch_waits_its_pause_and_shows_when_it_is_due(asked_s: float | None, pause_s: float) -> None:
    def fail(context: ConsumeContext) -> ConsumeStatus:
        context.suspend_s = asked_s
        return SUSPEND

    listener = Recorder(fail)
    harness = Harness(listener)
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    await asyncio.sleep(0.001)
    assert generation.retry_at == pytest.approx(pause_s)
    assert (harness.scheduler.turns, harness.scheduler.gates.held()) == (0, [])
    await asyncio.sleep(31)

    assert listener.times == [0.0, pytest.approx(pause_s)]
    assert generation.retry_at is None
    await harness.end(generation)


async def test_new_messages_do_not_end_the_wait_of_a_failed_one() -> None:
    listener = Recorder(SUSPEND)
    harness = Harness(listener)
    generation = harness.generation(1)
    harness.scheduler.start(generation)
    for _ in range(9):
        await asyncio.sleep(0.1)
        generation.arrived()
    assert len(listener.calls) == 1
    await asyncio.sleep(1)

    assert listener.times == [0.0, 1.0]
    await harness.end(generation)


# any -> GONE


@pytest.mark.parametrize("state", ["idle", "retry", "lock", "yield", "slot"])
async def test_dropped_in_any_state_without_a_call_the_owner_ends_at_once_and_its_timer_does_nothing(
    state: str,
) -> None:
    listener = Recorder(*([SUSPEND] if state == "retry" else []), takes_s=61.0 if state == "yield" else 0.0)
    harness = Leased(listener, until=-1.0 if state == "lock" else float("inf"), slots=1)
    generation = harness.generation(0 if state == "idle" else 5)
    if state == "slot":
        await harness.scheduler._slots.acquire()
    harness.scheduler.start(generation)
    await asyncio.sleep(61.005 if state == "yield" else 0.05)
    calls = len(listener.calls)

    generation.drop()
    began = now()
    await harness.scheduler.finish(generation)
    assert now() == began
    assert generation.owner is not None
    assert generation.owner.done()
    await asyncio.sleep(100)

    assert len(listener.calls) == calls
    assert harness.renewals == []
    if state == "slot":
        harness.scheduler._slots.release()
    await harness.end(generation)


async def test_dropped_during_a_call_the_result_is_recorded_and_nothing_follows() -> None:
    listener = Recorder(takes_s=3.0)
    harness = Harness(listener)
    generation = harness.generation(3)
    harness.scheduler.start(generation)
    await asyncio.sleep(1)

    generation.drop()
    await harness.scheduler.finish(generation)

    assert (now(), listener.offsets, generation.cache.commit_offset) == (3.0, [0], 1)


# Fair turns


@pytest.mark.parametrize("share_s", [0.0, 0.1])
async def test_21_busy_queues_and_20_slots(broker: FakeBroker, make: Make, share_s: float) -> None:
    """Without shares the last queue waits for a window of 60 s; with them all get nearly the same."""
    broker.create("t", 21)
    for queue_id in range(21):
        broker.send("t", queue_id, *[b"x"] * 2000)
    listener = Recorder(takes_s=0.05)

    async with make(listener, topics={"t": "*"}, slots=20, turn_share_s=share_s):
        await asyncio.sleep(30)

    counts = Counter(queue_id for _, queue_id, _ in listener.calls)
    assert listener.most == 20
    if share_s:
        assert len(counts) == 21
        assert min(counts.values()) > 0.9 * max(counts.values())
    else:
        assert len(counts) == 20


# Statuses


def manual(status: ConsumeStatus) -> Any:
    def answer(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return status

    return answer


@pytest.mark.parametrize(
    ("answer", "committed", "in_flight", "second"),
    [
        (SUCCESS, 2, [], (0.0, [2])),
        (COMMIT, 2, [], (0.0, [2])),  # warned of
        (ROLLBACK, 1, [], (1.0, [1])),  # warned of, and taken as SUSPEND: RocketMQ commits here
        (SUSPEND, 1, [], (1.0, [1])),
        (manual(SUCCESS), 0, [0, 1], (0.0, [2])),
        (manual(COMMIT), 2, [], (0.0, [2])),
        (manual(ROLLBACK), 0, [], (1.0, [0])),
        (manual(SUSPEND), 0, [0], (1.0, [1])),
    ],
    ids=["success", "commit", "rollback", "suspend", "m-success", "m-commit", "m-rollback", "m-suspend"],
)
async def test_eight_cells_of_status_and_auto_commit(
    answer: Any, committed: int, in_flight: list[int], second: tuple[float, list[int]]
) -> None:
    """After a first message: what is committed and in flight then, and when what is given next."""
    before = manual(SUCCESS) if callable(answer) else SUCCESS
    states: list[tuple[int, list[int]]] = []

    def look(context: ConsumeContext) -> ConsumeStatus:
        states.append((generation.cache.commit_offset, [m.queue_offset for m in generation.cache.in_flight[:-1]]))
        return SUCCESS

    listener = Recorder(before, answer, look)
    harness = Harness(listener)
    generation = harness.generation(3)
    harness.scheduler.start(generation)
    await asyncio.sleep(5)

    assert states == [(committed, in_flight)]
    at, _, offsets = listener.calls[2]
    assert (at, offsets) == second
    await harness.end(generation)


async def test_with_random_delays_and_batches_every_queue_is_in_order_and_complete(
    broker: FakeBroker, make: Make
) -> None:
    rng = random.Random(7)
    seen: dict[MessageQueue, list[int]] = {}

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.3]))
        seen.setdefault(context.queue, []).extend(message.queue_offset for message in messages)
        return SUCCESS

    broker.create("t", 4)
    async with make(listener, topics={"t": "*"}, batch=3, slots=2):
        for _ in range(40):
            broker.send("t", rng.randrange(4), *[b"x"] * rng.randint(1, 7))
            await asyncio.sleep(rng.random() / 10)
        await asyncio.sleep(60)

    for queue, offsets in seen.items():
        assert offsets == list(range(broker.max_offset(queue)))


async def test_a_lost_answer_to_a_renewal_is_no_refusal(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 60)
    broker.refuse[Op.RENEW] = [RequestTimeout("x")]

    listener = Recorder(takes_s=1.0)
    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(50)

    assert listener.offsets == list(range(50))
    assert len(broker.sent(Op.ACQUIRE)) == 1
