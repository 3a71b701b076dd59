"""Silence: of a member, whose queues go to the others; of the broker, which is held against nobody."""

from __future__ import annotations

import asyncio

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import GroupNotFound, LockHeld, MemberSilent, NotAMember
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.protocol.ops.groups import DescribeGroup, GroupDescription, GroupRow, ListGroups, MemberInfo, MemberReport

from ..harness import Client, bodies, holder, until

pytestmark = pytest.mark.virtual_time

TICK_S = 0.1
OTHER = MessageQueue("orders", 1)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_member_whose_last_lease_expired_leaves_the_group_with_it(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a")
    async with silent, Client(broker, "b") as other:
        await silent.acquire(OTHER)
        await other.join()
        other.pushes.clear()

        await until(60.0)
        assert other.pushes == []
        await until(60.0 + 2 * TICK_S)

        assert [told[:2] for told in other.of(Push.MEMBERS_CHANGED)] == [["g", [other.member]]]
        with pytest.raises(NotAMember):
            await silent.acquire()
        assert (await silent.join()).members == [silent.member, other.member]
        assert (await silent.acquire()).status == 0


async def test_a_member_that_keeps_another_lease_of_the_group_stays(broker: InMemoryBroker) -> None:
    alive, epoch = await holder(broker, "a")
    async with alive, Client(broker, "b") as other:
        await alive.acquire(OTHER)
        await other.join()
        await until(50.0)
        await alive.renew(epoch)
        other.pushes.clear()

        await until(61.0)

        assert other.pushes == [(Push.LEASE_FREE, ["g", *OTHER])]
        assert (await other.join()).members == [alive.member, other.member]


async def test_a_silent_member_leaves_also_if_its_queue_is_asked_for_before_the_next_tick(
    broker: InMemoryBroker,
) -> None:
    silent, _ = await holder(broker, "a")
    async with silent, Client(broker, "b") as other:
        await other.join()

        await until(60.001)

        assert (await other.acquire()).status == 0
        assert (await other.join()).members == [other.member]


async def test_time_in_which_the_broker_itself_was_stopped_is_taken_from_nobody() -> None:
    slept = [0.0]
    async with InMemoryBroker(now=lambda: now() + slept[0]) as broker:
        one, epoch = await holder(broker, "a")
        lost = await Client(broker, "b").__aenter__()
        await lost.join()
        assert (await lost.acquire(OTHER)).status == 0
        async with one, Client(broker, "c") as other:
            await other.join()
            await lost.connection.close()
            await until(2.0)

            slept[0] = 600.0
            await until(6.0)

            assert (await other.join()).members == [one.member, lost.member, other.member]
            assert (await one.renew(epoch)).status == 0
            assert [row.queue_id for row in await other.locks()] == [0, 1]
            await until(7.0 + 2 * TICK_S)  # the lost one had its full grace
            assert (await other.join()).members == [one.member, other.member]


async def test_a_broker_that_wakes_up_takes_no_queue_away_before_its_first_pass() -> None:
    slept = [0.0]
    async with InMemoryBroker(now=lambda: now() + slept[0]) as broker:
        one, _ = await holder(broker, "a")
        async with one, Client(broker, "b") as other:
            await other.join()
            await until(1.01)

            slept[0] = 600.0

            assert (await other.acquire()).status == LockHeld.code


async def test_1200_parked_pulls_keep_no_member_from_renewing_and_committing(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        pulls = [asyncio.create_task(client.pull(0, queue=OTHER, wait_ms=20_000)) for _ in range(1200)]
        await until(now() + 1.0)

        assert (await client.renew(epoch)).status == 0
        assert (await client.commit(epoch, 1)).status == 0
        assert (await client.join()).members == [client.member]
        assert not any(pull.done() for pull in pulls)
        await client.send(b"b", to=OTHER)
        assert [bodies(result) for result in await asyncio.gather(*pulls)] == [[b"b"]] * 1200


# ---- what people see of a silent member


async def describe(client: Client) -> GroupDescription:
    return decode(GroupDescription, await client.request(Op.DESCRIBE_GROUP, DescribeGroup("g")))


async def test_a_group_whose_only_member_is_silent_is_described_by_it(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a")
    async with silent, Client(broker, "admin") as admin:
        await silent.send(b"1")
        await until(61.0)

        told = await describe(admin)
        (row,) = decode_list(GroupRow, await admin.request(Op.LIST_GROUPS, ListGroups()))

        assert [(member.member, member.state, member.leases) for member in told.members] == [
            (silent.member, "silent", 0)
        ]
        assert told.members[0].heard_ago_s == pytest.approx(61.0, abs=0.2)
        assert (told.ordered, told.model, told.subscriptions) == (True, "clustering", {"orders": "*"})
        assert [(queue.owner, queue.former, queue.lag) for queue in told.queues[:2]] == [
            (None, silent.member, 1), (None, None, 0),
        ]  # fmt: skip
        assert (row.group, row.members, row.topics, row.lag) == ("g", 0, 1, 1)
        assert (await admin.request(Op.STATS, ()))["serving"]["silent_members"] == 1


async def test_a_silent_member_is_asked_what_it_does_since_it_may_have_woken_up(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a")
    async with silent, Client(broker, "admin") as admin:
        await until(61.0)

        told = decode_list(MemberReport, await admin.request(Op.MEMBER_INFO, MemberInfo("g")))

        assert [(report.member, report.status) for report in told] == [(silent.member, MemberSilent.code)]


async def test_a_member_that_is_back_is_not_silent_and_its_queue_has_no_former_owner(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a")
    async with silent:
        await until(61.0)
        await silent.join()
        await silent.acquire()

        told = await describe(silent)

        assert [member.state for member in told.members] == ["connected"]
        assert (told.queues[0].owner, told.queues[0].former) == (silent.member, None)


async def test_a_silent_member_without_a_connection_is_gone(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a")
    async with Client(broker, "admin") as admin:
        await until(61.0)
        await silent.connection.close()
        await until(61.5)

        with pytest.raises(GroupNotFound):
            await describe(admin)


async def test_other_members_are_never_given_a_silent_one_as_a_member(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a")
    async with silent, Client(broker, "b") as other:
        await other.join()
        await until(61.0)

        assert (await other.join()).members == [other.member]
        assert [member.state for member in (await describe(other)).members] == ["connected", "silent"]


async def test_a_silent_member_that_lost_its_connection_is_not_named_next_to_others(broker: InMemoryBroker) -> None:
    silent, _ = await holder(broker, "a", keep_alive=True)
    async with Client(broker, "b") as other:
        await other.join()
        await until(61.0)
        assert [member.state for member in (await describe(other)).members] == ["connected", "silent"]
        await silent.connection.close()
        await until(61.5)  # it may come back within the grace

        assert [member.member for member in (await describe(other)).members] == [other.member]
        assert (await other.request(Op.STATS, ()))["serving"]["silent_members"] == 0
