"""What failed is asked again: at once, with the next connection, or after a pause that a drop ends."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.fetch.start_offset import after_failure, says_gone
from rmq.consumer.group.assignment import Generation, Lease
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

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def generation() -> Generation:
    return Generation(Lease(QUEUE, 1, 0.0), ProcessQueue(0), on_lost=lambda generation, reason: None)


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

    await after_failure(generation(), error, group, pause_s=3.0)

    assert now() == waited_s
    await group.link.close()


async def test_a_lost_connection_is_waited_for(broker: FakeBroker) -> None:
    group = client(broker)
    broker.up = False
    asyncio.get_running_loop().call_later(7.0, broker.come_up)

    await after_failure(generation(), ConnectionLost("x"), group, pause_s=3.0)

    assert now() == 7.0
    await group.link.close()


async def test_a_connection_closed_for_good_is_a_pause_until_somebody_drops_us(broker: FakeBroker) -> None:
    group, ours = client(broker), generation()
    await group.link.close()
    asyncio.get_running_loop().call_later(1.0, ours.drop)

    await after_failure(ours, ConnectionLost("x"), group, pause_s=3.0)

    assert now() == 1.0


@pytest.mark.parametrize(
    ("error", "gone"), [(TopicNotFound("x"), True), (QueueNotFound("x"), True), (Internal("x"), False)]
)
async def test_only_a_missing_topic_or_queue_is_gone(error: RmqError, gone: bool) -> None:
    assert says_gone(error) is gone
