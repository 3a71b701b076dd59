"""Offsets that an administrator sets: our lease ends, the running call is told, and the queue is taken anew there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.client import Admin, Connection, Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, ResetEntry, ResetOffsets, ResetResult

from .fake_broker import FakeBroker
from .recorder import QUEUE, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def reset(broker: FakeBroker, queue_offset: int) -> None:
    """What RESET_OFFSETS does: the offset is another, the lease has ended, and parked pulls of it are answered."""
    broker.offsets["g", QUEUE] = queue_offset
    broker.free("g", QUEUE)


@pytest.mark.parametrize(("to", "delivered"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (4, [])])
async def test_an_idle_queue_goes_on_at_the_new_offset_at_once(
    broker: FakeBroker, make: Make, to: int, delivered: list[int]
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert listener.offsets == [0, 1, 2, 3]
        reset(broker, to)
        await asyncio.sleep(0.5)
        assert broker.offsets["g", QUEUE] == 4

    assert listener.offsets[4:] == delivered
    assert [at for at in listener.times if at > 0] == [5.0] * len(delivered)


async def test_a_call_of_a_queue_that_is_being_handed_over_is_told_too(broker: FakeBroker, make: Make) -> None:
    """Nobody pulls such a queue any more, and another member takes it at once."""
    broker.create("t", bodies=[b"a"])
    told: list[tuple[float, bool]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        async with asyncio.timeout(5):
            await context.lost.wait()
        told.append((round(now(), 3), context.lost.was_set))
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a")  # the queue is theirs now
        await asyncio.sleep(1)
        reset(broker, 1)
        await asyncio.sleep(1)

    assert told == [(2.0, True)]
    (release,) = broker.sent(Op.RELEASE)  # it commits nothing, and says that the call has ended
    assert [lease.queue_offset for lease in release.payload.leases] == [NO_OFFSET]


async def test_a_queue_that_a_broker_keeps_for_us_under_an_unknown_epoch_is_given_back(
    broker: FakeBroker, make: Make
) -> None:
    """A broker that started again after a reset does not know which epoch we had."""
    broker.create("t")
    consumer = make(topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)
        broker.leases["g", QUEUE].epoch += 10
        broker.connections[0].cut()
        broker.set_members("g", "a")  # the queue is theirs now
        broker.connections[0].dial()
        await asyncio.sleep(1)

        assert (consumer.assignment, broker.holder("g", QUEUE)) == ([], None)


@pytest.mark.parametrize("to", [0, 7])
async def test_a_running_call_is_told_commits_nothing_and_the_queue_begins_at_the_new_offset_when_it_has_ended(
    broker: FakeBroker, make: Make, to: int
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    calls: list[tuple[float, int]] = []
    told: list[float] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        calls.append((round(now(), 3), messages[0].queue_offset))
        waits = asyncio.ensure_future(context.lost.wait())
        done, _ = await asyncio.wait([waits], timeout=2.0)
        if done:
            told.append(now())
            await asyncio.sleep(1.0)  # and takes its time to end
        waits.cancel()
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)  # the third call runs since 4 s
        reset(broker, to)
        before = len(broker.requests)
        await asyncio.sleep(3.5)

    assert told == [5.0]
    assert calls[:4] == [(0.0, 0), (2.0, 1), (4.0, 2), (6.0, to)]
    epochs = [_epoch(request.payload) for request in broker.requests[before:] if request.op in (Op.COMMIT, Op.PULL)]
    assert set(epochs) == {2}


def _epoch(payload: Any) -> int:
    return payload.queues[0].epoch if hasattr(payload, "queues") else payload.entries[0].epoch


@pytest.mark.parametrize("held_back", ["paused", "full"])
async def test_a_queue_without_a_parked_pull_learns_of_it_by_its_next_report_or_renewal(
    broker: FakeBroker, make: Make, held_back: str
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    listener = Recorder(takes_s=2.0)
    consumer = make(listener, topics={"t": "*"}, cache_messages=3)

    async with consumer:
        await asyncio.sleep(4.5)
        if held_back == "paused":
            consumer.pause()
        await asyncio.sleep(5)
        reset(broker, 0)
        await asyncio.sleep(30)
        consumer.resume()
        before = len(listener.calls)
        await asyncio.sleep(30)
        assert broker.offsets["g", QUEUE] == 10

    assert len(broker.sent(Op.ACQUIRE)) == 2
    if held_back == "paused":
        assert listener.offsets[before:] == list(range(10))
    else:
        assert sorted(listener.offsets).count(0) == 2


async def test_a_reset_while_the_request_for_the_lock_is_on_its_way_is_honoured(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    broker.offsets["g", QUEUE] = 3
    hold = broker.hold_reply(Op.ACQUIRE)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await hold.reached.wait()  # granted at 3
        reset(broker, 1)
        hold.let_go.set()
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 4

    assert listener.offsets == [1, 2, 3]


# The real broker


async def reset_by_admin(broker: InMemoryBroker, queue_offset: int) -> None:
    connection = Connection(broker.address, now=now)
    await connection.open(timeout_s=5)
    payload = ResetOffsets("g", [ResetEntry(*QUEUE, queue_offset)])
    (result,) = decode_list(ResetResult, await connection.request(Op.RESET_OFFSETS, payload))
    assert (result.status, result.new_offset) == (0, queue_offset)
    await connection.close()


@pytest.mark.parametrize("to", [0, 8])
async def test_a_reset_at_the_real_broker_tells_the_running_call_and_begins_there_when_it_has_ended(to: int) -> None:
    listener = Recorder(takes_s=2.0)
    lost: list[bool] = []

    async def listen(messages: Messages, context: ConsumeContext) -> Any:
        status = await listener(messages, context)
        lost.append(bool(context.lost))
        return status

    async with InMemoryBroker(min_free_bytes=0) as broker:
        async with Admin(broker.address) as admin:
            await admin.create_topic("t", 1)
        async with Producer(broker.address) as producer:
            for _ in range(10):
                await producer.send(Message("t", b"x"))
        async with Consumer(broker.address, group="g", listener=listen, topics={"t": "*"}, now=now):
            await asyncio.sleep(5)  # the third call runs
            await reset_by_admin(broker, to)
            await asyncio.sleep(30)
        async with Admin(broker.address) as admin:
            (held,) = await admin.ranges([QUEUE], "g")

    assert listener.offsets[:3] == [0, 1, 2]
    assert lost[:4] == [False, False, True, False]
    assert listener.offsets[3:] == list(range(to, 10))
    assert listener.times[3] - listener.times[2] == pytest.approx(2.0, abs=0.1)
    assert held.committed == 10
