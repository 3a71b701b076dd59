from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadName, BadRequest, DiskFull, QueueNotFound, StoreFailed, TopicExists, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import CreateTopic, Join, Op, Route

from ..harness import Client
from ..test_app import held, turns
from rigs.disk.faulty import FaultyFiles

pytestmark = pytest.mark.virtual_time


async def test_a_route_names_the_broker_of_each_queue(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        made = await client.create("orders", 2)

        assert made == ("orders", 1, 2, [(0, "rmq"), (1, "rmq")])
        assert await client.route("orders") == made


async def test_a_producer_may_ask_for_a_topic_to_be_made(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(TopicNotFound, match=r"there is no topic 'orders'"):
            await client.route("orders")

        made = await client.route("orders", create=True)

        assert (len(made.queues), made.shards) == (4, 4)
        assert await client.route("orders", create=True) == made
        with pytest.raises(BadName):
            await client.route("a b", create=True)


async def test_topics_are_not_made_where_that_is_switched_off() -> None:
    async with InMemoryBroker(auto_create_topics=False) as broker, Client(broker) as client:
        with pytest.raises(TopicNotFound, match=r"create it with `rmq-admin"):
            await client.route("orders", create=True)

        await client.create("orders", 1)
        assert len((await client.route("orders", create=True)).queues) == 1


async def test_a_route_makes_no_topic_while_the_disk_has_too_little_room() -> None:
    async with InMemoryBroker(min_free_bytes=1 << 60) as broker, Client(broker) as client:
        with pytest.raises(DiskFull, match=r"the disk has \d+ MiB free"):
            await client.route("orders", create=True)

        with pytest.raises(TopicNotFound):
            await client.route("orders")
        await client.create("orders", 1)
        assert len((await client.route("orders", create=True)).queues) == 1


@pytest.mark.parametrize(("number", "refusal"), [(errno.ENOSPC, DiskFull), (errno.EIO, StoreFailed)])
async def test_a_route_whose_topic_cannot_be_written_is_refused_at_once_until_it_can(
    number: int, refusal: type[Exception]
) -> None:
    loop, files = asyncio.get_running_loop(), FaultyFiles()
    async with InMemoryBroker(files=files) as broker, Client(broker) as client:
        files.fail("write", "commitlog", number)
        began = loop.time()
        for topic in ("orders", "orders", "others"):
            with pytest.raises(refusal, match="the log could not be written"):
                await client.route(topic, create=True)
        assert loop.time() - began < 1
        files.heal()
        await asyncio.sleep(1)

        assert len((await client.route("orders", create=True)).queues) == 4
        with pytest.raises(TopicNotFound):  # what cannot be written for now is not begun
            await client.route("others")


async def test_making_a_topic_again_is_no_error_unless_its_shape_differs(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        made = await client.create("orders", 2)

        assert await client.create("orders", 2) == made
        with pytest.raises(TopicExists, match=r"exists with 2 queues, not 3"):
            await client.create("orders", 3)
        for queues in (0, -1, 1025):
            with pytest.raises(BadRequest, match=r"a topic has 1 to 1024 queues"):
                await client.create("more", queues)


async def test_topics_are_listed_by_name(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("b", 1)
        await client.create("a", 2)

        listed = await client.request(Op.LIST_TOPICS, [])

        assert [(topic[0], topic[1], len(topic[3])) for topic in listed] == [("a", 2, 2), ("b", 1, 1)]


async def test_ranges_tell_what_can_be_read_and_why_not(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a", b"b")

        assert (await client.range())[:5] == (0, 0, 2, -1, None)
        assert (await client.range(MessageQueue("orders", 1), group=None))[:5] == (0, 0, 0, -1, None)
        assert (await client.range(MessageQueue("orders", 4))).status == QueueNotFound.code
        assert (await client.range(MessageQueue("nothing", 0))).status == TopicNotFound.code


async def test_a_topic_is_listed_and_told_to_joiners_only_when_it_is_durable(memory_path: Path) -> None:
    broker, flusher = await held(memory_path)
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)

    asked = [
        asyncio.create_task(connection.request(op, payload))
        for op, payload in (
            (Op.CREATE_TOPIC, CreateTopic("orders", 1)),
            (Op.LIST_TOPICS, []),
            (Op.JOIN, Join("g", True, "clustering", "evenly", {"orders": "*"})),
            (Op.ROUTE, Route("orders")),
        )
    ]
    await turns()
    assert not any(task.done() for task in asked)
    flusher.flush()

    info = ["orders", 1, 1, [[0, "rmq"]]]
    made, listed, joined, again = await asyncio.gather(*asked)
    assert (made, listed, joined[:2], again) == (info, [info], [[connection.member], [info]], info)
    await connection.close()
    await broker.stop()


async def test_a_long_list_comes_in_pages_that_a_frame_holds(broker: InMemoryBroker) -> None:
    """A page still has more values than the broker would take from a client."""
    pages: list[list[str]] = []
    async with Client(broker) as client:
        made = [(await client.create(f"t{i:02}", 1024)).topic for i in range(90)]

        while not pages or pages[-1]:
            after = pages[-1][-1] if pages else ""
            pages.append([topic[0] for topic in await client.request(Op.LIST_TOPICS, [after])])

    assert [len(page) for page in pages] == [32, 32, 26, 0]
    assert [name for page in pages for name in page] == made


async def test_a_list_behind_something_that_is_no_text_is_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match="ListTopics: after must be str, not int"):
            await client.request(Op.LIST_TOPICS, [7])


async def test_a_bad_group_and_too_many_queues_are_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("wide", 1024)
        every = [["wide", queue_id] for queue_id in range(1024)]

        assert len(await client.request(Op.RANGES, ["g", every])) == 1024
        with pytest.raises(BadRequest, match="a request has at most 1024 entries, not 1025: cut it into several"):
            await client.request(Op.RANGES, ["g", [*every, ["wide", 0]]])
        with pytest.raises(BadName):
            await client.range(MessageQueue("wide", 0), group="g" * 128)
