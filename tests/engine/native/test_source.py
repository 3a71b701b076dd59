"""
Pulls that are asked for ahead are answered, also when the connection ended meanwhile.

A scan of a stopped broker's directory gives the rows that a scan of the broker gave.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from rmq.broker.offline.backup import restore
from rmq.broker.store.directory import StoreError
from rmq.client.admin.admin import Admin
from rmq.client.scan.options import ScanOptions
from rmq.client.scan.plan import plan
from rmq.client.scan.reader import Skipped, rows_of
from rmq.client.scan.table import read_table
from rmq.engine.native.blocking import BlockingConnection
from rmq.engine.native.source import BrokerSource, Manner, QueueRange, open_log, source_of
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import OK, ConnectionLost, LogTruncated, MessagesLost, RequestTimeout, ShuttingDown, TopicNotFound
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.faulty_broker import STORE_ID, FakeBroker

MANNER = Manner(("body",))


@pytest.fixture
def part(fake_broker: FakeBroker) -> QueueRange:
    fake_broker.create("orders")
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    return QueueRange(fake_broker.address, StoreIds(STORE_ID), "orders", 1, 0, 0, 10)


def hang_up(answer: Any) -> Any:
    raise OSError


def stopping(answer: Any) -> Any:
    raise ShuttingDown("the broker is stopping")


def test_nothing_is_opened_before_something_is_asked_for(fake_broker: FakeBroker, part: QueueRange) -> None:
    source_of(part, MANNER).close()

    assert fake_broker.requests == []


def test_what_was_asked_for_is_answered(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, replace(MANNER, tags="a || b"))
    source.ask(3, 1000)
    answer = source.answer()
    source.ask(10, 2000)

    assert (answer.status, answer.next_offset, source.answer().status) == (ops.EMPTY, 10, ops.EMPTY)
    pulls = [payload for op, payload in fake_broker.requests if op is Op.PULL]
    assert [(pull[2], pull[3][0][:3], pull[4]) for pull in pulls] == [
        (1000, ["orders", 0, 3], "a || b"),
        (2000, ["orders", 0, 10], "a || b"),
    ]
    source.close()


@pytest.mark.parametrize("fault", [hang_up, stopping])
def test_a_connection_that_ended_behind_an_answer_is_made_anew_once(
    fake_broker: FakeBroker, part: QueueRange, fault: Any
) -> None:
    source = BrokerSource(part, MANNER)
    fake_broker.fail_next(Op.PULL, lambda answer: answer, fault)
    source.ask(0, 1000)
    assert source.answer().status == OK

    source.ask(5, 1000)
    answer = source.answer()

    assert (answer.status, answer.next_offset) == (OK, 10)
    assert sum(op is Op.HELLO for op, _ in fake_broker.requests) == 2
    source.close()


def test_a_connection_that_ends_before_its_first_answer_is_an_error(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)
    fake_broker.fail_next(Op.PULL, hang_up, hang_up)
    source.ask(0, 1000)

    with pytest.raises(ConnectionLost):
        source.answer()
    source.close()


def test_one_that_was_made_anew_and_ends_again_is_an_error(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)
    fake_broker.fail_next(Op.PULL, lambda answer: answer, hang_up, hang_up)
    source.ask(0, 1000)
    source.answer()
    source.ask(5, 1000)

    with pytest.raises(ConnectionLost):
        source.answer()
    source.close()


def test_a_broker_that_is_silent_for_too_long_is_an_error(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, replace(MANNER, timeout_s=0.05))
    fake_broker.fail_next(Op.PULL, lambda answer: fake_broker.wait_for_connections(0))
    source.ask(0, 1000)

    with pytest.raises(RequestTimeout, match=r"within 0\.05 s"):
        source.answer()
    source.close()


def test_another_store_is_refused_before_anything_is_asked_for(fake_broker: FakeBroker, part: QueueRange) -> None:
    with pytest.raises(LogTruncated, match="another store"):
        BrokerSource(replace(part, stores=StoreIds(5)), MANNER).ask(0, 1000)

    assert [op for op, _ in fake_broker.requests] == [Op.HELLO]
    assert fake_broker.wait_for_connections(0)


def test_it_tells_whether_the_topic_is_still_the_same(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)
    assert not source.made_again()
    fake_broker.generation = 2
    assert source.made_again()
    del fake_broker.topics["orders"]
    assert not source.made_again(), "a topic that is gone is told by the pull"
    source.close()


def test_a_topic_that_is_gone_is_told_by_the_pull(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)

    def gone(answer: Any) -> Any:
        raise TopicNotFound("the topic 'orders' was deleted")

    fake_broker.fail_next(Op.PULL, gone)
    source.ask(0, 1000)

    with pytest.raises(TopicNotFound, match="was deleted"):
        source.answer()
    source.close()


SETTINGS = {"segment_bytes": 32 << 10, "recent_bytes": 0}


@pytest.fixture
def folder() -> Any:
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as path:
        yield Path(path)


def fill(address: str, topic: str, queues: int, chance: Random) -> None:
    """Batches of all kinds."""
    with BlockingConnection(address) as connection:
        connection.request(Op.CREATE_TOPIC, ops.CreateTopic(topic, queues))
        for _ in range(40):
            count = chance.randrange(1, 30)
            rows = Rows(
                [chance.randbytes(chance.randrange(100)) * 2 for _ in range(count)],
                [chance.randrange(1 << 50) for _ in range(count)],
                tags=[chance.choice(["a", "b", None]) for _ in range(count)],
                index_keys=[chance.choice([(), ("k",), ("k", "größe")]) for _ in range(count)],
                properties=[chance.choice([{}, {"p": "1", "q": ""}]) for _ in range(count)],
            )
            queue_id = chance.randrange(queues)
            codec = chance.choice([None, CODECS.by_name("zlib")])
            batch = ops.OutgoingBatch(queue_id, bytes(encode(topic, queue_id, rows, codec=codec)))
            connection.request(Op.SEND, ops.Send([batch]))


class Written:
    """A stopped broker's directory and what its broker said of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, pa.Table] = {}


