"""A broker whose indexes cannot be read or written: the log answers in their place, and each file is logged once."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.messages import Head, HeadAt, Heads, OffsetAt, OffsetsAt, QueryMessages, QueryReply
from rmq.wire.stores import StoreIds

from .builders import ORDERS, make_batch
from .faulty_files import FaultyFiles
from .harness import Client, bodies

pytestmark = pytest.mark.virtual_time

MESSAGES = 12
INDEXES = ["/consumequeue/", "/index/"]
ERRORS = [errno.EIO, errno.EACCES, errno.EISDIR]
READS = ("open_to_read", "read", "size")
ALL = ("open", *READS, "write", "truncate", "unlink", "rename")
BROKEN = {"nothing is read": READS, "opened, not read": ("read",), "nothing works": ALL}
BROKEN_IDS = [f"{broken}-{errno.errorcode[number]}" for broken in BROKEN for number in ERRORS]
LOGGED_ONCE = {"index.unreadable", "index.unwritable", "index.put_aside", "index.not_repaired", "key_index.gap"}


def over(path: Path, files: FaultyFiles | None = None) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), files=files, segment_bytes=4096, checkpoint_s=3.0)


def body(number: int) -> bytes:
    return b"%d" % number + bytes(1000)


async def send(client: Client, numbers: range) -> None:
    for number in numbers:
        batch = make_batch(body(number), keys=[[f"k{number % 3}"]])
        (result,) = await client.send_batches(ops.OutgoingBatch(ORDERS.queue_id, batch))
        assert result.status == 0


async def fill(path: Path) -> None:
    """Store messages with keys in several segments, and stop cleanly: all of it is in the indexes."""
    async with over(path) as broker, Client(broker) as client:
        await client.create(queues=1)
        await send(client, range(MESSAGES))
    assert len(list((path / "commitlog").iterdir())) > 2


async def check(client: Client, count: int) -> None:
    """Compare everything that an index answers with what was sent."""
    found: list[bytes] = []
    while len(found) < count:
        answer = await client.pull(len(found))
        assert answer.status == 0, answer.text
        found += bodies(answer, len(found))
    assert found == [body(number) for number in range(count)]
    for key in range(3):
        reply = decode(QueryReply, await client.request(Op.QUERY_MESSAGES, QueryMessages(None, f"k{key}")))
        held = [batches.read(f.batch, stores=StoreIds(1)).pick(f.indexes)[0].body for f in reply.found]
        assert held == [body(number) for number in reversed(range(count)) if number % 3 == key]
    asked = Heads([HeadAt(*ORDERS, offset) for offset in range(count)])
    heads = decode_list(Head, await client.request(Op.HEADS, asked))
    assert [head.status for head in heads] == [0] * count
    for offset in range(0, count, 5):
        (at,) = decode_list(
            OffsetAt, await client.request(Op.OFFSETS_AT, OffsetsAt(heads[offset].stored_at, [ops.QueueRef(*ORDERS)]))
        )
        first = next(i for i in range(count) if heads[i].stored_at >= heads[offset].stored_at)
        assert (at.status, at.offset) == (0, first)


async def stats(client: Client) -> dict[str, Any]:
    return dict(await client.request(Op.STATS, ops.Stats()))["upkeep"]  # type: ignore[no-any-return]


def check_logs(logs: list[dict[str, Any]]) -> None:
    told = Counter((entry["event"], entry.get("file") or entry.get("first")) for entry in logs)
    assert {key: count for key, count in told.items() if key[0] in LOGGED_ONCE and count > 1} == {}
    assert {entry["event"] for entry in logs if entry["log_level"] == "error"} <= {
        "index.unreadable",
        "index.unwritable",
        "index.not_repaired",
    }


@pytest.mark.parametrize(
    ("broken", "number"), [(broken, number) for broken in BROKEN for number in ERRORS], ids=BROKEN_IDS
)
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "while it serves"])
async def test_an_index_that_cannot_be_used_stops_neither_the_broker_nor_a_query(
    memory_path: Path, at_start: bool, index: str, broken: str, number: int, *, logs: list[dict[str, Any]]
) -> None:
    await fill(memory_path)
    files = FaultyFiles()

    def break_it() -> None:
        for op in BROKEN[broken]:
            files.fail(op, index, number)

    if at_start:
        break_it()
    async with over(memory_path, files) as broker, Client(broker) as client:
        if not at_start:
            break_it()
        await check(client, MESSAGES)
        await send(client, range(MESSAGES, 2 * MESSAGES))
        await asyncio.sleep(60.0)
        await check(client, 2 * MESSAGES)

        told = await stats(client)
        assert told["failures"] == 0
        assert told["failed_index_reads"] > 0
        assert bool(told["failed_index_writes"]) == any(entry["event"] == "index.unwritable" for entry in logs)
        assert told["checkpoint_age_s"] < 60  # the log can be shortened
    check_logs(logs)
    assert any(index in entry["file"] for entry in logs if entry["event"] == "index.unreadable")

    files.heal()
    async with over(memory_path, files) as broker, Client(broker) as client:
        await check(client, 2 * MESSAGES)


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("index", INDEXES)
async def test_a_directory_in_place_of_an_index_file_is_logged_once_and_costs_no_message(
    memory_path: Path, index: str, is_empty: bool, logs: list[dict[str, Any]]
) -> None:
    await fill(memory_path)
    for path in [path for path in (memory_path / index.strip("/")).rglob("*") if path.is_file()]:
        path.unlink()
        path.mkdir()
        if not is_empty:
            (path / "mine").write_text("keep")

    async with over(memory_path) as broker, Client(broker) as client:
        await check(client, MESSAGES)
        await send(client, range(MESSAGES, 2 * MESSAGES))
        await asyncio.sleep(60.0)
        await check(client, 2 * MESSAGES)
        assert (await stats(client))["failures"] == 0
    check_logs(logs)
    if not is_empty:
        assert list(memory_path.rglob("mine"))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("index", ["/consumequeue", "/index"])
async def test_a_folder_of_indexes_that_cannot_be_listed_stops_no_start(
    memory_path: Path, index: str, number: int, logs: list[dict[str, Any]]
) -> None:
    await fill(memory_path)
    files = FaultyFiles()
    files.fail("names", index, number)

    async with over(memory_path, files) as broker, Client(broker) as client:
        await check(client, MESSAGES)
    assert any(f"{memory_path}{index}" in str(entry) for entry in logs)
