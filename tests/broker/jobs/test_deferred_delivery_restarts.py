"""Delayed messages across stops, crashes and clocks that somebody sets: nothing lost, nothing twice, nothing early."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import layout
from rmq.wire.model import MessageQueue

from ..delay_rig import NOON, SECOND, Wall, Watcher, copy_of, park, stored
from ..harness import Client

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def copy_path(memory_path: Path) -> Iterator[Path]:
    path = memory_path.with_name(memory_path.name + "-copy")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def over(path: Path, wall: Wall, **settings: object) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), wall_us=wall, **settings)


async def sends(client: Client, *delays_s: float, wall: Wall) -> list[bytes]:
    """A message for each delay; their bodies in the order in which they become due."""
    now = wall()
    for delay in delays_s:
        assert (await park(client, b"%g" % delay, at=now + round(delay * SECOND))).status == 0
    return [b"%g" % delay for delay in sorted(delays_s)]


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_what_waits_survives_a_clean_stop(memory_path: Path, wall: Wall, checkpoint: bool) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await sends(client, 1, wall=wall)
        delivery = broker.broker._serving.delivery
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
    async with over(memory_path, wall, flush=flush) as broker, Client(broker) as client:
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
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
        async with over(copy_path, wall) as broker, Client(broker) as client:
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
    async with over(memory_path, wall, message_delay_level="3s 20s") as broker, Client(broker) as client:
        await client.create()
        await park(client, b"3 s", level=1)
        await park(client, b"20 s", level=2)
        await asyncio.sleep(5)
    async with over(memory_path, wall, message_delay_level="600s 1s 5s") as broker, Client(broker) as client:
        watcher = Watcher(client)
        await park(client, b"10 s", level=3)
        await asyncio.sleep(30)
        assert watcher.bodies == [b"3 s", b"10 s", b"20 s"]
        assert [at // SECOND for _, at in watcher.arrived][1:] == [10, 20]
        await watcher.stop()


# ---- clocks


async def test_a_wall_clock_that_is_set_back_keeps_nobody_waiting(memory_path: Path, wall: Wall) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
async def test_after_a_start_with_a_clock_that_was_set_back_nobody_waits_for_the_old_time(
    memory_path: Path, wall: Wall, back_s: float, checkpoint: bool
) -> None:
    """Retries of all groups would wait for as long as the clock had been ahead."""
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
    async with over(memory_path, wall) as broker, Client(broker) as client:
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
        assert broker.broker._serving.delivery.stats()["passed_batches"] == 3
        await asyncio.sleep(4)
        assert await stored(client) == [b"new"]


async def test_what_was_passed_is_not_passed_again_after_a_crash(
    memory_path: Path, copy_path: Path, wall: Wall
) -> None:
    async with over(memory_path, wall) as broker, Client(broker) as client:
        await client.create()
        await park(client, b"gone", level=1)
        await client.delete_topic("orders")
        await asyncio.sleep(2)
        copy = copy_of(broker, copy_path, wall)
    async with copy:
        await asyncio.sleep(2)
        assert copy.broker._serving.delivery.stats()["passed_batches"] == 0
