"""Groups as people look at them: all of them in pages, one of them in detail, both within bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.handlers.inspect import GroupAdminHandler, Most
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadName, GroupNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.groups import DescribeGroup, GroupDescription, GroupQueue, GroupRow, ListGroups

from ..builders import ORDERS
from ..harness import Client, crash_copy, holder
from .test_topic_life import delete

pytestmark = pytest.mark.virtual_time

FIRST = MessageQueue("orders", 1)


def narrow(broker: InMemoryBroker, most: Most) -> None:
    """Have the broker's answers end earlier."""
    app = broker.broker
    handler = GroupAdminHandler(
        app._groups, topics=app._topics, store=app._store, members=app._members, locks=app._locks,
        ledger=app._ledger, progress=app._progress, committer=app._committer, now=app.now, most=most,
    )  # fmt: skip
    app.handlers |= {Op.LIST_GROUPS: handler.list_groups, Op.DESCRIBE_GROUP: handler.describe}


async def groups(client: Client, after: str = "") -> list[GroupRow]:
    return decode_list(GroupRow, await client.request(Op.LIST_GROUPS, ListGroups(after)))


async def describe(client: Client, group: str = "g", topic: str | None = None) -> GroupDescription:
    return decode(GroupDescription, await client.request(Op.DESCRIBE_GROUP, DescribeGroup(group, topic)))


async def queue(client: Client, queue_id: int = 0) -> GroupQueue:
    return (await describe(client)).queues[queue_id]


# ---- all groups


