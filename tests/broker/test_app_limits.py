"""What the broker refuses and whom it ends, so that the others go on: connections, disk space, slow readers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq.broker.jobs.maintenance import DiskWatch
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import ConnectionLost, DiskFull, LockHeld
from rmq.wire.protocol.ops.core import EMPTY, Op

from .harness import Client, bodies, holder, until


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
