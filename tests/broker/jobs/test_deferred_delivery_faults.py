"""Delayed messages on a disk that fails, fills up, forgets and is slow; and what retention leaves of the log."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.jobs.deferred_delivery import PORTION_BATCHES
from rmq.broker.offline.backup import Backup
from rmq.broker.offline.reader import OfflineLog
from rmq.broker.offline.verify import Verification
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import DiskFull
from rmq.wire.protocol.ops.core import Op, OutgoingBatch, Pull, PullQueue

from ..builders import segment_files
from ..delay_rig import NOON, SECOND, Wall, copy_of, delayed, park, stored
from ..faulty_files import FaultyFiles, flip
from ..harness import Client
from support.faulty import UnreadableFiles
from support.served import LateFlusher

pytestmark = pytest.mark.virtual_time

SEGMENT = "00000000000000000000"
SECTOR = 4096

Logs = list[MutableMapping[str, Any]]


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def copy_path(memory_path: Path) -> Iterator[Path]:
    path = memory_path.with_name(memory_path.name + "-copy")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def over(path: Path, wall: Wall, files: FaultyFiles | None = None, **settings: Any) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), wall_us=wall, files=files, **settings)


def events(logs: Logs, name: str) -> Logs:
    return [entry for entry in logs if entry["event"] == name]


# ---- writes that fail


@pytest.mark.parametrize("fault", [(errno.ENOSPC, 0), (errno.ENOSPC, 100), (errno.EIO, 0), (errno.EIO, 300)])
async def test_a_write_that_fails_leaves_all_waiting_and_is_tried_again_after_a_second(
    memory_path: Path, copy_path: Path, wall: Wall, fault: tuple[int, int], logs: Logs
) -> None:
    number, after = fault
    files = FaultyFiles()
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        for i in range(3):
            await park(client, b"%d" % i, level=1)
        files.fail("write", "commitlog", number, after=after)
        await asyncio.sleep(3.5)
        assert await stored(client) == []
        assert broker.broker._store.delays.batches == 3
        assert len(events(logs, "delay.failed")) == 3
        crashed = copy_of(broker, copy_path, wall)
        files.heal()
        await asyncio.sleep(0.95)
        assert await stored(client) == [b"0", b"1", b"2"]
        await asyncio.sleep(5)
        assert await stored(client) == [b"0", b"1", b"2"]
    async with crashed, Client(crashed) as client:
        await asyncio.sleep(0.1)
        assert await stored(client) == [b"0", b"1", b"2"]


async def test_what_is_due_is_delivered_down_to_half_of_the_least_free_disk_space(
    memory_path: Path, wall: Wall
) -> None:
    """Retention can free nothing that waits: a disk full of it would stay full."""
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=2)
        disk = broker.broker._disk
        disk.look()
        disk._min_free = disk.free_bytes + disk.free_bytes // 2
        await asyncio.sleep(8)

        assert await stored(client) == [b"a"]
        assert (await park(client, b"b", level=1)).status == DiskFull.code


async def test_below_half_of_the_least_free_disk_space_everything_waits(memory_path: Path, wall: Wall) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=2)
        disk = broker.broker._disk
        disk._min_free = 1 << 60
        await asyncio.sleep(8)
        assert await stored(client) == []

        disk._min_free = 0
        await asyncio.sleep(2.1)

        assert await stored(client) == [b"a"]


# ---- reads that fail


async def test_a_disk_that_cannot_be_read_for_a_while_is_asked_again(memory_path: Path, wall: Wall, logs: Logs) -> None:
    files = FaultyFiles()
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=1)
        files.fail("open_to_read", "commitlog", errno.EMFILE, times=2)
        await asyncio.sleep(2.5)
        assert await stored(client) == []
        await asyncio.sleep(2)
        assert await stored(client) == [b"a"]
        assert len(events(logs, "delay.unreadable")) == 1


@pytest.mark.parametrize("at", [4, 20, 64, 110, 160])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_damaged_parked_batch_is_passed_and_the_others_come(
    memory_path: Path, wall: Wall, at: int, restart: bool, logs: Logs
) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=1)
        bad = await park(client, b"b" * 50, level=1)
        await park(client, b"c", level=1)
        if restart:
            await broker.stop()
            (memory_path / "checkpoint").unlink()
        flip(segment_files(memory_path)[0], bad.physical_offset + at)
        if restart:
            await broker.start()
            await client.connection.wait_connected()
        await asyncio.sleep(2)

        assert await stored(client) == [b"a", b"c"]
        if not restart or at >= 136:  # else nothing says any more that it waited
            assert [line["reason"] for line in events(logs, "delay.passed")] == ["it is damaged"]


async def test_deferred_messages_that_the_disk_cannot_read_wait_until_it_can(
    memory_path: Path, wall: Wall, logs: Logs
) -> None:
    files = FaultyFiles()
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=1)
        files.fail("read", "commitlog", errno.EIO, times=2)
        await park(client, b"b", level=1)
        await asyncio.sleep(5)
        assert await stored(client) == [b"a", b"b"]
        assert events(logs, "delay.unreadable") and not events(logs, "delay.passed")


@pytest.mark.parametrize("sector", range(6))
@pytest.mark.parametrize("short", [True, False], ids=["short reads", "failed reads"])
async def test_a_deferred_batch_of_which_the_disk_cannot_read_a_part_waits_until_it_can(
    memory_path: Path, wall: Wall, sector: int, short: bool, logs: Logs
) -> None:
    files = UnreadableFiles(SEGMENT, end=0, short=short)
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        parked = await park(client, body := b"a" * 20_000, level=1)
        at = parked.physical_offset + min(sector * SECTOR, len(body)) & -SECTOR
        files.fail(at, at + SECTOR)
        await asyncio.sleep(5)
        assert await stored(client) == []
        assert broker.broker._store.delays.batches == 1

        files.repair()
        await asyncio.sleep(60)

        assert await stored(client) == [body]
        assert events(logs, "delay.unreadable") and not events(logs, "delay.passed")


async def test_what_is_due_before_unreadable_bytes_is_delivered_and_the_rest_waits_in_order(
    memory_path: Path, copy_path: Path, wall: Wall, logs: Logs
) -> None:
    files = UnreadableFiles(SEGMENT, end=0)
    bodies = [b"%d" % i * 9000 for i in range(8)]
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        placed = [await park(client, body, level=1) for body in bodies]
        at = (placed[3].physical_offset + 4200) & -SECTOR
        files.fail(at, at + SECTOR)
        await asyncio.sleep(600)

        assert await stored(client) == bodies[:3]
        (line,) = events(logs, "delay.unreadable")
        first, size = placed[3].physical_offset, placed[4].physical_offset - placed[3].physical_offset
        assert (
            f"bytes {first} to {first + size}: Input/output error: '{segment_files(memory_path)[0]}'" in line["error"]
        )
        assert line["waiting_batches"] == 5
        stats = broker.broker._serving.delivery.stats()
        assert (stats["waiting_batches"], stats["passed_batches"]) == (5, 0)
        assert 12 <= stats["failed_reads"] <= 16
        crashed = copy_of(broker, copy_path, wall)

        files.repair()
        await asyncio.sleep(60)
        assert await stored(client) == bodies
    async with crashed, Client(crashed) as client:
        await asyncio.sleep(1)
        assert await stored(client) == bodies
    assert not events(logs, "delay.passed")


async def test_a_copy_with_zeros_for_a_deferred_batch_that_cannot_be_read_delivers_the_others(
    memory_path: Path, copy_path: Path, wall: Wall, logs: Logs
) -> None:
    """What an operator does when a sector is dead: see "The disk failed" in operations.md."""
    files = UnreadableFiles(SEGMENT, end=0)
    bodies = [b"%d" % i * 9000 for i in range(3)]
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        placed = [await park(client, body, level=1) for body in bodies]
        at = (placed[1].physical_offset + 4200) & -SECTOR
        files.fail(at, at + SECTOR)
        await asyncio.sleep(60)
    copy = copy_of(broker, copy_path, wall)
    (segment,) = segment_files(copy_path)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:at] + bytes(SECTOR) + whole[at + SECTOR :])

    async with copy, Client(copy) as client:
        await asyncio.sleep(1)
        assert await stored(client) == [bodies[0], bodies[2]]
        assert [line["reason"] for line in events(logs, "delay.passed")] == ["it is damaged"]


async def test_a_defect_does_not_end_delivery(memory_path: Path, wall: Wall, logs: Logs) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=1)
        await park(client, b"b", level=2)
        delivery = broker.broker._serving.delivery
        staging = delivery._stage
        delivery._stage = lambda due: 1 / 0  # type: ignore[assignment, return-value]
        await asyncio.sleep(1.5)
        delivery._stage = staging  # type: ignore[method-assign]
        assert await stored(client) == []
        await asyncio.sleep(5)
        assert await stored(client) == [b"a", b"b"]
        assert len(events(logs, "delay.defect")) == 1


async def test_what_was_staged_before_a_defect_is_not_delivered_again(memory_path: Path, wall: Wall) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        for body in (b"a", b"b", b"c"):
            await park(client, body, at=NOON + 5 * SECOND)
        delivery = broker.broker._serving.delivery
        staging = delivery._stage
        delivery._stage = lambda due: staging(due) if b"b" not in due.data[-8:] else 1 / 0  # type: ignore[assignment, method-assign, return-value]
        await asyncio.sleep(8.5)
        delivery._stage = staging  # type: ignore[method-assign]
        assert await stored(client) == [b"a"]
        await asyncio.sleep(5)
        assert await stored(client) == [b"a", b"b", b"c"]


# ---- a slow disk


async def test_nothing_is_delivered_before_it_is_durable(memory_path: Path, wall: Wall) -> None:
    """Who was never told that the message is stored must not see it come."""
    loop = asyncio.get_running_loop()
    broker = Broker(
        BrokerConfig(data_dir=str(memory_path), listen="127.0.0.1:0"), now=loop.time, wall_us=wall,
        flusher=partial(LateFlusher, delay_s=4.0),
    )  # fmt: skip
    await broker.start()
    client = Client(broker)  # type: ignore[arg-type]  # it has an address
    async with client:
        await client.create()
        began = loop.time()
        sending = asyncio.ensure_future(park(client, b"a", level=1))
        await asyncio.sleep(3.9)
        assert not sending.done()
        delivery = broker._serving.delivery
        assert delivery.stats()["delivered_batches"] == 0
        result = await sending
        assert 4.0 <= loop.time() - began < 4.1
        assert result.status == 0
        await asyncio.sleep(0.1)
        assert delivery.stats()["delivered_batches"] == 1
        assert await stored(client) == []  # the copy is not durable yet either
        await asyncio.sleep(4)
        assert await stored(client) == [b"a"]
    await broker.stop()


async def test_a_portion_that_is_read_when_the_broker_stops_is_not_appended(memory_path: Path, wall: Wall) -> None:
    files = FaultyFiles()
    async with over(memory_path, wall, files) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"a", level=1)
        delivery = broker.broker._serving.delivery
        files.before = lambda done: delivery.stop() if done.op == "read" else None
        await asyncio.sleep(2)
        files.before = lambda done: None
        assert delivery.stats()["delivered_batches"] == 0
        await broker.restart()
        await client.connection.wait_connected()
        await asyncio.sleep(0.1)
        assert await stored(client) == [b"a"]


async def test_appending_gives_others_a_turn_every_2_ms(memory_path: Path, wall: Wall) -> None:
    ticks, files = iter(range(10**9)), FaultyFiles()
    config = BrokerConfig(data_dir=str(memory_path), listen="127.0.0.1:0")
    broker = Broker(
        config, now=asyncio.get_running_loop().time, wall_us=wall, clock=lambda: next(ticks) * 0.001,
        flusher=LateFlusher, files=files,
    )  # fmt: skip
    await broker.start()
    async with Client(broker) as client:  # type: ignore[arg-type]  # it has an address
        await client.create()
        for i in range(20):
            await park(client, b"%d" % i, at=NOON + 5 * SECOND)
        before = len(files.ops("commitlog", "write"))
        await asyncio.sleep(6)
        assert len(files.ops("commitlog", "write")) - before >= 7
        assert await stored(client) == [b"%d" % i for i in range(20)]
    await broker.stop()


# ---- the log and the files beside it


async def test_retention_keeps_the_segment_of_a_waiting_batch(memory_path: Path, wall: Wall) -> None:
    small = {"segment_bytes": 4096, "retention_bytes": 8192, "checkpoint_s": 5.0}
    async with over(memory_path, wall, **small) as broker, Client(broker) as client:
        await client.create()
        for _ in range(10):
            await client.send(bytes(1000))
        parked = await park(client, b"waits", level=5)
        held = str(broker.broker._store.log.segment_at(parked.physical_offset).path)
        for _ in range(30):
            await client.send(bytes(1000))
        await asyncio.sleep(40)
        oldest = segment_files(memory_path)[0]
        assert 0 < int(oldest.name) <= parked.physical_offset
        assert Path(held).exists()

        await asyncio.sleep(60)

        assert (await stored_from_end(client)) == b"waits"
        assert not Path(held).exists()


async def stored_from_end(client: Client) -> bytes:
    end = (await client.range(group=None)).max_offset
    result = await client.pull(end - 1)
    return result.batches.rstrip(b"\0")[-5:]


async def test_many_that_wait_are_in_the_checkpoint_and_come_back_from_it(memory_path: Path, wall: Wall) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        for i in range(10):
            batch = [OutgoingBatch(0, delayed(b"%d" % (200 * i + j), level=6)) for j in range(200)]
            await client.send_batches(*batch)
        await broker.restart()
        await client.connection.wait_connected()
        assert broker.broker.recovered is not None
        assert broker.broker.recovered.batches == 0  # nothing of the log was read
        assert broker.broker._store.delays.batches == 2000 > PORTION_BATCHES
        await asyncio.sleep(121)
        assert await stored(client) == [b"%d" % i for i in range(2000)]


async def test_a_crash_behind_a_checkpoint_delivers_nothing_twice(
    memory_path: Path, copy_path: Path, wall: Wall
) -> None:
    async with over(memory_path, wall, checkpoint_s=3.0) as broker, Client(broker) as client:
        await client.create()
        for delay in (1, 2, 6, 7, 9):
            await park(client, b"%d" % delay, at=NOON + delay * SECOND)
        await asyncio.sleep(4.5)
        await park(client, b"8", at=NOON + 8 * SECOND)
        await asyncio.sleep(2)
        copy = copy_of(broker, copy_path, wall)
    async with copy, Client(copy) as client:
        assert copy.broker.recovered is not None
        assert copy.broker.recovered.read_from > 0
        await asyncio.sleep(5)
        assert await stored(client) == [b"1", b"2", b"6", b"7", b"8", b"9"]


async def test_a_scrub_a_backup_and_a_stopped_log_know_what_waits(
    memory_path: Path, copy_path: Path, wall: Wall
) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await client.send(b"now")
        await park(client, b"soon", level=1, keys=[["k"]])
        await park(client, b"later", level=6, keys=[["k"]])
        await asyncio.sleep(2)
        Backup(memory_path, copy_path, broker.broker._store.log.durable).run()
    report = Verification(memory_path).run()
    assert (report.findings, report.messages) == ([], 4)
    for path in (memory_path, copy_path):
        with OfflineLog(str(path)) as log:
            ((_, status, following, *_),) = log.request(Op.PULL, Pull(None, 0, 1 << 20, [PullQueue("orders", 0, 0)]))
            assert (status, following) == (0, 2)
    async with over(copy_path, wall) as copy, Client(copy) as client:
        assert copy.broker._store.delays.batches == 1
        await asyncio.sleep(130)
        assert await stored(client) == [b"now", b"soon", b"later"]
    assert Verification(copy_path).run().findings == []


async def test_a_scrub_tells_what_a_damaged_parked_batch_held(memory_path: Path, wall: Wall) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        bad = await park(client, b"b" * 50, level=6)
        await client.send(b"behind")
    flip(segment_files(memory_path)[0], bad.physical_offset + 160)

    (finding,) = Verification(memory_path).run().findings

    assert finding.in_log
    assert "it held 1 delayed messages for orders/0" in finding.text
