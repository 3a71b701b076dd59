"""Consumers are asked through the real broker what they do: busy, failing, paused, cut off, and stopped meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.client import Admin, Connection, ConnectionLost, MemberNotFound, MemberSilent, Message, Producer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue

pytestmark = pytest.mark.virtual_time

EPSILON = 0.001


class Deaf(Connection):
    """A connection whose owner hears what the broker says only after a while, as one that was stopped does."""

    deaf_s = 0.0

    def __init__(self, address: str, *, on_push: Any, **more: Any) -> None:
        def later(push: int, payload: list[Any]) -> None:
            if self.deaf_s:
                asyncio.get_running_loop().call_later(self.deaf_s, on_push, push, payload)
            else:
                on_push(push, payload)

        super().__init__(address, on_push=later, **more)


class Connections:
    """Makes connections that a test can reach."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[Deaf] = []

    def __call__(self, address: str, *, room: str = "", **callbacks: Any) -> Deaf:
        self.made.append(Deaf(address, client=self.name, **callbacks))
        return self.made[-1]


async def listener(messages: Any, context: Any) -> ConsumeStatus:
    if messages[0].body == b"bad":
        return ConsumeStatus.SUSPEND
    await asyncio.sleep(10)
    return ConsumeStatus.SUCCESS


def consumer(broker: InMemoryBroker, connect: Connections, **settings: Any) -> Consumer:
    now = asyncio.get_running_loop().time
    topics = {"orders": "*"}
    return Consumer(
        broker.address, group="g", listener=listener, topics=topics, connect=connect, now=now, suspend_s=4.0, **settings
    )


async def filled(broker: InMemoryBroker) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("orders", 4)
    async with Producer(broker.address) as producer:
        for queue_id, body in ((0, b"bad"), (1, b"slow"), (1, b"next"), (3, b"waits")):
            await producer.send(Message("orders", body), queue_id=queue_id)


async def test_what_each_queue_of_each_member_does_is_told() -> None:
    async with InMemoryBroker(min_free_bytes=0) as broker, Admin(broker.address) as admin:
        await filled(broker)
        a, b = consumer(broker, Connections("a"), batch=2), consumer(broker, Connections("b"))
        async with a, b:
            b.pause(MessageQueue("orders", 3))
            await asyncio.sleep(3)

            first, second = await admin.members_info("g")

            assert [report.member[:2] for report in (first, second)] == ["a#", "b#"]
            failing, busy = first.info["queues"]
            idle, paused = second.info["queues"]
            assert (failing["queue_id"], failing["attempt"]) == (0, 2)
            assert 0 < failing["retry_in_s"] <= 4.0
            assert (busy["queue_id"], busy["in_flight"], busy["head_offset"]) == (1, 2, 0)
            assert 0 < busy["called_for_s"] <= 3.0
            assert (idle["queue_id"], idle["cached_messages"], idle["paused"]) == (2, 0, False)
            assert (paused["queue_id"], paused["paused"], paused["called_for_s"]) == (3, True, None)
            assert first.info["turns"] == 1
            assert first.info["settings"]["batch"] == 2
            assert first.info["loop_lag_s"] == pytest.approx(0.0, abs=0.01)

            described = await admin.describe_group("g")
            assert [queue.lag for queue in described.queues] == [1, 2, 0, 1]
            assert [queue.owner for queue in described.queues] == [first.member] * 2 + [second.member] * 2
            assert (described.queues[0].retry_offset, described.queues[0].attempts) == (0, 1)
            assert [queue.epoch for queue in described.queues] == [
                queue["epoch"] for report in (first, second) for queue in report.info["queues"]
            ]


@pytest.mark.parametrize(("deaf_s", "answers"), [(1.0 - EPSILON, True), (1.0 + EPSILON, False)])
async def test_a_member_that_hears_the_question_late_answers_within_1_s_or_is_silent(
    deaf_s: float, answers: bool
) -> None:
    """And goes on as ever: its late answer is refused, which it does not mind."""
    async with InMemoryBroker(min_free_bytes=0) as broker, Admin(broker.address) as admin:
        await filled(broker)
        connections = Connections("a")
        async with consumer(broker, connections) as member:
            await asyncio.sleep(3)
            name = connections.made[0].member
            connections.made[0].deaf_s = deaf_s
            if answers:
                assert len((await admin.member_info("g", name))["queues"]) == 4
            else:
                with pytest.raises(MemberSilent):
                    await admin.member_info("g", name)
            connections.made[0].deaf_s = 0.0
            await asyncio.sleep(1)

            assert (await admin.member_info("g", name))["member"] == name
            assert len(member.assignment) == 4


async def test_a_member_that_is_cut_off_while_it_is_asked_is_told_at_once_and_answers_when_it_is_back() -> None:
    async with InMemoryBroker(min_free_bytes=0) as broker, Admin(broker.address) as admin:
        await filled(broker)
        connections = Connections("a")
        async with consumer(broker, connections):
            await asyncio.sleep(3)
            (connection,) = connections.made
            connection.deaf_s = 0.5
            loop = asyncio.get_running_loop()
            began = loop.time()
            asked = asyncio.create_task(admin.member_info("g", connection.member))
            await asyncio.sleep(0.1)

            connection.drop(ConnectionLost("cut by the test"))

            with pytest.raises(MemberNotFound):
                await asked
            assert loop.time() - began < 0.3
            connection.deaf_s = 0.0
            await connection.wait_connected()
            await asyncio.sleep(0.6)  # the question is heard now: that answer is no longer awaited
            assert len((await admin.member_info("g", connection.member))["queues"]) == 4


async def test_a_consumer_that_stops_while_it_is_asked_keeps_nobody_waiting() -> None:
    async with InMemoryBroker(min_free_bytes=0) as broker, Admin(broker.address) as admin:
        await filled(broker)
        connections = Connections("a")
        stopping = consumer(broker, connections, drain_s=0.1)
        stopping.start()
        await asyncio.sleep(3)
        connections.made[0].deaf_s = 0.5
        asked = asyncio.create_task(admin.members_info("g"))
        await asyncio.sleep(0.1)

        await stopping.stop()

        (report,) = await asked
        assert report.status in (0, MemberNotFound.code)
        assert stopping.running_info()["queues"] == []
