"""The consumer against the real broker, over loopback TCP on virtual time: what the scripted broker cannot prove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rmq.client import Admin, Connection, ConnectionLost, Message, Producer
from rmq.consumer import Consumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.address import parse_address
from rmq.wire.errors import GroupMismatch
from rmq.wire.model import MessageQueue

from .recorder import SUSPEND, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest_asyncio.fixture
async def real() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as broker:
        yield broker


class Cuttable:
    """Makes real connections under a name that says who comes first, which a test can cut off for good."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[Connection] = []

    def __call__(self, address: str, **callbacks: Any) -> Connection:
        self.made.append(Connection(address, client=self.name, **callbacks))
        return self.made[-1]

    def cut(self) -> None:
        for connection in self.made:
            connection.address = parse_address("127.0.0.1:1")
            connection.drop(ConnectionLost("cut by the test"))


def consumer(broker: InMemoryBroker, listener: Any, **settings: Any) -> Consumer:
    settings = {"topics": {"orders": "*"}, "group": "g", "now": asyncio.get_running_loop().time, **settings}
    return Consumer(broker.address, listener=listener, **settings)


async def send(broker: InMemoryBroker, count: int, *, queues: int = 1, keys: int = 1) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("orders", queues)
    async with Producer(broker.address) as producer:
        for i in range(count):
            await producer.send(Message("orders", b"%d" % i), key=str(i % keys))


async def test_every_queue_is_delivered_in_order_and_committed(real: InMemoryBroker) -> None:
    await send(real, 200, queues=4, keys=4)
    listener = Recorder()

    async with consumer(real, listener):
        await asyncio.sleep(1)

    for queue_id in range(4):
        assert [offsets for _, of, offsets in listener.calls if of == queue_id] == [[i] for i in range(50)]

    again = Recorder()
    async with consumer(real, again):
        await asyncio.sleep(1)
    assert again.calls == []


async def test_after_a_clean_stop_another_member_goes_on_at_once(real: InMemoryBroker) -> None:
    await send(real, 10)
    first, second = Recorder(takes_s=1.0), Recorder(takes_s=1.0)
    a, b = consumer(real, first, connect=Cuttable("a")), consumer(real, second, connect=Cuttable("b"))

    async with a:
        await asyncio.sleep(0.5)
        async with b:
            await asyncio.sleep(2)
            await a.stop()
            stopped_at = now()
            await asyncio.sleep(20)

    assert first.offsets + second.offsets == list(range(10))
    # Told at once; changes of members are gathered for 100 ms.
    assert second.times[0] - stopped_at == pytest.approx(0.1, abs=0.01)


async def test_after_a_dead_connection_another_member_goes_on_when_the_grace_is_over(real: InMemoryBroker) -> None:
    await send(real, 40)
    first, second, cuttable = Recorder(takes_s=0.5), Recorder(takes_s=0.5), Cuttable("a")
    a, b = consumer(real, first, connect=cuttable), consumer(real, second, connect=Cuttable("b"))

    async with a:
        await asyncio.sleep(0.2)
        async with b:
            await asyncio.sleep(4)
            cuttable.cut()
            cut_at = now()
            await asyncio.sleep(10)
            # The old owner starts its last batch before the new one its first.
            assert first.times[-1] < second.times[0]
            assert 4 <= second.times[0] - cut_at <= 5.1
            await asyncio.sleep(30)

    # Contiguous, and at most what the old owner could not commit comes twice.
    assert second.offsets == list(range(second.offsets[0], 40))
    assert first.offsets[-1] + 1 >= second.offsets[0]


async def test_a_restart_of_the_broker_moves_no_queue_and_repeats_nothing(real: InMemoryBroker) -> None:
    await send(real, 30, queues=2, keys=2)
    listener = Recorder(takes_s=0.5)

    async with consumer(real, listener) as one:
        await asyncio.sleep(2.2)
        await real.restart()
        await asyncio.sleep(30)
        assert len(one.assignment) == 2

    for queue_id in (0, 1):
        assert [offsets for _, of, offsets in listener.calls if of == queue_id] == [[i] for i in range(15)]


