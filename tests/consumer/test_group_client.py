"""Typed requests: what the broker answers is checked before anybody relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rmq.consumer.group_client import GroupClient
from rmq.wire import ops
from rmq.wire.errors import BadRequest
from rmq.wire.model import MessageQueue
from rmq.wire.ops import Op

pytestmark = pytest.mark.virtual_time


class Answering:
    """A connection that answers everything with one payload."""

    member = "me"
    hello: ops.HelloReply | None = None
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

    assert (unknown.grace_s, unknown.store_id, unknown.answered_sent_at, unknown.member) == (0.0, 0, 3.0, "me")
    assert await unknown.pull(ops.PullQueue("t", 0, 0), wait_s=0, max_bytes=1, timeout_s=1) is None


async def test_a_range_is_the_one_of_the_queue() -> None:
    assert (await client([[0, 2, 9, -1]]).range(MessageQueue("t", 0))).max_offset == 9
