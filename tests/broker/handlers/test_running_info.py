"""Members are asked what they do: who answers, who is silent, who dies meanwhile, and that nobody is harmed by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.broker.state.inquiries import MAX_INQUIRIES
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadName, BadRequest, GroupNotFound, MemberNotFound, MemberSilent, TooManyInFlight
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops.core import Op, Outcome, Push
from rmq.wire.protocol.ops.groups import ASKED_AT_ONCE, MAX_INFO, MAX_LEVELS, MemberInfo, MemberReport, RunningInfo

from ..harness import Client, holder, until

pytestmark = pytest.mark.virtual_time

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


async def test_a_member_is_asked_by_name_and_its_words_come_back_as_they_are(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    words = {"version": "1", "queues": [{"topic": "orders", "x": [1, None, True, 2.5, b"\0"]}], "more": {}}
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member)

        assert await answer(member, await asked(member), words) == Outcome()
        assert decode_list(MemberReport, await waiting) == [MemberReport(0, member.member, None, words)]
    await member.__aexit__()


async def test_a_member_that_is_named_is_asked_whatever_page_was(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member, after="z")
        await answer(member, await asked(member), {"who": "m"})

        assert [report.info for report in decode_list(MemberReport, await waiting)] == [{"who": "m"}]
    await member.__aexit__()


async def test_an_answer_that_nobody_waits_for_is_refused_whatever_it_says(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match="nobody waits for this answer"):
            await answer(client, 1, {"deep": [[[[[[[[[]]]]]]]]], "large": "x" * MAX_INFO})


async def test_all_members_are_asked_at_once_and_told_by_name(broker: InMemoryBroker) -> None:
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
            with pytest.raises(BadRequest, match="nobody waits for this answer"):
                await answer(member, token, {})
            with pytest.raises(MemberSilent, match="did not answer within 1 s"):
                await waiting
            assert began + 1.0 < loop.time() <= began + 1.0 + 2 * TICK_S
    await member.__aexit__()


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


async def test_a_member_that_dies_while_it_is_asked_is_told_at_once(broker: InMemoryBroker) -> None:
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


async def test_a_member_in_its_grace_is_known_and_cannot_be_asked(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    await member.__aexit__()
    async with Client(broker, "admin") as admin:
        await asyncio.sleep(0.1)

        assert [report.status for report in await reports(admin)] == [MemberNotFound.code]
        with pytest.raises(MemberNotFound, match="has no connection to the broker at this moment"):
            await ask(admin, member.member)


async def test_a_member_that_comes_back_meanwhile_was_not_asked_over_the_new_connection(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    async with Client(broker, "admin") as admin:
        waiting = ask(admin, member.member)
        token = await asked(member)
        await member.blip()

        with pytest.raises(MemberNotFound):
            await waiting
        with pytest.raises(BadRequest, match="nobody waits"):
            await answer(member, token, {})

        again = ask(admin, member.member)
        await answer(member, await asked(member, 2), {"back": True})
        assert (await again)[0][3] == {"back": True}
    await member.__aexit__()


async def test_who_asked_may_leave_and_the_answer_is_nobodys(broker: InMemoryBroker) -> None:
    member = await joined(broker, "m")
    admin = await Client(broker, "admin").__aenter__()
    waiting = ask(admin, member.member)
    token = await asked(member)
    await admin.__aexit__()
    with pytest.raises(OSError):
        await waiting

    with pytest.raises(BadRequest, match="nobody waits"):
        await answer(member, token, {})
    assert len(broker.broker._inquiries._inquiries) == 0
    await member.__aexit__()


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


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ({"x": "y" * MAX_INFO}, r"info has 2621\d\d bytes, at most 262144 are allowed"),
        ([1, 2], "info must be map, not list"),
        ({b"x": 1}, "must be str, not bytes"),
        (None, "info must be map, not NoneType"),
    ],
)
async def test_what_cannot_be_passed_on_is_refused_and_harms_nobody(
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
