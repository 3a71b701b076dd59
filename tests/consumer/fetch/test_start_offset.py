"""
Where a group without progress begins: as it is told, never guessed, never negative, and recorded.

What failed is asked again: at once, with the next connection, or after a pause that a drop ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.fetch.start_offset import after_failure, says_gone
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.engine.native.group import GroupClient
from rmq.wire.errors import (
    ConnectionLost,
    Internal,
    QueueNotFound,
    Refused,
    RequestTimeout,
    RmqError,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Range
from rmq.wire.protocol.ops.messages import OffsetAt

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, Make, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]
NOON = "timestamp:2026-01-31T12:00Z"
NOON_US = 1_769_860_800_000_000


def asked(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


@pytest.mark.parametrize(("start_from", "first"), [("first", 4), ("last", 10)])
async def test_a_group_without_progress_begins_where_it_is_told(
    broker: FakeBroker, make: Make, start_from: str, first: int
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    broker.send("t", 0, *[b"x"] * 6)
    broker.min_offsets[QUEUE] = 4

    async with make(topics={"t": "*"}, start_from=start_from):
        await asyncio.sleep(0.5)
        assert asked(broker)[0] == first
        # The decision is recorded: "last" means the last of now for whoever goes on.
        assert broker.offsets["g", QUEUE] >= first


@pytest.mark.parametrize("start_from", ["first", "last", NOON])
async def test_the_retries_of_a_group_are_for_it_whenever_they_were_given_back(
    broker: FakeBroker, make: Make, start_from: str
) -> None:
    broker.create("t")
    broker.create("%RETRY%g")
    broker.send("%RETRY%g", 0, b"x", b"y")
    broker.send("%RETRY%g", 0, b"z")
    broker.min_offsets[MessageQueue("%RETRY%g", 0)] = 2
    listener = Recorder()

    async with make(listener, topics={"t": "*"}, start_from=start_from) as consumer:
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert listener.offsets == [2]


async def test_a_queue_made_after_the_group_subscribed_is_read_from_0(broker: FakeBroker, make: Make) -> None:
    broker.create("old", bodies=[b"x"])
    listener = Recorder()

    async with make(listener, topics={"t": "*", "old": "*"}, start_from="last"):
        await asyncio.sleep(1)
        broker.topics["t"] = 1
        broker.send("t", 0, b"a", b"b")
        broker.create("t")
        await asyncio.sleep(1)

    assert listener.offsets == [0, 1]


@pytest.mark.parametrize("error", [Internal("x"), ConnectionLost("x"), RequestTimeout("x")])
async def test_a_start_that_cannot_be_read_is_asked_for_again_and_never_guessed(
    broker: FakeBroker, make: Make, error: Exception
) -> None:
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.RANGES] = [error]
    listener = Recorder()

    await run_for(4, make(listener, topics={"t": "*"}))

    assert len(broker.sent(Op.RANGES)) == 2
    assert asked(broker)[0] == 0
    assert listener.offsets == [0]


class Odd(FakeBroker):
    """A broker that answers the first reads of where a queue begins from a script."""

    script: list[tuple[int, int, str | None]] = []  # noqa: RUF012  # replaced, never changed in place

    def _ranges(self, connection: Any, payload: Any) -> Any:
        if self.script:
            (status, offset, text), *self.script = self.script
            return [Range(status, offset, offset, text=text)]
        return super()._ranges(connection, payload)

    def _offsets_at(self, connection: Any, payload: Any) -> Any:
        if self.script:
            (status, offset, text), *self.script = self.script
            return [OffsetAt(status, offset, text=text)]
        return super()._offsets_at(connection, payload)


@pytest.mark.parametrize("odd", [(0, -1, None), (Internal.code, 3, "log id 7")])
@pytest.mark.parametrize(("start_from", "op"), [("first", Op.RANGES), (NOON, Op.OFFSETS_AT)])
async def test_only_a_read_that_succeeded_is_an_offset_and_a_negative_one_never(
    odd: tuple[int, int, str | None], start_from: str, op: Op
) -> None:
    """RocketMQ takes a failed read for the offset -1, by which the group is rewound to the start of the queue."""
    broker, listener = Odd(), Recorder()
    broker.script = [odd]
    broker.create("t", bodies=[b"a"])
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time, start_from=start_from,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(4)

    assert broker.times(op) == [0.0, 3.0]
    assert asked(broker)[0] == 0
    assert all(offset >= 0 for offset in asked(broker))


# The table of RocketMQ's RebalancePushImplTest


@pytest.mark.parametrize(
    ("start_from", "stored", "expected"),
    [
        ("first", 7, 7),
        ("last", 7, 7),
        (NOON, 7, 7),
        ("first", None, 0),
        ("last", None, 10),
        (NOON, None, 5),
    ],
)
async def test_stored_progress_counts_and_without_any_the_setting(
    broker: FakeBroker, make: Make, start_from: str, stored: int | None, expected: int
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    broker.offsets_at[QUEUE, NOON_US] = 5
    if stored is not None:
        broker.offsets["g", QUEUE] = stored

    await run_for(0.5, make(topics={"t": "*"}, start_from=start_from))

    assert asked(broker)[0] == expected


async def test_last_is_the_same_for_a_member_that_comes_after_more_messages(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    broker.send("t", 1, b"old")
    broker.set_members("g", "zzz")  # the second queue falls to somebody who does not take it yet
    listener = Recorder()

    async with make(topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
        broker.send("t", 1, b"new")
    broker.set_members("g")
    await run_for(1, make(listener, topics={"t": "*"}, start_from="last"))

    assert listener.offsets == [1]


async def test_last_does_not_pass_a_queue_that_was_made_while_nobody_of_the_group_was_there(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"old"])
    listener = Recorder()

    async with make(topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
    broker.create("t", 2)
    broker.send("t", 1, b"new")
    await run_for(1, make(listener, topics={"t": "*"}, start_from="last"))

    assert listener.calls == [(1.0, 1, [0])]


def assignment() -> Assignment:
    return Assignment(LeaseBelief(QUEUE, 1, 0.0), ProcessQueue(0), on_lost=lambda assignment, reason: None)


def client(broker: FakeBroker) -> GroupClient:
    link = broker.connect(
        "fake:1",
        on_push=lambda push, payload: None,
        on_connected=lambda hello: None,
        on_lost=lambda error: None,
        keep_alive=True,
        now=now,
    )
    link.start()
    return GroupClient(link, "g", now=now, timeout_s=3.0)


@pytest.mark.parametrize(
    ("error", "waited_s"),
    [
        (RequestTimeout("x"), 0.0),
        (Internal("x"), 3.0),
        (TooManyInFlight("x"), 0.1),
        (Refused("x", code=TooManyInFlight.code), 0.1),
    ],
)
async def test_a_time_out_was_a_wait_already_and_a_refusal_is_followed_by_a_pause_a_short_one_if_it_is_busy(
    broker: FakeBroker, error: RmqError, waited_s: float
) -> None:
    """RocketMQ asks again after 20 ms where the broker said that it is busy, and else after a second or three."""
    group = client(broker)

    await after_failure(assignment(), error, group, pause_s=3.0)

    assert now() == waited_s
    await group.link.close()


async def test_a_lost_connection_is_waited_for(broker: FakeBroker) -> None:
    group = client(broker)
    broker.up = False
    asyncio.get_running_loop().call_later(7.0, broker.come_up)

    await after_failure(assignment(), ConnectionLost("x"), group, pause_s=3.0)

    assert now() == 7.0
    await group.link.close()


async def test_a_connection_closed_for_good_is_a_pause_until_somebody_drops_us(broker: FakeBroker) -> None:
    group, ours = client(broker), assignment()
    await group.link.close()
    asyncio.get_running_loop().call_later(1.0, ours.drop)

    await after_failure(ours, ConnectionLost("x"), group, pause_s=3.0)

    assert now() == 1.0


@pytest.mark.parametrize(
    ("error", "gone"), [(TopicNotFound("x"), True), (QueueNotFound("x"), True), (Internal("x"), False)]
)
async def test_only_a_missing_topic_or_queue_is_gone(error: RmqError, gone: bool) -> None:
    assert says_gone(error) is gone
