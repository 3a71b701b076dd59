"""A broker on a disk that fails, fills up, forgets and is tidied by people: what its clients see."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import ConnectionLost, Damaged, DiskFull, LogTruncated, MessagesLost, StoreFailed
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, PullQueue, Stats

from .builders import ORDERS, segment_files
from .faulty_files import FaultyFiles, flip
from .harness import Client, bodies, crash_copy, holder

pytestmark = pytest.mark.virtual_time


def over(path: Path, files: FaultyFiles | None = None, **settings: Any) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), files=files, **settings)


async def every_body(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < (await client.range(group=None)).max_offset:
        found += bodies(await client.pull(len(found)), len(found))
    return found


# ---- writes that fail


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


async def test_damage_is_told_and_what_follows_is_served(memory_path: Path, logs: list[dict[str, Any]]) -> None:
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


async def test_a_reader_that_has_what_the_log_lost_is_told_where_they_agree(memory_path: Path) -> None:
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


async def test_a_group_that_retention_overtakes_is_told(memory_path: Path) -> None:
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
