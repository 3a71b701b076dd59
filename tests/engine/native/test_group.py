"""Typed requests: what the broker answers is checked before anybody relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rmq.engine.native.group import GroupClient
from rmq.wire.errors import BadRequest, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun, HelloReply
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import SendBack

pytestmark = pytest.mark.virtual_time


class Answering:
    """A connection that answers everything with one payload."""

    member = "me"
    hello: HelloReply | None = None
    connected = True
    answered_sent_at = 3.0

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any:
        return self.answer

    def start(self) -> None: ...
    async def wait_connected(self) -> None: ...
    async def close(self) -> None: ...


def client(answer: Any) -> GroupClient:
    return GroupClient(Answering(answer), "g", now=asyncio.get_running_loop().time, timeout_s=3.0)


@pytest.mark.parametrize("answer", [[], [[0], [0]], None, [["0"]], 7])
async def test_an_answer_of_the_wrong_shape_is_an_error_and_no_crash(answer: Any) -> None:
    with pytest.raises(BadRequest):
        await client(answer).renew([ops.LeaseRef("t", 0, 1)])


async def test_before_the_first_greeting_nothing_is_known_of_the_broker() -> None:
    unknown = client([])

    assert (unknown.grace_s, unknown.stores.current, unknown.answered_sent_at, unknown.member) == (0.0, 0, 3.0, "me")
    assert await unknown.pull(ops.PullQueue("t", 0, 0), wait_s=0, max_bytes=1, timeout_s=1) is None


async def test_a_range_is_the_one_of_the_queue() -> None:
    assert (await client([[0, 2, 9, -1]]).range(MessageQueue("t", 0))).max_offset == 9


class Counting(Answering):
    """A connection that says yes to every entry."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sizes: list[tuple[Op, int]] = []

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any:
        self.sizes.append((op, len(payload[1])))
        return [[0]] * len(payload[1])


