"""LIST_DELAYS: what waits, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadRequest
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.deferrals import ListDelays

from ..builders import segment_files
from ..delay_rig import NOON, SECOND, Wall, park, waiting
from ..harness import Client
from rigs.disk.faulty import FaultyFiles, flip

pytestmark = pytest.mark.virtual_time

PAYMENTS = MessageQueue("payments", 1)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
async def client(files: FaultyFiles, memory_path: Path) -> AsyncIterator[Client]:
    broker = InMemoryBroker(wall_us=Wall(), files=files, data_dir=str(memory_path))
    async with broker, Client(broker) as client:
        await client.create()
        await client.create("payments")
        yield client


async def test_what_waits_is_reported_in_the_order_it_becomes_due(client: Client) -> None:
    began = NOON + round(asyncio.get_running_loop().time() * SECOND)
    late = await park(client, b"late", b"later", level=5)
    early = await park(client, b"early", at=began + 9 * SECOND, to=PAYMENTS)

    page = await waiting(client)

    assert (page.batches, page.messages, page.is_last) == (2, 3, True)
    first, second = page.rows
    assert first[:6] == (began + 9 * SECOND, early.physical_offset, "payments", 1, 0, 1)
    assert second[1:6] == (late.physical_offset, "orders", 0, 5, 2)
    assert (first.parked_at, second.parked_at) == (early.stored_at, late.stored_at)
    assert second.due_at - second.parked_at == 60 * SECOND
    assert second.message_id.endswith(f"{late.physical_offset // 8 << 12:016x}")


async def test_nothing_waits(client: Client) -> None:
    assert (await waiting(client))[:3] == (0, 0, [])


@pytest.mark.parametrize("limit", [1, 3, 4, 10, 1000])
async def test_pages_follow_one_another_until_the_last(client: Client, limit: int) -> None:
    sent = [(await park(client, b"%d" % i, at=NOON + (100 + i // 3) * SECOND)).physical_offset for i in range(10)]

    found, page = [], await waiting(client, limit)
    while True:
        found += [row.position for row in page.rows]
        if page.is_last:
            break
        page = await waiting(client, limit, due_at=page.next_due_at, position=page.next_position)

    assert found == sent


async def test_one_topic_only_may_give_a_page_without_rows(client: Client) -> None:
    for i in range(3):
        await park(client, b"%d" % i, level=4)
    await park(client, b"paid", level=5, to=PAYMENTS)

    page = await waiting(client, 3, topic="payments")
    assert (page.rows, page.is_last, page.batches) == ([], False, 4)
    page = await waiting(client, 3, topic="payments", due_at=page.next_due_at, position=page.next_position)

    assert [row.topic for row in page.rows] == ["payments"]
    assert page.is_last


async def test_a_damaged_header_is_left_out(client: Client, memory_path: Path) -> None:
    bad = await park(client, b"bad", level=4)
    await park(client, b"good", level=4)
    flip(segment_files(memory_path)[0], bad.physical_offset + 20)

    page = await waiting(client)

    assert (page.batches, len(page.rows)) == (2, 1)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (ListDelays(limit=0), "a page has 1 to 1000 batches, not 0"),
        (ListDelays(limit=1001), "a page has 1 to 1000 batches, not 1001"),
        (ListDelays(due_at=-1), "no batch waits after"),
        (ListDelays(due_at=1 << 62), "no batch waits after"),
        (ListDelays(position=-1), "no batch waits after"),
        (ListDelays(position=1 << 60), "no batch waits after"),
    ],
)
async def test_a_page_that_cannot_be_is_refused(client: Client, ask: ListDelays, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        await client.request(Op.LIST_DELAYS, ask)


async def test_a_disk_that_cannot_be_read_is_said(client: Client, files: FaultyFiles) -> None:
    await park(client, b"a", level=4)
    files.fail("open_to_read", "commitlog")

    with pytest.raises(Exception, match="what waits cannot be read"):
        await waiting(client)

    files.heal()
    assert len((await waiting(client)).rows) == 1


async def test_the_stats_tell_what_waits(client: Client) -> None:
    await park(client, b"a", b"b", level=4)
    await park(client, b"c", level=1)
    await asyncio.sleep(1.5)

    stats = (await client.request(Op.STATS, ()))["delays"]

    assert {name: stats[name] for name in stats if name != "next_due_at"} == {
        "waiting_batches": 1, "waiting_messages": 2, "delivered_batches": 1, "delivered_messages": 1,
        "passed_batches": 0, "failures": 0, "failed_reads": 0,
    }  # fmt: skip
    assert stats["next_due_at"] > NOON
