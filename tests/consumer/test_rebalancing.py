"""Rebalance under trouble: late answers, expired pulls, failing strategies, words that come during a pass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.consumer.group.allocation import Strategy, average
from rmq.wire.errors import RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import QUEUE, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def ids(consumer: Consumer) -> list[int]:
    return [queue.queue_id for queue in consumer.assignment]


def held(consumer: Any, queue: MessageQueue = QUEUE) -> Any:
    return consumer._runtime.assignments[queue]


# Locks


async def test_a_request_for_locks_has_1_s_and_one_that_is_answered_later_loses_no_grant(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    hold, listener = broker.hold_reply(Op.ACQUIRE), Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()  # granted, and the answer is on its way
        await asyncio.sleep(1.5)
        hold.let_go.set()  # too late: nobody waits for it any more
        await asyncio.sleep(2.4)
        assert consumer.assignment == []
        await asyncio.sleep(0.2)
        assert consumer.assignment == [QUEUE]

    assert broker.times(Op.ACQUIRE) == [0.0, 4.0]
    assert listener.offsets == [0]


async def test_a_broker_that_is_always_late_gets_more_time_until_it_is_heard(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async def late() -> None:
        while True:
            hold = broker.hold_reply(Op.ACQUIRE)
            await hold.reached.wait()
            asyncio.get_running_loop().call_later(1.5, hold.let_go.set)

    slow = asyncio.ensure_future(late())
    async with consumer:
        await asyncio.sleep(6)
        assert consumer.assignment == [QUEUE]
        slow.cancel()

    assert broker.times(Op.ACQUIRE) == [0.0, 4.0]


async def test_a_renewal_has_1_s_too(broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1.9)
        assert "lease.renewal_failed" not in caplog.text
        await asyncio.sleep(0.2)
        assert "lease.renewal_failed" in caplog.text
        hold.let_go.set()


async def test_a_refused_queue_is_neither_held_nor_pulled_and_does_not_block_the_others(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 3)
    broker.give("g", MessageQueue("t", 1), "other")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        assert ids(consumer) == [0, 2]
        assert {request.payload.queues[0].queue_id for request in broker.sent(Op.PULL)} == {0, 2}


async def test_a_new_queue_is_locked_as_of_when_it_was_asked_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_request(Op.ACQUIRE)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.1)
        assert held(consumer).lease.lock_sent_at == 0.0


# What makes a pass


async def test_a_word_that_comes_during_a_pass_makes_one_more(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"}, rebalance_every_s=1000.0)

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a")  # the pass under way does not know of it
        hold.let_go.set()
        await asyncio.sleep(1)
        assert ids(consumer) == [1]


async def test_passes_never_overlap_so_that_a_queue_has_one_assignment_and_one_puller(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"}, lock_timeout_s=50.0)

    async with consumer:
        await hold.reached.wait()
        for _ in range(5):
            broker.set_members("g")
            broker.create("t")
            consumer.subscribe("t")
            await asyncio.sleep(5)
        assert len(broker.sent(Op.ACQUIRE)) == 1
        hold.let_go.set()
        await asyncio.sleep(1)
        assert broker.leases["g", QUEUE].epoch == 1
        assert len(broker.sent(Op.PULL)) == 1


async def test_after_a_change_of_its_queues_the_group_hears_of_a_member_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(5)
        broker.set_members("g", "a")
        await asyncio.sleep(5)
        broker.set_members("g", "a")  # nothing changes by it
        await asyncio.sleep(5)

    assert broker.times(Op.JOIN) == [0.0, 0.0, 5.1]


async def test_a_list_of_members_in_the_answer_to_that_makes_a_pass(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    consumer = make(topics={"t": "*"}, rebalance_every_s=1000.0)

    async with consumer:
        hold = broker.hold_request(Op.JOIN)
        await hold.reached.wait()  # the first one
        second = broker.hold_request(Op.JOIN)
        hold.let_go.set()
        await second.reached.wait()
        broker.members["g"][b"a"] = "a"  # and nobody is told
        second.let_go.set()
        await asyncio.sleep(0.1)
        assert ids(consumer) == [1]


# Queues that nobody pulls


@pytest.mark.parametrize(("ago", "epochs"), [(120.0, 1), (120.001, 2)])
async def test_a_queue_that_was_not_pulled_for_120_s_is_given_up_and_taken_anew_in_the_same_pass(
    broker: FakeBroker, make: Make, ago: float, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ: such a queue is dropped and re-created in one pass."""
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        held(consumer).pulled_at = 1.1 - ago
        broker.set_members("g")
        await asyncio.sleep(0.5)
        assert consumer.assignment == [QUEUE]
        assert broker.leases["g", QUEUE].epoch == epochs

    assert broker.times(Op.ACQUIRE) == [0.0, 1.1][:epochs]
    assert ("queue.pull_expired" in caplog.text) is (epochs == 2)


