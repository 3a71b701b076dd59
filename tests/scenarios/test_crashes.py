"""What only real processes and ``kill -9`` can show."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq.client import Admin, Message, Producer, Receipt
from rmq.engine.native.connection import Connection
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.processes import BrokerProcess, ConsumerProcess

pytestmark = pytest.mark.slow

KEYS = 20
CYCLES = 5


async def test_the_epoch_is_higher_after_kill_9_right_after_a_grant(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        address, first = broker.address, await _grant(broker.address)
        broker.kill()
    with BrokerProcess(tmp_path, address, "-o", "grace_s=1.1"):
        second = await _grant(address)

    assert second > first


async def _grant(address: str) -> int:
    """Take queue 0 of a topic; tries again while the lease of a killed owner has its grace."""
    connection = Connection(address, client="test")
    await connection.open(timeout_s=10)
    try:
        await connection.request(Op.ROUTE, ops.Route("orders", True))
        await connection.request(Op.JOIN, ops.Join("g", True, "clustering", "average", {"orders": "*"}))
        async with asyncio.timeout(20):
            while True:
                (grant,) = await connection.request(Op.ACQUIRE, ops.Acquire("g", [ops.QueueRef("orders", 0)]))
                if grant[0] == 0:
                    return int(grant[1])
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def test_five_kills_of_the_broker_under_load_lose_duplicate_and_reorder_nothing(tmp_path: Path) -> None:
    acknowledged: dict[str, list[tuple[int, Receipt]]] = defaultdict(list)
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path))
        consumer = stack.enter_context(ConsumerProcess(broker.address, "orders", "--group", "check"))
        async with Producer(broker.address) as producer:
            enough = asyncio.Event()
            sending = asyncio.gather(*(_send_numbers(producer, f"k{i}", acknowledged, enough) for i in range(KEYS)))
            for cycle in range(1, CYCLES + 1):
                await _until(lambda goal=cycle * 2000: _count(acknowledged) >= goal)
                broker.kill()
                broker = stack.enter_context(BrokerProcess(tmp_path, broker.address))
            await _until(lambda: _count(acknowledged) >= (CYCLES + 1) * 2000)
            enough.set()
            await sending
        total = _count(acknowledged)
        await asyncio.to_thread(
            consumer.wait_for, lambda lines: len(set(lines)) >= total, f"{total} messages consumed", 90.0
        )
        stored = await _all_bodies(broker.address)

    for key, sent in acknowledged.items():
        numbers = [number for number, _ in sent]
        assert stored[key] == numbers, f"{key}: stored is not what was acknowledged, once and in order"
    _check_consumed(consumer, acknowledged)


async def _send_numbers(
    producer: Producer, key: str, acknowledged: dict[str, list[tuple[int, Receipt]]], enough: asyncio.Event
) -> None:
    number = 0
    while not enough.is_set():
        receipt = await producer.send(Message("orders", f"{key} {number}".encode()), key=key)
        acknowledged[key].append((number, receipt))
        number += 1


def _count(acknowledged: dict[str, list[tuple[int, Receipt]]]) -> int:
    return sum(map(len, acknowledged.values()))


async def _until(condition: object, deadline_s: float = 60.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


async def _all_bodies(address: str) -> dict[str, list[int]]:
    """Every number of every key, as the log has them."""
    from rmq.wire.batch import batch

    found: dict[str, list[int]] = defaultdict(list)
    connection = Connection(address, client="test")
    await connection.open(timeout_s=10)
    try:
        for queue_id in range(4):
            offset = 0
            while True:
                wanted = ops.PullQueue("orders", queue_id, offset)
                (result,) = await connection.request(Op.PULL, ops.Pull(None, 0, 1 << 20, [wanted]))
                if result[1] == ops.EMPTY:
                    break
                for one in batch.read_all(result[5], stores=StoreIds(0)):
                    for message in one.messages(offset):
                        key, number = message.body.decode().split()
                        found[key].append(int(number))
                offset = result[2]
    finally:
        await connection.close()
    return found


def _check_consumed(consumer: ConsumerProcess, acknowledged: dict[str, list[tuple[int, Receipt]]]) -> None:
    """Each queue ascends, apart from contiguous re-deliveries, and everything was seen."""
    seen: dict[str, set[int]] = defaultdict(set)
    next_offset: dict[int, int] = {}
    for message in consumer.messages:
        queue_id, offset = message["queue_id"], message["queue_offset"]
        assert offset <= next_offset.get(queue_id, 0), f"queue {queue_id} skipped to {offset}"
        next_offset[queue_id] = offset + 1
        key, number = message["body"].split()
        seen[key].add(int(number))
    for key, sent in acknowledged.items():
        assert seen[key] == {number for number, _ in sent}


async def test_a_topic_made_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = broker.address
        async with Admin(address) as admin:
            await admin.create_topic("made", queues=3)
        broker.kill()
    with BrokerProcess(tmp_path, address):
        async with Admin(address) as admin:
            (topic,) = await admin.list_topics()

    assert (topic.topic, len(topic.queues)) == ("made", 3)
