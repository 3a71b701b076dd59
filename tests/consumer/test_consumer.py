"""The façade: how a consumer starts, stops, fails, and lives through a lost connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.client import Admin, Producer
from rmq.consumer import Consumer, ConsumerConfig, ConsumeStatus
from rmq.consumer.group.allocation import PlacedQueue
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadName, ConfigError, GroupMismatch, ProtocolUnsupported, RequestTimeout
from rmq.wire.model import Message, MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import QUEUE, Make, Recorder, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


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
    broker.create("t", bodies=[b"a"])
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
    broker.create("t", bodies=[b"a"])
    broker.up = False
    recorder = Recorder()

    async with make(recorder, topics={"t": "*"}):
        await asyncio.sleep(100)
        broker.come_up()
        await asyncio.sleep(1)

    assert recorder.times == [100.0]


async def test_a_consumer_that_never_saw_a_broker_stops_at_once(broker: FakeBroker, make: Make) -> None:
    broker.up = False

    await run_for(3, make(topics={"t": "*"}))

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
    broker.create("t", bodies=[b"a", b"b"])
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
    broker.create("t", bodies=[b"a", b"b", b"c"])
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
    broker.create("t", bodies=[b"a"])
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
    broker.create("t", 2, bodies=[b"a"])
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


# Subscriptions that change while the consumer runs: left and joined again, refused and taken back


def joins(broker: FakeBroker) -> list[dict[str, str]]:
    """What the user wanted, by each JOIN; the retries of the group are in all of them."""
    asked = [dict(request.payload.subscriptions) for request in broker.sent(Op.JOIN)]
    assert {subscriptions.pop("%RETRY%g") for subscriptions in asked} <= {"*"}
    return asked


async def test_without_the_last_subscription_everything_is_given_back_and_the_group_left(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 2, bodies=[b"a"])
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
    broker.create("t", bodies=[b"a"])
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


# Namespaces: the broker sees ``namespace%name`` of groups and topics, the user what he named

WIRE = MessageQueue("team%t", 0)


async def test_the_broker_sees_wrapped_names_and_the_listener_plain_ones(broker: FakeBroker, make: Make) -> None:
    """RocketMQ: the group is wrapped with the namespace at the start; user code sees plain names."""
    broker.create("team%t")
    broker.send("team%t", 0, b"a")
    seen: list[Any] = []

    async def listener(messages: Any, context: Any) -> Any:
        seen.extend((message.topic, context.queue) for message in messages)
        return ConsumeStatus.SUCCESS

    consumer = make(listener, topics={"t": "*"}, namespace="team")
    async with consumer:
        await asyncio.sleep(1)
        assert consumer.assignment == [MessageQueue("t", 0)]
        assert list(consumer.statistics()) == ["t@g"]

    assert seen == [("t", MessageQueue("t", 0))]
    assert broker.offsets == {("team%g", WIRE): 1}
    (join, *_) = broker.sent(Op.JOIN)
    assert (join.payload.group, join.payload.subscriptions) == (
        "team%g",
        {"%RETRY%team%g": "*", "team%t": "*"},
    )


async def test_a_free_lease_and_a_list_of_members_are_told_by_the_wrapped_name(broker: FakeBroker, make: Make) -> None:
    broker.create("team%t")
    broker.give("team%g", WIRE, "other")
    consumer = make(topics={"t": "*"}, namespace="team")

    async with consumer:
        await asyncio.sleep(1)
        broker.free("team%g", WIRE)
        await asyncio.sleep(0.1)
        assert consumer.assignment == [MessageQueue("t", 0)]
        broker.set_members("team%g", "a")
        await asyncio.sleep(0.5)
        assert consumer.assignment == []
        consumer.unsubscribe("t")
        await asyncio.sleep(0.5)
        assert broker.members["team%g"].get(broker.connections[0].session) is None


async def test_a_strategy_sees_plain_names(broker: FakeBroker, make: Make) -> None:
    broker.create("team%t", 3)
    offered: list[PlacedQueue] = []

    def second(queues: Any, members: Any, member: Any) -> Any:
        offered.extend(queues)
        return queues[1:2]

    listed = make(topics={"t": "*"}, namespace="team", strategy="config:t/2")
    async with make(topics={"t": "*"}, namespace="team", strategy=second) as own, listed:
        await asyncio.sleep(1)
        assert own.assignment == [MessageQueue("t", 1)]
        assert listed.assignment == [MessageQueue("t", 2)]

    assert offered[:3] == [PlacedQueue("t", "fake", i) for i in range(3)]


async def test_dead_letters_are_those_of_the_wrapped_group(broker: FakeBroker, make: Make) -> None:
    broker.create("%DLQ%team%g")
    listener = Recorder()
    consumer = make(listener, topics={"%DLQ%g": "*"}, namespace="team")

    async with consumer:
        broker.send("%DLQ%team%g", 0, b"a")
        await asyncio.sleep(1)
        assert consumer.assignment == [MessageQueue("%DLQ%g", 0)]

    assert listener.offsets == [0]


def test_names_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"namespace: .* may hold only"):
        Producer("127.0.0.1:1", namespace="a%b")
    with pytest.raises(ConfigError, match="may hold only"):
        Consumer("127.0.0.1:1", group="g", listener=print, namespace="team", topics={"other%t": "*"})


async def test_two_teams_share_a_broker_without_seeing_each_other() -> None:
    got: list[tuple[str, str, bytes]] = []

    def listener(team: str) -> Any:
        async def take(messages: Any, context: Any) -> Any:
            got.extend((team, message.topic, message.body) for message in messages)
            return ConsumeStatus.SUCCESS

        return take

    now = asyncio.get_running_loop().time
    async with InMemoryBroker() as broker:
        for team in ("red", "blue"):
            async with Producer(broker.address, namespace=team) as producer:
                receipt = await producer.send(Message("orders", team.encode()))
                assert receipt.topic == "orders"
        consumers = [
            Consumer(
                broker.address, group="g", listener=listener(team), namespace=team, topics={"orders": "*"}, now=now
            )
            for team in ("red", "blue")
        ]
        async with consumers[0], consumers[1], Admin(broker.address) as admin:
            await asyncio.sleep(2)
            topics = [info.topic for info in await admin.list_topics()]
            assert {row.group for row in await admin.lock_status()} == {"red%g", "blue%g"}

    assert sorted(got) == [("blue", "orders", b"blue"), ("red", "orders", b"red")]
    assert topics == ["blue%orders", "red%orders"]


async def test_a_topic_in_a_namespace_is_as_long_as_any() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address, namespace="n" * 64) as producer:
        with pytest.raises(BadName, match="at most 127"):
            await producer.send(Message("t" * 64, b""))
