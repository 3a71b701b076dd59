"""Delayed messages and ``kill -9``, with real processes and a real clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Rows
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.processes import BrokerProcess

pytestmark = pytest.mark.slow

BORN_AT = 1_700_000_000_000_000
FRAMES, BATCHES = 10, 100
EVERY_MS = 20


async def test_a_kill_while_delays_are_due_loses_nothing_and_delivers_nothing_twice(tmp_path: Path) -> None:
    """Messages become due all the time, one every few milliseconds: each kill falls among them."""
    with BrokerProcess(tmp_path) as broker:
        address = broker.address
        async with _connected(address) as connection:
            await connection.request(Op.CREATE_TOPIC, ops.CreateTopic("orders", 1))
            expected = await _park(connection)
            await _until_delivered(connection, len(expected) // 4)
            broker.kill()
    with BrokerProcess(tmp_path, address) as broker:
        async with _connected(address) as connection:
            await _until_delivered(connection, len(expected) // 2)
            broker.kill()
    with BrokerProcess(tmp_path, address):
        async with _connected(address) as connection:
            await _until_delivered(connection, len(expected))
            await asyncio.sleep(0.2)
            found = await _all(connection)

    assert found == expected


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[Connection]:
    connection = Connection(address, client="test")
    await connection.open(timeout_s=10)
    try:
        yield connection
    finally:
        await connection.close()


async def _park(connection: Connection) -> list[bytes]:
    """Send batches that become due in another order than they were sent; the order in which they do."""
    (result,) = decode_list(ops.SendResult, await connection.request(Op.SEND, ops.Send([_batch(b"first", 0)])))
    now, due = result.stored_at, []
    for i in range(FRAMES):
        sent = []
        for j in range(BATCHES):
            number = (i * BATCHES + j) * 7 % (FRAMES * BATCHES)
            due.append((now + 700_000 + number * EVERY_MS * 100, b"%d" % number))
            sent.append(_batch(due[-1][1], due[-1][0]))
        results = decode_list(ops.SendResult, await connection.request(Op.SEND, ops.Send(sent)))
        assert [result[:2] for result in results] == [(0, -1)] * BATCHES
    return [b"first", *(body for _, body in sorted(due))]


def _batch(body: bytes, deliver_at: int) -> ops.OutgoingBatch:
    return ops.OutgoingBatch(0, bytes(batches.encode("orders", 0, Rows([body], BORN_AT), deliver_at=deliver_at)))


async def _until_delivered(connection: Connection, count: int) -> None:
    async with asyncio.timeout(30):
        while True:
            asked = ops.Ranges(None, [ops.QueueRef("orders", 0)])
            (found,) = decode_list(ops.Range, await connection.request(Op.RANGES, asked))
            if found.max_offset >= count:
                return
            await asyncio.sleep(0.01)


async def _all(connection: Connection) -> list[bytes]:
    found: list[bytes] = []
    while True:
        wanted = ops.PullQueue("orders", 0, len(found))
        (result,) = await connection.request(Op.PULL, ops.Pull(None, 0, 1 << 20, [wanted]))
        if result[1] == ops.EMPTY:
            return found
        for one in batches.read_all(result[5], stores=StoreIds(0)):
            assert one.header.stored_at >= one.header.deliver_at  # never early
            found += [message.body for message in one.messages(len(found))]
