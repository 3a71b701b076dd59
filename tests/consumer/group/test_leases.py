"""
Renewals: at a fixed rate, all leases in one request, never for what is not ours any more.

What is lost together is told together.

Renewals and heartbeats: as configured, and often enough for the broker at hand.

Queues that are nobody's: always believed in, until their stay ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group import leases
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.consumer.group.leases import GATHER_S, MOST_NAMED, LossLog, NoLeases, listed
from rmq.wire.errors import Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import Limits
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Make, Recorder, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make_plain = Callable[..., Consumer]


async def test_locks_are_renewed_at_1_21_and_41_s_in_one_request_for_all(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t", 4)

    await run_for(60.5, make(topics={"t": "*"}))

    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0]
    assert [len(request.payload.leases) for request in broker.sent(Op.RENEW)] == [4, 4, 4]


async def test_a_slow_answer_does_not_shift_the_renewals_behind_it(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}):
        await hold.reached.wait()
        await asyncio.sleep(2.5)
        hold.let_go.set()
        await asyncio.sleep(60)

    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0]


async def test_a_beat_that_was_missed_is_not_made_up_for(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}, lock_timeout_s=100.0):
        await asyncio.sleep(50)
        hold.let_go.set()
        await asyncio.sleep(40)

    assert broker.times(Op.RENEW) == [1.0, 61.0, 81.0]


async def test_nothing_is_asked_without_leases(broker: FakeBroker, make: Make_plain) -> None:
    await run_for(50, make(topics={"t": "*"}))

    assert broker.sent(Op.RENEW) == []


async def test_a_refused_renewal_drops_the_assignment_and_the_queue_is_asked_for_again(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.5)
        broker.leases.clear()  # without a word to anybody
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert broker.times(Op.ACQUIRE) == [0.0, 1.0]


async def test_a_renewal_without_an_answer_leaves_the_belief_as_it_is(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    broker.refuse[Op.RENEW] = [Internal("log id 7")]
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(5)
        assert consumer.assignment == [QUEUE]

    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_a_renewal_counts_from_when_it_was_sent_however_late_its_answer(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t", bodies=[b"x"] * 100)
    hold, listener = broker.hold_reply(Op.RENEW), Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, lock_timeout_s=3.0):
        await asyncio.sleep(3.5)
        hold.let_go.set()
        broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 3
        await asyncio.sleep(35)

    assert listener.times[30:33] == [30.0, 31.0, 38.01]


async def test_renewals_go_on_while_a_dropped_queue_waits_for_its_call(broker: FakeBroker, make: Make_plain) -> None:
    ended: list[float] = []

    async def listener(messages: Any, context: Any) -> Any:
        await asyncio.sleep(100)
        ended.append(asyncio.get_running_loop().time())

    broker.create("t", bodies=[b"a"])
    consumer = make(listener, topics={"t": "*"}, drain_s=200.0)
    async with consumer:
        await asyncio.sleep(5)
        await consumer.stop()

    assert ended == pytest.approx([100.0])
    assert broker.times(Op.RENEW) == [1.0, 5.0, 21.0, 41.0, 61.0, 81.0]
    assert [request.payload.leaving for request in broker.sent(Op.RENEW)] == [False, *[True] * 5]


# Relock reply against unlock, in both orders
async def test_a_renewal_granted_before_the_unlock_and_answered_after_it_revives_nothing(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a-other")  # it comes first in the list: the queue is theirs
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None
        hold.let_go.set()
        await asyncio.sleep(0.5)
        assert consumer.assignment == []

    assert [r.op for r in broker.requests if r.op in (Op.RENEW, Op.RELEASE, Op.ACQUIRE)] == [
        Op.ACQUIRE, Op.RENEW, Op.RELEASE,
    ]  # fmt: skip


async def test_a_renewal_that_the_unlock_overtook_is_no_loss(
    broker: FakeBroker, make: Make_plain, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    hold = broker.hold_request(Op.RENEW)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a-other")
        await asyncio.sleep(0.5)
        broker.set_members("g")  # and it is ours again, under another epoch
        await asyncio.sleep(0.5)
        epoch = broker.leases["g", QUEUE].epoch
        hold.let_go.set()  # refused: that epoch is gone
        await asyncio.sleep(0.5)
        assert consumer.assignment == [QUEUE]
        assert broker.leases["g", QUEUE].epoch == epoch

    assert len(broker.sent(Op.ACQUIRE)) == 2
    assert "lease.lost" not in caplog.text


EPS = 0.001


def lost(queue_id: int, losses: LossLog, reason: str = "FENCED") -> None:
    Assignment(LeaseBelief(MessageQueue("t", queue_id), 7 + queue_id, 0.0), ProcessQueue(0), on_lost=losses.add).lose(
        reason
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "lease.lost" in record.getMessage()]


async def test_queues_lost_at_once_are_one_line_with_all_of_them(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    for queue_id in range(3):
        lost(queue_id, losses)
    await asyncio.sleep(GATHER_S + EPS)

    assert lines(caplog) == ["lease.lost queues=t/0,t/1,t/2 epochs=7,8,9 count=3 reason=FENCED"]


async def test_what_is_lost_later_than_the_gathering_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    lost(0, losses)
    await asyncio.sleep(GATHER_S - EPS)
    assert lines(caplog) == []
    lost(1, losses)
    await asyncio.sleep(2 * EPS)
    lost(2, losses)
    await asyncio.sleep(GATHER_S + EPS)

    assert [line.split()[1] for line in lines(caplog)] == ["queues=t/0,t/1", "queues=t/2"]


async def test_the_reason_is_that_of_the_first(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    lost(0, losses, "first")
    lost(1, losses, "second")
    await asyncio.sleep(GATHER_S + EPS)

    assert [line.split()[-1] for line in lines(caplog)] == ["reason=first"]


async def test_a_stop_tells_at_once_and_nothing_is_told_twice(caplog: pytest.LogCaptureFixture) -> None:
    losses = LossLog()
    lost(0, losses)
    losses.flush()
    assert len(lines(caplog)) == 1

    losses.flush()
    await asyncio.sleep(GATHER_S + EPS)
    assert len(lines(caplog)) == 1


def test_of_thousands_the_first_are_named() -> None:
    assert listed([]) == ""
    assert listed(range(MOST_NAMED)).endswith(",98,99")
    assert listed(range(MOST_NAMED + 1)).endswith(",98,99,...")


@pytest.mark.parametrize(
    ("config", "lease_s", "expiry_s", "effective"),
    [
        ({}, None, None, (30.0, 20.0, 30.0)),
        ({}, 60.0, 120.0, (30.0, 20.0, 30.0)),
        ({}, 600.0, 1200.0, (30.0, 20.0, 30.0)),
        ({}, 12.0, 8.0, (6.0, 4.0, 2.0)),
        ({"lock_ttl_s": 5.0, "relock_every_s": 2.0, "heartbeat_s": 1.0}, 12.0, 8.0, (5.0, 2.0, 1.0)),
    ],
)
async def test_the_broker_bounds_what_is_configured(
    config: dict[str, float], lease_s: float | None, expiry_s: float | None, effective: tuple[float, ...]
) -> None:
    limits = None
    if lease_s is not None and expiry_s is not None:
        limits = Limits(1 << 24, 1 << 22, 256, 5.0, 1.0, lease_s, expiry_s)
    made = ConsumerConfig(**config)  # type: ignore[arg-type]

    assert (
        leases.lock_ttl_s(made, limits),
        leases.relock_every_s(made, limits),
        leases.heartbeat_s(made, limits),
    ) == effective


async def test_short_leases_are_renewed_and_short_memberships_reported_in_time(make: Make, broker: FakeBroker) -> None:
    broker.lease_s, broker.expiry_s = 12.0, 20.0
    broker.create("t")

    await run_for(10.5, make(topics={"t": "*"}))

    assert broker.times(Op.RENEW) == [1.0, 5.0, 9.0]
    assert broker.times(Op.JOIN) == [0.0, 0.0, 5.0, 10.0]


async def test_a_broker_with_shorter_leases_that_is_met_later_brings_the_renewal_forward(
    make: Make, broker: FakeBroker
) -> None:
    broker.lease_s = 12.0
    broker.up = False
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(3)
        broker.come_up()
        await asyncio.sleep(9)

    assert broker.times(Op.RENEW) == [7.0, 11.0]


async def test_a_short_lease_is_believed_in_for_half_of_it(make: Make, broker: FakeBroker) -> None:
    broker.lease_s = 12.0
    broker.create("t", bodies=[b"x"] * 100)
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, lock_timeout_s=100.0):
        hold = broker.hold_reply(Op.RENEW)
        await asyncio.sleep(20)
        # The renewal sent at 1 s has no answer: the lock of 0 s is believed in until 6 s.
        assert listener.times[:7] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert len(listener.times) == 7 or listener.times[7] > 7.0
        hold.let_go.set()


def taken() -> tuple[NoLeases, Assignment, list[Assignment]]:
    begun: list[Assignment] = []
    unleased = NoLeases(begun.append)
    assignment = Assignment(
        LeaseBelief(MessageQueue("t", 0), 0, 17.0), ProcessQueue(0), on_lost=lambda *_: None, topic_generation=1
    )
    unleased.added(assignment)
    return unleased, assignment, begun


async def test_a_queue_is_believed_in_however_long_nothing_is_heard() -> None:
    unleased, assignment, begun = taken()

    assert unleased.believed(assignment)
    assert unleased.believed_until(assignment) == float("inf")
    assert not assignment.lost
    assert begun == [assignment]


async def test_renewing_asks_nobody_and_changes_nothing() -> None:
    unleased, assignment, _ = taken()

    await unleased.renew_one(assignment)
    await unleased.renew_these([assignment])
    unleased.connected()
    unleased.proven(assignment)

    assert unleased.believed(assignment)


async def test_a_stay_that_ended_is_not_believed_in_any_more() -> None:
    unleased, assignment, _ = taken()

    assignment.lose("the topic was deleted")
    unleased.proven(assignment)

    assert not unleased.believed(assignment)
    assert unleased.believed_until(assignment) == float("-inf")
    assert assignment.lost
