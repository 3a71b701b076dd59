"""A send frame that takes long is worked off in several turns: order, answers and memory are as with a short one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import OutOfSequence, Refused, StoreFailed
from rmq.wire.protocol.ops.core import Op, OutgoingBatch, SendResult

from ..builders import ORDERS, files_limited_to, make_batch, segment_files
from ..harness import Client, bodies

pytestmark = pytest.mark.virtual_time


class Costly:
    """A clock that is 1.5 ms further each time it is read: two batches a turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.0015
        return self.now


@pytest.fixture
async def slow() -> AsyncIterator[InMemoryBroker]:
    """A broker whose every batch takes long to judge."""
    async with InMemoryBroker() as broker:
        broker.broker._sends._clock = Costly()
        yield broker


def outgoing(count: int, *, first: int = 0, producer: int = 0) -> list[OutgoingBatch]:
    marks = [ProducerMark(producer, first + i if producer else 0, 0) for i in range(count)]
    return [OutgoingBatch(0, make_batch(b"%d" % (first + i), by=mark)) for i, mark in enumerate(marks)]


def send(client: Client, *batches: OutgoingBatch) -> asyncio.Task[list[SendResult]]:
    return asyncio.create_task(client.send_batches(*batches))


async def begun(broker: InMemoryBroker) -> None:
    """Wait until the first turn of a frame is stored."""
    queue = broker.broker._store.queue(ORDERS)
    while not queue.readable:
        await asyncio.sleep(0)


async def test_all_batches_are_answered_together_in_their_order(slow: InMemoryBroker) -> None:
    async with Client(slow) as client:
        await client.create()

        results = await client.send_batches(*outgoing(9))

        assert [(result.status, result.base_offset) for result in results] == [(0, i) for i in range(9)]
        assert bodies(await client.pull(0)) == [b"%d" % i for i in range(9)]


async def test_what_comes_behind_on_the_connection_waits_for_the_whole_frame(slow: InMemoryBroker) -> None:
    async with Client(slow) as client:
        await client.create()

        first, second = send(client, *outgoing(7)), send(client, *outgoing(7, first=7))
        pulled = asyncio.create_task(client.pull(0, wait_ms=1000))

        assert [result.base_offset for result in await first + await second] == list(range(14))
        assert bodies(await pulled)
        assert slow.broker.budget.used == 0


async def test_others_are_served_between_the_turns(slow: InMemoryBroker) -> None:
    async with Client(slow, "long") as long, Client(slow, "short") as short:
        await long.create()

        sending = send(long, *outgoing(200))
        trips = 0
        while not sending.done():
            await short.request(Op.PING, [])
            trips += 1

        assert trips > 20
        assert len(await sending) == 200


async def test_the_memory_of_a_frame_that_waits_counts(slow: InMemoryBroker) -> None:
    async with Client(slow, "long") as long, Client(slow, "short") as short:
        await long.create()
        sending, most = send(long, *outgoing(200)), 0
        while not sending.done():
            await short.request(Op.PING, [])
            most = max(most, slow.broker.budget.used)

        assert most > 200 * 150
        assert slow.broker.budget.used == 0


async def test_a_connection_that_ends_in_between_loses_the_rest_and_the_producer_sends_it_again(
    slow: InMemoryBroker,
) -> None:
    async with Client(slow, "long") as long, Client(slow, "short") as short:
        await long.create()
        sending = send(long, *outgoing(200, producer=7))
        await begun(slow)
        for connection in slow.broker._connections:
            if connection.session is not None and connection.session.member == long.member:
                connection.abort()
        with pytest.raises(ConnectionError):
            await sending
        await long.connection.wait_connected()
        stored = (await short.range()).max_offset
        assert 0 < stored < 200

        again = await long.send_batches(*outgoing(200, producer=7))

        assert [result.base_offset for result in again] == list(range(200))
        assert [result.duplicate for result in again] == [True] * stored + [False] * (200 - stored)
        assert slow.broker.budget.used == 0


@pytest.mark.parametrize(("producer", "behind"), [(0, StoreFailed), (7, OutOfSequence)])
async def test_a_turn_that_cannot_be_written_refuses_its_own_batches(
    slow: InMemoryBroker, producer: int, behind: type[Refused]
) -> None:
    """Behind a numbered batch that was not stored nothing of its producer can be."""
    batches = outgoing(8, producer=producer)
    async with Client(slow) as client:
        await client.create()
        (segment,) = segment_files(slow.broker.config.data_path())
        with files_limited_to(segment.stat().st_size + 3 * len(batches[0].batch)):
            results = await client.send_batches(*batches)

        refused = [StoreFailed.code] * 2 + [behind.code] * 4
        assert [result.status for result in results] == [0, 0, *refused]
        again = await client.send_batches(*batches[2:])
        assert [(result.status, result.base_offset) for result in again] == [(0, i) for i in range(2, 8)]
        assert bodies(await client.pull(0)) == [b"%d" % i for i in range(8)]


async def test_a_stop_in_between_waits_for_the_frame_and_answers_it(slow: InMemoryBroker) -> None:
    async with Client(slow) as client:
        await client.create()
        sending = send(client, *outgoing(200))
        await begun(slow)
        assert not sending.done()

        await slow.restart()

        assert [result.status for result in await sending] == [0] * 200
        await client.connection.wait_connected()
        assert (await client.range()).max_offset == 200
