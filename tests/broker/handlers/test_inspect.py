"""
Groups as people look at them: all of them in pages, one of them in detail, both within bounds.

Members are asked what they do: who answers, who is silent, who dies meanwhile, and that nobody is harmed by it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.handlers.inspect import GroupAdminHandler, Most, StatsHandler
from rmq.broker.net.connection import Connection
from rmq.broker.state.inquiries import MAX_INQUIRIES
from rmq.broker.store.message_store import Traffic
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    BadName,
    BadRequest,
    GroupNotFound,
    MemberNotFound,
    MemberSilent,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops.core import Op, Outcome, Push
from rmq.wire.protocol.ops.groups import (
    ASKED_AT_ONCE,
    MAX_INFO,
    MAX_LEVELS,
    DescribeGroup,
    GroupDescription,
    GroupQueue,
    GroupRow,
    ListGroups,
    MemberInfo,
    MemberReport,
    RunningInfo,
)

from ..builders import ORDERS
from ..harness import Client, crash_copy, holder, until
from .test_topics import delete

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
@pytest.mark.virtual_time
async def test_a_broker_without_groups_lists_none(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        assert await groups(client) == []


@pytest.mark.virtual_time
async def test_a_group_is_listed_by_its_members_leases_topics_and_lag(broker: InMemoryBroker) -> None:
    async with Client(broker, "admin") as admin:
        client, epoch = await holder(broker)
        await client.send(b"1", b"2", b"3")
        await client.send(b"4", to=FIRST)
        await client.commit(epoch, 2)

        assert await groups(admin) == [GroupRow("g", True, "clustering", "average", 1, 1, 1, 2)]
        await client.__aexit__()


@pytest.mark.virtual_time
async def test_the_retries_of_a_group_are_a_topic_of_it_once_there_are_any(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.join(topics=("orders", "%RETRY%g"))
        assert (await groups(client))[0].topics == 1

        broker.broker._handlers.topics.own("%RETRY%g")
        assert (await groups(client))[0].topics == 2


@pytest.mark.virtual_time
async def test_progress_that_rides_on_pulls_counts_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1", b"2", b"3")
    await client.pull(2, group="g", epoch=epoch, commit=2)

    assert (await groups(client))[0].lag == 1
    assert (await queue(client)).committed == 2
    await client.__aexit__()


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_a_group_is_known_by_members_alone(broker: InMemoryBroker) -> None:
    """A topic that does not exist yet is subscribed to, and has no queues."""
    async with Client(broker) as client:
        await client.join("waiting", topics=["later"])

        assert await groups(client) == [GroupRow("waiting", True, "clustering", "average", 1, 0, 1, 0)]
        told = await describe(client, "waiting")
        assert (told.subscriptions, told.queues) == ({"later": "*"}, [])


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
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
@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_a_push_to_a_member_does_not_count_as_heard(broker: InMemoryBroker) -> None:
    a, _ = await holder(broker, "a")
    await asyncio.sleep(3)
    async with Client(broker, "b") as b:
        await b.join()
        await asyncio.sleep(0.5)

        assert a.pushes
        assert (await describe(b)).members[0].heard_ago_s == pytest.approx(3.5, abs=0.2)
    await a.__aexit__()


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_a_failing_message_is_reported_also_without_an_owner(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"1")
    await client.attempt(epoch, 0, 2)
    await client.release(epoch)

    told = await queue(client)

    assert (told.owner, told.epoch, told.state) == (None, 0, None)
    assert (told.retry_offset, told.attempts) == (0, 2)
    await client.__aexit__()


@pytest.mark.virtual_time
async def test_with_a_topic_only_its_queues_are_reported(broker: InMemoryBroker) -> None:
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


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("group", "error"), [("nobody", GroupNotFound), ("", BadName), ("no name", BadName), ("x" * 128, BadName)]
)
async def test_a_group_of_which_nothing_is_known_is_refused(broker: InMemoryBroker, group: str, error: Any) -> None:
    async with Client(broker) as client:
        with pytest.raises(error):
            await describe(client, group)


@pytest.mark.virtual_time
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


EPSILON = 0.001
TICK_S = 0.1


def ask(client: Client, member: str = "", after: str = "", group: str = "g") -> asyncio.Task[Any]:
    return asyncio.create_task(client.request(Op.MEMBER_INFO, MemberInfo(group, member, after)))


async def reports(client: Client, after: str = "", group: str = "g") -> list[MemberReport]:
    return decode_list(MemberReport, await ask(client, after=after, group=group))


async def asked(member: Client, times: int = 1) -> int:
    """Wait until a member was asked so often; the newest token."""
    while len(member.of(Push.RUNNING_INFO)) < times:
        await asyncio.sleep(0.001)
    token, group = member.of(Push.RUNNING_INFO)[-1]
    assert group == "g"
    return int(token)


async def answer(member: Client, token: int, info: Any) -> Outcome:
    return decode(Outcome, await member.request(Op.RUNNING_INFO, RunningInfo(token, info)))


async def joined(broker: InMemoryBroker, name: str) -> Client:
    client = await Client(broker, name).__aenter__()
    await client.join()
    return client


@pytest.mark.virtual_time
async def test_a_member_is_asked_by_name_and_its_words_come_back_as_they_are(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    words = {"version": "1", "queues": [{"topic": "orders", "x": [1, None, True, 2.5, b"\0"]}], "more": {}}
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member)

        assert await answer(member, await asked(member), words) == Outcome()
        assert decode_list(MemberReport, await waiting) == [MemberReport(0, member.member, None, words)]
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_a_member_that_is_named_is_asked_whatever_page_was(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member, after="z")
        await answer(member, await asked(member), {"who": "m"})

        assert [report.info for report in decode_list(MemberReport, await waiting)] == [{"who": "m"}]
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_an_answer_without_a_waiting_request_is_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match="no request waits for this answer"):
            await answer(client, 1, {"deep": [[[[[[[[[]]]]]]]]], "large": "x" * MAX_INFO})


@pytest.mark.virtual_time
async def test_all_members_are_asked_at_once_and_reported_by_name(broker: InMemoryBroker) -> None:
    a, b = await joined(broker, "a"), await joined(broker, "b")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin)
        await answer(b, await asked(b), {"who": "b"})
        assert not waiting.done()
        await answer(a, await asked(a), {"who": "a"})

        assert [report.info["who"] for report in decode_list(MemberReport, await waiting)] == ["a", "b"]
        assert await reports(admin, after=b.member) == []
    for client in (a, b):
        await client.__aexit__()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("after_s", "in_time"), [(1.0 - EPSILON, True), (1.0 + EPSILON, False)])
async def test_an_answer_just_before_1_s_counts_and_one_just_after_does_not(
    broker: InMemoryBroker, after_s: float, in_time: bool
) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = ask(admin, member.member)
        token = await asked(member)
        answering = asyncio.ensure_future(until(began + after_s))
        await answering
        if in_time:
            assert await answer(member, token, {}) == Outcome()
            await waiting
            assert loop.time() < began + 1.0
        else:
            with pytest.raises(BadRequest, match="no request waits for this answer"):
                await answer(member, token, {})
            with pytest.raises(MemberSilent, match="did not answer within 1 s"):
                await waiting
            assert began + 1.0 < loop.time() <= began + 1.0 + 2 * TICK_S
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_a_silent_member_is_a_report_among_those_of_others(broker: InMemoryBroker) -> None:
    a, b = await joined(broker, "a"), await joined(broker, "b")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin)
        await answer(b, await asked(b), {"who": "b"})

        silent, spoke = decode_list(MemberReport, await waiting)

        assert (silent.status, silent.member, silent.info) == (MemberSilent.code, a.member, {})
        assert silent.text == f"{a.member} did not answer within 1 s"
        assert spoke == MemberReport(0, b.member, None, {"who": "b"})
    for client in (a, b):
        await client.__aexit__()


@pytest.mark.virtual_time
async def test_a_member_that_dies_while_it_is_asked_is_reported_at_once(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        loop = asyncio.get_running_loop()
        began = loop.time()
        one, all_ = ask(admin, member.member), ask(admin)
        await asked(member, 2)

        await member.__aexit__()

        with pytest.raises(MemberNotFound, match="has no connection"):
            await one
        (report,) = decode_list(MemberReport, await all_)
        assert (report.status, report.member) == (MemberNotFound.code, member.member)
        assert loop.time() - began < 0.5


@pytest.mark.virtual_time
async def test_a_member_in_its_grace_is_known_and_cannot_be_asked(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    await member.__aexit__()
    async with Client(broker, "admin") as admin:
        await asyncio.sleep(0.1)

        assert [report.status for report in await reports(admin)] == [MemberNotFound.code]
        with pytest.raises(MemberNotFound, match="has no connection to the broker at this moment"):
            await ask(admin, member.member)


@pytest.mark.virtual_time
async def test_a_member_that_comes_back_meanwhile_was_not_asked_over_the_new_connection(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member)
        token = await asked(member)
        await member.blip()

        with pytest.raises(MemberNotFound):
            await waiting
        with pytest.raises(BadRequest, match="no request waits"):
            await answer(member, token, {})

        again = ask(admin, member.member)
        await answer(member, await asked(member, 2), {"back": True})
        assert (await again)[0][3] == {"back": True}
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_an_answer_after_its_asker_left_is_dropped(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    admin = await Client(broker, "admin").__aenter__()
    waiting = ask(admin, member.member)
    token = await asked(member)
    await admin.__aexit__()
    with pytest.raises(OSError):
        await waiting

    with pytest.raises(BadRequest, match="no request waits"):
        await answer(member, token, {})
    assert len(broker.broker._inquiries._inquiries) == 0
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_another_session_cannot_answer_for_a_member(broker: InMemoryBroker) -> None:
    a, b = await joined(broker, "a"), await joined(broker, "b")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, a.member)
        token = await asked(a)

        with pytest.raises(BadRequest, match="this session was not asked"):
            await answer(b, token, {"lies": True})
        await answer(a, token, {"truth": True})

        assert (await waiting)[0][3] == {"truth": True}
    for client in (a, b):
        await client.__aexit__()


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ({"x": "y" * MAX_INFO}, r"info has 2621\d\d bytes, at most 262144 are allowed"),
        ([1, 2], "info must be map, not list"),
        ({b"x": 1}, "must be str, not bytes"),
        (None, "info must be map, not NoneType"),
    ],
)
async def test_an_answer_that_cannot_be_forwarded_is_refused_without_harm(
    broker: InMemoryBroker, info: Any, sentence: str
) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin)
        token = await asked(member)

        with pytest.raises(BadRequest, match=sentence):
            await answer(member, token, info)
        await answer(member, token, {"now": "well"})

        assert (await waiting)[0][3] == {"now": "well"}
    await member.__aexit__()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("levels", "passes"), [(MAX_LEVELS - 1, True), (MAX_LEVELS, False), (1000, False)])
async def test_deep_nesting_that_would_break_its_reader_is_refused(
    broker: InMemoryBroker, levels: int, passes: bool
) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member)
        token = await asked(member)
        if passes:
            await answer(member, token, {"x": nested(levels)})
            assert (await waiting)[0][3] == {"x": nested(levels)}
        else:
            with pytest.raises(BadRequest, match="info has more than 8 levels of maps and arrays"):
                await answer(member, token, {"x": nested(levels)})
            await answer(member, token, {})
            assert (await waiting)[0][3] == {}
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_the_largest_answers_of_a_page_of_members_arrive(broker: InMemoryBroker) -> None:
    members = [await joined(broker, f"m{i:02}") for i in range(ASKED_AT_ONCE + 1)]
    words = {"x": "y" * (MAX_INFO - 8)}
    async with Client(broker, "admin") as admin:
        waiting = ask(admin)
        for member in members[:-1]:
            await answer(member, await asked(member), words)

        page = decode_list(MemberReport, await waiting)
        rest = ask(admin, after=page[-1].member)
        await answer(members[-1], await asked(members[-1]), {"last": True})

        assert [report.member for report in page] == [member.member for member in members[:-1]]
        assert all(report.info == words for report in page)
        assert [report[1] for report in await rest] == [members[-1].member]
    for member in members:
        await member.__aexit__()


@pytest.mark.virtual_time
async def test_too_many_questions_of_one_connection_are_refused(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin, Client(broker, "other") as other:
        waiting = [ask(admin) for _ in range(MAX_INQUIRIES)]
        await asked(member, MAX_INQUIRIES)
        with pytest.raises(TooManyInFlight):
            await ask(admin)
        another = ask(other)
        await asked(member, MAX_INQUIRIES + 1)

        for task in (*waiting, another):
            assert (await task)[0][0] == MemberSilent.code
        assert (await reports(admin))[0].status == MemberSilent.code
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_a_group_or_member_that_is_not_there_is_refused(broker: InMemoryBroker) -> None:
    member, epoch = await holder(broker, "m")
    with pytest.raises(MemberNotFound, match="group 'g' has no member 'somebody'"):
        await ask(member, "somebody")
    with pytest.raises(MemberNotFound) as refused:
        await ask(member, "x" * 100_000)
    assert len(str(refused.value)) < 300
    with pytest.raises(GroupNotFound):
        await ask(member, group="nobody")
    with pytest.raises(BadName):
        await ask(member, group="no name")

    await member.release(epoch, 0)
    await member.leave()

    assert await reports(member) == []
    await member.__aexit__()


@pytest.mark.virtual_time
async def test_a_question_that_waits_takes_no_place_among_the_unanswered_requests(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        (connection,) = (
            each
            for each in broker.broker._connections
            if each.session is not None and each.session.member == admin.member
        )
        silent, answered, refused = ask(admin), ask(admin), ask(admin, "somebody")
        await answer(member, await asked(member, 2), {})

        assert len(await answered) == 1
        assert connection.in_flight == 0
        with pytest.raises(MemberNotFound):
            await refused
        assert (await silent)[0][0] == MemberSilent.code
        assert connection.in_flight == 0
    await member.__aexit__()


def ask_stats(handler: StatsHandler, *payload: object) -> Any:
    return handler.stats(cast(Connection, None), 1, list(payload))


def test_each_part_is_asked_on_demand() -> None:
    numbers = {"sends": 0}
    handler = StatsHandler({"part": lambda: numbers}, Traffic())
    numbers["sends"] = 7

    assert ask_stats(handler)["part"] == {"sends": 7}


def test_topics_are_reported_only_on_request() -> None:
    traffic = Traffic()
    traffic.took("orders", 3, 300)
    handler = StatsHandler({}, traffic)
    flow = {"messages_in": 3, "bytes_in": 300, "messages_out": 0, "bytes_out": 0}

    assert ask_stats(handler) == {"traffic": flow}
    assert ask_stats(handler, 0) == {"traffic": flow}
    assert ask_stats(handler, 5) == {"traffic": flow, "topics": {"orders": flow}}


def test_a_question_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadRequest):
        ask_stats(StatsHandler({}, Traffic()), "all")
