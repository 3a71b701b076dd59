"""
Peers that do not read, or do not end what they began: memory stays bounded, and the others do not notice.

The bounds are of the resident memory of a real broker process, and generous: they tell "bounded" from "grows with
what peers do", no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import FrameStalled
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op

from rigs.processes import BrokerProcess
from rigs.raw_peer import RawPeer, request

pytestmark = pytest.mark.slow

MIB = 1 << 20
READ = 256 << 10  # what the first read of a frame may leave over, before it waits for room in the budget
SECONDS = "-o", "stall_timeout_s=2", "-o", "flush=async"
ROUND_TRIP_S = 2.0  # generous: the machine may be busy
BIG = bytes(encode("orders", 0, Rows([Random(1).randbytes(MIB)], 1_700_000_000_000_000)))
SMALL = bytes(encode("orders", 1, Rows([b"small"], 1_700_000_000_000_000)))


async def until(condition: Callable[[], bool], broker: BrokerProcess, peer: RawPeer) -> int:
    """Round trips of an honest peer until the condition holds; the most memory the broker had meanwhile."""
    most = 0
    async with asyncio.timeout(60):
        while not condition():
            async with asyncio.timeout(ROUND_TRIP_S):
                ((status, *_),) = (await peer.ask(Op.SEND, [[[1, SMALL]]]))[3]
                assert status == 0
            most = max(most, broker.resident_bytes)
            await asyncio.sleep(0.01)
    return most


async def test_readers_that_never_read_are_closed_and_their_memory_is_bounded(tmp_path: Path) -> None:
    """Ten peers ask for 2.5 GB and read nothing of it: each may hold an answer and a little more, not all of them."""
    with BrokerProcess(tmp_path, "127.0.0.1:0", *SECONDS) as broker:
        async with RawPeer(broker.address) as honest, AsyncExitStack() as stack:
            await honest.ask(Op.CREATE_TOPIC, ["orders", 4])
            for _ in range(16):
                await honest.ask(Op.SEND, [[[0, BIG]]])
            before, connected = broker.resident_bytes, broker.descriptors
            for _ in range(10):
                deaf = await stack.enter_async_context(RawPeer(broker.address))
                deaf.pause()
                deaf.write(b"".join(request(i, Op.PULL, [None, 0, 8 * MIB, [["orders", 0, 0]]]) for i in range(32)))

            # Not by descriptors alone: the broker opens and closes files of its own, too.
            most = await until(lambda: sum("SLOW_READER" in line for line in broker.errors) >= 10, broker, honest)
            most = max(most, await until(lambda: broker.descriptors <= connected, broker, honest))

            print(f"10 readers that never read: {(most - before) / MIB:.0f} MiB more")
            assert most - before < 10 * 16 * MIB


async def test_a_sender_that_does_not_end_its_frame_is_closed_with_the_reason(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "127.0.0.1:0", *SECONDS) as broker:
        async with RawPeer(broker.address) as honest, RawPeer(broker.address) as endless:
            await honest.ask(Op.CREATE_TOPIC, ["orders", 4])
            endless.write(frames.LENGTH.pack(MIB) + bytes(1000))
            refusal = asyncio.ensure_future(endless.reason())

            await until(refusal.done, broker, honest)

            assert refusal.result() == (FrameStalled.code, "a frame was begun and not finished within 3 s")


async def test_400_senders_that_do_not_end_their_frames_cost_no_more_than_the_budget(tmp_path: Path) -> None:
    """Each announces 2 MiB and sends a part of it; together they would take 800 MiB."""
    budget = 32 * MIB
    with BrokerProcess(tmp_path, "127.0.0.1:0", *SECONDS, "-o", f"receive_memory_bytes={budget}") as broker:
        async with RawPeer(broker.address) as honest, AsyncExitStack() as stack:
            await honest.ask(Op.CREATE_TOPIC, ["orders", 4])
            before = broker.resident_bytes
            senders = [await stack.enter_async_context(RawPeer(broker.address)) for _ in range(400)]
            idle = broker.resident_bytes
            for sender in senders:
                sender.write(frames.LENGTH.pack(2 * MIB) + bytes(300_000))
            reasons = [asyncio.ensure_future(sender.reason()) for sender in senders]

            most = await until(lambda: any(reason.done() for reason in reasons), broker, honest)

            print(f"400 senders: {(idle - before) / MIB:.0f} MiB idle, {(most - idle) / MIB:.0f} MiB more unfinished")
            assert idle - before < 400 * 100_000
            assert most - idle < budget + 400 * READ + 64 * MIB
            first = next(reason.result() for reason in reasons if reason.done())
            assert first is not None and first[0] == FrameStalled.code
            for sender in senders:
                sender.abort()
            await asyncio.gather(*reasons)
            await until(lambda: broker.descriptors < 100, broker, honest)
        async with RawPeer(broker.address) as late:  # the budget is free again: a large frame is served at once
            ((status, *_),) = (await late.ask(Op.SEND, [[[0, BIG]]]))[3]
            assert status == 0
