"""Every mode of a group is fenced by leases; those who keep their own progress have none here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import Fenced, GroupMismatch
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from ..builders import ORDERS
from ..harness import Client, bodies, crash_copy, holder

pytestmark = pytest.mark.virtual_time

OVER_S = 5.2  # longer than the grace
CONCURRENT = {"ordered": False, "model": "clustering"}
ASSIGNED = {"ordered": True, "model": "assigned"}
BROADCASTING = {"ordered": True, "model": "broadcasting"}


async def member(broker: InMemoryBroker, name: str = "m", **mode: object) -> tuple[Client, ops.Grant]:
    """A member of the group that asks for orders/0, in which two messages lie."""
    client = await Client(broker, name).__aenter__()
    await client.create()
    if (await client.range()).max_offset == 0:
        await client.send(b"a", b"b")
    await client.join(**mode)  # type: ignore[arg-type]
    return client, await client.acquire()


@pytest.mark.parametrize("mode", [CONCURRENT, ASSIGNED], ids=["concurrent", "assigned"])
async def test_pulls_and_commits_of_every_mode_are_fenced(broker: InMemoryBroker, mode: dict[str, object]) -> None:
    client, grant = await member(broker, **mode)
    async with client:
        for stale in (None, 0, grant.epoch - 1, grant.epoch + 1):
            assert (await client.pull(0, group="g", epoch=stale)).status == Fenced.code
            assert (await client.commit(stale, 1)).status == Fenced.code

        assert bodies(await client.pull(0, group="g", epoch=grant.epoch)) == [b"a", b"b"]
        assert (await client.commit(grant.epoch, 1)).status == 0
        await client.release(grant.epoch)
        assert (await client.commit(grant.epoch, 2)).status == Fenced.code
        assert (await client.commit(None, 2)).status == Fenced.code
        assert await client.committed() == 1


@pytest.mark.parametrize("mode", [CONCURRENT, ASSIGNED], ids=["concurrent", "assigned"])
async def test_a_queue_of_every_mode_has_one_owner(broker: InMemoryBroker, mode: dict[str, object]) -> None:
    one, grant = await member(broker, **mode)
    two, refused = await member(broker, "two", **mode)
    async with one, two:
        assert (refused.status, refused.text) == (151, f"held by {one.member}")

        await one.release(grant.epoch, 1)
        second = await two.acquire()

        assert (second.status, second.committed_offset) == (0, 1)
        assert (await one.commit(grant.epoch, 2)).status == Fenced.code


async def test_who_holds_a_queue_keeps_it_whatever_the_group_has_become(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "two") as two:
        await one.send(b"a", b"b")
        await one.join(ordered=False)  # it is alone, and may change its mind
        await two.join(ordered=False)

        assert (await two.commit(None, 1)).status == Fenced.code
        assert (await two.pull(0, group="g")).status == Fenced.code
        assert (await one.commit(epoch, 1)).status == 0
        await one.join(ordered=False)


async def test_the_mode_of_a_group_without_members_does_not_matter(broker: InMemoryBroker, memory_path: Path) -> None:
    """After a crash nobody has joined yet: who holds a lease goes on, who does not is fenced."""
    owner, grant = await member(broker, **CONCURRENT)
    session = owner.connection.session
    async with crash_copy(broker, memory_path / "copy") as after:
        async with Client(after, "other") as other:
            assert (await other.pull(0, group="g")).status == Fenced.code
            await other.join(ordered=False)
            assert (await other.commit(None, 2)).status == Fenced.code
            await other.leave()
        again = Client(after)
        again.connection.session = session
        async with again:
            assert bodies(await again.pull(0, group="g", epoch=grant.epoch)) == [b"a", b"b"]
            assert (await again.commit(grant.epoch, 1)).status == 0
    await owner.connection.close()


# ---- broadcasting


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_broadcasting_group_commits_nothing_and_locks_nothing(broker: InMemoryBroker, ordered: bool) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")
        await client.join(ordered=ordered, model="broadcasting")

        refused = await client.commit(None, 1)
        assert (refused.status, refused.text) == (
            GroupMismatch.code,
            "group 'g' is broadcasting: its members keep their progress themselves, and pull without a group",
        )
        assert (await client.commit(7, 1)).status == GroupMismatch.code
        assert (await client.pull(0, group="g")).status == GroupMismatch.code
        with pytest.raises(GroupMismatch, match="share all queues and lock none"):
            await client.acquire()
        assert bodies(await client.pull(0)) == [b"a"]
        assert await client.committed() == NO_OFFSET


async def test_a_broadcasting_group_that_begins_at_the_end_leaves_no_progress_here(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")

        await client.request(Op.JOIN, ops.Join("g", True, "broadcasting", "average", {"orders": "*"}, ["orders"]))

        assert await client.committed() == NO_OFFSET


async def test_a_lease_from_before_a_group_began_to_broadcast_is_good_to_its_end(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one:
        await one.send(b"a")
        await one.join(model="broadcasting")

        assert (await one.commit(epoch - 1, 1)).status == Fenced.code
        assert (await one.commit(epoch, 1)).status == 0
        await one.release(epoch)
        assert (await one.commit(epoch, 1)).status == GroupMismatch.code


# ---- marks


async def abandon(broker: InMemoryBroker, **mode: object) -> ops.Grant:
    """An owner that pulls everything and dies; returns what it was granted."""
    client, grant = await member(broker, **mode)
    await client.pull(max(grant.committed_offset, 0), group="g", epoch=grant.epoch)
    await client.connection.close()
    await asyncio.sleep(OVER_S)
    return grant


async def test_a_concurrent_lease_that_is_abandoned_leaves_no_mark(broker: InMemoryBroker) -> None:
    for _ in range(3):
        grant = await abandon(broker, **CONCURRENT)
        assert (grant.abandoned, grant.suspect_offset, grant.careful_until) == (0, -1, -1)

    grant = await abandon(broker)  # ordered from now on
    assert (grant.abandoned, grant.suspect_offset) == (0, -1)
    client, grant = await member(broker)
    assert (grant.abandoned, grant.suspect_offset) == (1, 0)
    await client.connection.close()


async def test_that_a_lease_is_concurrent_survives_a_crash(broker: InMemoryBroker, memory_path: Path) -> None:
    owner, grant = await member(broker, **CONCURRENT)
    session = owner.connection.session
    async with crash_copy(broker, memory_path / "copy") as after:
        again = Client(after)
        again.connection.session = session
        async with again:
            await again.pull(0, group="g", epoch=grant.epoch)
        await asyncio.sleep(OVER_S)
        client, second = await member(after)
        assert (second.status, second.abandoned, second.suspect_offset) == (0, 0, -1)
        await client.connection.close()
    await owner.connection.close()


async def test_a_concurrent_owner_counts_no_attempts_and_is_told_of_none(broker: InMemoryBroker) -> None:
    ordered, grant = await member(broker)
    async with ordered:
        await ordered.attempt(grant.epoch, 0, 3)
        await ordered.leave(ops.LeaseEnd(*ORDERS, grant.epoch))
    client, grant = await member(broker, **CONCURRENT)
    async with client:
        assert (grant.attempts, grant.attempt_offset, grant.runs) == (0, -1, [])
        assert [row.state for row in await client.locks("g")] == ["held"]
        with pytest.raises(GroupMismatch, match="'g' is concurrent: a message that fails is sent back"):
            await client.attempt(grant.epoch, 0, 4)
        with pytest.raises(GroupMismatch, match="is concurrent"):
            await client.starting(grant.epoch, 0)
        await client.blip()
        assert [(lease.attempts, lease.runs) for lease in client.hello.leases] == [(0, [])]
        await client.leave(ops.LeaseEnd(*ORDERS, grant.epoch))
    ordered, grant = await member(broker)
    async with ordered:
        assert (grant.attempt_offset, grant.attempts) == (0, 3)


async def test_an_offset_reset_fences_a_concurrent_owner(broker: InMemoryBroker) -> None:
    client, grant = await member(broker, **CONCURRENT)
    async with client:
        await client.commit(grant.epoch, 2)

        assert (await client.reset(0))[:3] == (0, 2, 0)

        assert (await client.commit(grant.epoch, 2)).status == Fenced.code
        assert (await client.pull(0, group="g", epoch=grant.epoch)).status == Fenced.code
        assert (await client.renew(grant.epoch)).status == Fenced.code
        again = await client.acquire()
        assert (again.status, again.committed_offset) == (0, 0)
        assert again.epoch > grant.epoch


async def test_a_group_changes_its_mode_when_its_last_member_has_left(broker: InMemoryBroker) -> None:
    one, grant = await member(broker)
    two, _ = await member(broker, "two")
    async with one, two:
        for mode in (CONCURRENT, ASSIGNED, BROADCASTING):
            with pytest.raises(GroupMismatch):
                await two.join(**mode)  # type: ignore[arg-type]
        await two.leave()
        await one.leave(ops.LeaseEnd(*ORDERS, grant.epoch, 1))

        for mode in (CONCURRENT, ASSIGNED):
            await two.join(**mode)  # type: ignore[arg-type]
            grant = await two.acquire()
            assert (grant.status, grant.committed_offset) == (0, 1)
            await two.leave(ops.LeaseEnd(*ORDERS, grant.epoch))
        await two.join(**BROADCASTING)  # type: ignore[arg-type]