SCANS: dict[str, dict[str, Any]] = {
    "all": {"topic": "orders"},
    "both": {"topic": ["payments", "orders"], "columns": ["topic", "queue_id", "queue_offset", "message_id"]},
    "tags": {"topic": "orders", "tags": "a"},
    "some": {"topic": "orders", "queues": [1], "start": {1: 5}, "end": {1: 60}, "columns": ["queue_offset", "body"]},
    "unverified": {"topic": "payments", "verify": False},
}


@pytest.fixture
async def written(folder: Path) -> AsyncIterator[Written]:
    made = Written(folder / "data")
    async with InMemoryBroker(data_dir=str(made.path), **SETTINGS) as broker:
        for topic, queues in (("gone", 2), ("orders", 3), ("payments", 1)):
            await asyncio.to_thread(fill, broker.address, topic, queues, Random(topic))
        async with Admin(broker.address) as admin:
            await admin.delete_topic("gone")
            await admin.delete_topic("payments")
        await asyncio.to_thread(fill, broker.address, "payments", 2, Random(9))
        for name, scan in SCANS.items():
            made.tables[name] = await asyncio.to_thread(read_table, broker.address, **scan)
    yield made


@pytest.mark.parametrize("scan", SCANS)
async def test_rows_and_their_order_are_those_of_the_broker(written: Written, scan: str) -> None:
    found = read_table(None, path=written.path, **SCANS[scan])

    assert found.num_rows > 20
    assert found.equals(written.tables[scan])


async def test_a_topic_that_was_deleted_is_not_there(written: Written) -> None:
    with pytest.raises(TopicNotFound, match=f"directory {written.path}: there is no topic gone; there are orders, pay"):
        read_table(None, "gone", path=written.path)


async def test_a_plan_is_read_elsewhere_piece_by_piece(written: Written) -> None:
    options = ScanOptions.parse({"path": str(written.path), "topic": "orders", "minPartitions": "9"})
    parts = plan(options)

    batches = [rows for part in parts for rows in rows_of(part, options.manner)]

    assert len(parts) >= 9
    assert all(part.path == str(written.path) and part.hint and not part.broker for part in parts)
    assert pa.Table.from_batches(batches).equals(written.tables["all"].combine_chunks())


