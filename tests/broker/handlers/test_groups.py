"""Membership and leases: who may have a queue, for how long, and who is told."""

from __future__ import annotations

import asyncio

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    BadName,
    BadRequest,
    Fenced,
    GroupMismatch,
    LockHeld,
    NotAMember,
    QueueNotFound,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import LeaseEnd, Op, Push

from ..builders import ORDERS
from ..harness import Client, holder, until

pytestmark = pytest.mark.virtual_time

TICK_S = 0.1
QUIET_S = 0.06  # a little more than between two lists of members
OTHER = MessageQueue("orders", 1)


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- membership


async def test_joining_tells_the_members_and_the_topics_that_exist(broker: InMemoryBroker) -> None:
    async with Client(broker, "b") as two, Client(broker, "a") as one:
        await two.create()
        first = await two.join(topics=("orders", "later"))
        second = await one.join(topics=("orders", "later"))

        assert first.members == [two.member]
        assert second.members == [one.member, two.member] == sorted(second.members)
        assert [topic.topic for topic in second.topics] == ["orders"]
        assert [told[:2] for told in two.of(Push.MEMBERS_CHANGED)] == [["g", second.members]]
        assert one.of(Push.MEMBERS_CHANGED) == []


async def test_a_repeated_join_changes_nothing(broker: InMemoryBroker) -> None:
    async with Client(broker, "a") as one, Client(broker, "b") as two:
        await one.join()
        await two.join()
        before = len(one.pushes)

        for _ in range(3):
            assert (await two.join()).members == [one.member, two.member]

        assert len(one.pushes) == before


async def test_a_member_of_another_mode_is_refused_with_both_values(broker: InMemoryBroker) -> None:
    async with Client(broker, "a") as one, Client(broker, "b") as two:
        await one.join()

        with pytest.raises(GroupMismatch, match=r"is ordered, clustering, .*asked for concurrent"):
            await two.join(ordered=False)
        with pytest.raises(GroupMismatch, match=r"broadcasting"):
            await two.join(model="broadcasting")
        with pytest.raises(GroupMismatch, match=r"circle"):
            await two.join(strategy="circle")
        with pytest.raises(GroupMismatch, match=r"no subscription for topic 'payments'"):
            await two.join(topics=("orders", "payments"))
        assert (await two.join()).members == [one.member, two.member]


async def test_a_group_without_members_can_be_joined_in_another_mode(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.join()
        await client.leave()

        assert (await client.join(ordered=False)).members == [client.member]


@pytest.mark.parametrize("name", ["", "a b", "%RETRY%", "%other%g", "x" * 128, "../etc", "größe"])
async def test_a_bad_name_of_a_group_or_topic_is_refused(broker: InMemoryBroker, name: str) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadName):
            await client.join(name)
        with pytest.raises(BadName):
            await client.join(topics=(name,))
        with pytest.raises(BadName):
            await client.create(name)
        with pytest.raises(BadName):
            await client.commit(None, 0, group=name)


async def test_an_unknown_model_is_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match=r"the model 'flooding' is unknown"):
            await client.join(model="flooding")


