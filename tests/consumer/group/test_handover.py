"""
Giving a queue up: the running call first, then one request; a call that takes long is counted and told of.

A queue that is given up after the broker started again: what was done of it is kept, if the log still has it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def assignment(consumer: Any, queue: MessageQueue = QUEUE) -> Any:
    return consumer._runtime.assignments[queue]


async def test_an_idle_queue_is_committed_and_unlocked_at_once_in_one_request(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])

    async with make(Recorder(), topics={"t": "*"}, commit_every_s=5.0, pull_wait_s=14.0):
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(0.1 + 0.001)
        assert broker.holder("g", QUEUE) is None

    (release,) = broker.sent(Op.RELEASE)
    assert (round(release.at, 6), release.payload.leases[0].queue_offset) == (1.1, 2)


async def test_cached_messages_that_were_not_started_are_discarded_and_the_unlock_follows_the_call_at_once(
    broker: FakeBroker, make: Make
) -> None:
    """RocketMQ postpones such an unlock by 20 s."""
    broker.create("t", bodies=[b"x"] * 10)
    listener = Recorder(takes_s=5.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(6)
        broker.set_members("g", "a")
        await asyncio.sleep(10)

    assert listener.offsets == [0, 1]
    assert broker.times(Op.RELEASE) == [10.0]
    assert broker.offsets["g", QUEUE] == 2


async def test_an_unsubscribed_queue_ends_its_call_and_is_unlocked_with_its_progress(
    broker: FakeBroker, make: Make
) -> None:
    """RocketMQ forgets such a queue: the progress is lost, and its lock stays until it expires."""
    broker.create("t")
    broker.create("u")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(takes_s=5.0)
    consumer = make(listener, topics={"t": "*", "u": "*"}, commit_every_s=5.0)

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await asyncio.sleep(3.9)
        assert broker.holder("g", QUEUE) == "member-0"
        await asyncio.sleep(0.2)
        assert broker.holder("g", QUEUE) is None
        assert broker.offsets["g", QUEUE] == 1
        assert consumer.assignment == [MessageQueue("u", 0)]

    assert listener.calls == [(0.0, 0, [0])]
    assert broker.times(Op.RELEASE) == [5.0]


async def test_tries_to_unlock_are_counted_with_each_pass_while_a_call_runs(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ's tryUnlockTimes: the queue stays in the table, dropped, until the call has ended."""
    broker.create("t", bodies=[b"a"])
    consumer = make(Recorder(takes_s=50.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)
        assert (assignment(consumer).dropped, assignment(consumer).tries_to_unlock) == (True, 1)
        await asyncio.sleep(41)  # two more passes
        assert assignment(consumer).tries_to_unlock == 3
        await asyncio.sleep(8)
        assert QUEUE not in consumer._runtime.assignments  # type: ignore[union-attr]

    assert caplog.text.count("unlock.waiting") == 3


async def test_many_passes_in_a_second_count_one_try(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    consumer = make(Recorder(takes_s=50.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        for i in range(5):
            broker.set_members("g", "a", *(f"z{j}" for j in range(i)))
            await asyncio.sleep(0.15)
        assert assignment(consumer).tries_to_unlock == 1


async def test_a_queue_without_a_running_call_counts_no_try(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)

    assert "unlock.waiting" not in caplog.text


async def test_a_queue_that_was_lost_during_a_call_is_given_back_without_progress_when_the_call_has_ended(
    broker: FakeBroker, make: Make
) -> None:
    """The broker may keep it for us until then: an offset that is reset must not start a call beside ours."""
    broker.create("t", bodies=[b"a"])

    async with make(Recorder(takes_s=5.0), topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        lost = assignment(consumer)
        lost.lose("the broker said so")
        await asyncio.sleep(3.9)
        assert broker.sent(Op.RELEASE) == []
        await asyncio.sleep(0.2)

    (release,) = broker.sent(Op.RELEASE)
    (lease,) = release.payload.leases
    assert (lease.epoch, lease.queue_offset) == (lost.epoch, -1)


async def restart(broker: FakeBroker, batches: int) -> None:
    """Start again with what is left of the queue, while its call runs and it is being handed over."""
    broker.crash(QUEUE, batches)
    await asyncio.sleep(0.1)
    broker.come_up()


async def test_a_hand_over_that_spans_a_restart_gives_back_what_was_done(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])

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
    broker.create("t", bodies=[b"a"])

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
    broker.create("t", bodies=[b"a", b"b"])
    consumer = make(Recorder(takes_s=4.0), topics={"t": "*"})
    consumer.start()
    await asyncio.sleep(1)

    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(1)
    await restart(broker, batches=1)
    await stopping

    (leave,) = broker.sent(Op.LEAVE)
    assert [lease.queue_offset for lease in leave.payload.leases] == [1]
