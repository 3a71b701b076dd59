from __future__ import annotations

import asyncio
import errno
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.handlers.topics import MAX_OFFSETS
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import (
    BadName,
    BadRequest,
    DiskFull,
    Fenced,
    QueueNotFound,
    StoreFailed,
    TopicExists,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, CreateTopic, Join, Op, Push, Route, TopicInfo
from rmq.wire.protocol.ops.topics import DeletedTopic, DeleteTopic, DescribeTopic, GrowTopic, TopicDescription

from ..builders import ORDERS, make_batch
from ..harness import Client, bodies, holder
from ..state.test_replay import both, gone
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


async def test_a_topic_is_listed_and_reported_to_joiners_only_when_it_is_durable(memory_path: Path) -> None:
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


async def test_a_list_after_something_other_than_text_is_refused(broker: InMemoryBroker) -> None:
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


# ---- a topic's growth and end, as clients see it; also over restarts and crashes


PAYMENTS = MessageQueue("payments", 0)


async def delete(client: Client, topic: str = "orders", generation: int = 0) -> DeletedTopic:
    return decode(DeletedTopic, await client.request(Op.DELETE_TOPIC, DeleteTopic(topic, generation)))


async def grow(client: Client, queues: int, topic: str = "orders") -> TopicInfo:
    return decode(TopicInfo, await client.request(Op.GROW_TOPIC, GrowTopic(topic, queues)))


async def describe(client: Client, topic: str = "orders") -> TopicDescription:
    return decode(TopicDescription, await client.request(Op.DESCRIBE_TOPIC, DescribeTopic(topic)))


async def everything(client: Client) -> list[bytes]:
    """All that orders/0 holds; a busy broker may give it in several answers."""
    found: list[bytes] = []
    while (answer := await client.pull(len(found))).status == 0:
        found += bodies(answer, len(found))
    return found


# ---- growth


@both
async def test_a_grown_topic_has_its_new_queues_and_old_shards_also_after_the_broker_was_gone(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    async with Client(broker) as client:
        await client.create("orders", 2)
        await client.send(b"old")
        assert (await client.send(b"x", to=MessageQueue("orders", 4))).status == QueueNotFound.code

        grown = await grow(client, 5)

        assert (grown.generation, grown.shards, len(grown.queues)) == (1, 2, 5)
        assert (await client.send(b"new", to=MessageQueue("orders", 4))).status == 0
        assert await grow(client, 5) == grown
        with pytest.raises(BadRequest, match="has 5 queues and never gets fewer"):
            await grow(client, 4)
        with pytest.raises(TopicNotFound):
            await grow(client, 4, "payments")

    async with gone(broker, how, memory_path) as after, Client(after) as reader:
        assert await reader.route("orders") == grown
        assert bodies(await reader.pull(0)) == [b"old"]
        assert bodies(await reader.pull(0, queue=MessageQueue("orders", 4))) == [b"new"]


async def test_subscribers_are_reported_that_a_topic_has_grown(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker) as reader, Client(broker) as other:
        await client.create("orders", 2)
        await reader.join()
        await other.join("h", topics=["payments"])

        grown = await grow(client, 3)
        await grow(client, 3)
        await turns()

        assert [decode(TopicInfo, told) for told in reader.of(Push.TOPIC_CHANGED)] == [grown]
        assert other.of(Push.TOPIC_CHANGED) == []


# ---- the end


@both
async def test_a_deleted_topic_takes_everything_with_it_and_a_new_one_begins_at_0(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    client, epoch = await holder(broker)
    await client.send(b"a", b"b", b"c")
    await client.commit(epoch, 1)
    await client.attempt(epoch, 1, 4)
    await client.create("payments", 1)
    await client.send(b"kept", to=PAYMENTS)

    assert await delete(client) == ("orders", 1)
    assert (await client.range()).status == TopicNotFound.code
    assert await client.locks() == []
    await client.connection.close()

    async with gone(broker, how, memory_path) as after, Client(after) as reader:
        assert [topic[0] for topic in await reader.request(Op.LIST_TOPICS, [])] == ["payments"]
        assert await reader.locks() == []
        assert bodies(await reader.pull(0, queue=PAYMENTS)) == [b"kept"]

        made = await reader.create("orders", 2)
        assert (made.generation, made.shards) == (3, 2)
        assert (await reader.range())[:5] == (0, 0, 0, NO_OFFSET, None)
        assert (await reader.send(b"new")).base_offset == 0
        await reader.join()
        grant = await reader.acquire()
        assert (grant.committed_offset, grant.attempts) == (NO_OFFSET, 0)
        assert grant.epoch > epoch
        assert bodies(await reader.pull(0)) == [b"new"]


@both
async def test_generations_are_not_given_again_after_the_broker_was_gone(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    async with Client(broker) as client:
        for generation in (1, 2, 3):
            assert (await client.create()).generation == generation
            await client.send(b"dead")
            await delete(client, generation=generation)

    async with gone(broker, how, memory_path) as after, Client(after) as client:
        assert (await client.create()).generation == 4
        assert (await client.range(group=None))[:5] == (0, 0, 0, NO_OFFSET, None)


@both
async def test_messages_of_a_dead_generation_stay_dead_next_to_those_of_the_living(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"dead", b"dead")
        await delete(client)
        await client.create("orders", 1)
        await client.send(b"alive")

    async with gone(broker, how, memory_path) as after, Client(after) as client:
        assert bodies(await client.pull(0)) == [b"alive"]
        assert (await client.send(b"next")).base_offset == 1


async def test_what_does_not_exist_or_belongs_to_the_broker_cannot_be_deleted(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()

        with pytest.raises(TopicNotFound, match="no topic 'payments'"):
            await delete(client, "payments")
        with pytest.raises(TopicNotFound, match="generation 7 of 'orders' is gone"):
            await delete(client, generation=7)
        with pytest.raises(BadName):
            await delete(client, "SCHEDULE_TOPIC_XXXX")
        assert (await client.range()).status == 0


async def test_subscribers_are_reported_that_a_topic_is_gone_and_that_it_is_back(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker) as reader, Client(broker) as other:
        await client.create()
        await reader.join()
        await other.join("h", topics=["payments"])

        await delete(client)
        await client.create("orders", 1)
        await turns()

        told = [(push, payload[:2]) for push, payload in reader.pushes if push != Push.MEMBERS_CHANGED]
        assert told == [(Push.TOPIC_DELETED, ["orders", 1]), (Push.TOPIC_CHANGED, ["orders", 2])]
        assert other.of(Push.TOPIC_DELETED) == []
        assert (await reader.join()).topics == [("orders", 2, 1, [(0, "rmq")])]


async def test_a_parked_pull_is_answered_at_once_and_for_the_deleted_queue_only(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker) as reader:
        await client.create()
        await client.create("payments", 1)
        asked = [ops.PullQueue(*PAYMENTS, 0), ops.PullQueue(*ORDERS, 0)]
        waiting = asyncio.create_task(reader.pull_many(*asked, wait_ms=15_000))
        await turns()
        began = asyncio.get_running_loop().time()

        await delete(client)

        (answer,) = await waiting
        assert answer == (1, TopicNotFound.code, 0, 0, 0, b"", "the topic 'orders' was deleted")
        assert asyncio.get_running_loop().time() - began < 1.0
        with pytest.raises(TopicNotFound):
            await reader.pull_many(*asked)


async def test_an_owner_learns_by_every_request_that_its_lease_is_gone(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client, Client(broker) as other:
        await client.send(b"a")
        waiting = asyncio.create_task(client.pull(1, group="g", epoch=epoch, wait_ms=15_000))
        await turns()

        await delete(other)

        assert (await waiting).status == TopicNotFound.code
        assert (await client.renew(epoch)).status == Fenced.code
        assert (await client.commit(epoch, 1)).status == TopicNotFound.code
        with pytest.raises(TopicNotFound):
            await client.attempt(epoch, 0, 1)
        assert (await client.release(epoch, 1)).status == TopicNotFound.code
        await other.create()
        assert (await client.commit(epoch, 1)).status == Fenced.code
        assert (await client.pull(0, group="g", epoch=epoch)).status == Fenced.code
        assert client.of(Push.LEASE_FREE) == []


async def test_progress_that_rides_on_a_pull_does_not_outlive_its_topic(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b")
        await client.pull(1, group="g", epoch=epoch, commit=1)
        assert await client.committed() == 1

        await delete(client)
        await client.create()
        await client.send(b"c", b"d")
        await asyncio.sleep(1.0)

        assert await client.committed() == 0  # that of whoever waits for a new queue


async def test_a_send_to_a_deleted_topic_spends_its_number(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        first = await client.send(b"a", by=ProducerMark(7, 1))
        await delete(client)

        assert (await client.send(b"b", by=ProducerMark(7, 2))).status == TopicNotFound.code
        await client.create()
        assert (await client.send(b"c", by=ProducerMark(7, 3))).base_offset == 0
        again = await client.send(b"a", by=ProducerMark(7, 1))
        assert (again.status, again.duplicate, again.physical_offset) == (0, True, first.physical_offset)
        assert bodies(await client.pull(0)) == [b"c"]


async def test_a_batch_for_an_older_generation_is_refused_and_spends_its_number(broker: InMemoryBroker) -> None:
    def numbered(sequence: int, generation: int) -> ops.OutgoingBatch:
        return ops.OutgoingBatch(0, make_batch(b"%d" % sequence, by=ProducerMark(7, sequence)), generation)

    async with Client(broker) as client:
        await client.create()
        assert [result.status for result in await client.send_batches(numbered(1, 1))] == [0]
        await delete(client)
        await client.create()

        refused, *others = await client.send_batches(numbered(2, 1), numbered(3, 2), numbered(4, 0), numbered(1, 1))

        assert (refused.status, refused.text) == (
            TopicNotFound.code,
            "generation 1 of 'orders' is gone: there is generation 2",
        )
        assert [(result.status, result.duplicate) for result in others] == [(0, False), (0, False), (0, True)]
        assert await everything(client) == [b"3", b"4"]


@both
async def test_a_producers_numbers_stay_taken_when_its_topic_is_gone(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a", by=ProducerMark(7, 1))
        await delete(client)

    async with gone(broker, how, memory_path) as after, Client(after) as client:
        await client.create()
        assert (await client.send(b"a", by=ProducerMark(7, 1))).duplicate
        assert (await client.send(b"b", by=ProducerMark(7, 2))).base_offset == 0


async def test_an_end_and_a_growth_are_reported_only_when_they_are_durable(memory_path: Path) -> None:
    broker, flusher = await held(memory_path)
    pushes: list[tuple[int, list[Any]]] = []
    connection = Connection(broker.address, on_push=lambda push, payload: pushes.append((push, payload)))
    await connection.open(timeout_s=5.0)
    setting_up = [
        asyncio.create_task(connection.request(op, payload))
        for op, payload in (
            (Op.CREATE_TOPIC, ops.CreateTopic("orders", 1)),
            (Op.JOIN, ops.Join("g", True, "clustering", "evenly", {"orders": "*"})),
        )
    ]
    await turns()
    flusher.flush()
    await asyncio.gather(*setting_up)
    pushes.clear()

    asked = [
        asyncio.create_task(connection.request(op, payload))
        for op, payload in (
            (Op.GROW_TOPIC, GrowTopic("orders", 2)),
            (Op.DESCRIBE_TOPIC, DescribeTopic("orders")),
            (Op.DELETE_TOPIC, DeleteTopic("orders")),
        )
    ]
    await turns()
    assert not any(task.done() for task in asked)
    assert pushes == []
    flusher.flush()

    answers = [answer[:3] for answer in await asyncio.gather(*asked)]
    assert answers == [["orders", 1, 1], ["orders", 1, 1], ["orders", 1]]
    assert [push for push, _ in pushes] == [Push.TOPIC_CHANGED, Push.TOPIC_DELETED]
    await connection.close()
    await broker.stop()


# ---- all in one turn


@both
async def test_whatever_is_asked_for_at_once_the_log_tells_the_same_story(
    broker: InMemoryBroker, memory_path: Path, how: str, logs: list[MutableMapping[str, Any]]
) -> None:
    """Send, delete, create and send in one packet, three times over, before the disk has answered anything."""
    async with Client(broker) as client:
        asked: list[Any] = []
        for i in range(3):
            asked += [client.create("orders", 1 + i), client.send(b"dead"), client.send(b"dead"), delete(client)]
        asked += [client.create("orders", 1), client.send(b"one"), client.send(b"two")]
        answers = await asyncio.gather(*asked)

        assert [answer.base_offset for answer in answers[-2:]] == [0, 1]
        assert answers[-3].generation == 4
        assert await everything(client) == [b"one", b"two"]

    async with gone(broker, how, memory_path) as after, Client(after) as client:
        assert (await client.route("orders")).generation == 4
        assert await everything(client) == [b"one", b"two"]
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


# ---- descriptions


async def test_a_description_tells_what_queues_hold_and_how_far_groups_are(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.commit(epoch, 1)
        await client.join("late", ordered=False)
        late = (await client.acquire(group="late")).epoch
        await client.commit(late, 0, group="late")
        await client.pull(2, group="late", epoch=late, commit=2)
        await client.join("idle", ordered=False)
        await grow(client, 5)

        told = await describe(client)

        assert (told.topic, told.generation, told.shards, told.more_groups) == ("orders", 1, 4, 0)
        assert told.created_at > 0
        assert told.queues == [(0, "rmq", 0, 3), *((i, "rmq", 0, 0) for i in range(1, 5))]
        none = [NO_OFFSET] * 3
        assert told.groups == [("g", 1, [1, *none, 0]), ("idle", 1, [NO_OFFSET, *none, 0]), ("late", 1, [2, *none, 0])]
        assert told.lags(told.groups[0]) == [2, 0, 0, 0, 0]
        with pytest.raises(TopicNotFound):
            await describe(client, "payments")


async def test_a_description_names_at_most_so_many_offsets_and_says_what_is_left_out(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("wide", 1024)
        groups = [f"g{i:03}" for i in range(MAX_OFFSETS // 1024 + 3)]
        for group in groups:
            await client.join(group, ordered=False, topics=["wide"])
            grant = await client.acquire(MessageQueue("wide", 7), group=group)
            await client.commit(grant.epoch, 0, MessageQueue("wide", 7), group=group)

        told = await describe(client, "wide")

        assert [group.group for group in told.groups] == groups[:-3]
        assert told.more_groups == 3
