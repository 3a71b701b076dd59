"""Renewals: at a fixed rate, all leases in one request, never for what is not ours any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.wire.errors import Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)


async def test_locks_are_renewed_at_1_21_and_41_s_in_one_request_for_all(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 4)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(60.5)

    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0]
    assert [len(request.payload.leases) for request in broker.sent(Op.RENEW)] == [4, 4, 4]


async def test_a_slow_answer_does_not_shift_the_renewals_behind_it(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}):
        await hold.reached.wait()
        await asyncio.sleep(2.5)
        hold.let_go.set()
        await asyncio.sleep(60)

    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0]


async def test_a_beat_that_was_missed_is_not_made_up_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}, lock_timeout_s=100.0):
        await asyncio.sleep(50)
        hold.let_go.set()
        await asyncio.sleep(40)

    assert broker.times(Op.RENEW) == [1.0, 61.0, 81.0]


async def test_nothing_is_asked_without_leases(broker: FakeBroker, make: Make) -> None:
    async with make(topics={"t": "*"}):
        await asyncio.sleep(50)

    assert broker.sent(Op.RENEW) == []


async def test_a_refused_renewal_drops_the_generation_and_the_queue_is_asked_for_again(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.5)
        broker.leases.clear()  # without a word to anybody
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert broker.times(Op.ACQUIRE) == [0.0, 1.0]


async def test_a_renewal_without_an_answer_leaves_the_belief_as_it_is(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.refuse[Op.RENEW] = [Internal("log id 7")]
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(5)
        assert consumer.assignment == [QUEUE]

    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_a_renewal_counts_from_when_it_was_sent_however_late_its_answer(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 100)
    hold, listener = broker.hold_reply(Op.RENEW), Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, lock_timeout_s=3.0):
        await asyncio.sleep(3.5)
        hold.let_go.set()
        broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 3
        await asyncio.sleep(35)

    assert listener.times[30:33] == [30.0, 31.0, 38.01]


async def test_renewals_go_on_while_a_dropped_queue_waits_for_its_call(broker: FakeBroker, make: Make) -> None:
    ended: list[float] = []

    async def listener(messages: Any, context: Any) -> Any:
        await asyncio.sleep(100)
        ended.append(asyncio.get_running_loop().time())

    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(listener, topics={"t": "*"}, drain_s=200.0)
    async with consumer:
        await asyncio.sleep(5)
        await consumer.stop()

    assert ended == pytest.approx([100.0])
    assert broker.times(Op.RENEW) == [1.0, 5.0, 21.0, 41.0, 61.0, 81.0]
    assert [request.payload.leaving for request in broker.sent(Op.RENEW)] == [False, *[True] * 5]


# Relock reply against unlock, in both orders


async def test_a_renewal_granted_before_the_unlock_and_answered_after_it_revives_nothing(
    broker: FakeBroker, make: Make
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
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
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