async def test_a_plan_still_holds_when_the_broker_ran_meanwhile(written: Written) -> None:
    options = ScanOptions.parse({"path": str(written.path), "topic": "orders"})
    parts = plan(options)
    async with InMemoryBroker(data_dir=str(written.path), **SETTINGS) as broker:
        await asyncio.to_thread(fill, broker.address, "orders", 3, Random(5))
        with pytest.raises(
            StoreError, match=rf"topic orders, queue 0, offset 0, directory .*: a broker uses {written.path}"
        ):
            list(rows_of(parts[0], options.manner))
        with pytest.raises(
            StoreError, match=f"topic orders, directory {written.path}: a broker uses .*: stop it first"
        ):
            plan(options)

    batches = [rows for part in parts for rows in rows_of(part, options.manner)]

    assert pa.Table.from_batches(batches).equals(written.tables["all"].combine_chunks())


async def test_segments_that_went_since_the_plan_fail_the_scan_or_are_left_out_and_reported(written: Written) -> None:
    options = ScanOptions.parse({"path": str(written.path), "topic": "orders"})
    part = plan(options)[0]
    for oldest in sorted((written.path / "commitlog").iterdir())[:3]:
        oldest.unlink()
    skipped: list[Skipped] = []

    with pytest.raises(
        MessagesLost, match=r"topic orders, queue 0, offset 0, directory .*: retention removed orders/0"
    ):
        list(rows_of(part, options.manner))
    batches = list(rows_of(part, replace(options.manner, skip_lost=True), report=skipped.append))

    assert [(each.start, each.end) for each in skipped] == [(0, part.end - sum(rows.num_rows for rows in batches))]
    assert batches[0].to_pylist()[0]["queue_offset"] == skipped[0].end


async def test_another_store_in_the_same_place_is_told(written: Written, folder: Path) -> None:
    options = ScanOptions.parse({"path": str(written.path), "topic": "orders"})
    part = plan(options)[0]
    shutil.rmtree(written.path)
    async with InMemoryBroker(data_dir=str(written.path), **SETTINGS) as broker:
        await asyncio.to_thread(fill, broker.address, "orders", 3, Random(5))

    with pytest.raises(LogTruncated, match="another store"):
        list(rows_of(part, options.manner))


def test_no_log_is_told_in_one_line(folder: Path) -> None:
    with pytest.raises(StoreError) as caught:
        plan(ScanOptions.parse({"path": str(folder), "topic": "orders"}))

    told = f"{folder} holds no log: name the data directory of a broker or a backup of it"
    assert str(caught.value) == f"topic orders, directory {folder}: {told}"


def test_the_client_needs_no_broker_until_a_directory_is_read() -> None:
    code = "import sys, rmq.client.scan.plan; sys.exit(any(name.startswith('rmq.broker') for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_the_directory_is_free_when_a_scan_is_over(written: Written) -> None:
    with open_log(str(written.path)) as log:
        assert log.stores.current

    async with InMemoryBroker(data_dir=str(written.path), **SETTINGS):
        pass


@pytest.mark.parametrize("is_backup_older", [False, True])
async def test_a_restored_store_in_the_same_place_is_another_one(
    written: Written, folder: Path, is_backup_older: bool
) -> None:
    options = ScanOptions.parse({"path": str(written.path), "topic": "orders"})
    if is_backup_older:
        shutil.copytree(written.path, folder / "backup")
        async with InMemoryBroker(data_dir=str(written.path), **SETTINGS) as broker:
            await asyncio.to_thread(fill, broker.address, "orders", 3, Random(6))
    parts = plan(options)
    if not is_backup_older:
        shutil.copytree(written.path, folder / "backup")
    shutil.rmtree(written.path)
    restore(folder / "backup", written.path)
    async with InMemoryBroker(data_dir=str(written.path), **SETTINGS) as broker:
        await asyncio.to_thread(fill, broker.address, "orders", 3, Random(6))

    for part in parts:
        with pytest.raises(LogTruncated, match="the directory has another store than when the scan was planned"):
            list(rows_of(part, options.manner))
