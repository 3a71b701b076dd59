"""The façade: how a consumer starts, stops, fails, and lives through a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer, ConsumerConfig, ConsumeStatus
from rmq.wire.errors import ConfigError, ProtocolUnsupported
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)


async def listener(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


# What it is made of


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": "anycast"}, 'model must be "clustering" or "broadcasting"'),
        ({"max_attempts": 0}, r"max_attempts must be -1 \(no limit\) or 1 and more"),
        ({"slot": 3}, "no setting 'slot'"),
        ({"topics": {"a%b%c": "*"}}, "may hold only"),
        ({"topics": {"t": "a b"}}, "is not '\\*' or tags"),
        ({"topics": {"t": None}}, "an expression must be text"),
        ({"topics": {5: "*"}}, "a topic must be text, not 5"),
        ({"topics": ["t"]}, "topics must be a dictionary"),
        ({"topics": "t"}, "topics must be a dictionary"),
        ({"listener": 7}, "listener must be a function of"),
        ({"listener": lambda messages: None}, "listener must be a function of"),
        ({"group": None}, "needs a group"),
    ],
)
async def test_what_cannot_be_is_refused_at_once(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Consumer("127.0.0.1:1", **{"group": "g", "listener": listener, **arguments})


async def test_settings_come_from_a_configuration_and_from_arguments() -> None:
    config = ConsumerConfig(broker="10.0.0.1:1", group="billing", slots=7)

    assert Consumer(listener=listener, config=config).config == config
    assert Consumer("h:2", listener=listener, config=config, slots=3).config == ConsumerConfig(
        broker="h:2", group="billing", slots=3
    )
    # The values that are there are accepted by name, too.
    assert Consumer("h:2", group="g", listener=listener, model="clustering", max_attempts=-1).config.broker == "h:2"
    assert not Consumer("h:2", group="g", listener=listener, orderly=False).config.orderly


async def test_what_is_no_topic_can_neither_be_subscribed_nor_unsubscribed(make: Make) -> None:
    consumer = make()
    for call in (consumer.subscribe, consumer.unsubscribe):
        with pytest.raises(ConfigError, match="a topic must be text, not None"):
            call(None)  # type: ignore[arg-type]


async def test_running_without_a_subscription_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="call subscribe"):
        await make().run()


# Start


async def test_a_consumer_stopped_before_its_start_cannot_be_started(make: Make) -> None:
    consumer = make(topics={"t": "*"})
    await consumer.stop()
    await consumer.stop()

    for _ in range(2):
        with pytest.raises(RuntimeError, match="was stopped: make another one"):
            consumer.start()
        with pytest.raises(RuntimeError, match="was stopped: make another one"):
            await consumer.run()


async def test_a_consumer_that_ran_cannot_run_again(make: Make) -> None:
    consumer = make(topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="was stopped: make another one"):
        consumer.start()
    with pytest.raises(RuntimeError, match="was stopped: make another one"):
        await consumer.run()


async def test_a_start_without_a_loop_fails_every_time_and_can_be_repeated_in_one(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(consumer.start)

    async with consumer:
        await asyncio.sleep(1)
        assert consumer.assignment == [QUEUE]


async def test_subscribing_inside_the_context_begins_consumption(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    recorder = Recorder()

    async with make(recorder) as consumer:
        await asyncio.sleep(5)
        assert broker.requests == []
        consumer.subscribe("t")
        await asyncio.sleep(1)

    assert recorder.times == [5.0]


async def test_only_wanted_tags_are_delivered_and_the_rest_is_passed(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c", b"d", tags=["paid", "new", None, "paid"])
    broker.send("t", 0, b"e", b"f", tags=["new", "new"])
    recorder = Recorder()

    async with make(recorder, topics={"t": "paid || other"}):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 6

    assert recorder.offsets == [0, 3]


async def test_a_broker_that_comes_later_is_joined(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.up = False
    recorder = Recorder()

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(100)
        broker.come_up()
        await asyncio.sleep(1)

    assert recorder.times == [100.0]


async def test_a_consumer_that_never_saw_a_broker_stops_at_once(broker: FakeBroker, make: Make) -> None:
    broker.up = False

    async with make(topics={"t": "*"}):
        await asyncio.sleep(3)

    assert asyncio.get_running_loop().time() == 3.0


async def test_a_broker_that_does_not_want_us_ends_run_with_its_reason(broker: FakeBroker, make: Make) -> None:
    class Unwanted(FakeBroker):
        def connect(self, address: str, **callbacks: Any) -> Any:
            connection = super().connect(address, **callbacks)
            connection.reachable = False

            async def refuse() -> None:
                raise ProtocolUnsupported("this broker speaks protocol 2")

            connection.wait_connected = refuse  # type: ignore[method-assign]
            return connection

    now = asyncio.get_running_loop().time
    consumer = Consumer("x:1", group="g", listener=listener, topics={"t": "*"}, connect=Unwanted().connect, now=now)

    with pytest.raises(ProtocolUnsupported, match="protocol 2"):
        await consumer.run()


# Stop


async def test_a_clean_stop_is_one_request(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 3)
    for queue_id in range(3):
        broker.send("t", queue_id, b"a", b"b")
    recorder = Recorder(takes_s=0.01)

    async with make(recorder, topics={"t": "*"}, commit_every_s=5):
        await asyncio.sleep(0.9)
        before = len(broker.requests)

    (leave,) = broker.requests[before:]
    assert leave.op is Op.LEAVE
    assert [(end.queue_id, end.queue_offset) for end in leave.payload.leases] == [(0, 2), (1, 2), (2, 2)]
    assert broker.leases == {}
    assert {queue.queue_id: offset for (_, queue), offset in broker.offsets.items()} == {0: 2, 1: 2, 2: 2}
    assert broker.members["g"] == {}


async def test_running_calls_end_before_the_queues_are_given_back(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    recorder = Recorder(takes_s=10.0)

    async with make(recorder, topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        await consumer.stop()
        assert asyncio.get_running_loop().time() == pytest.approx(10.0)

    assert recorder.offsets == [0]
    assert broker.offsets["g", QUEUE] == 1
    assert broker.requests[-1].op is Op.LEAVE


async def test_a_stop_ends_run(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    running = asyncio.ensure_future(consumer.run())
    await asyncio.sleep(1)
    await consumer.stop()
    await running
    await consumer.stop()

    assert len(broker.sent(Op.LEAVE)) == 1


async def test_a_listener_may_stop_its_own_consumer(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c")
    seen: list[bytes] = []

    async def until_two(messages: Any, context: Any) -> ConsumeStatus:
        seen.append(messages[0].body)
        if len(seen) == 2:
            await consumer.stop()
        return ConsumeStatus.SUCCESS

    consumer = make(until_two, topics={"t": "*"})
    await consumer.run()

    assert seen == [b"a", b"b"]
    assert broker.offsets["g", QUEUE] == 2


async def test_cancelling_run_stops_the_consumer(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    running = asyncio.ensure_future(make(topics={"t": "*"}).run())
    await asyncio.sleep(1)

    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert broker.requests[-1].op is Op.LEAVE


async def test_a_stop_that_is_cancelled_goes_on_in_the_background(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    consumer = make(Recorder(takes_s=10.0), topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await consumer.stop()
        await consumer.stop()

    assert broker.offsets["g", QUEUE] == 1


async def test_a_consumer_runs_once(broker: FakeBroker, make: Make) -> None:
    consumer = make(topics={"t": "*"})
    async with consumer:
        pass

    with pytest.raises(RuntimeError, match="make another one"):
        consumer.start()


async def test_stopping_what_was_never_started_is_fine(make: Make) -> None:
    consumer = make()

    await consumer.stop()

    assert consumer.assignment == []


async def test_a_stop_during_a_hand_over_still_gives_everything_back_in_one_request(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a")
    recorder = Recorder(takes_s=10.0)

    async with make(recorder, topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a", "b")  # nothing is ours any more; queue 0 has a running call
        await asyncio.sleep(1)
        await consumer.stop()

    assert [request.op for request in broker.requests if request.op in (Op.RELEASE, Op.LEAVE)] == [
        Op.RELEASE, Op.LEAVE,
    ]  # fmt: skip
    (leave,) = broker.sent(Op.LEAVE)
    assert [(end.queue_id, end.queue_offset) for end in leave.payload.leases] == [(0, 1)]
    assert broker.leases == {}


async def test_a_stop_waits_for_the_unlock_that_is_under_way(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    hold = broker.hold_reply(Op.RELEASE)

    async with make(topics={"t": "*"}) as consumer:
        await asyncio.sleep(0.5)
        broker.set_members("g", "a")  # queue 0 is theirs
        await hold.reached.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0.5)
        assert broker.sent(Op.LEAVE) == []
        hold.let_go.set()
        await stopping

    (leave,) = broker.sent(Op.LEAVE)
    assert [end.queue_id for end in leave.payload.leases] == [1]


async def test_a_stop_during_the_request_for_locks_gives_back_what_that_brings(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await stopping

    assert broker.leases == {}
    assert broker.sent(Op.PULL) == []
