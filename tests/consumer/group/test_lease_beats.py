"""Beats of the renewal that go missing, and everything that must not keep one from being made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.wire import errors
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker, Held
from ..fake_connection import FakeConnection
from ..recorder import QUEUE, SUSPEND, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
EPS = 1e-3


class Forgetful(FakeBroker):
    """A broker that gives a lease away when it is older than 60 s; at exactly 60 s it is still held."""

    def _check(self, connection: FakeConnection, group: str, queue: MessageQueue, epoch: int | None) -> None:
        held = self.leases.get((group, queue))
        if held is not None and self.now - held.renewed_at > self.lease_s:
            raise errors.Fenced(f"{queue} was not renewed since {held.renewed_at}")
        super()._check(connection, group, queue, epoch)


def consume(broker: FakeBroker, listener: Any, **settings: Any) -> Consumer:
    return Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect, now=now, **settings
    )


def believed(consumer: Consumer) -> bool:
    running = consumer._running
    assert running is not None
    return any(running.keeper.believed(g) for g in running.generations.values() if not g.dropped)


@pytest.mark.parametrize(
    ("missed", "believed_at", "acquired"),
    [
        (0, {31 - EPS: True, 31.0: True, 31 + EPS: True, 51.0: True, 61 + EPS: True}, [0.0]),
        # The client gives up 30 s after the last granted renewal, before the next beat.
        (1, {31 - EPS: True, 31.0: True, 31 + EPS: False, 41 - EPS: False, 41 + EPS: True, 61 + EPS: True}, [0.0]),
        # The beat at exactly 60 s of age still renews.
        (2, {31.0: True, 31 + EPS: False, 41 + EPS: False, 61 - EPS: False, 61 + EPS: True, 90.0: True}, [0.0]),
        # Another may take over behind 61 s: ours has stopped 30 s before.
        (3, {31.0: True, 31 + EPS: False, 61 + EPS: False, 81 - EPS: False, 81 + EPS: True}, [0.0, 81.0]),
    ],
)
async def test_beats_that_go_missing(missed: int, believed_at: dict[float, bool], acquired: list[float]) -> None:
    broker = Forgetful()
    broker.create("t")
    consumer = consume(broker, Recorder(), pull_wait_s=29.0)

    async with consumer:
        await asyncio.sleep(1.5)  # the renewal at 1 s was granted
        broker.refuse[Op.RENEW] = [errors.RequestTimeout("x")] * missed
        seen = {}
        for at in sorted(believed_at):
            await asyncio.sleep(at - now())
            seen[at] = believed(consumer)
        assert seen == believed_at

    assert broker.times(Op.RENEW)[:4] == [1.0, 21.0, 41.0, 61.0]
    assert broker.times(Op.ACQUIRE) == acquired


@pytest.mark.parametrize("op", [Op.PULL, Op.COMMIT, Op.JOIN, Op.ATTEMPT])
async def test_no_other_request_that_is_slow_keeps_a_renewal_waiting(broker: FakeBroker, make: Make, op: Op) -> None:
    """RocketMQ has one timer thread for all: a slow broker delays the renewals."""
    broker.create("t", 2)
    listener = Recorder(*[SUSPEND if op is Op.ATTEMPT else ConsumeStatus.SUCCESS] * 50, takes_s=0.1)

    async with make(listener, topics={"t": "*"}, drain_s=0.0, request_timeout_s=200.0, pull_timeout_s=300.0):
        await asyncio.sleep(0.5)
        hold = broker.hold_request(op)
        broker.send("t", 0, b"a", b"b")
        await asyncio.sleep(70)
        assert hold.reached.is_set()
        assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0]
        hold.let_go.set()


async def test_a_renewal_that_is_not_granted_stops_the_queue_before_its_next_batch(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    lost_at: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        offsets.append(messages[0].queue_offset)
        await asyncio.sleep(0.75)
        if context.lost:
            lost_at.append(now())
        return ConsumeStatus.SUCCESS

    offsets: list[int] = []
    async with make(listener, topics={"t": "*"}, commit_every_s=5.0):
        await asyncio.sleep(0.5)
        broker.leases["g", QUEUE] = Held(b"thief", "thief", 77, now())  # and nobody is told
        await asyncio.sleep(10)
        # The second call ran when the renewal of 1 s was refused: it was told, and the last.
        assert offsets == [0, 1]
        assert lost_at == pytest.approx([1.5])

    assert broker.offsets["g", QUEUE] == 0


async def test_nothing_is_renewed_after_a_stop(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(5)
        await consumer.stop()
        await asyncio.sleep(60)

    assert broker.times(Op.RENEW) == [1.0]


async def test_a_renewal_that_got_no_answer_in_time_does_not_end_the_connection(broker: FakeBroker, make: Make) -> None:
    """RocketMQ closes the socket when a request times out: a late lock answer looks like the death of a client."""
    broker.create("t")
    hold = broker.hold_request(Op.RENEW)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(30)
        assert hold.reached.is_set()
        hold.let_go.set()
        assert broker.connections[0].connected
        assert len(broker.connections) == 1

    assert len(broker.sent(Op.ACQUIRE)) == 1


@pytest.mark.parametrize(("waits_s", "failed"), [(0.99, 0), (1.01, 1)])
async def test_a_renewal_has_a_second_to_be_answered(
    broker: FakeBroker, make: Make, waits_s: float, failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}):
        await hold.reached.wait()
        await asyncio.sleep(waits_s)
        hold.let_go.set()
        await asyncio.sleep(10)

    assert caplog.text.count("lease.renewal_failed") == failed
