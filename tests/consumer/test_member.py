"""The parts of a consumer together: what the broker says reaches the part that it is for."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Push

from .fake_broker import FakeBroker
from .recorder import SUCCESS, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def take_away(broker: FakeBroker, *queue_ids: int) -> None:
    """The broker ends leases, as a reset of offsets does, and says so in one go."""
    for queue_id in queue_ids:
        del broker.leases["g", MessageQueue("t", queue_id)]
    for queue_id in queue_ids:
        broker.connections[0].push(Push.LEASE_FREE, ("g", "t", queue_id))


def renewals(broker: FakeBroker) -> list[int]:
    """How many leases each renewal was for."""
    return [len(request.payload[1]) for request in broker.requests if request.op is Op.RENEW]


async def test_a_queue_that_is_not_pulled_learns_at_once_that_its_lease_was_ended(
    broker: FakeBroker, make: Make
) -> None:
    """A paused one, or one in a crash loop, has no pull that would be fenced; its next renewal may be 20 s away."""
    broker.create("t", 3)
    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1.5)
        consumer.pause("t")
        await asyncio.sleep(0.5)
        epochs = [queue["epoch"] for queue in consumer.running_info()["queues"]]
        before = len(renewals(broker))

        take_away(broker, 0, 2)
        await asyncio.sleep(0.5)

        after = [queue["epoch"] for queue in consumer.running_info()["queues"]]
        assert [old == new for old, new in zip(epochs, after, strict=True)] == [False, True, False]
        assert renewals(broker)[before:] == [2]


async def test_a_running_call_learns_at_once_that_its_lease_was_ended(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"x")
    lost_after: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        began = now()
        await context.lost.wait()
        lost_after.append(now() - began)
        return SUCCESS

    async with make(listener, topics={"t": "*"}, cache_messages=1, pull_when_drained=True):
        await asyncio.sleep(1.5)
        take_away(broker, 0)
        await asyncio.sleep(0.1)

    assert lost_after[0] == pytest.approx(1.5, abs=0.1)


async def test_a_lease_that_was_called_free_and_is_ours_goes_on(broker: FakeBroker, make: Make) -> None:
    """What the broker says may be older than what it has granted since."""
    broker.create("t")
    listener = Recorder()
    async with make(listener, topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.5)
        (before,) = consumer.running_info()["queues"]
        broker.connections[0].push(Push.LEASE_FREE, ("g", "t", 0))
        broker.send("t", 0, b"x")
        await asyncio.sleep(0.2)

        (after,) = consumer.running_info()["queues"]
        assert after["epoch"] == before["epoch"]
        assert listener.offsets == [0]


async def test_a_free_queue_of_another_group_or_of_nobody_is_asked_for_by_no_renewal(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    async with make(topics={"t": "*"}):
        await asyncio.sleep(0.5)
        broker.connections[0].push(Push.LEASE_FREE, ("other", "t", 0))
        broker.connections[0].push(Push.LEASE_FREE, ("g", "t", 7))
        await asyncio.sleep(0.2)

        assert renewals(broker) == []
