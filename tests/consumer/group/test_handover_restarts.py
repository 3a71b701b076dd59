"""A queue that is given up after the broker started again: what was done of it is kept, if the log still has it."""

from __future__ import annotations

import asyncio

import pytest

from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


async def restart(broker: FakeBroker, batches: int) -> None:
    """Start again with what is left of the queue, while its call runs and it is being handed over."""
    broker.crash(QUEUE, batches)
    await asyncio.sleep(0.1)
    broker.come_up()


async def test_a_hand_over_that_spans_a_restart_gives_back_what_was_done(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")

    async with make(Recorder(takes_s=4.0), topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        await restart(broker, batches=1)
        await asyncio.sleep(3)

    (release,) = broker.sent(Op.RELEASE)
    assert release.payload.leases[0].queue_offset == 1
    assert broker.offsets["g", QUEUE] == 1


async def test_what_the_log_has_lost_is_not_given_back_as_done(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")

    async with make(Recorder(takes_s=4.0), topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        await restart(broker, batches=0)
        broker.send("t", 0, b"another")
        await asyncio.sleep(3)

    assert [release.payload.leases[0].queue_offset for release in broker.sent(Op.RELEASE)] == [NO_OFFSET]
    assert broker.offsets.get(("g", QUEUE), 0) == 0


async def test_a_stop_that_spans_a_restart_leaves_with_what_was_done(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    consumer = make(Recorder(takes_s=4.0), topics={"t": "*"})
    consumer.start()
    await asyncio.sleep(1)

    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(1)
    await restart(broker, batches=1)
    await stopping

    (leave,) = broker.sent(Op.LEAVE)
    assert [lease.queue_offset for lease in leave.payload.leases] == [1]
