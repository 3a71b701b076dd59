"""Calls that take too long: messages at the head are given up, and what is said of them later counts for nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from rmq.wire.errors import Internal
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUCCESS, Make
from .test_concurrent import RETRY, fill, given_back, with_context
from .test_concurrent_transitions import Held

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

LIMIT_S = 100.0


@pytest.fixture
def start(make: Make) -> Make:
    """Makes concurrent consumers of ``t`` whose calls may take 100 s."""
    return partial(make, orderly=False, topics={"t": "*"}, consume_timeout_s=LIMIT_S)


async def test_up_to_16_heads_that_take_too_long_are_given_back_with_level_3_and_passed(
    broker: FakeBroker, start: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ: cleanExpired, 16 messages a round, a round every 15 minutes."""
    fill(broker, 20)
    listener = Held()

    async with start(listener):
        await asyncio.sleep(2 * LIMIT_S - 1)
        assert (given_back(broker), broker.offsets["g", QUEUE]) == ([], 0)  # at exactly the limit it is not too long
        await asyncio.sleep(2)
        assert given_back(broker) == [(offset, 1, 3) for offset in range(16)]
        assert broker.offsets["g", QUEUE] == 16
        await asyncio.sleep(LIMIT_S)
        assert given_back(broker) == [(offset, 1, 3) for offset in range(20)]
        listener.let_go.set()
        await asyncio.sleep(1)

    assert broker.offsets["g", QUEUE] == 20
    assert len(listener.offsets) == 20
    assert caplog.text.count("message.expired") == 20


@pytest.mark.parametrize("answer", [SUCCESS, RETRY, None, with_context(SUCCESS, ack_index=-1)])
async def test_what_a_call_says_of_messages_that_were_given_up_counts_for_nothing(
    broker: FakeBroker, start: Make, answer: Any
) -> None:
    fill(broker, 3)
    listener = Held(answer)

    async with start(listener, batch=3):
        await asyncio.sleep(2 * LIMIT_S + 1)
        before = list(given_back(broker))
        listener.let_go.set()
        await asyncio.sleep(10)

    assert given_back(broker) == before == [(0, 1, 3), (1, 1, 3), (2, 1, 3)]
    assert broker.offsets["g", QUEUE] == 3


async def test_a_call_with_more_messages_than_a_round_takes_decides_about_the_others(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 20)
    listener = Held(with_context(SUCCESS, ack_index=17))

    async with start(listener, batch=20):
        await asyncio.sleep(2 * LIMIT_S + 1)
        assert broker.offsets["g", QUEUE] == 16
        listener.let_go.set()
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 20

    assert given_back(broker) == [*((offset, 1, 3) for offset in range(16)), (18, 1, 3), (19, 1, 3)]


async def test_a_young_head_keeps_the_old_ones_behind_it(broker: FakeBroker, start: Make) -> None:
    fill(broker, 3)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = Held()

    async def first_comes_late(messages: Any, context: Any) -> Any:
        if messages[0].queue_offset == 0 and messages[0].attempt == 1:
            await asyncio.sleep(1.5 * LIMIT_S)
            return RETRY  # and cannot be given back: its second call begins later
        return await listener(messages, context)

    async with start(first_comes_late):
        await asyncio.sleep(2 * LIMIT_S + 1)
        assert given_back(broker) == []
        await asyncio.sleep(LIMIT_S)
        assert [offset for offset, _, _ in given_back(broker)] == [0, 1, 2]
        listener.let_go.set()


async def test_a_message_that_cannot_be_given_up_stays_with_its_call(broker: FakeBroker, start: Make) -> None:
    fill(broker, 3)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = Held()

    async with start(listener):
        await asyncio.sleep(2 * LIMIT_S + 1)
        assert len(broker.sent(Op.SEND_BACK)) == 1  # the others behind it could not be passed
        assert broker.offsets["g", QUEUE] == 0
        listener.let_go.set()
        await asyncio.sleep(1)

    assert (given_back(broker), broker.offsets["g", QUEUE]) == ([], 3)


@pytest.mark.parametrize(("refused", "back"), [(False, [(0, 1, 3)]), (True, [])])
async def test_a_call_that_returns_while_it_is_given_up_waits_for_what_comes_of_that(
    broker: FakeBroker, start: Make, refused: bool, back: list[tuple[int, int, int]]
) -> None:
    fill(broker, 1)
    listener = Held()

    async with start(listener) as consumer:
        await asyncio.sleep(LIMIT_S + 1)
        hold = broker.hold_request(Op.SEND_BACK)
        broker.refuse[Op.SEND_BACK] = [Internal("disk")] if refused else []
        await hold.reached.wait()
        listener.let_go.set()
        await asyncio.sleep(1)
        assert consumer.running_info()["turns"] == 1
        hold.let_go.set()
        await asyncio.sleep(1)
        assert consumer.running_info()["turns"] == 0

    # If it was given up, the success is one that came too late; if not, it is a success.
    assert given_back(broker) == back
    assert broker.offsets["g", QUEUE] == 1


async def test_a_lost_queue_is_not_swept(broker: FakeBroker, start: Make) -> None:
    fill(broker, 1)
    listener = Held()

    async with start(listener):
        await asyncio.sleep(1)
        broker.give("g", QUEUE)
        await asyncio.sleep(3 * LIMIT_S)
        assert broker.sent(Op.SEND_BACK) == []
        listener.let_go.set()
