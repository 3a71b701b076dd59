"""Where a group without progress begins: as it is told, never guessed, never negative, and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.wire.errors import ConnectionLost, Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Range
from rmq.wire.protocol.ops.messages import OffsetAt

from ..fake_broker import FakeBroker
from ..recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)
NOON = "timestamp:2026-01-31T12:00Z"
NOON_US = 1_769_860_800_000_000


def asked(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


@pytest.mark.parametrize(("start_from", "first"), [("first", 4), ("last", 10)])
async def test_a_group_without_progress_begins_where_it_is_told(
    broker: FakeBroker, make: Make, start_from: str, first: int
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 4)
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
    broker.create("old")
    broker.send("old", 0, b"x")
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
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.refuse[Op.RANGES] = [error]
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(4)

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
    broker.create("t")
    broker.send("t", 0, b"a")
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
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    broker.offsets_at[QUEUE, NOON_US] = 5
    if stored is not None:
        broker.offsets["g", QUEUE] = stored

    async with make(topics={"t": "*"}, start_from=start_from):
        await asyncio.sleep(0.5)

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
    async with make(listener, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)

    assert listener.offsets == [1]


async def test_last_does_not_pass_a_queue_that_was_made_while_nobody_of_the_group_was_there(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"old")
    listener = Recorder()

    async with make(topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
    broker.create("t", 2)
    broker.send("t", 1, b"new")
    async with make(listener, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)

    assert listener.calls == [(1.0, 1, [0])]
