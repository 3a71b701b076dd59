"""Namespaces: the broker sees ``namespace%name`` of groups and topics, the user what he named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.client import Admin, Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.consumer.group.allocation import PlacedQueue
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.model import Message, MessageQueue
from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import Make, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

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
