"""Where a group without progress begins: as it is told, never guessed, never negative, and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.wire.errors import ConnectionLost, Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.ops import Op, Range

from .fake_broker import FakeBroker
from .recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)


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
    """A broker that answers the first reads of a range from a script."""

    script: list[Range] = []  # noqa: RUF012  # replaced, never changed in place

    def _ranges(self, connection: Any, payload: Any) -> Any:
        if self.script:
            answer, *self.script = self.script
            return [answer]
        return super()._ranges(connection, payload)


@pytest.mark.parametrize("odd", [Range(0, -1, -1), Range(Internal.code, 3, 3, text="log id 7")])
@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_only_a_read_that_succeeded_is_an_offset_and_a_negative_one_never(odd: Range, start_from: str) -> None:
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

    assert broker.times(Op.RANGES) == [0.0, 3.0]
    assert asked(broker)[0] == (0 if start_from == "first" else 1)
    assert all(offset >= 0 for offset in asked(broker))
