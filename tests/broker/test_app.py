"""The broker as a whole: start, stop, the disk, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.store.directory import DataDirectory, StoreError
from rmq.broker.store.flusher import Failed, Flusher, SyncableLog, Synced
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import layout
from rmq.wire.errors import ConfigError, ConnectionLost, ShuttingDown
from rmq.wire.protocol.ops.core import EMPTY, Op, OutgoingBatch, Send

from .builders import descriptors_limited_to, make_batch, segment_files
from .harness import Client, bodies
from support.batches import patched


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
async def test_a_tail_that_was_cut_is_told_at_start(memory_path: Path, logs: list[dict[str, object]]) -> None:
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
        assert not broker._upkeep.idle

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
