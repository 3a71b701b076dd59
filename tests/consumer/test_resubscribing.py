"""Subscriptions that change while the consumer runs: left and joined again, refused and taken back."""

from __future__ import annotations

import asyncio

import pytest

from rmq.wire.errors import GroupMismatch, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import QUEUE, Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def joins(broker: FakeBroker) -> list[dict[str, str]]:
    """What the user wanted, by each JOIN; the retries of the group are in all of them."""
    asked = [dict(request.payload.subscriptions) for request in broker.sent(Op.JOIN)]
    assert {subscriptions.pop("%RETRY%g") for subscriptions in asked} <= {"*"}
    return asked


async def test_without_the_last_subscription_everything_is_given_back_and_the_group_left(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await asyncio.sleep(0.1)
        assert consumer.assignment == []
        assert (broker.leases, broker.members["g"]) == ({}, {})
        assert broker.offsets["g", QUEUE] == 1
        await asyncio.sleep(200)

    assert len(broker.sent(Op.LEAVE)) == 1
    assert all(request.at < 2 for request in broker.requests)


async def test_until_its_running_call_has_ended_a_leaving_member_stays_alive(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(Recorder(takes_s=100.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await asyncio.sleep(98)
        assert broker.members["g"]
        assert broker.holder("g", QUEUE) == "member-0"
        await asyncio.sleep(2)
        assert (broker.leases, broker.members["g"]) == ({}, {})

    # To the other members it subscribed alike to the end.
    assert joins(broker) == [{"t": "*"}] * 6
    assert broker.times(Op.JOIN) == [0.0, 0.0, 1.0, 31.0, 61.0, 91.0]
    assert broker.offsets["g", QUEUE] == 1


async def test_a_member_that_left_joins_again_with_its_next_subscription(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await asyncio.sleep(50)
        broker.send("t", 0, b"a")
        consumer.subscribe("t")
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert listener.times == [51.0]


async def test_subscribing_while_the_leave_is_under_way_joins_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})
    hold = broker.hold_reply(Op.LEAVE)

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await hold.reached.wait()
        consumer.subscribe("t")
        hold.let_go.set()
        await asyncio.sleep(0.1)
        assert consumer.assignment == [QUEUE]


async def test_a_leave_without_an_answer_is_sent_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.refuse[Op.LEAVE] = [RequestTimeout("no answer")]
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await asyncio.sleep(2)
        assert broker.members["g"] == {}


@pytest.mark.parametrize(("topic", "expression"), [("other", "*"), ("t", "b")])
async def test_a_subscription_the_group_does_not_share_is_taken_back_and_consumption_goes_on(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture, topic: str, expression: str
) -> None:
    broker.create("t")
    broker.create("other")
    listener = Recorder()
    consumer = make(listener, topics={"t": "a"})

    async with consumer:
        await asyncio.sleep(1)
        hold = broker.hold_request(Op.JOIN)
        broker.refuse[Op.JOIN] = [GroupMismatch("another member of 'g' subscribes otherwise")]
        consumer.subscribe(topic, expression)
        await hold.reached.wait()
        # While nobody has accepted the new one, messages are selected by the old.
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        await asyncio.sleep(1)
        hold.let_go.set()
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert listener.offsets == [0, 2]
    assert joins(broker)[-1] == {"t": "a"}
    assert "another member of 'g' subscribes otherwise" in caplog.text
    assert broker.holder("g", MessageQueue("other", 0)) is None


async def test_a_refused_subscription_that_has_changed_again_is_asked_for_as_it_is_now(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        hold = broker.hold_request(Op.JOIN)
        broker.refuse[Op.JOIN] = [GroupMismatch("no")]
        consumer.subscribe("u")
        await hold.reached.wait()
        consumer.subscribe("v")
        hold.let_go.set()
        await asyncio.sleep(0.1)

    assert joins(broker)[1:] == [{"t": "*"}, {"t": "*", "u": "*"}, {"t": "*", "u": "*", "v": "*"}]


async def test_what_was_accepted_and_is_refused_later_ends_the_consumer(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})
    running = asyncio.ensure_future(consumer.run())
    await asyncio.sleep(1)

    broker.refuse[Op.JOIN] = [GroupMismatch("changed")]

    with pytest.raises(GroupMismatch, match="changed"):
        await running


async def test_a_topic_is_not_consumed_before_its_new_expression_is_accepted(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.create("u")
    broker.send("t", 0, b"x", b"y", tags=["a", "b"])
    listener = Recorder()
    consumer = make(listener, topics={"u": "*", "t": "none"}, start_from="first")

    async with consumer:
        broker.offsets["g", QUEUE] = 0
        await asyncio.sleep(1)
        consumer.unsubscribe("t")
        await asyncio.sleep(1)
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        broker.refuse[Op.JOIN] = [RequestTimeout("no answer")]
        consumer.subscribe("t", "b")
        await asyncio.sleep(0.5)
        assert consumer.assignment == [MessageQueue("u", 0)]
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE, MessageQueue("u", 0)]

    assert listener.offsets == [3]