async def test_leaving_commits_and_gives_back_in_one_step(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a", b"b")

        outcomes = await one.leave(LeaseEnd(*ORDERS, epoch, 2))

        assert outcomes == [(0, None)]
        assert two.of(Push.LEASE_FREE) == [["g", "orders", 0]]
        await until(now() + QUIET_S)
        assert [told[:2] for told in two.of(Push.MEMBERS_CHANGED)] == [["g", [two.member]]]
        grant = await two.acquire()
        assert (grant.status, grant.committed_offset) == (0, 2)
        assert grant.epoch > epoch


async def test_a_new_topic_is_told_to_those_who_wait_for_it(broker: InMemoryBroker) -> None:
    async with Client(broker, "a") as one, Client(broker, "b") as two:
        await one.join()
        await two.join("other", topics=("payments",))

        info = await two.create("orders", 2)
        await two.create("orders", 2)
        await one.request(Op.PING, [])

        assert one.of(Push.TOPIC_CHANGED) == [["orders", info.generation, 2, [[0, "rmq"], [1, "rmq"]]]]
        assert two.of(Push.TOPIC_CHANGED) == []


async def test_a_member_without_heartbeat_is_gone_after_120_s(broker: InMemoryBroker) -> None:
    async with Client(broker, "a") as one, Client(broker, "b") as two:
        await one.join()
        await two.join()
        for moment in (30.0, 60.0, 90.0, 120.0):
            await until(moment)
            assert (await one.join()).members == [one.member, two.member]

        await until(120.0 + 2 * TICK_S)
        await one.request(Op.PING, [])

        assert one.of(Push.MEMBERS_CHANGED)[-1][:2] == ["g", [one.member]]


LONG = "g" * 100_000
GROUP_REQUESTS = [
    (Op.JOIN, [True, "clustering", "evenly", {"orders": "*"}]),
    (Op.LEAVE, [[["orders", 0, 7, 0]]]),
    (Op.ACQUIRE, [[["orders", 0]]]),
    (Op.RENEW, [[["orders", 0, 7]]]),
    (Op.RELEASE, [[["orders", 0, 7, 0]]]),
    (Op.COMMIT, [[["orders", 0, 7, 0]]]),
    (Op.ATTEMPT, ["orders", 0, 7, 0, 1]),
    (Op.STARTING, ["orders", 0, 7, 0]),
    (Op.DEAD_LETTER, ["orders", 0, 7, [0]]),
    (Op.RESET_OFFSETS, [[["orders", 0, 0]]]),
    (Op.PULL, [0, 1, [["orders", 0, 0, 7]]]),
    (Op.RANGES, [[["orders", 0]]]),
    (Op.LOCK_STATUS, []),
]


@pytest.mark.parametrize(("op", "rest"), GROUP_REQUESTS)
async def test_no_request_is_served_and_no_text_repeated_for_a_bad_group(
    broker: InMemoryBroker, op: Op, rest: list[object]
) -> None:
    async with Client(broker) as client:
        await client.create()
        for name in (LONG, "a b", ""):
            with pytest.raises(BadName) as refused:
                await client.request(op, [name, *rest])
            assert len(refused.value.text) < 200


@pytest.mark.parametrize("op", [Op.RENEW, Op.RELEASE, Op.COMMIT, Op.ACQUIRE, Op.RESET_OFFSETS])
async def test_a_refusal_repeats_little_of_a_long_topic(broker: InMemoryBroker, op: Op) -> None:
    async with Client(broker) as client:
        await client.join()
        entry = ["t" * 100_000, 0, 7, 0][: {Op.RENEW: 3, Op.ACQUIRE: 2}.get(op, 4)]

        (refused,) = await client.request(op, ["g", [entry]])

        assert refused[0] != 0
        assert all(len(field) < 400 for field in refused if isinstance(field, str))


@pytest.mark.parametrize("op", [Op.ACQUIRE, Op.RENEW, Op.RELEASE, Op.LEAVE, Op.COMMIT])
async def test_a_request_has_at_most_1024_entries(broker: InMemoryBroker, op: Op) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.join()
        entry = ["orders", 0] if op == Op.ACQUIRE else ["orders", 0, 7, 0]

        with pytest.raises(BadRequest, match="a request has at most 1024 entries, not 1025: cut it into several"):
            await client.request(op, ["g", [entry] * 1025])
        assert len(await client.request(op, ["g", [entry] * 1024])) == 1024


# ---- leases


async def test_one_session_holds_a_queue_and_the_other_is_told_who(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()

        refused = await two.acquire()

        assert (refused.status, refused.text) == (LockHeld.code, f"held by {one.member}")
        assert (await two.acquire(OTHER)).status == 0
        assert epoch >> 32 == one.hello.log_epoch


async def test_every_grant_has_a_higher_epoch_also_to_the_holder(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        for _ in range(3):
            grant = await client.acquire()
            assert grant.epoch > epoch
            assert (await client.renew(epoch)).status == Fenced.code
            epoch = grant.epoch
        assert (await client.renew(epoch)).status == 0


async def test_groups_do_not_see_each_others_leases(broker: InMemoryBroker) -> None:
    client, _ = await holder(broker)
    async with client, Client(broker, "b") as two:
        await two.join("other")

        assert (await two.acquire(group="other")).status == 0


async def test_only_members_get_leases_and_only_of_queues_that_exist(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        with pytest.raises(NotAMember, match=r"join the group 'g' before asking for its queues"):
            await client.acquire()
        await client.join()

        assert (await client.acquire(MessageQueue("nothing", 0))).status == TopicNotFound.code
        assert (await client.acquire(MessageQueue("orders", 4))).status == QueueNotFound.code
        assert (await client.acquire(MessageQueue("orders", -1))).status == QueueNotFound.code


async def test_a_silent_but_connected_holder_keeps_its_lease_for_exactly_60_s(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b", keep_alive=True) as two:
        await two.join()
        assert now() == 0.0

        await until(60.0)
        assert (await two.acquire()).status == LockHeld.code
        await until(60.001)
        grant = await two.acquire()

        assert (now(), grant.status) == (60.001, 0)
        assert grant.epoch > epoch
        assert (await one.renew(epoch)).status == Fenced.code


async def test_a_renewed_lease_lives_60_s_from_its_renewal(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b", keep_alive=True) as two:
        await two.join()
        for moment in (20.0, 40.0, 100.0):  # the last at exactly 60 s
            await until(moment)
            assert (await one.renew(epoch)).status == 0
        await two.join()
        await until(160.0)
        assert (await two.acquire()).status == LockHeld.code
        await until(160.0 + 2 * TICK_S)

        assert (await one.renew(epoch)).status == Fenced.code
        assert two.of(Push.LEASE_FREE) == [["g", "orders", 0]]


async def test_renewing_never_acquires(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.release(epoch)

        assert (await client.renew(epoch)).status == Fenced.code
        assert (await client.renew(0)).status == Fenced.code
        assert await client.locks() == []


async def test_releasing_frees_at_once_and_again_is_no_error(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()

        assert (await one.release(epoch)).status == 0
        grant = await two.acquire()
        assert grant.status == 0
        assert (await one.release(epoch)).status == 0
        assert (await one.release(grant.epoch)).status == 0  # another's lease is not touched
        assert (await two.renew(grant.epoch)).status == 0
        assert two.of(Push.LEASE_FREE) == [["g", "orders", 0]]


async def test_releasing_with_a_stale_epoch_commits_nothing(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        await client.acquire()

        assert (await client.release(epoch, 1)).status == Fenced.code
        assert await client.committed() == -1


# ---- a lost connection


async def test_a_lost_connection_keeps_its_leases_for_the_grace_then_frees_them(broker: InMemoryBroker) -> None:
    one, _ = await holder(broker)
    async with Client(broker, "b", keep_alive=True) as two:
        await two.join()
        await until(3.0)
        await one.request(Op.PING, [])  # the grace runs from the last answer
        await one.connection.close()

        await until(7.9)
        assert (await two.acquire()).status == LockHeld.code
        assert two.of(Push.LEASE_FREE) == []
        await until(8.0 + 2 * TICK_S)

        assert two.of(Push.LEASE_FREE) == [["g", "orders", 0]]
        assert [told[:2] for told in two.of(Push.MEMBERS_CHANGED)] == [["g", [two.member]]]
        assert (await two.acquire()).status == 0


async def test_a_blip_below_the_grace_moves_nothing_and_the_hello_lists_the_leases(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker, keep_alive=True)
    async with one, Client(broker, "b", keep_alive=True) as two:
        await two.join()
        await one.send(b"a", b"b")
        await one.commit(epoch, 1)
        await one.attempt(epoch, 1, 2)
        await until(4.0)

        await one.blip()
        await until(20.0)

        assert [tuple(lease) for lease in one.hello.leases] == [("g", "orders", 0, epoch, 1, 1, 2, [(1, 2, 2)])]
        assert (await one.renew(epoch)).status == 0
        assert two.pushes == []
        assert (await two.acquire()).status == LockHeld.code


async def test_lock_status_shows_every_lease_as_people_see_it(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with Client(broker, "b") as two:
        await until(10.0)
        await one.renew(epoch)
        await until(12.5)
        await one.send(b"a")
        await one.attempt(epoch, 0, 3)

        (row,) = await two.locks()
        assert row[:6] == ("g", "orders", 0, one.member, one.connection.session.hex()[:8], epoch)
        assert row[6:9] == (12.5, 2.5, 57.5)
        assert row.state == "held, retrying offset 0 (attempt 4)"

        await one.connection.close()
        await until(14.5)
        (row,) = await two.locks("g")
        assert row.state.startswith("grace")
        assert row.expires_in_s == 3.0
        assert await two.locks("other") == []
