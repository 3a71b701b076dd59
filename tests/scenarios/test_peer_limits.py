"""Too many peers, and too few descriptors for them: each learns why, and no other peer notices."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rmq.client import Message, Producer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import FrameTooLarge, TooManyConnections
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op

from rigs.processes import BrokerProcess
from rigs.raw_peer import RawPeer, hello, request


async def refused(address: str) -> tuple[int, str] | None:
    """Connect with the hello under way, as every client does; the reason for being turned away."""
    async with RawPeer(address, greet=False) as peer:
        peer.write(request(1, Op.HELLO, hello()) + request(2, Op.PING, []))
        return await peer.reason()


@pytest.mark.both_loops
async def test_the_21st_connection_is_told_why_also_with_its_hello_under_way_and_the_20_go_on() -> None:
    async with InMemoryBroker(max_connections=20) as broker, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(RawPeer(broker.address)) for _ in range(20)]

        for _ in range(30):
            reason = await refused(broker.address)
            assert reason == (TooManyConnections.code, "the broker has 20 connections, as many as it may")
        at_once = await asyncio.gather(*(refused(broker.address) for _ in range(12)))
        assert {reason and reason[0] for reason in at_once} == {TooManyConnections.code}

        for peer in peers:
            assert (await peer.ask(Op.PING, []))[2] == 0


@pytest.mark.both_loops
async def test_whoever_is_in_the_middle_of_sending_is_told_why_it_has_to_go() -> None:
    """A reset would make its next write fail, and take the reason away before it was read."""
    async with InMemoryBroker(max_connections=1) as broker, RawPeer(broker.address) as peer:
        assert await _talk(broker.address, bytes(1 << 20)) == TooManyConnections.code
        peer.write(frames.LENGTH.pack(20 << 20))
        for _ in range(20):
            peer.write(bytes(1 << 20))
            await peer.drained()

        assert await peer.reason() == (
            FrameTooLarge.code,
            "a frame of 20971520 bytes is over the limit of 16777216",
        )


async def _talk(address: str, data: bytes) -> int | None:
    """Send in pieces, without a look at what is said meanwhile; the code of the reason to go."""
    async with RawPeer(address, greet=False) as peer:
        peer.write(request(1, Op.HELLO, hello()))
        for _ in range(8):
            await peer.drained()
            for _ in range(20):  # turns, in which the broker comes to it
                await asyncio.sleep(0)
            peer.write(data)
        reason = await peer.reason()
        return reason and reason[0]


async def test_a_place_that_became_free_is_given_to_the_next() -> None:
    async with InMemoryBroker(max_connections=20) as broker, AsyncExitStack() as stack:
        for _ in range(19):
            await stack.enter_async_context(RawPeer(broker.address))
        for _ in range(5):
            async with RawPeer(broker.address) as last:
                assert (await last.ask(Op.PING, []))[2] == 0
                assert await refused(broker.address) is not None
            async with asyncio.timeout(10):  # the broker sees the end of a connection a moment after its peer
                while len(broker.broker._connections) > 19:
                    await asyncio.sleep(0.001)


@pytest.mark.slow
async def test_with_64_descriptors_those_beyond_are_told_why_and_the_rest_is_served(tmp_path: Path) -> None:
    """Sends that roll segments, and reads of all of them, while 200 more peers try to connect."""
    options = ("-o", "segment_bytes=65536", "-o", "flush=async")
    with BrokerProcess(tmp_path, "127.0.0.1:0", *options, descriptors=64) as broker:
        async with AsyncExitStack() as stack:
            served = []
            while (peer := RawPeer(broker.address, greet=False)) and len(served) < 64:
                await stack.enter_async_context(peer)
                peer.write(request(1, Op.HELLO, hello()))
                answer = await peer.frame()
                if answer is None or answer[2]:
                    break
                served.append(peer)
            assert len(served) >= 16

            await served[0].ask(Op.CREATE_TOPIC, ["orders", 4])
            crowd = asyncio.gather(*(_crowd(broker.address, 20) for _ in range(10)))
            body = bytes(4000)
            for i in range(100):
                (result,) = (await served[i % 16].ask(Op.SEND, [[[i % 4, _batch(body, i % 4)]]]))[3]
                assert result[0] == 0, result
            found = [reason for reasons in await crowd for reason in reasons]
            assert {code for code, _ in found} <= {TooManyConnections.code, None}
            assert sum(code is not None for code, _ in found) > len(found) // 2
            assert len(list((tmp_path / "commitlog").iterdir())) > 5
            assert await _count(served[1]) == 100
            assert broker.descriptors < 64

        async with Producer(broker.address) as producer:  # they are gone: everybody is welcome again
            await producer.send(Message("orders", b"later"))
        async with RawPeer(broker.address) as late:
            assert await _count(late) == 101
        assert broker.stop() == 0


def _batch(body: bytes, queue_id: int) -> bytes:
    return bytes(encode("orders", queue_id, Rows([body], 1_700_000_000_000_000)))


async def _crowd(address: str, count: int) -> list[tuple[int | None, str]]:
    """One peer after the other that tries and is turned away."""
    found: list[tuple[int | None, str]] = []
    for _ in range(count):
        try:
            reason = await refused(address)
        except OSError:
            reason = None
        found.append(reason if reason is not None else (None, ""))
    return found


async def _count(peer: RawPeer) -> int:
    """Read every message of the topic."""
    found = 0
    ranges = (await peer.ask(Op.RANGES, [None, [["orders", queue_id] for queue_id in range(4)]]))[3]
    for queue_id, held in enumerate(ranges):
        at, end = held[1:3]
        while at < end:
            (result,) = (await peer.ask(Op.PULL, [None, 0, 1 << 20, [["orders", queue_id, at]]]))[3]
            assert result[1] == 0
            found += result[2] - at
            at = result[2]
    return found
