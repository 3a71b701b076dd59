"""
Delayed messages: when they come, in which order, and once.

Delayed messages on a disk that fails, fills up, forgets and is slow; and what retention leaves of the log.

Delayed messages across stops, crashes and clocks that somebody sets: nothing lost, nothing twice, nothing early.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Iterator, MutableMapping
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
from rmq.broker.state.deferred import DeferredBatch
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import BadBatch, BadDelay, DiskFull
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, OutgoingBatch, Pull, PullQueue
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, segment_files
from ..delay_rig import NOON, SECOND, Wall, Watcher, copy_of, delayed, park, stored
from ..harness import Client
from rigs.disk.faulty import FaultyFiles, UnreadableFiles, flip
from rigs.recovery.served import LateFlusher

pytestmark = pytest.mark.virtual_time
LATE_US = 100_000
LEVELS_S = [1, 5, 10, 30, 60, 120, 180, 240]


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def broker(wall: Wall) -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(wall_us=wall) as broker:
        yield broker


@pytest.fixture
async def client_plain(broker: InMemoryBroker) -> AsyncIterator[Client]:
    async with Client(broker) as client_plain:
        await client_plain.create()
        yield client_plain


def sleep(seconds: float) -> asyncio.Future[None]:
    return asyncio.ensure_future(asyncio.sleep(seconds))


# ---- when


async def test_each_level_comes_when_it_is_due(client_plain: Client, wall: Wall) -> None:
    """Never early, at most 100 ms late. All eighteen are in the scenario, over restarts."""
    watcher = Watcher(client_plain)
    sent: dict[bytes, int] = {}
    for level in range(1, 9):
        body = b"level %d" % level
        sent[body] = wall() - NOON + LEVELS_S[level - 1] * SECOND
        assert (await park(client_plain, body, level=level)).base_offset == NO_OFFSET

    await sleep(250)

    assert watcher.bodies == list(sent)
    assert [0 <= at - sent[body] < LATE_US for body, at in watcher.arrived] == [True] * 8
    await watcher.stop()


async def test_with_100000_waiting_nothing_is_early_or_100_ms_late(
    broker: InMemoryBroker, client_plain: Client
) -> None:
    """They are due in all seconds of a day, mixed; what is sent now comes between them."""
    table = broker.broker._store.delays
    for i in range(100_000):
        table.add(DeferredBatch(NOON + (3600 + i * 7919 % 86_400) * SECOND, 1 << 40 | 8 * i, 200, 1))
    watcher = Watcher(client_plain)
    due: dict[bytes, int] = {}
    for i in range(200):
        body = b"%d" % i
        due[body] = (1 + i * 37 % 50) * SECOND + i * 1013
        await park(client_plain, body, at=NOON + due[body])

    await sleep(60)

    assert watcher.bodies == sorted(due, key=lambda body: due[body])
    assert all(0 <= at - due[body] < LATE_US for body, at in watcher.arrived)
    assert len(table) == 100_000
    await watcher.stop()


@pytest.mark.parametrize("early_us", [1, 1000, 500_000])
async def test_a_message_is_not_there_a_moment_before_its_time(client_plain: Client, wall: Wall, early_us: int) -> None:
    await park(client_plain, b"later", at=wall() + 2 * SECOND)

    await sleep(2 - early_us / SECOND)
    assert await stored(client_plain) == []
    await sleep(early_us / SECOND + 0.01)
    assert await stored(client_plain) == [b"later"]


async def test_a_time_that_has_passed_is_delivered_at_once_and_has_an_offset(client_plain: Client, wall: Wall) -> None:
    result = await park(client_plain, b"late", at=wall() - 1)

    assert (result.status, result.base_offset) == (0, 0)
    assert await stored(client_plain) == [b"late"]


async def test_a_delay_that_this_broker_does_not_have_is_refused_and_spends_the_number(
    client_plain: Client, wall: Wall
) -> None:
    by = ProducerMark(7, 1, 0)
    unknown = await park(client_plain, b"a", level=19, by=by)
    assert (unknown.status, unknown.text) == (BadDelay.code, "there is no delay level 19: this broker has 1 to 18")
    assert (await park(client_plain, b"a", level=19, by=by)).status == BadDelay.code

    far = await park(client_plain, b"b", at=wall() + 2_592_001 * SECOND, by=by._replace(sequence=2))
    assert far.status == BadDelay.code
    assert (await park(client_plain, b"c", level=1, by=by._replace(sequence=3))).status == 0
    both = batches.encode("orders", 0, batches.Rows([b"d"], NOON), delay_level=1)
    both[120:128] = (1).to_bytes(8, "big")
    layout.seal(both, layout.parse_header(delayed(b"d", level=1)).content_size)
    (result,) = await client_plain.send_batches(OutgoingBatch(0, bytes(both)))
    assert result.status == BadBatch.code


# ---- in which order


async def test_order_within_a_level_is_the_order_of_sending(client_plain: Client) -> None:
    for i in range(50):
        await park(client_plain, b"%d" % i, level=1)

    await sleep(1.5)

    assert await stored(client_plain) == [b"%d" % i for i in range(50)]


async def test_levels_and_exact_times_share_one_order(client_plain: Client, wall: Wall) -> None:
    now = wall()
    for body, delay in [
        (b"5 s", {"level": 2}), (b"7 s", {"at": now + 7 * SECOND}), (b"1 s", {"level": 1}),
        (b"3 s", {"at": now + 3 * SECOND}), (b"3 s, sent later", {"at": now + 3 * SECOND}), (b"10 s", {"level": 3}),
    ]:  # fmt: skip
        await park(client_plain, body, **delay)
    await client_plain.send(b"now")

    await sleep(11)

    assert await stored(client_plain) == [b"now", b"1 s", b"3 s", b"3 s, sent later", b"5 s", b"7 s", b"10 s"]


async def test_many_that_are_due_at_once_keep_their_order(
    broker: InMemoryBroker, client_plain: Client, wall: Wall
) -> None:
    """More than one portion, of several queues."""
    at = wall() + 5 * SECOND
    expected: dict[int, list[bytes]] = {queue: [] for queue in range(4)}
    for i in range(10):
        outgoing = [(j % 4, b"%d.%d" % (i, j)) for j in range(250)]
        for queue_id, body in outgoing:
            expected[queue_id].append(body)
        await client_plain.send_batches(
            *(
                OutgoingBatch(queue_id, delayed(body, at=at, to=MessageQueue("orders", queue_id)))
                for queue_id, body in outgoing
            )
        )

    await sleep(6)

    for queue_id, bodies in expected.items():
        assert await stored(client_plain, MessageQueue("orders", queue_id)) == bodies
    stats = broker.broker._handlers.delivery.stats()
    assert (stats["waiting_batches"], stats["delivered_batches"], stats["delivered_messages"]) == (0, 2500, 2500)


# ---- what


@pytest.mark.parametrize("earlier_us", [1, 0])
async def test_a_batch_that_is_parked_in_the_turn_in_which_a_later_one_becomes_due_is_not_passed_over(
    broker: InMemoryBroker, client_plain: Client, wall: Wall, earlier_us: int
) -> None:
    """It is staged, and not yet written: what waits does not have it, when others that are due are looked for."""
    await park(client_plain, b"later", at=NOON + 5 * SECOND)
    await asyncio.sleep(4.9 - asyncio.get_running_loop().time())
    store, due_at = broker.broker._store, NOON + 5 * SECOND - earlier_us
    data = delayed(b"sooner", at=due_at)

    store.stage(ORDERS, 1, data, batches.check(data, stamped=False), 0, due_at)
    broker.broker._committer.schedule()
    wall.shift_s = 0.2
    broker.broker._handlers.delivery.look()
    await asyncio.sleep(1)

    expected = [b"sooner", b"later"] if earlier_us else [b"later", b"sooner"]
    assert await stored(client_plain) == expected
    assert broker.broker._handlers.delivery.stats()["delivered_batches"] == 2


async def test_the_delivered_batch_is_the_producers_and_names_the_parked_one(client_plain: Client) -> None:
    sent = delayed(b"a", b"b", level=1, by=ProducerMark(9, 1, 0), tags=["paid", None], index_keys=[["k"], []])
    (parked,) = await client_plain.send_batches(OutgoingBatch(0, sent))

    await sleep(1.1)

    (batch,) = batches.read_all((await client_plain.pull(0)).batches, stores=StoreIds(1))
    header = batch.header
    assert header.kind == layout.KIND_DATA
    assert header.origin == batches.handle(parked.physical_offset, 0)
    assert (header.base_offset, header.count, header.producer_id, header.delay_level) == (0, 2, 9, 1)
    assert (await client_plain.pull(0)).batches[layout.BROKER_PART :] == sent[layout.BROKER_PART :]
    assert header.stored_at >= parked.stored_at + SECOND


async def test_a_duplicate_of_a_parked_batch_is_answered_again_also_after_a_restart(
    broker: InMemoryBroker, client_plain: Client
) -> None:
    by = ProducerMark(7, 1, 0)
    first = await park(client_plain, b"once", level=1, by=by)

    again = await park(client_plain, b"once", level=1, by=by)
    assert again == first._replace(duplicate=True)
    await sleep(1.5)
    assert await park(client_plain, b"once", level=1, by=by) == again  # delivered: another batch, another number
    await broker.restart()
    await client_plain.connection.wait_connected()
    assert await park(client_plain, b"once", level=1, by=by) == again
    await sleep(1.5)

    assert await stored(client_plain) == [b"once"]
    assert (await park(client_plain, b"next", by=by._replace(sequence=2))).base_offset == 1


async def test_a_parked_message_is_in_no_queue_and_under_no_key_until_it_is_due(client_plain: Client) -> None:
    await park(client_plain, b"a", level=1, index_keys=[["o-17"]])

    assert (await client_plain.range(ORDERS, group=None)).max_offset == 0
    await sleep(1.5)
    assert (await client_plain.range(ORDERS, group=None)).max_offset == 1


async def test_a_parked_pull_is_woken_by_what_becomes_due(client_plain: Client) -> None:
    asking = asyncio.ensure_future(client_plain.pull(0, wait_ms=20_000))
    await park(client_plain, b"a", level=2)
    began = asyncio.get_running_loop().time()

    result = await asking

    assert result.next_offset == 1
    assert 4.9 < asyncio.get_running_loop().time() - began < 5.1


SEGMENT = "00000000000000000000"
SECTOR = 4096
Logs = list[MutableMapping[str, Any]]


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
        stats = broker.broker._handlers.delivery.stats()
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
        delivery = broker.broker._handlers.delivery
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
        delivery = broker.broker._handlers.delivery
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
        delivery = broker._handlers.delivery
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
        delivery = broker.broker._handlers.delivery
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


async def test_a_crash_after_a_checkpoint_delivers_nothing_twice(
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
        await park(client, b"soon", level=1, index_keys=[["k"]])
        await park(client, b"later", level=6, index_keys=[["k"]])
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


def over_restarts(path: Path, wall: Wall, **settings: object) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), wall_us=wall, **settings)


async def sends(client: Client, *delays_s: float, wall: Wall) -> list[bytes]:
    """A message for each delay; their bodies in the order in which they become due."""
    now = wall()
    for delay in delays_s:
        assert (await park(client, b"%g" % delay, at=now + round(delay * SECOND))).status == 0
    return [b"%g" % delay for delay in sorted(delays_s)]


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_what_waits_survives_a_clean_stop(memory_path: Path, wall: Wall, checkpoint: bool) -> None:
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        expected = await sends(client, 5, 1, 9, 3, 7, wall=wall)
        await asyncio.sleep(4)
        assert await stored(client) == expected[:2]
        await broker.stop()
        if not checkpoint:
            (memory_path / "checkpoint").unlink()

        await broker.start()
        await client.connection.wait_connected()
        assert broker.broker._store.delays.batches == 3
        watcher = Watcher(client)
        await asyncio.sleep(10)

        assert watcher.bodies == expected
        assert [at // SECOND for _, at in watcher.arrived][2:] == [5, 7, 9]
        await watcher.stop()


async def test_what_became_due_while_the_broker_was_down_comes_at_its_start_in_order(
    memory_path: Path, wall: Wall
) -> None:
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        expected = await sends(client, 50, 20, 40, 10, 30, 300, wall=wall)
        await asyncio.sleep(15)
        await broker.stop()
        await asyncio.sleep(100)

        await broker.start()
        await client.connection.wait_connected()
        await asyncio.sleep(0.1)
        assert await stored(client) == expected[:5]
        await asyncio.sleep(250)
        assert await stored(client) == expected


async def test_a_stop_ends_delivery(memory_path: Path, wall: Wall) -> None:
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await sends(client, 1, wall=wall)
        delivery = broker.broker._handlers.delivery
        await broker.stop()
        size = sum(path.stat().st_size for path in (memory_path / "commitlog").iterdir())
        await asyncio.sleep(5)

        assert delivery.stats()["delivered_batches"] == 0
        assert sum(path.stat().st_size for path in (memory_path / "commitlog").iterdir()) == size
        await broker.start()


@pytest.mark.parametrize("after_s", [0.5, 2.0, 2.9, 3.5, 8.0])
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_kill_in_the_middle_loses_nothing_and_delivers_nothing_twice(
    memory_path: Path, copy_path: Path, wall: Wall, after_s: float, flush: str
) -> None:
    async with over_restarts(memory_path, wall, flush=flush) as broker, Client(broker) as client:
        await client.create()
        expected = await sends(client, 2, 1, 3, 2, 60, wall=wall)
        await asyncio.sleep(after_s)
        copy = copy_of(broker, copy_path, wall)
    async with copy, Client(copy) as client:
        await asyncio.sleep(70)
        assert sorted(await stored(client), key=float) == expected


async def test_a_log_that_ends_at_any_batch_of_a_delivery_delivers_each_once(
    memory_path: Path, copy_path: Path, wall: Wall
) -> None:
    """A write of many copies may be torn anywhere: those that are there were delivered, the others wait."""
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        for i in range(6):
            await park(client, b"%d" % i, b"and %d" % i, at=NOON + (5 - i // 3) * SECOND)
        await client.create("gone")
        await park(client, b"gone", at=NOON + 4 * SECOND, to=MessageQueue("gone", 0))
        await client.delete_topic("gone")
        before = broker.broker._store.log.written
        await asyncio.sleep(6)
        expected = await stored(client)
        assert expected == [b"%s%d" % (word, i) for i in (3, 4, 5, 0, 1, 2) for word in (b"", b"and ")]
        (log,) = (memory_path / "commitlog").iterdir()
        whole, cuts = log.read_bytes(), [before]
    while cuts[-1] < len(whole) and any(whole[cuts[-1] :]):
        cuts.append(cuts[-1] + layout.parse_header(whole, cuts[-1]).size)
    assert len(cuts) >= 7
    for cut in cuts + [cut + 100 for cut in cuts[:-1]]:
        shutil.rmtree(copy_path, ignore_errors=True)
        (copy_path / "commitlog").mkdir(parents=True)
        (copy_path / "commitlog" / log.name).write_bytes(whole[:cut])
        async with over_restarts(copy_path, wall) as broker, Client(broker) as client:
            await asyncio.sleep(0.1)
            assert await stored(client) == expected
            assert broker.broker._store.delays.batches == 0
            await broker.stop()
            (copy_path / "checkpoint").unlink()
            await broker.start()
            await client.connection.wait_connected()
            await asyncio.sleep(0.1)
            assert await stored(client) == expected


async def test_a_changed_setting_of_levels_delivers_nothing_twice_or_at_another_time(
    memory_path: Path, wall: Wall
) -> None:
    """The time is fixed when the batch is parked."""
    async with over_restarts(memory_path, wall, message_delay_level="3s 20s") as broker, Client(broker) as client:
        await client.create()
        await park(client, b"3 s", level=1)
        await park(client, b"20 s", level=2)
        await asyncio.sleep(5)
    async with over_restarts(memory_path, wall, message_delay_level="600s 1s 5s") as broker, Client(broker) as client:
        watcher = Watcher(client)
        await park(client, b"10 s", level=3)
        await asyncio.sleep(30)
        assert watcher.bodies == [b"3 s", b"10 s", b"20 s"]
        assert [at // SECOND for _, at in watcher.arrived][1:] == [10, 20]
        await watcher.stop()


# ---- clocks


async def test_a_wall_clock_that_is_set_back_delays_no_message(memory_path: Path, wall: Wall) -> None:
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"10 s", level=3)
        await asyncio.sleep(2)
        wall.shift_s = -3600
        await park(client, b"30 s", level=4)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(7.9)
        assert await stored(client) == []
        await asyncio.sleep(0.2)
        assert await stored(client) == [b"10 s"]
        await asyncio.sleep(30 - (asyncio.get_running_loop().time() - began) - 0.1)
        assert await stored(client) == [b"10 s"]
        await asyncio.sleep(0.2)
        assert await stored(client) == [b"10 s", b"30 s"]


async def test_a_wall_clock_that_is_set_forward_is_noticed_within_a_second(memory_path: Path, wall: Wall) -> None:
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"an hour", at=NOON + 3600 * SECOND)
        await park(client, b"two hours", at=NOON + 7200 * SECOND)
        await asyncio.sleep(2)
        wall.shift_s = 3600

        await asyncio.sleep(1.1)

        assert await stored(client) == [b"an hour"]
        assert broker.broker._store.delays.batches == 1


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("back_s", [60.0, 600.0])
async def test_after_a_start_with_a_clock_that_was_set_back_the_old_time_is_not_waited_for(
    memory_path: Path, wall: Wall, back_s: float, checkpoint: bool
) -> None:
    """Retries of all groups would wait for as long as the clock had been ahead."""
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await sends(client, 10, 300, wall=wall)
        await asyncio.sleep(11)
        await broker.stop()
        wall.shift_s = -back_s
        await broker.start()
        await client.connection.wait_connected()

        await park(client, b"2 s", at=wall() + 2 * SECOND)
        await park(client, b"1 s", level=1)
        await asyncio.sleep(0.9)
        assert await stored(client) == [b"10"]
        await broker.stop()
        if not checkpoint:
            (memory_path / "checkpoint").unlink()
        await broker.start()
        await client.connection.wait_connected()
        assert broker.broker._store.delays.batches == 3
        await asyncio.sleep(0.2)
        assert await stored(client) == [b"10", b"1 s"]
        await asyncio.sleep(1)
        assert await stored(client) == [b"10", b"1 s", b"2 s"]
        await broker.stop()
        if not checkpoint:
            (memory_path / "checkpoint").unlink()
        await broker.start()
        await client.connection.wait_connected()
        await asyncio.sleep(300 + back_s)
        assert await stored(client) == [b"10", b"1 s", b"2 s", b"300"]


# ---- topics


async def test_messages_of_a_deleted_topic_are_passed(
    memory_path: Path, wall: Wall, logs: list[dict[str, object]]
) -> None:
    payments = MessageQueue("payments", 0)
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await client.create("payments")
        for i in range(3):
            await park(client, b"gone %d" % i, level=1)
        await park(client, b"kept", level=1, to=payments)
        await client.delete_topic("orders")
        await client.create()
        await park(client, b"new", level=2)
        await asyncio.sleep(2)

        assert await stored(client) == []
        assert await stored(client, payments) == [b"kept"]
        (line,) = [entry for entry in logs if entry["event"] == "delay.passed"]
        assert (line["batches"], line["reason"]) == (3, "its topic is gone")
        assert broker.broker._handlers.delivery.stats()["passed_batches"] == 3
        await asyncio.sleep(4)
        assert await stored(client) == [b"new"]


async def test_what_was_passed_is_not_passed_again_after_a_crash(
    memory_path: Path, copy_path: Path, wall: Wall
) -> None:
    async with over_restarts(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"gone", level=1)
        await client.delete_topic("orders")
        await asyncio.sleep(2)
        copy = copy_of(broker, copy_path, wall)
    async with copy:
        await asyncio.sleep(2)
        assert copy.broker._handlers.delivery.stats()["passed_batches"] == 0
