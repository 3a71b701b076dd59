"""Where a group without progress begins is decided once, and nothing sent after that is passed over."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from ..harness import Client, holder

pytestmark = pytest.mark.virtual_time

OTHER = MessageQueue("orders", 1)


async def join(client: Client, *from_end: str, topics: Sequence[str] = ("orders",), model: str = "clustering") -> None:
    await client.request(Op.JOIN, ops.Join("g", True, model, "average", dict.fromkeys(topics, "*"), list(from_end)))


async def test_the_first_member_that_asks_for_the_end_makes_the_ends_of_all_queues_progress(
    broker: InMemoryBroker,
) -> None:
    async with Client(broker) as client:
        await client.create(queues=2)
        await client.send(b"a", b"b")

        await join(client, "orders")

        assert (await client.committed(), await client.committed(OTHER)) == (2, 0)
        assert await client.committed(group="other") == NO_OFFSET


async def test_a_later_member_that_asks_for_the_end_changes_nothing(broker: InMemoryBroker) -> None:
    async with Client(broker, "a") as first, Client(broker, "b") as second:
        await first.create(queues=2)
        await join(first, "orders")
        await first.send(b"a", to=OTHER)

        await join(second, "orders")

        assert await second.committed(OTHER) == 0


async def test_a_topic_that_is_named_very_often_is_looked_at_once(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("other", 1024)
        await client.join("h", topics=("other",))
        await client.request(Op.ACQUIRE, ops.Acquire("h", [ops.QueueRef("other", i) for i in range(1024)]))
        await client.create()
        await client.send(b"a")

        began = time.process_time()
        await join(client, *["orders"] * 60_000)

        assert time.process_time() - began < 2.0  # looking through all leases for each took 10 s
        assert await client.committed() == 1


async def test_who_does_not_ask_for_the_end_gets_no_progress(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")

        await join(client)
        await join(client, "unheard-of")

        assert await client.committed() == NO_OFFSET


async def test_a_group_that_reads_from_the_start_is_not_moved_to_the_end_by_a_member_that_differs(
    broker: InMemoryBroker,
) -> None:
    first, _ = await holder(broker)  # reads, and has no progress yet
    async with first, Client(broker, "other") as second:
        await first.send(b"a")

        await join(second, "orders")

        assert await second.committed() == NO_OFFSET


async def test_a_group_with_progress_in_one_queue_is_not_moved_to_the_end_of_others(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", to=OTHER)
        await client.send(b"a")
        await client.release(epoch, 1)
        await client.leave()

        await join(client, "orders")

        assert (await client.committed(), await client.committed(OTHER)) == (1, NO_OFFSET)


async def test_a_topic_that_is_made_while_a_group_waits_for_it_is_read_from_0(broker: InMemoryBroker) -> None:
    async with Client(broker, "a") as first, Client(broker, "b") as second:
        await join(first, "orders")
        await first.create(queues=2)
        await first.send(b"a", to=OTHER)

        await join(second, "orders")  # it comes late, and may get the queue before anybody else had it

        assert (await second.committed(), await second.committed(OTHER)) == (0, 0)


async def test_a_queue_that_a_topic_grows_by_is_read_from_0_and_the_others_as_before(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create(queues=1)
        await client.send(b"a")
        await join(client)

        await client.request(Op.GROW_TOPIC, ("orders", 2))

        assert (await client.committed(), await client.committed(OTHER)) == (NO_OFFSET, 0)


async def test_who_gets_everything_has_no_progress_at_the_broker(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await join(client, model="broadcasting")

        await client.create()

        assert await client.committed() == NO_OFFSET


async def test_a_topic_that_is_gone_takes_the_beginnings_with_it(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")
        await join(client, "orders")

        await client.request(Op.DELETE_TOPIC, ("orders",))
        await client.create()

        assert await client.committed() == 0


async def test_beginnings_survive_a_restart(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create(queues=2)
        await client.send(b"a", b"b")
        await join(client, "orders", topics=("orders", "later"))
        await client.create("later")

        await broker.restart()
        await client.connection.wait_connected()

        assert await client.committed() == 2
        assert await client.committed(MessageQueue("later", 0)) == 0


async def test_what_a_group_failed_at_is_its_own_from_the_first_message_on(broker: InMemoryBroker) -> None:
    retries = MessageQueue("%RETRY%g", 0)
    async with Client(broker) as client:
        broker.broker._serving.topics.own("%RETRY%g")  # by a message that was sent back, while nobody is here
        broker.broker._serving.topics.own("%RETRY%h")
        await client.create()

        topics = ("orders", "%RETRY%g", "%RETRY%h")
        await join(client, *topics, topics=topics)

        assert await client.committed(retries) == 0
        assert await client.committed(MessageQueue("%RETRY%h", 0), group="h") == 0
        assert await client.committed(MessageQueue("%RETRY%h", 0)) == NO_OFFSET
