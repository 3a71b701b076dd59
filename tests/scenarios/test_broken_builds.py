"""
The proof must fail where the store is wrong: brokers that are broken on purpose, and each is found out.

Each is broken from outside, by a disk, a flusher or a check that does not do what it should.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmq.broker.state.replay import DeferredLog
from rmq.broker.store.files import AnyPath, Files
from rmq.wire.batch import batch as batches
from rmq.wire.batch import checksum, layout
from rmq.wire.batch.layout import Buffer

from rigs.disk.crash import INTERRUPTED, LOST, TORN
from rigs.disk.recording import RecordingFiles
from rigs.recovery.prover import Prover, Report, record_in_memory
from rigs.recovery.served import LateFlusher
from rigs.recovery.workload import Plan

ROUNDS = 6

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time, pytest.mark.seeds(1)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


class EagerFlusher(LateFlusher):
    """Says that all is durable, then makes it so."""

    def request(self) -> None:
        asyncio.get_running_loop().call_soon(self.synced, self.log.written)  # type: ignore[attr-defined]
        super().request()


class NoDirectorySync(Files):
    """Stands before another disk and keeps the syncs of directories from it, but for the first few of each."""

    def __init__(self, inner: Files, spared: int) -> None:
        self._inner = inner
        self._spared = spared
        self._seen: Counter[str] = Counter()
        for name in vars(Files):
            if not name.startswith("_") and name not in ("write_all", "read_file", "replace_file", "sync_directory"):
                setattr(self, name, getattr(inner, name))

    def sync_directory(self, path: AnyPath, fd: int | None = None) -> None:
        self._seen[str(path)] += 1
        if self._seen[str(path)] <= self._spared:
            self._inner.sync_directory(path, fd)


class NoTruncation(Files):
    """A disk on which a file never becomes shorter, and a segment is never removed."""

    def truncate(self, fd: int, size: int) -> None:
        """Not done."""


def check_without_crc(data: Buffer, at: int = 0, *, stamped: bool, **options: Any) -> batches.Checked:
    """What ``check`` would be if it believed every checksum."""
    options["header"] = None
    header = layout.parse_header(data, at)
    copy = bytearray(data[at : at + header.size] if stamped else data[at:])
    end = header.header_size + header.meta_size + header.body_size
    struct.pack_into(">I", copy, 72, checksum.crc32(memoryview(copy)[layout.CRC_FROM : end]))  # type: ignore[attr-defined]
    struct.pack_into(">I", copy, 8, checksum.crc32(memoryview(copy)[12 : header.header_size]))  # type: ignore[attr-defined]
    return CHECK(copy, stamped=stamped, **options)


CHECK: Callable[..., batches.Checked] = batches.check


def assert_caught(report: Report, *signs: str) -> None:
    """The proof failed, and for the reason that it should have."""
    print(report)
    broken = [line for failure in report.failures for line in failure.broken]
    assert broken, f"not caught: {report}"
    assert any(sign in line for line in broken for sign in signs), broken[:10]


async def prove(seed: int, policy: str, *, recovering: Files | None = None, **options: Any) -> Report:
    plan = Plan(seed, rounds=ROUNDS, settings=(("segment_bytes", 4096),))  # so that every seed fills segments
    recording = await record_in_memory(plan, **options)
    prover = Prover(recording, plan, enough=1, recovering=recovering)
    return await prover.run(torn_seeds=range(seed, seed + 4), policies=[policy])


@pytest.mark.parametrize("policy", [LOST, TORN])
async def test_acknowledging_before_the_sync_is_caught(seed: int, policy: str) -> None:
    report = await prove(seed, policy, flusher=EagerFlusher)

    assert_caught(report, "lost the acknowledged batch", "lost the delayed batch", ", not one of")


@pytest.mark.parametrize("spared", [0, 1])
@pytest.mark.parametrize("policy", [LOST, TORN])
async def test_a_directory_that_is_not_synced_is_caught(seed: int, policy: str, spared: int) -> None:
    """Never synced, or at the start only and not when a segment is added."""

    def around(files: RecordingFiles) -> Files:
        return NoDirectorySync(files, spared)

    report = await prove(seed, policy, around=around)

    assert_caught(report, "lost the acknowledged batch", "lost the delayed batch", ", not one of", "a hole")


async def test_a_tail_that_is_not_cut_is_caught(seed: int) -> None:
    report = await prove(seed, INTERRUPTED, recovering=NoTruncation())

    assert_caught(report, "the log is not clean")


async def test_checksums_that_nobody_checks_are_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = await record_in_memory(Plan(seed, rounds=ROUNDS))
    prover = Prover(recording, Plan(seed, rounds=ROUNDS), enough=1)
    monkeypatch.setattr(batches, "check", check_without_crc)

    report = await prover.run(torn_seeds=range(seed, seed + 4), policies=[TORN])

    assert_caught(report, "is not", "were not sent", "the start", "the log is not clean")


async def test_a_start_that_forgets_what_was_delivered_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeferredLog, "delivered", lambda log, origin: False)

    report = await prove(seed, LOST)

    assert_caught(report, "was delivered twice")


async def test_a_start_that_does_not_look_for_what_waits_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeferredLog, "deferred", lambda log, header: None)

    report = await prove(seed, LOST)

    assert_caught(report, "lost the delayed batch", "waiting: ")


async def test_a_sound_build_is_not_accused(seed: int) -> None:
    report = await prove(seed, LOST)

    assert report.failures == [], str(report)
