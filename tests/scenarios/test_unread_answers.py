"""
Clients that ask for much and read nothing share one budget; a client that reads is served next to them.

The answers are read from files, so that each is memory of its own. What is printed is the broker's resident memory.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmq.broker.process import KEPT
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.protocol.ops.core import Op

from rigs.processes import BrokerProcess
from rigs.raw_peer import RawPeer, request

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT = 32 * MIB
DEAF = 200
SETTINGS = f"answer_memory_bytes={LIMIT}", "recent_bytes=1", "stall_timeout_s=600", "flush=async"
ROUND_TRIP_S = 5.0  # generous: the machine may be busy


def options() -> list[str]:
    return [part for setting in SETTINGS for part in ("-o", setting)]


async def fill(peer: RawPeer, count: int, size: int) -> None:
    """Store ``count`` batches of ``size`` random bytes in a queue."""
    await peer.ask(Op.CREATE_TOPIC, ["orders", 4])
    batch = bytes(encode("orders", 0, Rows([Random(1).randbytes(size)], 1_700_000_000_000_000)))
    for _ in range(count):
        await peer.ask(Op.SEND, [[[0, batch]]])


async def pull_all(peer: RawPeer, end: int) -> int:
    """Read the queue from its beginning; return the bytes that came."""
    offset, size = 0, 0
    while offset < end:
        async with asyncio.timeout(ROUND_TRIP_S):
            answer = await peer.ask(Op.PULL, [None, 0, 8 * MIB, [["orders", 0, offset]]])
        ((_, status, offset, _, _, run, _),) = answer[3]
        assert status == 0
        size += len(run)
    return size


async def serving(peer: RawPeer) -> dict[str, Any]:
    async with asyncio.timeout(ROUND_TRIP_S):
        numbers: dict[str, Any] = (await peer.ask(Op.STATS, [0]))[3]["serving"]
    return numbers


@pytest.mark.parametrize(
    ("count", "size", "evicts"),
    [(256, 64 << 10, False), (16, MIB, True)],
    ids=["small-batches", "batches-larger-than-a-share"],
)
async def test_200_clients_that_never_read_stay_within_the_budget_while_another_is_served(
    tmp_path: Path, count: int, size: int, evicts: bool
) -> None:
    with BrokerProcess(tmp_path, "127.0.0.1:0", *options()) as broker:
        async with RawPeer(broker.address) as honest, AsyncExitStack() as stack:
            await fill(honest, count, size)
            await pull_all(honest, count)
            before, most, held = broker.resident_bytes, 0, 0
            for _ in range(DEAF):
                deaf = await stack.enter_async_context(RawPeer(broker.address))
                deaf.pause()
                deaf.write(b"".join(request(i, Op.PULL, [None, 0, 8 * MIB, [["orders", 0, 0]]]) for i in range(8)))
                held = max(held, (await serving(honest))["unread_answer_bytes"])
                most = max(most, broker.resident_bytes)
            assert await pull_all(honest, count) > count * size
            numbers = await serving(honest)

            print(f"{DEAF} deaf clients: {held / MIB:.0f} MiB held, {(most - before) / MIB:.0f} MiB more resident")
            print(f"{numbers['connections']} connections left, {numbers['evicted_readers']} evicted")
            assert 0 < held <= LIMIT + 8 * MIB
            # What two threads read and the loop has not taken, 8 MiB each, and what malloc keeps of what was freed.
            assert most - before < LIMIT + 4 * 8 * MIB + KEPT
            # How many small answers are left to the broker depends on what the system's sockets take.
            assert numbers["evicted_readers"] > 0 or not evicts
            assert sum("connection.evicted" in line for line in broker.errors) == numbers["evicted_readers"]
