"""The lock manager as its scenarios have it: who gets a queue, who does not, and to the millisecond when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import Fenced, LockHeld, QueueNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push

from ..builders import ORDERS
from ..harness import Client, holder, until

pytestmark = pytest.mark.virtual_time

EPS_S = 0.001
QUEUES = [MessageQueue("orders", queue_id) for queue_id in range(4)]


async def acquire(client: Client, queues: list[MessageQueue]) -> list[ops.Grant]:
    asked = ops.Acquire("g", [ops.QueueRef(*queue) for queue in queues])
    return decode_list(ops.Grant, await client.request(Op.ACQUIRE, asked))


async def test_a_request_for_several_queues_grants_those_that_are_free(broker: InMemoryBroker) -> None:
    """Scenario 8."""
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        wanted = [QUEUES[1], ORDERS, MessageQueue("orders", 9), MessageQueue("nothing", 0), QUEUES[3]]

        grants = await acquire(two, wanted)

        assert [grant.status for grant in grants] == [0, LockHeld.code, QueueNotFound.code, TopicNotFound.code, 0]
        assert [bool(grant.epoch) for grant in grants] == [True, False, False, False, True]
        assert grants[1].text == f"held by {one.member}"
        assert (await one.renew(epoch)).status == 0
        assert [(row.queue_id, row.owner) for row in await one.locks()] == [
            (0, one.member), (1, two.member), (3, two.member),
        ]  # fmt: skip


async def test_two_that_ask_for_the_same_queues_at_once_share_them_without_overlap(broker: InMemoryBroker) -> None:
    """Scenario 9: one winner for each queue, also if both ask in different orders and again and again."""
    async with Client(broker, "a") as one, Client(broker, "b") as two:
        await one.create()
        await one.join()
        await two.join()

        rounds = await asyncio.gather(
            acquire(one, QUEUES[:2]), acquire(two, QUEUES[::-1]), acquire(one, QUEUES), acquire(two, QUEUES)
        )

        owners = {row.queue_id: row.owner for row in await one.locks()}
        assert len(owners) == 4
        for grants, client, queues in zip(
            rounds, (one, two, one, two), (QUEUES[:2], QUEUES[::-1], QUEUES, QUEUES), strict=True
        ):
            for grant, queue in zip(grants, queues, strict=True):
                assert (grant.status == 0) == (owners[queue.queue_id] == client.member)
        epochs = [grant.epoch for grants in rounds for grant in grants if grant.epoch]
        assert len(set(epochs)) == len(epochs)


async def test_an_epoch_rises_with_every_owner_and_stays_with_every_renewal(broker: InMemoryBroker) -> None:
    """Scenario 10."""
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        seen = [epoch]
        for client, other in ((one, two), (two, one), (one, two)):
            for _ in range(3):
                assert (await client.renew(seen[-1])).status == 0
                assert [row.epoch for row in await client.locks()] == [seen[-1]]
            await client.release(seen[-1])
            seen.append((await other.acquire()).epoch)

        assert seen == sorted(set(seen))


Ask = Callable[[Client, int], Awaitable[object]]


async def pull(client: Client, epoch: int) -> ops.PullResult:
    return await client.pull(0, group="g", epoch=epoch)


async def commit(client: Client, epoch: int) -> ops.Outcome:
    return await client.commit(epoch, 1)


async def attempt(client: Client, epoch: int) -> ops.Outcome:
    return await client.attempt(epoch, 0, 1)


async def starting(client: Client, epoch: int) -> ops.Outcome:
    return await client.starting(epoch, 0)


async def dead_letter(client: Client, epoch: int) -> ops.Outcome:
    return await client.dead_letter(epoch, 0, commit=1)


async def renew(client: Client, epoch: int) -> ops.Outcome:
    return await client.renew(epoch)


async def release(client: Client, epoch: int) -> ops.Outcome:
    return await client.release(epoch, 1)


async def leave(client: Client, epoch: int) -> ops.Outcome:
    return (await client.leave(ops.LeaseEnd(*ORDERS, epoch, 1)))[0]


async def status(asked: Awaitable[object]) -> int:
    """The status of an answer, or of an entry in it."""
    try:
        answer = await asked
    except Fenced as error:
        return error.code
    assert isinstance(answer, ops.Outcome | ops.PullResult)
    return answer.status


@pytest.mark.parametrize("ask", [pull, commit, attempt, starting, dead_letter, renew, release, leave])
async def test_whoever_lost_a_queue_is_fenced_with_all_it_asks_and_changes_nothing(
    broker: InMemoryBroker, ask: Ask
) -> None:
    """Scenario 11."""
    old, epoch = await holder(broker)
    async with old, Client(broker, "b") as new:
        await old.send(b"a")
        await new.join()
        await old.release(epoch)
        grant = await new.acquire()

        assert await status(ask(old, epoch)) == Fenced.code
        assert await status(ask(old, grant.epoch)) == Fenced.code  # another's epoch is no better
        assert await status(ask(old, 0)) == Fenced.code
        assert await new.committed() == -1
        assert [topic[0] for topic in await new.request(Op.LIST_TOPICS, [])] == ["orders"]
        assert [row.epoch for row in await new.locks()] == [grant.epoch]
        assert await status(ask(new, grant.epoch)) == 0


@pytest.mark.parametrize(("after_s", "is_free"), [(5.0 - EPS_S, False), (5.0, False), (5.0 + EPS_S, True)])
async def test_a_lost_owner_keeps_its_queue_for_the_grace_from_its_last_answered_ping(
    broker: InMemoryBroker, after_s: float, is_free: bool
) -> None:
    """Scenario 12: another session does not get it before, whoever it is."""
    one, epoch = await holder(broker)
    async with Client(broker, "a") as two:  # of the same name: that makes no session
        await two.join()
        for second in (1.0, 2.0, 3.0):
            await until(second)
            await one.request(Op.PING, [])
        await until(3.4)
        await one.connection.close()

        await until(3.0 + after_s)
        grant = await two.acquire()

        assert grant.status == (0 if is_free else LockHeld.code)
        assert (grant.epoch > epoch) == is_free


@pytest.mark.parametrize(("after_s", "is_kept"), [(5.0 - EPS_S, True), (5.0, True), (5.3, False)])
async def test_the_same_session_that_is_back_within_the_grace_keeps_its_queue(
    broker: InMemoryBroker, after_s: float, is_kept: bool
) -> None:
    """Scenario 12. At 5.3 the pass over what is over has come by."""
    one, epoch = await holder(broker)
    session = one.connection.session
    await until(1.0)
    await one.request(Op.PING, [])
    await one.connection.close()

    await until(1.0 + after_s)
    back = Client(broker, "a")
    back.connection.session = session
    async with back:
        assert [lease.epoch for lease in back.hello.leases] == ([epoch] if is_kept else [])
        assert (await back.renew(epoch)).status == (0 if is_kept else Fenced.code)


async def test_a_freed_queue_is_told_to_the_group_at_once(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two, Client(broker, "c") as stranger:
        await two.join()
        await stranger.join("other")
        await until(7.0)

        await one.release(epoch)
        await two.request(Op.PING, [])

        assert asyncio.get_running_loop().time() == pytest.approx(7.0)
        assert two.of(Push.LEASE_FREE) == [["g", *ORDERS]]
        assert stranger.of(Push.LEASE_FREE) == []


@pytest.mark.parametrize(("after_s", "is_member"), [(120.0 - EPS_S, True), (120.0, True), (120.0 + EPS_S, False)])
async def test_a_connected_member_without_heartbeat_stays_for_exactly_120_s(
    broker: InMemoryBroker, after_s: float, is_member: bool
) -> None:
    async with Client(broker, "silent") as silent, Client(broker, "b", keep_alive=True) as other:
        await silent.create()
        await silent.join()
        await until(100.0)
        await other.join()

        await until(after_s)
        await other.acquire()  # whoever asks sees to it that the silent are gone

        assert (silent.member in (await other.join()).members) == is_member
