"""
The broker as a whole: start, stop, the disk, and what it refuses.

A broker on a disk that fails, fills up, forgets and is tidied by people: what its clients see.

A broker whose indexes cannot be read or written: the log answers in their place, and each file is logged once.

What the broker refuses and whom it ends, so that the others go on: connections, disk space, slow readers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.jobs.maintenance import DiskWatch
from rmq.broker.store.directory import DataDirectory, StoreError
from rmq.broker.store.flusher import Failed, Flusher, SyncableLog, Synced
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import (
    ConfigError,
    ConnectionLost,
    Damaged,
    DiskFull,
    LockHeld,
    LogTruncated,
    MessagesLost,
    ShuttingDown,
    StoreFailed,
)
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, OutgoingBatch, PullQueue, Send, Stats
from rmq.wire.protocol.ops.messages import Head, HeadAt, Heads, OffsetAt, OffsetsAt, QueryMessages, QueryReply
from rmq.wire.stores import StoreIds

from .builders import ORDERS, descriptors_limited_to, make_batch, segment_files
from .harness import Client, bodies, crash_copy, holder, until
from rigs.batches import patched
from rigs.disk.faulty import FaultyFiles, flip


class HeldFlusher:
    """A flusher that syncs when the test says so, or fails."""

    def __init__(self, log: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed) -> None:
        self.log = log
        self.synced = synced
        self.failed = failed
        self.requests = 0

    def start(self) -> None:
        pass

    def request(self) -> None:
        self.requests += 1

    def stop(self) -> None:
        pass

    def flush(self) -> None:
        self.synced(self.log.sync())


def settings(path: Path, **more: object) -> BrokerConfig:
    return BrokerConfig(listen="127.0.0.1:0", data_dir=str(path), **more)  # type: ignore[arg-type]


async def held(path: Path, **more: object) -> tuple[Broker, HeldFlusher]:
    flushers: list[HeldFlusher] = []

    def make(*args: object) -> HeldFlusher:
        flushers.append(HeldFlusher(*args))  # type: ignore[arg-type]
        return flushers[0]

    broker = Broker(settings(path, **more), now=asyncio.get_running_loop().time, flusher=make)
    await broker.start()
    return broker, flushers[0]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# ---- start


@pytest.mark.both_loops
async def test_the_real_flusher_makes_sends_durable(tmp_path: Path) -> None:
    broker = Broker(settings(tmp_path))
    await broker.start()
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)
    await connection.request(Op.CREATE_TOPIC, ["orders", 1])
    results = await asyncio.gather(
        *(connection.request(Op.SEND, Send([OutgoingBatch(0, make_batch(b"x"))])) for _ in range(50))
    )
    await connection.close()
    await broker.stop()

    assert sorted(result[0][1] for result in results) == list(range(50))
    assert all(result[0][4] for result in results)


@pytest.mark.virtual_time
async def test_an_address_in_use_is_an_error_that_leaves_the_directory_free(memory_path: Path) -> None:
    async with InMemoryBroker() as first:
        taken = BrokerConfig(listen=first.address, data_dir=str(memory_path))

        with pytest.raises(OSError) as failure:
            await Broker(taken).start()
        assert failure.value.errno == errno.EADDRINUSE

        free = Broker(settings(memory_path))
        await free.start()
        await free.stop()


@pytest.mark.virtual_time
async def test_a_second_broker_on_the_same_directory_is_refused(broker: InMemoryBroker) -> None:
    other = Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=broker.config.data_dir))

    with pytest.raises(StoreError, match=r"another broker uses"):
        await other.start()
    await other.stop()  # has nothing to do


@pytest.mark.virtual_time
async def test_a_start_that_fails_in_the_log_leaves_the_directory_free(memory_path: Path) -> None:
    async with InMemoryBroker(data_dir=str(memory_path)) as broker, Client(broker) as client:
        await client.create()
        await client.send(b"a")
        await client.send(b"b")
    (segment,) = segment_files(memory_path)
    (memory_path / "checkpoint").unlink()
    whole = segment.read_bytes()
    newer = patched(whole[: int.from_bytes(whole[:4], "big")], 64, ">B", layout.KIND_TRANSACTION)
    segment.write_bytes(newer + whole[len(newer) :])

    for _ in range(2):
        with pytest.raises(StoreError, match=r"cannot read the log at 0 .* start the version that wrote it"):
            await Broker(settings(memory_path)).start()

    segment.write_bytes(whole)
    async with InMemoryBroker(data_dir=str(memory_path)) as broker, Client(broker) as client:
        assert bodies(await client.pull(0)) == [b"a", b"b"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("listen", ["", "localhost", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:70000", ":²"])
async def test_an_address_that_makes_no_sense_is_named(memory_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError, match=r"is not (host:port|1 to 65535): write for example"):
        await Broker(BrokerConfig(listen=listen, data_dir=str(memory_path))).start()


@pytest.mark.virtual_time
async def test_a_tail_that_was_cut_is_reported_at_start(memory_path: Path, logs: list[dict[str, object]]) -> None:
    async with InMemoryBroker(data_dir=str(memory_path)) as broker, Client(broker) as client:
        await client.create()
    (segment,) = segment_files(memory_path)
    segment.write_bytes(segment.read_bytes() + b"torn")

    async with InMemoryBroker(data_dir=str(memory_path)) as broker:
        assert broker.broker.recovered is not None
        assert broker.broker.recovered.cut is not None

    (entry,) = [entry for entry in logs if entry["event"] == "log.tail_cut"]
    assert entry["size"] == 4


# ---- stop


@pytest.mark.virtual_time
async def test_a_stop_answers_what_it_accepted_then_says_good_bye(memory_path: Path) -> None:
    broker, flusher = await held(memory_path)
    connection = Connection(broker.address)
    lost: list[Exception] = []
    connection._on_lost = lost.append
    await connection.open(timeout_s=5.0)
    creating = asyncio.create_task(connection.request(Op.CREATE_TOPIC, ["orders", 1]))
    await turns()
    flusher.flush()
    await creating
    sending = asyncio.create_task(connection.request(Op.SEND, Send([OutgoingBatch(0, make_batch(b"x"))])))
    await turns()
    assert flusher.requests >= 2

    stopping = asyncio.create_task(broker.stop())
    await turns()
    assert not sending.done()
    flusher.flush()

    assert (await sending)[0][:2] == [0, 0]
    await stopping
    await turns()
    assert isinstance(lost[0].__cause__, ShuttingDown)
    await connection.close()
    async with InMemoryBroker(data_dir=str(memory_path)) as again, Client(again) as client:
        assert bodies(await client.pull(0)) == [b"x"]


@pytest.mark.virtual_time
async def test_a_stop_does_not_wait_for_a_disk_that_hangs(memory_path: Path) -> None:
    broker, _ = await held(memory_path, drain_timeout_s=2.0)
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)
    creating = asyncio.create_task(connection.request(Op.CREATE_TOPIC, ["orders", 1]))
    await turns()
    before = asyncio.get_running_loop().time()

    await broker.stop()

    assert 2.0 <= asyncio.get_running_loop().time() - before < 3.0
    with pytest.raises(ConnectionLost):
        await creating
    await connection.close()


async def test_a_stop_does_not_wait_for_the_interval_of_a_sync_that_a_checkpoint_waits_for(
    memory_path: Path, logs: list[dict[str, object]]
) -> None:
    config = settings(memory_path, flush="async", flush_interval_s=3600.0, checkpoint_bytes=1)
    broker = Broker(config)
    await broker.start()
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")
        broker._each_second()
        await client.send(b"b")  # its turn takes the checkpoint
        assert not broker._maintenance.idle

    await broker.stop()

    assert [entry for entry in logs if entry["log_level"] == "error"] == []
    again = Broker(config)
    await again.start()
    assert again.recovered is not None and again.recovered.batches == 0
    await again.stop()


@pytest.mark.virtual_time
async def test_stopping_twice_is_the_same_as_once(broker: InMemoryBroker) -> None:
    await asyncio.gather(broker.stop(), broker.stop())
    await broker.stop()

    with pytest.raises(OSError):
        await asyncio.open_connection(*broker.address.rsplit(":", 1))


@pytest.mark.virtual_time
async def test_a_broker_that_never_started_can_be_stopped(memory_path: Path) -> None:
    await Broker(settings(memory_path)).stop()

    assert list(memory_path.iterdir()) == []


@pytest.mark.virtual_time
async def test_parked_pulls_end_with_the_broker(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        pull = asyncio.create_task(client.pull(0, wait_ms=20_000))
        await turns()

        await broker.restart()

        with pytest.raises(ConnectionLost, match=r"SHUTTING_DOWN: the broker is stopping"):
            await pull
        await client.connection.wait_connected()
        assert (await client.pull(0)).status == EMPTY


# ---- a failed disk


@pytest.mark.virtual_time
async def test_a_failed_sync_answers_nothing_more_and_the_next_start_judges(memory_path: Path) -> None:
    broker, flusher = await held(memory_path)
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)
    creating = asyncio.create_task(connection.request(Op.CREATE_TOPIC, ["orders", 1]))
    await turns()

    flusher.failed(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(
        ConnectionLost, match=r"the disk failed, so nothing more can be promised: start the broker again"
    ):
        await creating
    assert broker.failed.is_set()
    with pytest.raises(OSError):
        await asyncio.open_connection(*broker.address.rsplit(":", 1))
    await connection.close()
    await broker.stop()
    await broker.stop()

    async with InMemoryBroker(data_dir=str(memory_path)) as again, Client(again) as client:
        assert (await client.route("orders")).shards == 1  # it was in the file all the same


@pytest.mark.virtual_time
async def test_a_broker_without_free_descriptors_goes_on_in_its_old_segment(
    memory_path: Path, logs: list[dict[str, object]]
) -> None:
    async with InMemoryBroker(data_dir=str(memory_path), segment_bytes=4096) as broker, Client(broker) as client:
        await client.create()
        with descriptors_limited_to(0):
            assert (await client.send(b"a" * 5000)).status == 0
            assert (await client.send(b"b")).status == 0
        assert len(segment_files(memory_path)) == 1
        assert {entry["event"] for entry in logs if entry["log_level"] == "error"} == {"log.roll_failed"}
        assert (await client.send(b"c")).status == 0

        assert not broker.broker.failed.is_set()
        assert [body[:1] for body in bodies(await client.pull(0))] == [b"a", b"b", b"c"]
        assert len(segment_files(memory_path)) == 2


@pytest.mark.both_loops
async def test_a_defect_in_the_flusher_ends_the_broker_instead_of_leaving_everybody_waiting(
    tmp_path: Path, logs: list[dict[str, object]]
) -> None:
    class Defective:
        written = 0

        def begin_writeback(self) -> None:
            raise NotImplementedError

        def sync(self) -> int:
            raise AssertionError

    def make(log: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed) -> Flusher:
        return Flusher(Defective(), post, synced, failed)

    broker = Broker(settings(tmp_path), flusher=make)
    await broker.start()
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)

    with pytest.raises(ConnectionLost, match=r"the disk failed"):
        await connection.request(Op.CREATE_TOPIC, ["orders", 1])

    assert broker.failed.is_set()
    await connection.close()
    await broker.stop()
    (poisoned,) = [entry for entry in logs if entry["event"] == "store.poisoned"]
    assert poisoned["error"] == "AssertionError()"


# ---- timers that fail


@pytest.mark.virtual_time
async def test_a_timer_that_failed_runs_again(memory_path: Path, logs: list[dict[str, object]]) -> None:
    data = memory_path / "data"
    async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker) as client:
        await client.create()
        data.rename(memory_path / "elsewhere")
        await asyncio.sleep(2.5)
        (memory_path / "elsewhere").rename(data)
        await asyncio.sleep(2.5)

        assert (await client.send(b"a")).status == 0

    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["timer.failed"] * 2


async def test_a_start_that_fails_early_lets_the_directory_go(tmp_path: Path) -> None:
    config = settings(tmp_path)
    object.__setattr__(config, "message_delay_level", "never")  # behind the checks, to fail while services are built

    with pytest.raises(ConfigError, match="never"):
        await Broker(config).start()

    DataDirectory(tmp_path).close()


def over(path: Path, files: FaultyFiles | None = None, **settings: Any) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), files=files, **settings)


async def every_body(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < (await client.range(group=None)).max_offset:
        found += bodies(await client.pull(len(found)), len(found))
    return found


# ---- writes that fail
@pytest.mark.virtual_time
@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, DiskFull.code), (errno.EIO, StoreFailed.code)])
@pytest.mark.parametrize("after", [0, 100])
async def test_sends_that_cannot_be_written_are_refused_and_service_resumes(
    memory_path: Path, number: int, code: int, after: int
) -> None:
    files = FaultyFiles()
    async with over(memory_path, files) as broker, Client(broker) as client:
        await client.create()
        await client.send(b"a")
        files.fail("write", "commitlog", number, after=after)

        assert [(await client.send(b"lost")).status for _ in range(3)] == [code] * 3
        assert bodies(await client.pull(0)) == [b"a"]
        files.heal()
        assert (await client.send(b"b")).base_offset == 1

        assert not broker.broker.failed.is_set()
        copy = crash_copy(broker, memory_path.with_name(memory_path.name + "-copy"))
    async with copy, Client(copy) as client:
        assert await every_body(client) == [b"a", b"b"]
    shutil.rmtree(copy.config.data_dir)


@pytest.mark.virtual_time
async def test_a_lease_is_granted_when_the_disk_has_room_again(memory_path: Path) -> None:
    files = FaultyFiles()
    async with over(memory_path, files) as broker, Client(broker) as client:
        await client.create()
        await client.join()
        files.fail("write", "commitlog", errno.ENOSPC, after=50)
        grant = asyncio.create_task(client.acquire())
        await asyncio.sleep(1.0)
        assert not grant.done()

        files.heal()
        await asyncio.sleep(0.2)

        assert grant.done()
        assert (await grant).status == 0


@pytest.mark.virtual_time
async def test_a_disk_that_is_full_when_a_segment_begins_does_not_keep_the_loop_busy(
    memory_path: Path, logs: list[dict[str, Any]]
) -> None:
    files = FaultyFiles()
    async with over(memory_path, files, segment_bytes=4096) as broker, Client(broker) as client:
        await client.create()
        await client.send(b"a" * 3000)
        files.before = lambda done: (
            files.fail("write", "commitlog", errno.ENOSPC, after=60)
            if done.op == "open" and "commitlog" in done.path
            else None
        )
        await client.send(b"b" * 3000)  # the next segment can be made, and its snapshot cannot be written
        await asyncio.sleep(2.0)

        failed = [entry for entry in logs if entry["event"] == "log.write_failed"]
        assert 5 <= len(failed) <= 25
        assert (await client.send(b"lost")).status == DiskFull.code
        files.before = lambda done: None
        files.heal()
        await asyncio.sleep(0.2)
        assert (await client.send(b"c")).base_offset == 2
        assert [body[:1] for body in await every_body(client)] == [b"a", b"b", b"c"]


@pytest.mark.virtual_time
async def test_a_short_write_is_no_failure(memory_path: Path) -> None:
    files = FaultyFiles()
    files.at_most = 7
    async with over(memory_path, files) as broker, Client(broker) as client:
        await client.create()
        for i in range(5):
            assert (await client.send(b"%d" % i)).status == 0
        await broker.restart()
    async with over(memory_path) as broker, Client(broker) as client:
        assert await every_body(client) == [b"%d" % i for i in range(5)]


# ---- a sync that fails
@pytest.mark.virtual_time
async def test_a_failed_sync_poisons_the_store_and_the_next_start_writes_the_tail_again(
    memory_path: Path, logs: list[dict[str, Any]]
) -> None:
    files = FaultyFiles()
    broker = over(memory_path, files)
    await broker.start()
    client = await Client(broker).__aenter__()
    await client.create()
    await client.send(b"kept")
    files.fail("sync", "commitlog", errno.EIO, times=1)

    with pytest.raises(ConnectionLost, match="the disk failed"):
        await client.send(b"unknown")
    assert broker.broker.failed.is_set()
    assert [entry["event"] for entry in logs if entry["log_level"] == "critical"] == ["store.poisoned"]
    await client.connection.close()
    syncs = files.ops("commitlog", "sync")
    await broker.stop()
    assert files.ops("commitlog", "sync") == syncs  # never tried again
    assert not (memory_path / "checkpoint").exists()  # nor believed

    again = FaultyFiles()
    async with over(memory_path, again) as broker, Client(broker) as client:
        first = again.ops("commitlog", "write", "sync")
        assert first[:2] == ["write", "sync"]
        found = await every_body(client)
        assert found[0] == b"kept"
        assert found in ([b"kept"], [b"kept", b"unknown"])


# ---- a directory that is moved or replaced
@pytest.mark.virtual_time
async def test_a_broker_whose_directory_was_replaced_ends_and_leaves_the_other_one_as_it_is(
    memory_path: Path, logs: list[dict[str, Any]]
) -> None:
    """Another broker uses the path by now: both have the lock of a directory of their own."""
    data = memory_path / "data"
    broker = over(data, segment_bytes=4096, retention_hours=0.001)
    await broker.start()
    client = await Client(broker).__aenter__()
    await client.create()
    data.rename(memory_path / "moved")
    async with over(data) as other, Client(other) as theirs:
        await theirs.create()
        for i in range(20):
            await theirs.send(b"%d" % i * 400)
        before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}

        for _ in range(8):  # several segments, if it could
            await client.send(b"mine" * 500)
        await asyncio.sleep(1.5)

        assert broker.broker.failed.is_set()
        assert broker.broker.failure.startswith(f"{data} is not the data directory any more that this broker opened")
        await client.connection.close()
        await broker.stop()
        assert [entry["event"] for entry in logs if entry["log_level"] == "critical"] == ["store.poisoned"]
        assert {path: path.stat().st_mtime_ns for path in before} == before
        assert len(await every_body(theirs)) == 20
    async with over(memory_path / "moved") as broker, Client(broker) as client:
        assert len(await every_body(client)) == 8


# ---- starts
@pytest.mark.virtual_time
async def test_a_start_after_a_clean_stop_reads_no_message(memory_path: Path) -> None:
    async with over(memory_path) as broker:
        client, epoch = await holder(broker)
        for i in range(20):
            await client.send(b"%d" % i)
        await client.commit(epoch, 7)
        await client.connection.close()
    files = FaultyFiles()

    async with over(memory_path, files) as broker, Client(broker) as client:
        recovered = broker.broker.recovered
        assert recovered is not None
        assert (recovered.batches, recovered.damages, recovered.cut) == (0, [], None)
        assert files.ops("consumequeue", "open", "open_to_read") == []
        assert await client.committed() == 7
        assert await every_body(client) == [b"%d" % i for i in range(20)]
        assert [row.epoch for row in await client.locks()] == [epoch]


@pytest.mark.virtual_time
async def test_a_stop_whose_checkpoint_fails_is_as_good_as_a_crash(memory_path: Path) -> None:
    files = FaultyFiles()
    async with over(memory_path, files) as broker, Client(broker) as client:
        await client.create()
        await client.send(b"a")
        files.fail("write", "checkpoint", errno.ENOSPC)

    async with over(memory_path) as broker, Client(broker) as client:
        assert broker.broker.recovered is not None
        assert broker.broker.recovered.batches == 1
        assert await every_body(client) == [b"a"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("gone", ["checkpoint", "index", "consumequeue", "config", "quarantine", "all"])
async def test_deleting_anything_but_the_log_loses_nothing(memory_path: Path, gone: str) -> None:
    async with over(memory_path, segment_bytes=4096) as broker:
        client, epoch = await holder(broker)
        for i in range(30):
            await client.send(b"%d" % i * 100)
        await client.commit(epoch, 11)
        await client.attempt(epoch, 11, 2)
        store_id = client.hello.store_id
        await client.connection.close()
    assert len(segment_files(memory_path)) > 1
    for path in memory_path.iterdir():
        if path.name != "commitlog" and gone in (path.name, "all"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    async with over(memory_path, segment_bytes=4096) as broker, Client(broker) as client:
        assert client.hello.store_id == store_id
        assert await every_body(client) == [b"%d" % i * 100 for i in range(30)]
        assert await client.committed() == 11
        assert [row.epoch for row in await client.locks()] == [epoch]
        assert (await client.send(b"next")).base_offset == 30


@pytest.mark.virtual_time
async def test_damage_is_reported_and_what_follows_is_served(memory_path: Path, logs: list[dict[str, Any]]) -> None:
    async with over(memory_path) as broker, Client(broker) as client:
        await client.create()
        for i in range(4):
            await client.send(b"%d" % i * 100)
    (segment,) = segment_files(memory_path)
    flip(segment, segment.read_bytes().index(b"1" * 100))

    for unlink in (False, True):  # noticed by whoever reads, then by a start that reads all
        if unlink:
            (memory_path / "checkpoint").unlink()
        async with over(memory_path) as broker, Client(broker) as client:
            assert bodies(await client.pull(0)) == [b"0" * 100]
            damaged = await client.pull(1)
            assert (damaged.status, damaged.next_offset) == (Damaged.code, 2)
            assert bodies(await client.pull(2)) == [b"2" * 100, b"3" * 100]
    assert "log.damaged" in [entry["event"] for entry in logs]


@pytest.mark.virtual_time
async def test_a_reader_that_has_what_the_log_lost_learns_where_they_agree(memory_path: Path) -> None:
    path = memory_path / "data"
    async with over(path, flush="async") as broker, Client(broker) as client:
        await client.create()
        for i in range(4):
            await client.send(b"%d" % i)
        epoch = client.hello.log_epoch
        last = (await client.send(b"lost")).physical_offset
        copy = crash_copy(broker, memory_path / "copy")
    segment = segment_files(memory_path / "copy")[-1]
    os.truncate(segment, last - int(segment.name) + 9)

    async with copy, Client(copy) as client:
        for offset, status, following in ((5, LogTruncated.code, 4), (4, EMPTY, 4), (2, 0, 4)):
            (answer,) = await client.pull_many(PullQueue(*ORDERS, offset, None, NO_OFFSET, epoch))
            assert (answer.status, answer.next_offset) == (status, following)
        await client.send(b"other")
        (answer,) = await client.pull_many(PullQueue(*ORDERS, 5, None, NO_OFFSET, epoch))
        assert (answer.status, answer.next_offset) == (LogTruncated.code, 4)


@pytest.mark.virtual_time
async def test_a_group_that_retention_overtakes_gets_the_bounds(memory_path: Path) -> None:
    async with (
        over(memory_path, segment_bytes=4096, retention_bytes=8192, checkpoint_bytes=4096, recent_bytes=0) as broker,
        Client(broker) as client,
    ):
        await client.create()
        for i in range(60):
            await client.send(b"%d" % i * 200)
            await asyncio.sleep(1.0)
        for _ in range(100):  # the threads take real time, the clock does not
            await asyncio.sleep(1.0)

        first = (await client.range(group=None)).min_offset
        assert first > 0
        lost = await client.pull(0)

        assert (lost.status, lost.next_offset, lost.min_offset, lost.max_offset) == (
            MessagesLost.code,
            first,
            first,
            60,
        )
        assert len(bodies(await client.pull(first), first)) > 0
        await broker.restart()
    async with over(memory_path) as broker, Client(broker) as client:
        assert (await client.range(group=None)).min_offset >= first
        assert (await client.pull(0)).status == MessagesLost.code


@pytest.mark.virtual_time
async def test_a_queue_that_the_disk_does_not_give_is_refused_counted_and_logged_once(
    memory_path: Path, logs: list[dict[str, Any]]
) -> None:
    async with over(memory_path) as broker, Client(broker) as client:
        await client.create()
        await client.send(b"a")
    files = FaultyFiles()
    async with over(memory_path, files) as broker, Client(broker) as client:
        files.cold = True
        files.fail("open_to_read", "commitlog", errno.EACCES)
        for _ in range(3):
            assert (await client.pull(0)).status == StoreFailed.code
        failed = [entry for entry in logs if entry["event"] == "pull.failed"]
        assert [entry["queue"] for entry in failed] == ["orders/0"]
        assert "commitlog" in failed[0]["error"]
        told = dict(await client.request(Op.STATS, Stats()))
        assert told["serving"]["failed_reads"] >= 3

        files.heal()
        assert bodies(await client.pull(0)) == [b"a"]


MESSAGES = 12
INDEXES = ["/consumequeue/", "/index/"]
ERRORS = [errno.EIO, errno.EACCES, errno.EISDIR]
READS = ("open_to_read", "read", "size")
ALL = ("open", *READS, "write", "truncate", "unlink", "rename")
BROKEN = {"nothing is read": READS, "opened, not read": ("read",), "nothing works": ALL}
BROKEN_IDS = [f"{broken}-{errno.errorcode[number]}" for broken in BROKEN for number in ERRORS]
LOGGED_ONCE = {"index.unreadable", "index.unwritable", "index.put_aside", "index.not_repaired", "key_index.gap"}


def over_index_faults(path: Path, files: FaultyFiles | None = None) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), files=files, segment_bytes=4096, checkpoint_s=3.0)


def body(number: int) -> bytes:
    return b"%d" % number + bytes(1000)


async def send(client: Client, numbers: range) -> None:
    for number in numbers:
        batch = make_batch(body(number), index_keys=[[f"k{number % 3}"]])
        (result,) = await client.send_batches(ops.OutgoingBatch(ORDERS.queue_id, batch))
        assert result.status == 0


async def fill(path: Path) -> None:
    """Store messages with keys in several segments, and stop cleanly: all of it is in the indexes."""
    async with over_index_faults(path) as broker, Client(broker) as client:
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


@pytest.mark.virtual_time
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
    async with over_index_faults(memory_path, files) as broker, Client(broker) as client:
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
    async with over_index_faults(memory_path, files) as broker, Client(broker) as client:
        await check(client, 2 * MESSAGES)


@pytest.mark.virtual_time
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

    async with over_index_faults(memory_path) as broker, Client(broker) as client:
        await check(client, MESSAGES)
        await send(client, range(MESSAGES, 2 * MESSAGES))
        await asyncio.sleep(60.0)
        await check(client, 2 * MESSAGES)
        assert (await stats(client))["failures"] == 0
    check_logs(logs)
    if not is_empty:
        assert list(memory_path.rglob("mine"))


@pytest.mark.virtual_time
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("index", ["/consumequeue", "/index"])
async def test_a_folder_of_indexes_that_cannot_be_listed_stops_no_start(
    memory_path: Path, index: str, number: int, logs: list[dict[str, Any]]
) -> None:
    await fill(memory_path)
    files = FaultyFiles()
    files.fail("names", index, number)

    async with over_index_faults(memory_path, files) as broker, Client(broker) as client:
        await check(client, MESSAGES)
    assert any(f"{memory_path}{index}" in str(entry) for entry in logs)


@pytest.mark.virtual_time
async def test_a_connection_too_many_is_refused_and_the_others_go_on() -> None:
    async with InMemoryBroker(max_connections=2) as broker, Client(broker) as one, Client(broker) as two:
        third = Connection(broker.address)
        with pytest.raises(ConnectionLost, match=r"the broker has 2 connections, as many as it may"):
            await third.open(timeout_s=1.0)

        assert await one.request(Op.PING, []) == await two.request(Op.PING, []) == []
        await two.connection.close()
        async with Client(broker) as late:
            assert await late.request(Op.PING, []) == []


@pytest.mark.virtual_time
async def test_sends_resume_by_themselves_when_space_is_back(memory_path: Path, logs: list[dict[str, object]]) -> None:
    async with InMemoryBroker(data_dir=str(memory_path), min_free_bytes=0) as broker, Client(broker) as client:
        await client.create()
        broker.broker._disk._min_free = 1 << 60
        await asyncio.sleep(1.1)
        assert (await client.send(b"a")).status == DiskFull.code
        assert (await client.pull(0)).status == EMPTY

        broker.broker._disk._min_free = 0
        await asyncio.sleep(1.1)

        assert (await client.send(b"a")).status == 0
        assert [entry["event"] for entry in logs if "disk" in str(entry["event"])] == ["disk.full", "disk.recovered"]


class SmallDisk(DiskWatch):
    """A disk of 24 MiB that holds nothing but the log."""

    def look(self, written: int = 0) -> None:
        super().look(written)
        self.judge((24 << 20) - written)


@pytest.mark.virtual_time
async def test_a_burst_within_a_second_leaves_most_of_the_reserve(memory_path: Path) -> None:
    async with InMemoryBroker(data_dir=str(memory_path), min_free_bytes=0) as broker, Client(broker) as client:
        await client.create()
        broker.broker._disk = SmallDisk(memory_path, 8 << 20)
        began = broker.broker.now()

        statuses = [(await client.send(bytes(1 << 20))).status for _ in range(24)]

        assert broker.broker.now() - began < 1
        assert statuses[:15] == [0] * 15
        assert set(statuses[19:]) == {DiskFull.code}  # the reserve, a quarter of it, and what was on its way


# ---- slow readers


async def deaf(broker: InMemoryBroker) -> tuple[Client, list[asyncio.Task[object]]]:
    """A holder that asks for much more than the sockets buffer, and reads nothing of it."""
    client, _ = await holder(broker)
    for _ in range(8):
        await client.send(b"x" * (4 << 20))
    transport(client).pause_reading()
    pulls: list[asyncio.Task[object]] = [asyncio.create_task(client.pull(0, max_bytes=8 << 20)) for _ in range(20)]
    for _ in range(50):
        await asyncio.sleep(0)
    return client, pulls


def transport(client: Client) -> asyncio.Transport:
    link = client.connection._link
    assert link is not None and link._transport is not None
    return link._transport


@pytest.mark.virtual_time
async def test_a_slow_reader_is_closed_and_its_leases_move_after_the_grace() -> None:
    async with InMemoryBroker(write_high_water_bytes=64 << 10) as broker, Client(broker, "b", keep_alive=True) as other:
        slow, pulls = await deaf(broker)
        await other.join()
        await until(29.0)
        assert (await other.acquire()).status == LockHeld.code
        await until(45.0)

        assert (await other.acquire()).status == 0
        await slow.connection.close()
        assert {type(error) for error in await asyncio.gather(*pulls, return_exceptions=True)} == {ConnectionLost}


@pytest.mark.virtual_time
async def test_the_pulls_of_a_reader_that_catches_up_are_answered() -> None:
    async with InMemoryBroker(write_high_water_bytes=64 << 10) as broker:
        slow, pulls = await deaf(broker)
        await asyncio.sleep(20.0)
        assert not any(pull.done() for pull in pulls)

        transport(slow).resume_reading()

        assert [len(bodies(result)) for result in await asyncio.gather(*pulls)] == [1] * 20  # type: ignore[arg-type]
        await slow.connection.close()


@pytest.mark.virtual_time
async def test_a_stop_does_not_wait_for_a_peer_that_does_not_read() -> None:
    async with InMemoryBroker(write_high_water_bytes=64 << 20, drain_timeout_s=2.0) as broker:
        slow, pulls = await deaf(broker)

        await broker.stop()

        assert asyncio.get_running_loop().time() < 5.0
        await slow.connection.close()
        await asyncio.gather(*pulls, return_exceptions=True)