async def test_an_expired_queue_whose_call_runs_is_taken_anew_when_that_has_ended(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(takes_s=10.0)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        held(consumer).pulled_at = -200.0
        broker.set_members("g")
        await asyncio.sleep(15)

    assert broker.times(Op.RELEASE) == [10.0]
    assert listener.calls == [(0.0, 0, [0]), (10.0, 0, [1])]


# Strategies


async def test_a_topic_whose_strategy_raises_stops_no_other_and_keeps_its_queues(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("bad", 2)
    broker.create("good", 2)
    fails: list[str] = []

    def moody(queues: Any, members: Any, member: Any) -> Any:
        if queues[0].topic in fails:
            raise RuntimeError("not today")
        return average(queues, members, member)

    consumer = make(topics={"bad": "*", "good": "*"}, strategy=Strategy("moody", moody))
    async with consumer:
        await asyncio.sleep(1)
        fails.append("bad")
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert consumer.assignment == [MessageQueue("bad", 0), MessageQueue("bad", 1), MessageQueue("good", 1)]
        fails.clear()
        await asyncio.sleep(20)
        assert consumer.assignment == [MessageQueue("bad", 1), MessageQueue("good", 1)]

    assert caplog.text.count("rebalance.failed") == 1
    assert {request.payload.strategy for request in broker.sent(Op.JOIN)} == {"moody"}


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        ("average", [[0, 1], [2, 3]]),
        ("circle", [[0, 2], [1, 3]]),
        ("consistent_hash", None),
        ("machine_room:r1", [[0], [1]]),
        ("machine_room_nearby", [[0, 1], [2, 3]]),
    ],
)
async def test_two_members_share_by_the_configured_strategy(
    broker: FakeBroker, make: Make, strategy: str, shares: list[list[int]] | None
) -> None:
    for queue_id in range(4):
        broker.brokers[MessageQueue("t", queue_id)] = f"r{1 + queue_id // 2}@b"
    broker.create("t", 4)
    one, two = (make(topics={"t": "*"}, strategy=strategy, zone=zone) for zone in ("r1", "r2"))

    async with one, two:
        await asyncio.sleep(1)
        if shares is None:
            assert sorted(ids(one) + ids(two)) == [0, 1, 2, 3]
        else:
            assert [ids(one), ids(two)] == shares

    assert {request.payload.strategy for request in broker.sent(Op.JOIN)} == {strategy}


# Away and back


async def test_a_queue_that_bounces_away_and_back_keeps_its_new_lock(broker: FakeBroker, make: Make) -> None:
    """RocketMQ unlocks 20 s after the queue left, whoever has it by then."""
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        broker.set_members("g")
        await asyncio.sleep(60)
        assert broker.leases["g", QUEUE].epoch == 2

    assert len(broker.sent(Op.RELEASE)) == 1


async def test_a_stale_offset_is_never_used_after_a_bounce(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"}, batch=4)

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        broker.send("t", 0, *[b"y"] * 5)
        broker.offsets["g", QUEUE] = 15  # the member in between has done them
        broker.set_members("g")
        await asyncio.sleep(1)

    assert listener.offsets == list(range(10))


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_failed_read_of_the_progress_is_repeated_and_never_guessed(
    broker: FakeBroker, make: Make, attempts: int
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    broker.offsets["g", QUEUE] = 7
    broker.refuse[Op.ACQUIRE] = [RequestTimeout("x")] * attempts
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(3.0 * attempts - 0.1)
        assert broker.sent(Op.PULL) == []
        await asyncio.sleep(1)

    assert listener.offsets == [7, 8, 9]


# Paused


async def test_a_pause_moves_no_queue_and_a_paused_member_still_hands_over_what_falls_to_others(
    broker: FakeBroker, make: Make
) -> None:
    """RocketMQ's paused consumer does not rebalance: its peers would wait for their share until it is resumed."""
    broker.create("t", 2)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        for assignment in consumer._runtime.assignments.values():  # type: ignore[union-attr]
            assignment.paused, assignment.pulled_at = True, -1000.0
        await asyncio.sleep(100)
        assert ids(consumer) == [0, 1]
        assert broker.sent(Op.RELEASE) == []
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert ids(consumer) == [1]
