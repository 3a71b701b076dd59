"""Renewals and heartbeats: as configured, and often enough for the broker at hand."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.config import ConsumerConfig
from rmq.consumer.group import leases
from rmq.wire.protocol.hello import Limits
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


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

    async with make(topics={"t": "*"}):
        await asyncio.sleep(10.5)

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
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 100)
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, lock_timeout_s=100.0):
        hold = broker.hold_reply(Op.RENEW)
        await asyncio.sleep(20)
        # The renewal sent at 1 s has no answer: the lock of 0 s is believed in until 6 s.
        assert listener.times[:7] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert len(listener.times) == 7 or listener.times[7] > 7.0
        hold.let_go.set()
