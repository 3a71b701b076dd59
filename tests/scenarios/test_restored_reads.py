"""Reads of a store before and after it was restored from a backup: ids stay, and no batch job misses a message."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from rmq.client import Admin, Message, MessageQueue, Producer
from rmq.client import sync as sync_client
from rmq.client.scan.options import ScanOptions
from rmq.client.scan.plan import plan
from rmq.client.scan.reader import rows_of
from rmq.client.scan.table import read_table
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, StoredMessage, sync
from rmq.consumer import sync as sync_pull
from rmq.runtime.clock import wall_us
from rmq.testing.broker import BrokerThread, InMemoryBroker
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import OtherHistory
from rmq.wire.names import dead_letter_topic
from spark_incremental import ends_of, next_range

from rigs.real_broker import RealBroker


class Archive:
    """The archive of ``examples/spark_incremental.py``, read without Spark: each run appends what came since."""

    def __init__(self) -> None:
        self.done: dict[str, Any] = {"batch": 0, "offsets": {}}

    def run(self, broker: str) -> list[str]:
        ends = asyncio.run(ends_of(broker, "orders"))
        given = next_range(self.done, "orders", ends)
        options = ScanOptions.parse({"broker": broker, "topic": "orders", **given})
        rows = [row for part in plan(options) for batch in rows_of(part, options.manner) for row in batch.to_pylist()]
        saved = {"batch": self.done["batch"] + 1, "offsets": ends["orders"], "@history": ends.get("@history")}
        self.done = json.loads(json.dumps(saved))
        return [row["body"].decode() for row in rows]


def command(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"rmq.cli.{module}", *arguments], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def send(broker: RealBroker, queue_id: int, *bodies: str) -> None:
    for body in bodies:
        broker.append("orders", queue_id, Rows([body.encode()], 0))


@pytest.mark.slow
def test_a_saved_range_stops_at_a_restored_backup_and_once_accepted_reads_all_that_was_acknowledged_since(
    tmp_path: Path,
) -> None:
    archive = Archive()
    with RealBroker(tmp_path / "live") as broker:
        broker.create("orders", 2)
        send(broker, 0, "a", "b")
        command("rmq_admin", "broker", "backup", str(tmp_path / "monday"), "--broker", broker.address)
        send(broker, 0, "c")
        send(broker, 1, "x")
        assert archive.run(broker.address) == ["a", "b", "c", "x"]
    command("rmq_broker", "restore", str(tmp_path / "monday"), str(tmp_path / "restored"))

    with RealBroker(tmp_path / "restored") as broker:
        send(broker, 0, "C", "D", "E")
        send(broker, 1, "X", "Y")
        saved = archive.done
        for _ in range(2):
            with pytest.raises(OtherHistory, match=r"orders/0 is what the reader has read up to offset 2, not 3; .*2$"):
                archive.run(broker.address)
            assert archive.done == saved
        command("rmq_admin", "broker", "accept-history", "--broker", broker.address)

        assert archive.run(broker.address) == ["C", "D", "E", "X", "Y"]
        send(broker, 1, "Z")
        assert archive.run(broker.address) == ["Z"]
        assert archive.run(broker.address) == []


# ---- consumers without asyncio


@pytest.mark.slow
def test_synchronous_consumers_that_stay_connected_get_all_that_was_acknowledged_after_a_restore(
    tmp_path: Path,
) -> None:
    live, restored = tmp_path / "live", tmp_path / "restored"
    heard: SimpleQueue[bytes] = SimpleQueue()

    def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        heard.put(messages[0].body)
        return ConsumeStatus.SUCCESS

    def both_get(*bodies: bytes) -> None:
        with sync_client.Producer(address) as producer:
            producer.send_bodies("orders", bodies, queue_id=0)
        for body in bodies:  # what the copy does not know to be done comes again before
            assert body in iter(lambda: heard.get(timeout=20), None)
            assert body in (batch[0].body for batch in iter(lambda: polling.poll(20), []))

    with ExitStack() as members:
        with BrokerThread(data_dir=str(live), min_free_bytes=0) as broker:
            address, settings = broker.address, {"topics": {"orders": "*"}, "batch": 1}
            members.enter_context(sync.Consumer(address, group="called", listener=listener, **settings))
            polling = members.enter_context(sync_pull.PullConsumer(address, group="polling", **settings))
            both_get(b"before")
            broker.stop()
            shutil.copytree(live, restored)
            broker.start()
            both_get(b"gone", b"gone as well")
        with BrokerThread(data_dir=str(restored), listen=address, min_free_bytes=0):
            both_get(b"a", b"b", b"c", b"d")


# ---- ids


async def bury(address: str, group: str, body: bytes) -> None:
    """Let a group give up one message of the topic."""
    ended = asyncio.Event()

    async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        if messages[0].body == body:
            raise ValueError("no such account")
        if messages[0].body == b"shipped":
            ended.set()
        return ConsumeStatus.SUCCESS

    consumer = Consumer(
        address, group=group, listener=on_messages, topics={"orders": "*"}, max_attempts=1, suspend_s=0.01
    )
    async with consumer, asyncio.timeout(30):
        await ended.wait()


async def joined(address: str | None, group: str, path: Path | None = None) -> list[tuple[str, bytes, str]]:
    """Return id, body and reason of what a group gave up: the join of docs/spark.md, with Arrow."""

    def read() -> list[tuple[str, bytes, str]]:
        orders = read_table(address, "orders", path=path).select(["message_id", "body"])
        letters = read_table(address, dead_letter_topic(group), path=path).column("properties").to_pylist()
        dead = {properties["RMQ_ORIGIN_ID"]: properties["RMQ_DEAD_REASON"] for properties in map(dict, letters)}
        rows = orders.to_pylist()
        return [(row["message_id"], row["body"], dead[row["message_id"]]) for row in rows if row["message_id"] in dead]

    return await asyncio.to_thread(read)


async def stored(address: str) -> list[StoredMessage]:
    async with Admin(address) as admin:
        queue = MessageQueue("orders", 0)
        (held,) = await admin.ranges([queue])
        return [message async for some in admin.read(queue, 0, held.max_offset) for message in some]


async def test_dead_letters_and_delayed_messages_lead_to_the_same_messages_before_and_after_a_restore(
    tmp_path: Path,
) -> None:
    live, data = tmp_path / "live", tmp_path / "restored"
    async with InMemoryBroker(data_dir=str(live)) as broker, Producer(broker.address) as producer:
        for body in (b"created", b"paid", b"shipped"):
            await producer.send(Message("orders", body), queue_id=0)
        delayed = await producer.send(Message("orders", b"reminder", delay_s=60), queue_id=0)
        await bury(broker.address, "billing", b"paid")
        before = await joined(broker.address, "billing")
        ids = [message.message_id for message in await stored(broker.address)]
    assert [row[1] for row in before] == [b"paid"]
    shutil.copytree(live, data)

    def ahead() -> int:
        return wall_us() + 3_600_000_000

    for start in range(2):  # the second one is an ordinary restart; the delay is over
        async with InMemoryBroker(data_dir=str(data), wall_us=ahead) as broker:
            assert await joined(broker.address, "billing") == before
            await bury(broker.address, f"shipping{start}", b"created")
            ((created, *_),) = await joined(broker.address, f"shipping{start}")
            messages = await stored(broker.address)
            assert created == ids[0]
            assert [message.message_id for message in messages[:3]] == ids
            assert messages[3].copy_of == delayed.message_id
            assert messages[3].message_id[:16] != ids[0][:16]  # it was delivered in the restored store
    assert await joined(None, "billing", data) == before
    assert [row[0] for row in await joined(None, "shipping0", data)] == ids[:1]