async def test_attempts_survive_a_take_over_and_a_restart(real: InMemoryBroker) -> None:
    await send(real, 1)
    first, second = Recorder(*[SUSPEND] * 9), Recorder()

    async with consumer(real, first):
        await asyncio.sleep(5)  # at 0, 1 and 3 s
    await real.restart()
    async with consumer(real, second):
        await asyncio.sleep(1)

    assert first.attempts == [1, 2, 3]
    assert second.attempts == [4]


async def test_two_members_share_and_no_message_is_delivered_twice(real: InMemoryBroker) -> None:
    await send(real, 80, queues=4, keys=4)
    first, second = Recorder(takes_s=0.2), Recorder(takes_s=0.2)
    a, b = consumer(real, first), consumer(real, second)

    async with a:
        await asyncio.sleep(1)
        async with b:
            await asyncio.sleep(10)
            assert (len(a.assignment), len(b.assignment)) == (2, 2)

    delivered = sorted((queue_id, *offsets) for _, queue_id, offsets in first.calls + second.calls)
    assert delivered == [(queue_id, offset) for queue_id in range(4) for offset in range(20)]


async def test_a_topic_and_a_message_that_come_later_are_consumed_within_a_second(real: InMemoryBroker) -> None:
    listener = Recorder()

    async with consumer(real, listener, start_from="last"):
        await asyncio.sleep(3)
        async with Producer(real.address) as producer:
            await producer.send(Message("orders", b"a"))
        await asyncio.sleep(1)

    assert len(listener.calls) == 1
    assert listener.times[0] < 4


async def test_a_member_with_another_subscription_is_told_why_it_may_not_join(real: InMemoryBroker) -> None:
    await send(real, 1)

    async with consumer(real, Recorder()):
        await asyncio.sleep(1)
        with pytest.raises(GroupMismatch, match="give all members the same subscriptions"):
            await consumer(real, Recorder(), topics={"orders": "paid"}).run()


async def test_a_lease_that_was_held_for_minutes_is_still_ours(real: InMemoryBroker) -> None:
    await send(real, 1)
    listener = Recorder()

    async with consumer(real, listener) as one:
        await asyncio.sleep(300)
        async with Producer(real.address) as producer:
            await producer.send(Message("orders", b"late"))
        await asyncio.sleep(1)
        assert len(one.assignment) == 1

    assert listener.offsets == [0, 1]


async def test_a_blip_below_the_grace_moves_no_queue_and_restarts_no_message(real: InMemoryBroker) -> None:
    await send(real, 40, queues=4, keys=4)
    first, second, cuttable = Recorder(takes_s=0.5), Recorder(takes_s=0.5), Cuttable("a")
    a, b = consumer(real, first, connect=cuttable), consumer(real, second, connect=Cuttable("b"))

    async with a, b:
        await asyncio.sleep(2.2)
        assert (len(a.assignment), len(b.assignment)) == (2, 2)
        shares = [a.assignment, b.assignment]
        for _ in range(3):
            cuttable.made[0].drop(ConnectionLost("cut by the test"))  # it dials again by itself
            await asyncio.sleep(1)
            assert [a.assignment, b.assignment] == shares
        await asyncio.sleep(10)

    calls = [(queue_id, offsets[0]) for _, queue_id, offsets in first.calls + second.calls]
    assert sorted(calls) == [(queue_id, offset) for queue_id in range(4) for offset in range(10)]


async def test_messages_of_unwanted_tags_leave_no_lag(real: InMemoryBroker) -> None:
    async with Admin(real.address) as admin:
        await admin.create_topic("orders", 1)
    async with Producer(real.address) as producer:
        for tag in "abbbabb":
            await producer.send(Message("orders", b"x", tag=tag))
    listener = Recorder()

    async with consumer(real, listener, topics={"orders": "a"}), Admin(real.address) as admin:
        await asyncio.sleep(16)
        (held,) = await admin.ranges([MessageQueue("orders", 0)], "g")
        assert (held.max_offset, held.committed) == (7, 7)

    assert listener.offsets == [0, 4]
