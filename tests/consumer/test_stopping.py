"""A stop: what runs is waited for as long as is wished, everything goes with one request, and twice is as once."""

from __future__ import annotations

import asyncio

import pytest

from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import QUEUE, SUSPEND, Make, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest.mark.parametrize(
    ("drain_s", "stopped_at", "committed"), [(0.0, 0.5, 0), (0.4, 0.9, 0), (0.6, 1.0, 1), (2.0, 1.0, 1)]
)
async def test_a_running_call_has_the_time_to_drain_and_no_more(
    broker: FakeBroker, make: Make, drain_s: float, stopped_at: float, committed: int
) -> None:
    """RocketMQ waits 0 s unless told otherwise; here 30 s."""
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"}, drain_s=drain_s)

    async with consumer:
        await asyncio.sleep(0.5)
        await consumer.stop()
        assert now() == pytest.approx(stopped_at)

    assert listener.offsets == [0]
    assert broker.offsets["g", QUEUE] == committed
    assert broker.holder("g", QUEUE) is None


async def test_nothing_is_asked_after_the_request_that_commits_unlocks_and_leaves(
    broker: FakeBroker, make: Make
) -> None:
    """RocketMQ unlocks first and persists afterwards; here one acknowledged request does both, then we leave."""
    broker.create("t", 5)
    for queue_id in range(5):
        broker.send("t", queue_id, b"a", b"b")
    consumer = make(Recorder(takes_s=1.0), topics={"t": "*"}, commit_every_s=5.0)

    async with consumer:
        await asyncio.sleep(1.5)
        await consumer.stop()

    last = broker.requests[-1]
    assert last.op is Op.LEAVE
    assert sorted((end.queue_id, end.queue_offset) for end in last.payload.leases) == [(i, 2) for i in range(5)]
    assert Op.RELEASE not in {request.op for request in broker.requests}
    assert broker.leases == {}


async def test_a_stop_that_has_to_wait_for_a_call_is_announced_first_and_after_every_reconnect(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a")
    consumer = make(Recorder(takes_s=10.0), topics={"t": "*"}, relock_first_s=20.0)

    async with consumer:
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(1)
        broker.come_up()
        await stopping

    announced = [
        (request.at, len(request.payload.leases), request.payload.leaving) for request in broker.sent(Op.RENEW)
    ]
    assert announced == [(1.0, 2, True), (3.0, 2, True)]
    assert broker.requests[-1].op is Op.LEAVE


async def test_a_stop_that_waits_for_nothing_announces_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")

    async with make(Recorder(), topics={"t": "*"}):
        await asyncio.sleep(0.5)

    assert broker.sent(Op.RENEW) == []
    assert broker.leases == {}


async def test_a_second_stop_does_nothing_and_one_beside_the_first_waits_for_it(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(Recorder(takes_s=3.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        await asyncio.gather(consumer.stop(), consumer.stop())
        assert now() == pytest.approx(3.0)
        before = len(broker.requests)
        await consumer.stop()

    assert len(broker.requests) == before
    assert len(broker.sent(Op.LEAVE)) == 1


async def test_a_stop_during_the_pause_of_a_failed_message_waits_for_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(Recorder(*[SUSPEND] * 9), topics={"t": "*"}, suspend_s=30.0)

    async with consumer:
        await asyncio.sleep(1)
        await consumer.stop()
        assert now() == pytest.approx(1.0)

    assert broker.runs["g", QUEUE] == {0: 1}


async def test_a_stop_of_a_queue_that_stands_still_waits_for_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.suspicions["g", QUEUE] = (5, 0, 1)
    consumer = make(Recorder(), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        assert consumer.stopped_queues
        await consumer.stop()
        assert now() == pytest.approx(1.0)

    assert broker.holder("g", QUEUE) is None
