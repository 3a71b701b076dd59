"""A connection that breaks: during a stop, during a drain, and for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer, ConsumeStatus
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)


async def listener(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


# Stop against reconnect, in both orders


async def test_a_connection_lost_during_the_last_request_is_waited_for_and_the_request_sent_again(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    hold = broker.hold_request(Op.LEAVE)
    consumer = make(Recorder(), topics={"t": "*"}, commit_every_s=5)

    async with consumer:
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(consumer.stop())
        await hold.reached.wait()
        broker.go_down()
        await asyncio.sleep(1)
        broker.come_up()
        await stopping
        hold.let_go.set()

    assert len(broker.sent(Op.LEAVE)) == 2
    assert broker.leases == {}
    assert broker.offsets["g", QUEUE] == 1


async def test_a_stop_while_disconnected_waits_for_the_broker_and_then_gives_up(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(1)

    assert asyncio.get_running_loop().time() == pytest.approx(5.0)
    assert broker.sent(Op.LEAVE) == []


async def test_a_reconnect_during_the_drain_keeps_the_leases_until_the_call_has_ended(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(Recorder(takes_s=10.0), topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(2)
        broker.come_up()
        await stopping

    assert broker.offsets["g", QUEUE] == 1
    assert broker.leases == {}


# Reconnect


async def test_a_lease_the_broker_lists_goes_on_and_is_renewed_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    recorder = Recorder()

    async with make(recorder, topics={"t": "*"}) as consumer:
        await asyncio.sleep(2)
        broker.go_down()
        await asyncio.sleep(1)
        broker.come_up()
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert broker.times(Op.RENEW) == [1.0, 3.0]
    assert broker.times(Op.JOIN) == [0.0, 0.0, 3.0]
    assert recorder.times == [3.0]


async def test_a_blip_below_the_grace_moves_no_queue_restarts_no_message_and_keeps_the_attempts(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a", b"b")  # the first fails three times
    broker.send("t", 1, *[b"x"] * 4)  # one call runs through the blip
    recorders = [Recorder(*[ConsumeStatus.SUSPEND] * 3), Recorder(takes_s=3.0)]

    async def listener(messages: Any, context: Any) -> Any:
        return await recorders[context.queue.queue_id](messages, context)

    async with make(listener, topics={"t": "*"}) as consumer:
        await asyncio.sleep(2)
        epochs = {queue: held.epoch for (_, queue), held in broker.leases.items()}
        broker.go_down()
        await asyncio.sleep(3.9)
        broker.come_up()
        await asyncio.sleep(15)
        assert len(consumer.assignment) == 2
        assert {queue: held.epoch for (_, queue), held in broker.leases.items()} == epochs

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert recorders[0].offsets == [0, 0, 0, 0, 1]
    assert recorders[0].attempts == [1, 2, 3, 4, 1]
    assert recorders[1].offsets == [0, 1, 2, 3]
    # What was cached is not fetched again: each queue was asked for at its end.
    asked = [request.payload.queues[0][1:3] for request in broker.sent(Op.PULL)]
    assert {offset for queue_id, offset in asked if queue_id == 1} == {0, 4}


async def test_a_queue_that_could_not_be_pulled_without_a_connection_is_not_taken_for_a_dead_one(
    broker: FakeBroker, make: Make
) -> None:
    broker.grace_s = 300.0
    broker.create("t")
    recorder = Recorder(takes_s=200.0)
    broker.send("t", 0, b"a", b"b")

    async with make(recorder, topics={"t": "*"}, drain_s=0.0, relock_every_s=29.0):
        await asyncio.sleep(10)
        broker.go_down()
        await asyncio.sleep(130)  # longer than pull_expiry_s
        broker.come_up()
        await asyncio.sleep(100)

    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert recorder.offsets == [0, 1]


async def test_a_lease_the_broker_does_not_list_is_lost_and_begun_anew(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c")
    recorder = Recorder(takes_s=2.0)

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(3)
        broker.go_down()
        broker.leases.clear()
        await asyncio.sleep(2)
        broker.come_up()
        await asyncio.sleep(20)

    # The calls that ended after the connection were of the lost lease: from the first of them on all comes again.
    assert recorder.offsets == [0, 1, 2, 1, 2]
    assert broker.offsets["g", QUEUE] == 3


async def test_a_lease_listed_with_another_epoch_is_not_ours(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.2)
        broker.go_down()
        broker.leases["g", QUEUE].epoch = 77
        holds = [broker.hold_request(Op.RENEW), broker.hold_request(Op.PULL)]  # the greeting alone has to tell
        broker.come_up()
        await asyncio.sleep(0.2)
        assert consumer.assignment == [QUEUE]
        for hold in holds:
            hold.let_go.set()

    assert len(broker.sent(Op.ACQUIRE)) == 2


async def test_a_lease_listed_that_we_neither_have_nor_want_is_given_back(broker: FakeBroker, make: Make) -> None:
    """A broker that crashed right after an offset reset keeps the queue for us, who may have lost it to another."""
    broker.create("t")

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.2)
        broker.go_down()
        broker.leases["g", QUEUE].epoch = 77
        broker.set_members("g", "a")
        broker.come_up()
        await asyncio.sleep(1)
        assert consumer.assignment == []
        assert broker.holder("g", QUEUE) is None


async def test_a_connection_without_answers_stops_the_turns_before_the_grace_is_over(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 100)
    recorder = Recorder(takes_s=1.0)

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(10.5)
        broker.connections[0].silent = True
        await asyncio.sleep(10)
        assert recorder.times[-1] == 14.0
        broker.connections[0].silent = False
        await asyncio.sleep(5)

    assert recorder.times[15] > 20
    assert recorder.offsets == list(range(len(recorder.offsets)))


async def test_garbage_pushed_by_the_broker_is_ignored(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        for push, payload in ((1, []), (2, ["g"]), (3, ["t", "x"]), (99, [1]), (1, ["g", 7]), (2, [1, 2, 3])):
            broker.connections[0].push(push, payload)  # type: ignore[arg-type]
        await asyncio.sleep(25)
        assert consumer.assignment == [QUEUE]


async def test_a_changed_subscription_filters_what_comes_next(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    recorder = Recorder()

    async with make(recorder, topics={"t": "a"}) as consumer:
        await asyncio.sleep(1)
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        await asyncio.sleep(1)
        consumer.subscribe("t", "b")
        await asyncio.sleep(1)
        broker.send("t", 0, b"x", b"y", tags=["a", "b"])
        await asyncio.sleep(1)

    assert recorder.offsets == [0, 3]