async def test_a_broker_without_groups_lists_none(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        assert await groups(client) == []


async def test_a_group_is_listed_by_its_members_leases_topics_and_lag(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        client, epoch = await holder(broker)
        await client.send(b"1", b"2", b"3")
        await client.send(b"4", to=FIRST)
        await client.commit(epoch, 2)

        assert await groups(admin) == [GroupRow("g", True, "clustering", "average", 1, 1, 1, 2)]
        await client.__aexit__()


async def test_the_retries_of_a_group_are_a_topic_of_it_once_there_are_any(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.join(topics=("orders", "%RETRY%g"))
        assert (await groups(client))[0].topics == 1

        broker.broker._serving.topics.own("%RETRY%g")
        assert (await groups(client))[0].topics == 2


async def test_progress_that_rides_on_pulls_counts_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1", b"2", b"3")
    await client.pull(2, group="g", epoch=epoch, commit=2)

    assert (await groups(client))[0].lag == 1
    assert (await queue(client)).committed == 2
    await client.__aexit__()


async def test_a_group_is_known_by_progress_alone_and_then_has_no_mode(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1", b"2")
    await client.release(epoch, 1)
    await client.leave()

    assert await groups(client) == [GroupRow("g", None, None, None, 0, 0, 1, 1)]
    told = await describe(client)
    assert (told.ordered, told.model, told.strategy, told.members, told.subscriptions) == (None, None, None, [], {})
    assert told.queues[0] == GroupQueue("orders", 0, 0, 2, 1, 1)
    await client.__aexit__()


async def test_a_group_is_known_by_members_alone(broker: InMemoryBroker) -> None:
    """A topic that does not exist yet is subscribed to, and has no queues."""
    async with Client(broker) as client:
        await client.join("waiting", topics=["later"])

        assert await groups(client) == [GroupRow("waiting", True, "clustering", "average", 1, 0, 1, 0)]
        told = await describe(client, "waiting")
        assert (told.subscriptions, told.queues) == ({"later": "*"}, [])


async def test_a_group_is_known_by_a_lease_from_before_a_crash(broker: InMemoryBroker, memory_path: Path) -> None:
    client, _ = await holder(broker)
    async with crash_copy(broker, memory_path / "copy") as after, Client(after, "admin") as admin:
        (row,) = await groups(admin)
        told = await describe(admin)

        assert (row.group, row.ordered, row.members, row.leases, row.topics) == ("g", None, 1, 1, 1)
        assert [(member.member, member.state, member.address) for member in told.members] == [
            (client.member, "grace", None)
        ]
        assert told.queues[0].owner == client.member
    await client.__aexit__()


async def test_groups_come_in_pages_by_name(broker: InMemoryBroker) -> None:
    narrow(broker, Most(groups=2))
    async with Client(broker) as client:
        await client.create()
        for name in ("c", "a", "e", "b"):
            await client.join(name)
        for name in ("d", "b"):  # which has members too, or progress only
            await client.reset(0, ORDERS, group=name)

        pages = [await groups(client)]
        while pages[-1]:
            pages.append(await groups(client, pages[-1][-1].group))

    assert [[row.group for row in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"], []]


async def test_a_page_ends_with_the_group_that_has_many_queues(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        for i in range(5):
            await client.create(f"wide{i}", 1024)
        wide = [f"wide{i}" for i in range(5)]
        await client.join("a", topics=wide[:3])
        await client.join("b", topics=wide)
        await client.join("c", topics=wide[:1])
        await client.send(b"1", to=MessageQueue("wide4", 1023))

        page = await groups(client)

        assert [(row.group, row.more_queues) for row in page] == [("a", 0), ("b", 1024)]
        assert [row.group for row in await groups(client, "b")] == ["c"]


# ---- one group


async def test_a_description_has_all_that_is_known_of_a_queue(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1", b"2", b"3")
    await client.commit(epoch, 1)
    await client.attempt(epoch, 1, 4)
    await asyncio.sleep(2)

    held = await queue(client)

    assert held[:8] == ("orders", 0, 0, 3, 1, 2, client.member, epoch)
    assert held.lease_left_s == pytest.approx(58.0, abs=0.1)
    assert (held.state, held.retry_offset, held.attempts) == ("held, retrying offset 1 (attempt 5)", 1, 4)
    assert await queue(client, 1) == GroupQueue("orders", 1, 0, 0, -1, 0)
    await client.__aexit__()


async def test_a_description_has_the_members_and_when_they_were_heard(broker: InMemoryBroker) -> None:
    a, _ = await holder(broker, "a")
    async with Client(broker, "b") as b:
        await b.join()
        await b.acquire(FIRST)
        await b.acquire(MessageQueue("orders", 2))
        await asyncio.sleep(3)
        await a.join()

        told = await describe(a)

        assert [(member.member, member.state, member.leases) for member in told.members] == [
            (a.member, "connected", 1),
            (b.member, "connected", 2),
        ]
        assert [member.session for member in told.members] == [a.member[-8:], b.member[-8:]]
        assert all(str(member.address).startswith("127.0.0.1:") for member in told.members)
        assert [member.heard_ago_s for member in told.members] == pytest.approx([0.0, 3.0], abs=0.2)
        assert (told.ordered, told.model, told.strategy) == (True, "clustering", "average")
        assert told.subscriptions == {"orders": "*"}
    await a.__aexit__()


async def test_what_a_member_is_told_unasked_does_not_make_it_heard(broker: InMemoryBroker) -> None:
    a, _ = await holder(broker, "a")
    await asyncio.sleep(3)
    async with Client(broker, "b") as b:
        await b.join()
        await asyncio.sleep(0.5)

        assert a.pushes
        assert (await describe(b)).members[0].heard_ago_s == pytest.approx(3.5, abs=0.2)
    await a.__aexit__()


async def test_a_member_without_connection_is_in_its_grace_and_so_are_its_leases(broker: InMemoryBroker) -> None:
    a, _ = await holder(broker, "a")
    await a.__aexit__()
    async with Client(broker, "b") as b:
        await asyncio.sleep(2)

        told = await describe(b)

        assert [(member.state, member.address) for member in told.members] == [("grace", None)]
        assert told.members[0].heard_ago_s == pytest.approx(2.0, abs=0.2)
        assert told.queues[0].state == "grace"
        assert told.queues[0].lease_left_s == pytest.approx(3.0, abs=0.2)

        await asyncio.sleep(4)
        with pytest.raises(GroupNotFound, match="there is no group 'g'"):
            await describe(b)


async def test_a_failing_message_is_told_also_if_nobody_has_the_queue(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1")
    await client.attempt(epoch, 0, 2)
    await client.release(epoch)

    told = await queue(client)

    assert (told.owner, told.epoch, told.state) == (None, 0, None)
    assert (told.retry_offset, told.attempts) == (0, 2)
    await client.__aexit__()


async def test_with_a_topic_only_its_queues_are_told(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("orders", 2)
        await client.create("payments", 3)
        await client.create("others", 1)
        await client.join(topics=["orders", "payments"])

        assert [row.topic for row in (await describe(client)).queues] == ["orders"] * 2 + ["payments"] * 3
        assert [row.topic for row in (await describe(client, topic="payments")).queues] == ["payments"] * 3
        assert (await describe(client, topic="others")).queues == []
        with pytest.raises(TopicNotFound):
            await describe(client, topic="nothing")


async def test_a_description_leaves_out_what_is_too_much_and_says_how_much(broker: InMemoryBroker) -> None:
    narrow(broker, Most(described=5, members=1))
    async with Client(broker, "a") as a, Client(broker, "b") as b:
        await a.create("orders", 4)
        await a.create("payments", 4)
        for client in (a, b):
            await client.join(topics=["orders", "payments"])

        told = await describe(a)

        assert ([member.member for member in told.members], told.more_members) == ([a.member], 1)
        assert (len(told.queues), told.more_queues) == (5, 3)


@pytest.mark.parametrize(
    ("group", "error"), [("nobody", GroupNotFound), ("", BadName), ("no name", BadName), ("x" * 128, BadName)]
)
async def test_a_group_of_which_nothing_is_known_is_refused(broker: InMemoryBroker, group: str, error: Any) -> None:
    async with Client(broker) as client:
        with pytest.raises(error):
            await describe(client, group)


async def test_a_deleted_topic_takes_the_progress_of_its_groups_out_of_the_list(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1")
    await client.release(epoch, 1)
    await client.leave()
    await client.create("payments")
    await client.join("g2", topics=["payments"])
    assert [row.group for row in await groups(client)] == ["g", "g2"]

    await delete(client)

    assert [row.group for row in await groups(client)] == ["g2"]
    assert (await client.range(ORDERS, group="g")).status != 0
    await client.__aexit__()
