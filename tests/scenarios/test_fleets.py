"""
A fleet on a virtual clock: what RocketMQ's own integration tests show of ordered messages, balance and tags.

Real broker, real sockets, the public producer and consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq.client import Admin, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadName, ConfigError, MessageTooLarge, QueueNotFound
from rmq.wire.model import MessageQueue, StoredMessage

from rigs.fleet import Connections, Deliveries, member

pytestmark = pytest.mark.virtual_time

EACH = 50


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


async def made(broker: InMemoryBroker, topic: str = "orders", queues: int = 4) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic(topic, queues)


async def send_each(broker: InMemoryBroker, queues: range, tags: tuple[str | None, ...] = (None,)) -> None:
    """``EACH`` messages for each queue, one after the other, with the tags in turn."""
    async with Producer(broker.address) as producer:
        for number in range(EACH):
            for queue_id in queues:
                message = Message("orders", b"%d" % number, tag=tags[number % len(tags)])
                await producer.send(message, queue_id=queue_id)


# Ordered messages


@pytest.mark.parametrize("queues", [range(4), range(1), range(1, 4)], ids=["all", "one", "three"])
async def test_what_was_sent_to_each_queue_is_received_in_order_and_complete(
    broker: InMemoryBroker, queues: range
) -> None:
    await made(broker)
    await send_each(broker, queues)
    seen = Deliveries()

    async with member(broker, seen.listener("a")):
        await seen.count(EACH * len(queues))

    assert seen.offsets == {MessageQueue("orders", queue_id): list(range(EACH)) for queue_id in queues}


async def test_a_topic_of_one_queue_is_consumed_in_the_order_of_all_sends(broker: InMemoryBroker) -> None:
    await made(broker, queues=1)
    async with Producer(broker.address) as producer:
        for number in range(100):
            await producer.send(Message("orders", b"%d" % number), key=str(number))
    seen = Deliveries()

    async with member(broker, seen.listener("a"), slots=20):
        await seen.count(100)

    assert seen.bodies == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [("*", {"a", "b", None}), ("a", {"a"}), ("a || b", {"a", "b"}), ("b||a", {"a", "b"}), ("c", set())],
)
async def test_order_is_kept_whatever_tags_are_wanted(
    broker: InMemoryBroker, expression: str, wanted: set[str | None]
) -> None:
    await made(broker)
    await send_each(broker, range(4), tags=("a", "b", None))
    seen = Deliveries()
    numbers = [number for number in range(EACH) if ("a", "b", None)[number % 3] in wanted]

    async with member(broker, seen.listener("a"), topics={"orders": expression}):
        await seen.count(4 * len(numbers))
        await asyncio.sleep(16)  # a pull that finds nothing is held for 15 s, and then tells how far it looked
        async with Admin(broker.address) as admin:
            ranges = await admin.ranges([MessageQueue("orders", queue_id) for queue_id in range(4)], "g")

    assert seen.offsets == ({MessageQueue("orders", queue_id): numbers for queue_id in range(4)} if numbers else {})
    assert [held.committed for held in ranges] == [EACH] * 4, "what no member wants is passed all the same"


async def test_two_groups_with_different_tags_get_their_own_in_order(broker: InMemoryBroker) -> None:
    await made(broker)
    await send_each(broker, range(4), tags=("a", "b"))
    first, second = Deliveries(), Deliveries()

    async with (
        member(broker, first.listener("1"), group="one", topics={"orders": "a"}),
        member(broker, second.listener("2"), group="two", topics={"orders": "b"}),
    ):
        await first.count(2 * EACH)
        await second.count(2 * EACH)

    assert all(offsets == list(range(0, EACH, 2)) for offsets in first.offsets.values())
    assert all(offsets == list(range(1, EACH, 2)) for offsets in second.offsets.values())


async def test_two_groups_each_get_all_messages_and_have_their_own_progress(broker: InMemoryBroker) -> None:
    await made(broker)
    await send_each(broker, range(4))
    first, second = Deliveries(), Deliveries()

    async with member(broker, first.listener("1"), group="one"):
        await first.count(4 * EACH)
    async with member(broker, second.listener("2"), group="two"):
        await second.count(4 * EACH)

    assert first.places == second.places


# Balance


@pytest.mark.parametrize("members", [2, 4])
async def test_members_share_evenly_and_in_order(broker: InMemoryBroker, members: int) -> None:
    await made(broker)
    seen = Deliveries()
    fleet = [member(broker, seen.listener(str(number))) for number in range(members)]
    for one in fleet:
        one.start()
    await asyncio.sleep(2)

    await send_each(broker, range(4))
    await seen.count(4 * EACH)
    for one in fleet:
        await one.stop()

    assert seen.shares == {str(number): 4 * EACH // members for number in range(members)}
    assert all(offsets == list(range(EACH)) for offsets in seen.offsets.values())


async def test_a_fifth_member_of_four_queues_gets_none(broker: InMemoryBroker) -> None:
    await made(broker)
    fleet = [member(broker, Deliveries().listener(str(number))) for number in range(5)]
    for one in fleet:
        one.start()

    await asyncio.sleep(2)

    assert sorted(len(one.assignment) for one in fleet) == [0, 1, 1, 1, 1]
    for one in fleet:
        await one.stop()


@pytest.mark.parametrize("members", [2, 3])
async def test_when_a_member_stops_the_others_go_on_in_order_and_nothing_is_repeated(
    broker: InMemoryBroker, members: int
) -> None:
    await made(broker)
    await send_each(broker, range(4))
    seen = Deliveries()
    fleet = [member(broker, seen.listener(str(number), takes_s=0.1)) for number in range(members)]
    for one in fleet:
        one.start()
    await seen.count(EACH)

    await fleet[0].stop()
    await seen.count(4 * EACH)
    for one in fleet[1:]:
        await one.stop()

    assert all(offsets == list(range(EACH)) for offsets in seen.offsets.values())
    assert set(seen.shares) == {str(number) for number in range(members)}


async def test_members_that_come_and_crash_while_messages_are_sent_lose_nothing(broker: InMemoryBroker) -> None:
    await made(broker)
    seen, cut = Deliveries(), Connections()
    first = member(broker, seen.listener("first", takes_s=0.02))
    crashing = member(broker, seen.listener("crashing", takes_s=0.02), connect=cut)
    late = member(broker, seen.listener("late", takes_s=0.02))
    first.start()
    sending = asyncio.ensure_future(send_slowly(broker, 400))
    await asyncio.sleep(2)
    crashing.start()
    await asyncio.sleep(3)
    await cut.crash()
    await asyncio.sleep(1)
    late.start()
    await sending

    await seen.count(400)
    for one in (first, crashing, late):
        await one.stop()

    seen.check_order()
    assert set(seen.shares) == {"first", "crashing", "late"}


async def test_twenty_changes_of_the_fleet_in_a_minute_keep_the_order_of_every_queue(broker: InMemoryBroker) -> None:
    await made(broker)
    seen = Deliveries()
    fleet: list[Consumer] = []
    sending = asyncio.ensure_future(send_slowly(broker, 2000, every_s=0.03))
    for change in range(20):
        if change % 3 == 2:
            await fleet.pop(0).stop()
        else:
            fleet.append(member(broker, seen.listener(str(change), takes_s=0.01)))
            fleet[-1].start()
        await asyncio.sleep(3)
    await sending

    await seen.count(2000)
    for one in fleet:
        await one.stop()

    assert all(offsets == list(range(500)) for offsets in seen.offsets.values()), "clean changes repeat nothing"
    assert len(seen.shares) > 10


async def send_slowly(broker: InMemoryBroker, count: int, every_s: float = 0.02) -> None:
    async with Producer(broker.address) as producer:
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number), queue_id=number % 4)
            await asyncio.sleep(every_s)


async def test_a_member_started_after_everything_was_consumed_gets_none_of_it(broker: InMemoryBroker) -> None:
    await made(broker)
    await send_each(broker, range(4))
    seen, late = Deliveries(), Deliveries()
    async with member(broker, seen.listener("a")):
        await seen.count(4 * EACH)

    async with member(broker, late.listener("b")):
        await asyncio.sleep(30)

    assert late.all == []


async def test_a_group_that_begins_at_the_end_gets_only_what_comes_after(broker: InMemoryBroker) -> None:
    await made(broker)
    await send_each(broker, range(4))
    seen = Deliveries()

    async with member(broker, seen.listener("a"), start_from="last"):
        await asyncio.sleep(2)
        async with Producer(broker.address) as producer:
            await producer.send(Message("orders", b"new"), queue_id=2)
        await seen.count(1)

    assert seen.bodies == [b"new"]


# A queue that is consumed while it grows


async def test_a_turn_takes_what_arrives_while_it_runs(broker: InMemoryBroker) -> None:
    await made(broker, queues=1)
    calls: list[list[bytes]] = []
    turns, done = [0], asyncio.Event()
    consumer: Consumer

    async def listener(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
        assert consumer._runtime is not None
        turns[0] = max(turns[0], consumer._runtime.service.turns)
        calls.append([message.body for message in messages])
        if len(calls) == 1:
            async with Producer(broker.address) as producer:
                for number in range(1, 10):
                    await producer.send(Message("orders", b"%d" % number), queue_id=0)
        if sum(map(len, calls)) == 10:
            done.set()
        await asyncio.sleep(1)
        return ConsumeStatus.SUCCESS

    consumer = member(broker, listener, batch=4)
    async with consumer:
        async with Producer(broker.address) as producer:
            await producer.send(Message("orders", b"0"), queue_id=0)
        await done.wait()

    assert [body for call in calls for body in call] == [b"%d" % number for number in range(10)]
    assert turns == [1]
    assert max(map(len, calls)) == 4


# Sending


async def test_a_batch_of_100_has_an_id_for_each_message_and_keeps_properties(broker: InMemoryBroker) -> None:
    await made(broker)
    got: list[StoredMessage] = []
    done = asyncio.Event()

    async def listener(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
        got.extend(messages)
        if len(got) == 100:
            done.set()
        return ConsumeStatus.SUCCESS

    async with Producer(broker.address) as producer:
        messages = [Message("orders", b"x", properties={"n": str(n)}, index_keys=(f"k{n}",)) for n in range(100)]
        receipts = await producer.send_many(messages, queue_id=1)
    async with member(broker, listener):
        await done.wait()

    assert [message.message_id for message in got] == [receipt.message_id for receipt in receipts]
    assert len({message.message_id for message in got}) == 100
    assert [message.properties for message in got] == [{"n": str(n)} for n in range(100)]
    assert [message.index_keys for message in got] == [(f"k{n}",) for n in range(100)]


async def test_what_cannot_be_sent_is_refused_and_128_kib_can(broker: InMemoryBroker) -> None:
    await made(broker)
    async with Producer(broker.address) as producer:
        with pytest.raises(TypeError):
            Message("orders", None)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            await producer.send(Message("orders", bytes((4 << 20) + 1)))
        for topic in ("", "a b"):
            with pytest.raises((BadName, ConfigError)):
                await producer.send(Message(topic, b"x"))
        for queue_id in (4, 1000, -1):
            with pytest.raises((QueueNotFound, ValueError, ConfigError)):
                await producer.send(Message("orders", b"x"), queue_id=queue_id)

        assert (await producer.send(Message("orders", bytes(128 << 10)))).queue_offset == 0
        assert (await producer.send(Message("orders", b""))).message_id
