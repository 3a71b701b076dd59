"""What a consuming process counts, which share of the queues it waits for, and that every style gets all messages."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.bench.workers.receiving import STYLES, Tally, consuming, is_share, share_end
from rmq.client import Admin, Producer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import GroupMismatch
from rmq.wire.model import ConsumeStatus, MessageQueue


def some(*sizes: int) -> Any:
    return [SimpleNamespace(body=bytes(size)) for size in sizes]


async def test_a_tally_counts_messages_and_bytes_and_knows_when_the_last_came() -> None:
    tally = Tally(count(1).__next__)

    assert await tally.listen(some(5), None) is ConsumeStatus.SUCCESS
    assert await tally.listen_to_many(some(6, 7), None) is ConsumeStatus.SUCCESS
    tally.add(some(1))

    assert (tally.count, tally.bytes) == (4, 19)
    assert tally.last_at == 3


@pytest.mark.parametrize("known_after", [0, 1, 2, 4])
async def test_a_tally_that_knows_its_total_reads_the_clock_only_for_the_last(known_after: int) -> None:
    clock = iter(range(10, 100))
    tally = Tally(clock.__next__)
    for number in range(4):
        if number == known_after:
            tally.expect(4)
        await tally.listen(some(1), None)
    tally.expect(4)

    reads = known_after + (known_after < 4)
    assert (tally.last_at, next(clock)) == (10 + reads - 1, 10 + reads)
    assert tally.done.is_set()


async def test_a_tally_is_done_when_all_came_even_if_the_total_comes_later() -> None:
    early, late, single = Tally(), Tally(), Tally()
    early.expect(2)
    single.expect(1)

    early.add(some(1))
    assert not early.done.is_set()
    early.add(some(1))
    late.add(some(1, 1))
    assert not late.done.is_set()
    late.expect(2)
    await single.listen(some(1), None)

    assert early.done.is_set() and late.done.is_set() and single.done.is_set()


async def test_an_empty_poll_is_not_counted() -> None:
    tally = Tally(count(1).__next__)

    tally.add([])

    assert (tally.count, tally.last_at) == (0, 0.0)


@pytest.mark.parametrize(
    ("held", "queues", "consumers", "is_it"),
    [(8, 8, 1, True), (7, 8, 1, False), (8, 8, 2, False), (3, 8, 3, True), (2, 8, 3, True), (4, 8, 3, False)],
)
def test_a_share_is_what_every_consumer_gets(held: int, queues: int, consumers: int, is_it: bool) -> None:
    assert is_share(held, queues, consumers) is is_it


def test_a_share_ends_where_its_queues_do() -> None:
    assert share_end([MessageQueue("t", 2), MessageQueue("t", 0)], [1, 20, 300]) == 301


@pytest.mark.parametrize("style", STYLES)
async def test_every_style_gets_all_of_a_backlog_once_it_is_resumed(style: str) -> None:
    tally = Tally()
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("t", 2)
        for queue_id in range(2):
            await producer.send_bodies("t", [b"%d" % number for number in range(30)], queue_id=queue_id)
        async with consuming(style, broker.address, "t", "g", tally, paused=True) as member:
            while len(member.assignment) < 2:
                await asyncio.sleep(0.01)
            assert tally.count == 0
            member.resume()
            tally.expect(60)
            await tally.done.wait()

    assert (tally.count, tally.bytes) == (60, 2 * (10 + 2 * 20))


@pytest.mark.parametrize("style", ["messages", "pull"])
async def test_a_failed_consumer_ends_the_process_that_waits_for_it(style: str) -> None:
    async with InMemoryBroker() as broker, consuming("concurrent", broker.address, "t", "g", Tally()):
        await _known(broker.address, "g")
        with pytest.raises(ExceptionGroup) as raised:
            async with consuming(style, broker.address, "t", "g", Tally()):
                await asyncio.Event().wait()

    assert raised.group_contains(GroupMismatch)


async def _known(address: str, group: str) -> None:
    async with Admin(address) as admin:
        while group not in [row.group for row in await admin.list_groups()]:
            await asyncio.sleep(0.01)