async def test_more_entries_than_a_request_may_have_are_cut_into_several() -> None:
    link = Counting()
    many = GroupClient(link, "g", now=asyncio.get_running_loop().time, timeout_s=3.0)

    assert len(await many.renew([ops.LeaseRef("t", i, 1) for i in range(1024)])) == 1024
    assert len(await many.renew([ops.LeaseRef("t", i, 1) for i in range(1025)])) == 1025
    assert len(await many.commit([ops.CommitEntry("t", i, 1, 0) for i in range(2049)])) == 2049
    assert await many.release([]) == []
    assert link.sizes == [
        (Op.RENEW, 1024), (Op.RENEW, 1024), (Op.RENEW, 1), (Op.COMMIT, 1024), (Op.COMMIT, 1024), (Op.COMMIT, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("leases", "requests"),
    [
        (0, [(Op.LEAVE, 0)]),
        (1024, [(Op.LEAVE, 1024)]),
        (1030, [(Op.RELEASE, 6), (Op.LEAVE, 1024)]),
    ],
)
async def test_leaving_is_one_request_and_what_does_not_fit_is_given_back_before(
    leases: int, requests: list[tuple[Op, int]]
) -> None:
    link = Counting()

    await GroupClient(link, "g", now=asyncio.get_running_loop().time, timeout_s=3.0).leave(
        [ops.LeaseEnd("t", i, 1) for i in range(leases)]
    )

    assert link.sizes == requests


class Timed(Answering):
    """A connection that is too late for some requests, and notes the time each had."""

    def __init__(self, late: int) -> None:
        super().__init__([[0]])
        self.late = late
        self.given: list[tuple[Op, float]] = []

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any:
        self.given.append((op, timeout_s))
        if self.late:
            self.late -= 1
            raise RequestTimeout("too late")
        return self.answer


def timed(link: Timed) -> GroupClient:
    return GroupClient(link, "g", now=asyncio.get_running_loop().time, timeout_s=3.0, lock_timeout_s=1.0)


async def test_locks_have_their_own_time_and_other_requests_the_usual() -> None:
    link = Timed(late=0)
    members = timed(link)

    await members.acquire([MessageQueue("t", 0)])
    await members.renew([ops.LeaseRef("t", 0, 1)])
    await members.commit([ops.CommitEntry("t", 0, 1, 0)])
    await members.offset_at(MessageQueue("t", 0), 7)

    assert link.given == [(Op.ACQUIRE, 1.0), (Op.RENEW, 1.0), (Op.COMMIT, 3.0), (Op.OFFSETS_AT, 30.0)]


async def test_who_was_too_late_with_locks_gets_twice_the_time_but_no_more_than_the_usual_until_it_answers() -> None:
    link = Timed(late=3)
    members = timed(link)

    for _ in range(3):
        with pytest.raises(RequestTimeout):
            await members.acquire([MessageQueue("t", 0)])
    await members.acquire([MessageQueue("t", 0)])
    await members.renew([ops.LeaseRef("t", 0, 1)])

    assert [time for _, time in link.given] == [1.0, 2.0, 3.0, 3.0, 1.0]


class Noting(Answering):
    """A connection that notes what it is asked."""

    def __init__(self) -> None:
        super().__init__([0])
        self.asked: list[tuple[Op, Any]] = []

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any:
        self.asked.append((op, payload))
        return self.answer


async def test_attempts_of_one_message_go_without_runs_and_more_runs_than_fit_in_several_requests() -> None:
    link = Noting()
    group = GroupClient(link, "g", now=asyncio.get_running_loop().time, timeout_s=3.0)
    runs = [AttemptRun(2 * i, 2 * i + 1, 1 + i % 2) for i in range(1030)]

    await group.attempt(MessageQueue("t", 0), 7, runs[:1])
    await group.attempt(MessageQueue("t", 0), 7, [AttemptRun(3, 9, 2)])
    await group.attempt(MessageQueue("t", 0), 7, runs)

    assert [asked for _, asked in link.asked] == [
        ops.Attempt("g", "t", 0, 7, 0, 1, []),
        ops.Attempt("g", "t", 0, 7, 3, 2, [AttemptRun(3, 9, 2)]),
        ops.Attempt("g", "t", 0, 7, 0, 1, runs[:1024]),
        ops.Attempt("g", "t", 0, 7, 2048, 1, runs[1024:]),
    ]


async def test_the_progress_goes_with_the_last_of_the_dead_letters() -> None:
    link = Noting()
    group = GroupClient(link, "g", now=asyncio.get_running_loop().time, timeout_s=3.0)

    await group.dead_letter(MessageQueue("t", 0), 7, range(1030), range(1, 1031), commit_offset=1030, reason="why")

    assert [asked for _, asked in link.asked] == [
        ops.DeadLetter("g", "t", 0, 7, list(range(1024)), -1, "why", list(range(1, 1025))),
        ops.DeadLetter("g", "t", 0, 7, list(range(1024, 1030)), 1030, "why", list(range(1025, 1031))),
    ]


class TakingBack(Noting):
    """A broker that has every message wait at level 3."""

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any:
        await super().request(op, payload, timeout_s=timeout_s)
        assert isinstance(payload, SendBack)
        return [[3] * len(payload.queue_offsets)]


async def test_the_progress_goes_with_the_last_of_the_messages_sent_back() -> None:
    link = TakingBack()
    group = GroupClient(link, "g", now=asyncio.get_running_loop().time, timeout_s=3.0)

    fates = await group.send_back(MessageQueue("t", 0), 7, range(1030), [1] * 1030, commit_offset=1030, reason="why")

    assert fates == [3] * 1030
    assert [asked for _, asked in link.asked] == [
        SendBack("g", "t", 0, 7, list(range(1024)), [1] * 1024, 0, -1, -1, "why"),
        SendBack("g", "t", 0, 7, list(range(1024, 1030)), [1] * 6, 0, -1, 1030, "why"),
    ]


@pytest.mark.parametrize("answer", [[[3]], [[3, 3, 3]], [[]]])
async def test_every_message_that_is_sent_back_must_have_a_fate(answer: Any) -> None:
    with pytest.raises(BadRequest, match="items for 2"):
        await client(answer).send_back(MessageQueue("t", 0), 7, [1, 2], [1, 1])
