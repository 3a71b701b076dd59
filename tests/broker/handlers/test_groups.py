"""
Membership and leases: who may have a queue, for how long, and who is told.

Where a group without progress begins is decided once, and nothing sent after that is passed over.

The lock manager as its scenarios have it: who gets a queue, who does not, and to the millisecond when.

Silence: of a member, whose queues go to the others; of the broker, which is held against nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    BadName,
    BadRequest,
    Fenced,
    GroupMismatch,
    GroupNotFound,
    LockHeld,
    MemberSilent,
    NotAMember,
    QueueNotFound,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, LeaseEnd, Op, Push
from rmq.wire.protocol.ops.groups import DescribeGroup, GroupDescription, GroupRow, ListGroups, MemberInfo, MemberReport

from ..builders import ORDERS
from ..harness import Client, bodies, holder, until

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


async def test_a_new_topic_is_reported_to_those_who_wait_for_it(broker: InMemoryBroker) -> None:
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


async def test_a_queue_has_one_owner_and_other_sessions_learn_its_name(broker: InMemoryBroker) -> None:
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


async def test_lock_status_shows_every_lease(broker: InMemoryBroker) -> None:
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
        broker.broker._handlers.topics.own("%RETRY%g")  # by a message that was sent back, while nobody is here
        broker.broker._handlers.topics.own("%RETRY%h")
        await client.create()

        topics = ("orders", "%RETRY%g", "%RETRY%h")
        await join(client, *topics, topics=topics)

        assert await client.committed(retries) == 0
        assert await client.committed(MessageQueue("%RETRY%h", 0), group="h") == 0
        assert await client.committed(MessageQueue("%RETRY%h", 0)) == NO_OFFSET


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
async def test_a_session_that_lost_a_queue_is_fenced_in_every_request_and_changes_nothing(
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


async def test_a_freed_queue_is_reported_to_the_group_at_once(broker: InMemoryBroker) -> None:
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


async def test_time_in_which_the_broker_was_stopped_extends_every_deadline() -> None:
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
