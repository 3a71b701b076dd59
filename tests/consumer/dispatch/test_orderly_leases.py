"""No batch without a lease: what a turn does while its lease is in doubt or gone."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.wire.errors import RequestTimeout
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUCCESS, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# Leases


async def test_no_batch_starts_after_the_belief_in_the_lease_has_run_out(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 100)
    listener = Recorder(takes_s=1.0)

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(10.5)
        connection = broker.connections[0]
        connection.reachable = False
        connection.cut()
        await asyncio.sleep(20)
        # The last ping was answered at 10 s: 14.0 is the last moment, and the broker gives the queue away at 15.
        assert listener.times[-1] == 14.0
        assert broker.holder("g", QUEUE) is None
        connection.reachable = True
        connection.dial()
        await asyncio.sleep(3)

    # Nothing was committed after 10 s but by the lease of then: the new one begins where that stood.
    assert listener.offsets[15] == 10


async def test_a_renewal_that_never_comes_ends_the_belief_after_30_s_and_is_asked_for_again(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 100)
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 4
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(45)

    # Asked at 1 and 21 in vain; from 31 s on it is not believed in; then after 10 ms and every 3 s until it is granted.
    assert broker.times(Op.RENEW)[:5] == [1.0, 21.0, 31.01, 34.01, 37.01]
    assert listener.times[29:33] == [29.0, 30.0, 37.01, 38.01]
    assert listener.offsets == list(range(len(listener.offsets)))


async def test_a_call_is_told_when_its_lease_can_no_longer_be_proven(broker: FakeBroker, make: Make) -> None:
    told: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        assert not context.lost
        await context.lost.wait()
        assert context.lost
        told.append(now())
        return SUCCESS

    broker.create("t")
    broker.send("t", 0, b"a")
    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(3.5)
        broker.go_down()
        await asyncio.sleep(10)

    # The last answered ping was sent at 3 s, the grace is 5 s: before the broker may give the queue away at 8 s.
    assert told == pytest.approx([7.0], abs=0.01)


async def test_a_call_sees_by_the_clock_that_its_lease_ran_out_before_any_timer_has_told_it(
    broker: FakeBroker, make: Make
) -> None:
    stopped_s, seen = 0.0, []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        nonlocal stopped_s
        seen.append(bool(context.lost))
        stopped_s = 40.0  # the process was stopped, and the clock of leases went on
        seen.append(context.lost.is_set())
        return SUCCESS

    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=lambda: now() + stopped_s,
    )  # fmt: skip
    async with consumer:
        await asyncio.sleep(0.5)

    assert seen == [False, True]


async def test_a_result_that_comes_after_the_lease_is_not_committed(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(takes_s=10.0)

    async with make(listener, topics={"t": "*"}, commit_every_s=0.05):
        await asyncio.sleep(1)
        connection = broker.connections[0]
        connection.reachable = False
        connection.cut()
        await asyncio.sleep(6)
        broker.give("g", QUEUE, "thief")
        connection.reachable = True
        connection.dial()
        await asyncio.sleep(30)
        assert listener.offsets == [0]
        assert broker.offsets["g", QUEUE] == 0
    assert broker.holder("g", QUEUE) == "thief"
    assert broker.offsets["g", QUEUE] == 0


async def test_a_blip_shorter_than_the_grace_changes_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 20)
    listener = Recorder(takes_s=3.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(4)
        broker.go_down()
        await asyncio.sleep(4)
        broker.come_up()
        await asyncio.sleep(20)

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert listener.offsets == list(range(len(listener.offsets)))
    assert len(listener.offsets) >= 9
