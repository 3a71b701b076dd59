"""What a copied store knows of its original survives crashes, restarts and retention."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from rmq.broker.offline.backup import restore
from rmq.broker.store.directory import DataDirectory
from rmq.broker.store.message_store import MessageStore
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import OK

from .harness import Client, bodies, crash_copy

pytestmark = pytest.mark.virtual_time

ORIGINAL_GRACE_S: Final = 40.0


def over(path: Path, **settings: Any) -> InMemoryBroker:
    return InMemoryBroker(data_dir=str(path), **settings)


@pytest_asyncio.fixture
async def original(memory_path: Path) -> tuple[Path, int]:
    """A stopped store with a message and a lease, and its id."""
    path = memory_path / "original"
    async with over(path, grace_s=ORIGINAL_GRACE_S) as broker, Client(broker, "owner") as client:
        await client.create()
        await client.send(b"before")
        await client.join()
        await client.acquire()
        return path, client.hello.store_id


@pytest.fixture
def copy(original: tuple[Path, int]) -> Path:
    """A plain copy of it, which was not started yet."""
    path, _ = original
    return Path(shutil.copytree(path, path.with_name("copy")))


async def former_ids(broker: InMemoryBroker) -> list[int]:
    async with broker, Client(broker) as client:
        return [former.store_id for former in client.hello.former]


async def test_leases_that_a_copy_ended_stay_ended_after_a_crash(copy: Path) -> None:
    async with over(copy) as broker:
        crashed = crash_copy(broker, copy.with_name("crashed"))

    async with crashed, Client(crashed, "other") as client:
        await client.join()
        assert (await client.acquire()).status == OK


async def test_a_copy_keeps_its_former_id_when_retention_has_removed_its_first_start(
    copy: Path, original: tuple[Path, int]
) -> None:
    small = {"segment_bytes": 4096, "retention_bytes": 8192, "checkpoint_bytes": 4096, "recent_bytes": 0}
    async with over(copy, **small) as broker, Client(broker) as client:
        (former,) = client.hello.former
        for i in range(60):
            await client.send(b"%d" % i * 200)
            await asyncio.sleep(1.0)
        for _ in range(100):  # the threads take real time, the clock does not
            await asyncio.sleep(1.0)
        assert broker.broker._store.log.start > former.until

    assert await former_ids(over(copy)) == [original[1]]


async def test_a_copy_keeps_its_former_id_over_a_crash_after_the_grace_of_its_original(
    copy: Path, original: tuple[Path, int]
) -> None:
    async with over(copy, grace_s=ORIGINAL_GRACE_S / 2) as broker:
        await asyncio.sleep(ORIGINAL_GRACE_S + 2)
        crashed = crash_copy(broker, copy.with_name("crashed"))

    assert await former_ids(crashed) == [original[1]]


@pytest.mark.parametrize(
    "step", [(MessageStore, "write"), (DataDirectory, "write_name")], ids=["not durable", "durable"]
)
async def test_a_marked_copy_whose_first_start_ends_early_takes_another_id_at_the_next(
    original: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    path, store_id = original
    copy = path.with_name("copy")
    restore(path, copy)

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "it failed")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="it failed"):
        patch.setattr(*step, fail)
        await over(copy).start()

    again = over(copy, recognise_copies=False)
    async with again, Client(again) as client:
        assert client.hello.former[0].store_id == store_id != client.hello.store_id
        assert bodies(await client.pull(0)) == [b"before"]


async def test_a_restart_of_a_copy_reads_only_what_follows_its_checkpoint(copy: Path) -> None:
    async with over(copy) as broker, Client(broker) as client:
        (former,) = client.hello.former

    async with over(copy) as broker:
        assert broker.broker.recovered is not None and broker.broker.recovered.read_from > former.until
