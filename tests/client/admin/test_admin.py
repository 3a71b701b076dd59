"""
Admin calls.

What an admin asks about groups, of the real broker: pages are put together, refusals have their classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmq.client import (
    Admin,
    Connection,
    GroupNotFound,
    MemberNotFound,
    MemberSilent,
    MessageQueue,
    Producer,
    TopicNotFound,
)
from rmq.testing.broker import InMemoryBroker
from rmq.wire import errors
from rmq.wire.protocol.ops.core import Join, Op, ResetResult
from rmq.wire.protocol.ops.groups import ASKED_AT_ONCE, RunningInfo

from ..fake_broker import FakeBroker

pytestmark = pytest.mark.virtual_time


async def test_topics_are_made_found_and_listed(broker: FakeBroker) -> None:
    async with Admin(broker.address) as admin:
        made = await admin.create_topic("orders", queues=3)
        assert [queue.queue_id for queue in made.queues] == [0, 1, 2]
        assert await admin.topic("orders") == made
        assert await admin.list_topics() == [made]
        with pytest.raises(errors.TopicNotFound):
            await admin.topic("other")


async def test_a_topic_is_described_grown_and_deleted(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"1", b"2"], queue_id=1)
    async with Admin(broker.address) as admin:
        told = await admin.describe_topic("orders")
        grown = await admin.grow_topic("orders", 6)
        gone = await admin.delete_topic("orders", told.generation)

    assert (told.messages, told.lags(told.groups[0])) == (2, [0, 2, 0, 0])
    assert (len(grown.queues), grown.shards) == (6, 4)
    assert gone == ("orders", 1)
    assert broker.topics == {}
    assert [payload for _, op, payload in broker.requests if op == Op.DELETE_TOPIC] == [["orders", 1]]


async def test_ranges_come_in_the_order_asked_for(broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"1", b"2"], queue_id=1)
    async with Admin(broker.address) as admin:
        ranges = await admin.ranges([MessageQueue("orders", 1), MessageQueue("orders", 0)], group="g")

    assert [(found.min_offset, found.max_offset) for found in ranges] == [(0, 2), (0, 0)]


async def test_ranges_of_many_queues_are_asked_for_in_parts(broker: FakeBroker) -> None:
    broker.create("wide", 1024)
    queues = [MessageQueue("wide", i % 1024) for i in range(2500)]

    async with Admin(broker.address) as admin:
        assert len(await admin.ranges(queues)) == 2500
        assert await admin.ranges([]) == []

    assert [len(payload[1]) for _, op, payload in broker.requests if op == Op.RANGES] == [1024, 1024, 452]


async def test_lock_status_is_a_list_of_rows(broker: FakeBroker) -> None:
    async with Admin(broker.address) as admin:
        (row,) = await admin.lock_status()

    assert (row.group, row.topic, row.queue_id, row.state) == ("g", "t", 0, "held")


async def test_without_a_broker_it_says_so_soon() -> None:
    async with FakeBroker() as broker:
        address = broker.address

    with pytest.raises(errors.ConnectionLost, match="start one with"):
        async with Admin(address):
            pass


@asynccontextmanager
async def members(broker: InMemoryBroker, count: int, *, silent: int = -1) -> AsyncIterator[list[str]]:
    """Members of the group g that answer with their number; one of them may be silent."""
    connections: list[Connection] = []
    tasks: list[asyncio.Task[Any]] = []

    def join(i: int) -> Connection:
        def asked(push: int, payload: list[Any]) -> None:
            if i != silent and len(payload) == 2 and isinstance(payload[0], int):
                answer = RunningInfo(payload[0], {"number": i})
                tasks.append(asyncio.get_running_loop().create_task(connection.request(Op.RUNNING_INFO, answer)))

        connection = Connection(broker.address, client=f"m{i:03}", on_push=asked)
        return connection

    for i in range(count):
        connections.append(join(i))
        await connections[-1].open(timeout_s=5)
        await connections[-1].request(Op.JOIN, Join("g", True, "clustering", "average", {"orders": "*"}))
    try:
        yield [connection.member for connection in connections]
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            await connection.close()


async def test_all_pages_of_groups_are_asked_for() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        await admin.create_topic("wide", 1024)
        joined = Connection(broker.address)
        await joined.open(timeout_s=5)
        names = [f"g{i}" for i in range(9)]  # a page ends with 4096 queues
        for name in names:
            await joined.request(Op.JOIN, Join(name, True, "clustering", "average", {"wide": "*"}))

        assert [row.group for row in await admin.list_groups()] == names
        await joined.close()


async def test_a_group_is_described() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, members(broker, 2) as names:
        await admin.create_topic("orders", 2)
        await admin.create_topic("payments", 2)

        told = await admin.describe_group("g")

        assert [member.member for member in told.members] == names
        assert [queue.queue_id for queue in told.queues] == [0, 1]
        assert (await admin.describe_group("g", "payments")).queues == []
        with pytest.raises(GroupNotFound):
            await admin.describe_group("nobody")
        with pytest.raises(TopicNotFound):
            await admin.describe_group("g", "nothing")


async def test_one_member_tells_what_it_does_or_why_not() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, members(broker, 2, silent=1) as names:
        assert await admin.member_info("g", names[0]) == {"number": 0}
        with pytest.raises(MemberSilent):
            await admin.member_info("g", names[1])
        with pytest.raises(MemberNotFound):
            await admin.member_info("g", "somebody")
        with pytest.raises(GroupNotFound):
            await admin.member_info("nobody", names[0])


async def test_all_pages_of_members_are_asked_and_one_that_is_silent_is_among_them() -> None:
    count = ASKED_AT_ONCE + 3
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, members(broker, count, silent=5) as names:
        reports = await admin.members_info("g")

        assert [report.member for report in reports] == names
        assert [report.info.get("number") for report in reports] == [*range(5), None, *range(6, count)]
        assert reports[5].status == MemberSilent.code


async def test_members_of_a_group_nobody_knows_are_refused() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        with pytest.raises(GroupNotFound):
            await admin.members_info("nobody")


async def test_offsets_are_reset_in_parts_and_a_dry_run_does_nothing() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        await admin.create_topic("orders", 1024)
        await admin.create_topic("payments", 1)
        offsets = {MessageQueue("orders", i): 0 for i in range(1024)} | {MessageQueue("payments", 0): 0}

        dry = await admin.reset_offsets("g", offsets, dry_run=True)
        with pytest.raises(GroupNotFound):
            await admin.describe_group("g")
        done = await admin.reset_offsets("g", offsets)

        assert dry == done == dict.fromkeys(offsets, ResetResult(0, -1, 0))
        assert (await admin.list_groups())[0].topics == 2
        assert await admin.reset_offsets("g", {}) == {}
