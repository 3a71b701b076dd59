"""The way of a message through a consumer, step by step; and what one queue must never cost another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.wire.batch import batch, layout
from rmq.wire.errors import TooManyInFlight
from rmq.wire.model import MessageQueue
from rmq.wire.names import retry_topic
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from .fake_broker import FakeBroker
from .fake_log import Stored
from .recorder import QUEUE, SUCCESS, Make, Messages, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def carried(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].commit_offset for request in broker.sent(Op.PULL)]


async def test_a_queue_is_shared_out_locked_pulled_and_consumed_in_this_order_and_the_log_tells_it(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ: rebalance, pull, read, consume; each step shows, and each comes once for each of the queues."""
    caplog.set_level("INFO", "rmq.consumer")
    broker.create("t", 2)
    for queue_id in (0, 1):
        broker.send("t", queue_id, b"a")
    steps: dict[int, list[str]] = {0: [], 1: []}

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        asked = [request.op.name for request in asked_about(broker, context.queue)]
        steps[context.queue.queue_id].extend(asked[: asked.index("PULL") + 1])  # the next pull is under way already
        steps[context.queue.queue_id].append("call")
        return SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a-other")  # it comes first in the list: the first queue is theirs
        await asyncio.sleep(1)

    # The beginning of a group without progress is asked for between the lock and the first pull.
    assert steps == {queue_id: ["ACQUIRE", "RANGES", "PULL", "call"] for queue_id in (0, 1)}
    assert (broker.requests[0].op, broker.requests[-1].op) == (Op.JOIN, Op.LEAVE)
    told = [str(record.getMessage()).split()[0] for record in caplog.records]
    assert told == [
        "group.joined", "rebalance.changed", "queue.acquired", "queue.acquired", "start.found", "start.found",
        "rebalance.changed", "queue.dropped", "queue.released", "group.left",
    ]  # fmt: skip


def asked_about(broker: FakeBroker, queue: MessageQueue) -> list[Any]:
    """The requests that named a queue."""
    return [
        request
        for request in broker.requests
        if any((item[0], item[1]) == queue for item in getattr(request.payload, "queues", ()))
    ]


async def test_a_call_that_never_ends_keeps_its_own_queue_waiting_and_no_other(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 3)
    seen: list[tuple[float, int, int]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((round(now(), 6), context.queue.queue_id, messages[0].queue_offset))
        await asyncio.sleep(1000.0 if context.queue.queue_id == 0 else 0.0)
        return SUCCESS

    async with make(listener, topics={"t": "*"}, drain_s=0.0):
        for _ in range(100):
            for queue_id in range(3):
                broker.send("t", queue_id, b"x")
            await asyncio.sleep(1)
        assert [offset for _, queue_id, offset in seen if queue_id == 0] == [0]

    for queue_id in (1, 2):
        assert [(at, offset) for at, of, offset in seen if of == queue_id] == [(float(at), at) for at in range(100)]


async def test_a_pull_without_an_answer_keeps_no_other_queue_waiting(broker: FakeBroker, make: Make) -> None:
    """RocketMQ: one thread asks for all queues and never waits for an answer."""
    broker.create("t", 2)
    hold, listener = broker.hold_request(Op.PULL), Recorder()

    async with make(listener, topics={"t": "*"}, pull_timeout_s=300.0):
        await hold.reached.wait()
        stuck = broker.sent(Op.PULL)[0].payload.queues[0].queue_id
        for _ in range(5):
            broker.send("t", 1 - stuck, b"x")
            await asyncio.sleep(10)
        assert listener.calls == [(10.0 * i, 1 - stuck, [i]) for i in range(5)]
        hold.let_go.set()


async def test_progress_rides_once_and_a_pull_without_news_carries_none(broker: FakeBroker, make: Make) -> None:
    """RocketMQ leaves the flag out where there is nothing to commit; here the beginning of a group is progress, too."""
    broker.create("t")
    broker.offsets["g", QUEUE] = 0

    async with make(Recorder(), topics={"t": "*"}, commit_every_s=5.0, pull_interval_s=1.0):
        await asyncio.sleep(16)
        assert carried(broker) == [NO_OFFSET] * 2  # what the broker has already is no news
        broker.send("t", 0, b"a")  # which answers the parked pull
        await asyncio.sleep(35)

    assert broker.times(Op.PULL) == [0.0, 15.0, 17.0, 32.0, 47.0]
    assert carried(broker) == [NO_OFFSET, NO_OFFSET, 1, NO_OFFSET, NO_OFFSET]
    assert broker.sent(Op.COMMIT) == []
    assert broker.offsets["g", QUEUE] == 1


@pytest.mark.parametrize("times", [1, 7])
async def test_a_broker_that_has_too_much_to_do_is_asked_again_after_100_ms(
    broker: FakeBroker, make: Make, times: int
) -> None:
    """RocketMQ waits 20 ms after such an answer."""
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.PULL] = [TooManyInFlight("busy")] * times
    listener = Recorder()

    await run_for(2, make(listener, topics={"t": "*"}))

    assert broker.times(Op.PULL)[: times + 1] == pytest.approx([0.1 * i for i in range(times + 1)])
    assert listener.times == [pytest.approx(0.1 * times)]
    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_the_listener_sees_the_topic_from_which_a_message_that_is_tried_again_came(
    broker: FakeBroker, make: Make
) -> None:
    topic = retry_topic("g")
    broker.create(topic)
    rows = batch.Rows([b"a"], 1_700_000_000_000_000, properties=[{"RMQ_ORIGIN_TOPIC": "orders"}])
    encoded = batch.encode(topic, 0, rows)
    stamp = layout.Stamp(1, 0, 0, 1_700_000_000_000_000, 0, 0, broker._generation_of(topic), 0, layout.KIND_DATA)
    header = layout.stamp(encoded, layout.parse_header(encoded).header_size, stamp)
    broker.logs[MessageQueue(topic, 0)].append(Stored(0, 1, header + encoded[layout.BROKER_PART :], 1))
    seen: list[tuple[str, str]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        seen.append((messages[0].topic, context.queue.topic))
        return SUCCESS

    await run_for(1, make(listener, topics={topic: "*"}))

    assert seen == [("orders", topic)]
