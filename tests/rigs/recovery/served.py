"""
A broker on any directory and any disk, and all that it holds, in plain values.

This is the one place that looks into the broker: ``describe`` reads its tables by their attributes, and everything
that readers see through a connection, as they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.offline.verify import Verification
from rmq.broker.state.deferred import DeferredBatch, DeliveryMark
from rmq.broker.store.changes import Change, Committed
from rmq.broker.store.files import Files
from rmq.broker.store.flusher import Failed, FlusherFactory, SyncableLog, Synced
from rmq.broker.store.key_index import Hit, IndexGap, KeySearch
from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import WireError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.disk.crash import Image

SEGMENT_BYTES = 8192
SYNC_S = 0.002  # how long a sync takes, so that something can happen before it ends
INTERVAL_S = 0.5  # of `async`
LONG_S = 1e6
NOON = 1_700_000_000_000_000
KEYS = tuple(f"k{i}" for i in range(6))  # those that a workload uses

Queue = tuple[str, int]
OfGroup = tuple[str, str, int]  # group, topic, queue


class LateFlusher:
    """A flusher without a thread that syncs a while after it was asked to, by the clock of the loop."""

    def __init__(
        self, log: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed, *, delay_s: float = SYNC_S
    ) -> None:
        self.log = log
        self.synced = synced
        self._failed = failed
        self._delay_s = delay_s
        self._wanted = False

    def start(self) -> None:
        """Nothing to start."""

    def request(self) -> None:
        """Sync in a while."""
        if not self._wanted:
            self._wanted = True
            asyncio.get_running_loop().call_later(self._delay_s, self._sync)

    def _sync(self) -> None:
        self._wanted = False
        try:
            position = self.log.sync()
        except OSError as error:
            self._failed(error)
        else:
            self.synced(position)

    def stop(self) -> None:
        """Nothing is left: a store that is closed syncs itself."""

    def stats(self) -> dict[str, float]:
        """Nothing is measured."""
        return {}


def interval_flusher(log: SyncableLog, post: Callable[..., object], synced: Synced, failed: Failed) -> LateFlusher:
    """The pace of ``async``: a sync this long after the first write that waits for one."""
    return LateFlusher(log, post, synced, failed, delay_s=INTERVAL_S)


def settings(directory: Path, **changed: Any) -> BrokerConfig:
    """A broker with small files and little memory, so that it reads files, and whose leases outlive a long test."""
    chosen: dict[str, Any] = {
        "listen": "127.0.0.1:0", "data_dir": str(directory), "segment_bytes": SEGMENT_BYTES, "min_free_bytes": 0,
        "index_file_entries": 16, "recent_bytes": 2048, "checkpoint_bytes": 3 * SEGMENT_BYTES, "checkpoint_s": 8.0,
        "lock_lease_s": LONG_S, "member_expiry_s": LONG_S, "recognise_copies": False,
    }  # fmt: skip
    return BrokerConfig(**{**chosen, **changed})


def wall_us() -> int:
    """The wall clock of brokers here: it goes with the loop's, so that what is delayed comes in its time."""
    return NOON + round(asyncio.get_running_loop().time() * 1_000_000)


@asynccontextmanager
async def serving(
    config: BrokerConfig, *, files: Files | None = None, flusher: FlusherFactory | None = None,
    wall: Callable[[], int] = wall_us,
) -> AsyncIterator[Broker]:  # fmt: skip
    """A broker for the length of an ``async with``, stopped cleanly at its end."""
    chosen = flusher or (LateFlusher if config.flush == "sync" else interval_flusher)
    now = asyncio.get_running_loop().time
    broker = Broker(config, now=now, wall_us=wall, flusher=chosen, files=files or Files())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class LogBatch(NamedTuple):
    """A batch as it lies in the log."""

    position: int
    size: int
    log_epoch: int
    header_crc: int
    batch_crc: int
    origin: int = 0


class Message(NamedTuple):
    """A message as a reader sees it."""

    offset: int
    body: bytes
    tag: str | None
    keys: tuple[str, ...]


class Found(NamedTuple):
    """All that a broker holds; equal for brokers that hold the same."""

    topics: dict[str, tuple[int, int]]  # generation, queues
    ranges: dict[Queue, tuple[int, int]]
    messages: dict[Queue, list[Message]]
    committed: dict[OfGroup, int]
    leases: dict[OfGroup, int]  # the epoch
    attempts: dict[OfGroup, dict[int, int]]  # of each failing message
    announced: dict[OfGroup, tuple[int, int]]  # the message that is being processed, and under which epoch
    failing: list[Change]  # attempts, marks and dead letters, as they would stand in a snapshot
    producers: dict[int, tuple[int, int, dict[int, Any]]]  # epoch, last number, and what became of the newest ones
    keys: dict[str, tuple[list[int], list[IndexGap]]]  # what the key index finds: places, and where it cannot tell
    waiting: list[DeferredBatch]  # delayed batches

    def without_fates(self) -> Found:
        """The same, but of producers only how far they got."""
        return self._replace(producers={of: (epoch, last, {}) for of, (epoch, last, _) in self.producers.items()})

    def differences(self, other: Found) -> list[str]:
        """Where two are not equal, a line each."""
        return [
            f"{name}: {mine!r:.300} against {theirs!r:.300}"
            for name, mine, theirs in zip(self._fields, self, other, strict=True)
            if mine != theirs
        ]


async def describe(broker: Broker) -> Found:
    """What a broker that has just started holds."""
    topics = {topic.name: (topic.generation, topic.queues) for topic in broker._topics.all()}
    queues = [(name, queue_id) for name, (_, count) in topics.items() for queue_id in range(count)]
    ranges, messages = await _read_all(broker, queues)
    return Found(
        topics=topics,
        ranges=ranges,
        messages=messages,
        committed={tuple(row[:3]): row[3] for row in broker._ledger.offsets.rows()},  # type: ignore[misc]
        leases={(group, *queue): lease.epoch for (group, queue), lease in broker._locks._leases.items()},
        attempts=_attempts(broker),
        announced={
            (row.group, row.topic, row.queue_id): (row.suspect_offset, row.announced_by)
            for row in broker._ledger.suspects.rows()
        },
        failing=sorted((change for change in broker._ledger.rows() if not isinstance(change, Committed)), key=repr),
        producers={of: (line.epoch, line.last, _fates(line)) for of, line in broker._producers._producers.items()},
        keys=await _keys(broker),
        waiting=broker._store.delays.page(DeliveryMark(), 1 << 20),
    )


async def _read_all(
    broker: Broker, queues: list[Queue]
) -> tuple[dict[Queue, tuple[int, int]], dict[Queue, list[Message]]]:
    connection = Connection(broker.address, client="describe", now=asyncio.get_running_loop().time)
    await connection.open(timeout_s=5.0)
    try:
        ranges = await _ranges(connection, queues)
        return ranges, await _messages(connection, ranges)
    finally:
        await connection.close()


def _attempts(broker: Broker) -> dict[OfGroup, dict[int, int]]:
    table = broker._ledger.attempts
    return {
        (row.group, row.topic, row.queue_id): {
            offset: run.attempts
            for run in table.runs(row.group, MessageQueue(row.topic, row.queue_id))
            for offset in range(run.from_offset, run.end_offset)
        }
        for row in table.rows()
    }


def _fates(line: Any) -> dict[int, Any]:
    """What became of the newest numbers of a producer, of those whose fate is known."""
    fates = {number: line.fate(number) for number in range(line.first_known, line.last + 1)}
    return {number: fate for number, fate in fates.items() if fate is not None}


async def _keys(broker: Broker) -> dict[str, tuple[list[int], list[IndexGap]]]:
    store, indexed = broker._store, asyncio.Event()
    broker._maintenance.index_now(indexed.set)
    await indexed.wait()
    starts = [extent.start for extent in store.log.extents()]
    ranges = list(zip(starts, [*starts[1:], store.log.written], strict=True))
    found = {}
    for key in KEYS:
        hits = list(store.keys.search(KeySearch(crc32(key.encode()), 0, layout.MAX_TIME, store.log.written), ranges))
        gaps = [hit for hit in hits if isinstance(hit, IndexGap)]
        found[key] = sorted(hit.position for hit in hits if isinstance(hit, Hit)), gaps
    return found


async def _ranges(connection: Connection, queues: list[Queue]) -> dict[Queue, tuple[int, int]]:
    if not queues:
        return {}
    asked = ops.Ranges(None, [ops.QueueRef(*queue) for queue in queues])
    found = decode_list(ops.Range, await connection.request(Op.RANGES, asked))
    return {queue: (one.min_offset, one.max_offset) for queue, one in zip(queues, found, strict=True)}


async def _messages(connection: Connection, ranges: dict[Queue, tuple[int, int]]) -> dict[Queue, list[Message]]:
    found: dict[Queue, list[Message]] = {queue: [] for queue in ranges}
    offsets = {queue: first for queue, (first, end) in ranges.items() if first < end}
    while offsets:
        asked = list(offsets)
        wanted = [ops.PullQueue(*queue, offset) for queue, offset in offsets.items()]
        answer = await connection.request(Op.PULL, ops.Pull(None, 0, 1 << 20, wanted))
        for result in decode_list(ops.PullResult, answer):
            queue = asked[result.index]
            assert result.status == 0, f"{queue} cannot be read at {offsets[queue]}: {result}"
            for batch in batches.read_all(result.batches, stores=StoreIds(1)):
                found[queue] += [
                    Message(m.queue_offset, m.body, m.tag, m.index_keys) for m in batch.messages(offsets[queue])
                ]
            offsets[queue] = result.next_offset
            if result.next_offset >= ranges[queue][1]:
                del offsets[queue]
    return found


def read_log(segments: dict[int, bytes]) -> tuple[list[LogBatch], list[str]]:
    """
    The batches of a log by the start of their segment, and what else lies there: a line for each place.

    It knows the format and nothing of the store. Zeros after the last batch of a segment are nothing.
    """
    found, odd = [], []
    for start, content in sorted(segments.items()):
        at = 0
        while at < len(content):
            try:
                header = batches.check(content, at, stamped=True).header
            except WireError as error:
                if any(content[at:]):
                    odd.append(f"at {start + at}: {error.text}")
                break
            if header.physical_offset != start + at:
                odd.append(f"at {start + at}: a batch that belongs to {header.physical_offset}")
                break
            crcs = header.header_crc, header.batch_crc
            found.append(LogBatch(start + at, header.size, header.log_epoch, *crcs, header.origin))
            at += header.size
    return found, odd


def segments_of(folder: Path) -> dict[int, bytes]:
    """The segments in a folder, by their start."""
    return {int(path.name): path.read_bytes() for path in folder.iterdir() if path.name.isdigit()}


class Recovered(NamedTuple):
    """What a start made of a directory: what it holds, what its log holds, and what others say about it."""

    found: Found
    log: list[LogBatch]
    odd: list[str]
    findings: list[str]  # of a scrub of the directory
    rebuilt: Found
    delivered: dict[Queue, list[Message]]  # what queues hold when nothing waits any more


class _Wall:
    """A wall clock that stands still, before anything is due, until all of it is."""

    def __init__(self) -> None:
        self.us = NOON

    def __call__(self) -> int:
        return self.us


async def recover(config: BrokerConfig, *, files: Files | None = None, drain: bool = True) -> Recovered:
    """
    Start on a directory, look, stop, and scrub it; a rebuild takes its place.

    ``drain``: let all delays end in between, and look once more.
    """
    directory, wall = config.data_path(), _Wall()
    async with serving(config, files=files, wall=wall) as broker:
        found = await describe(broker)
        log, odd = read_log(segments_of(directory / "commitlog"))
        delivered = found.messages
        if found.waiting and drain:
            wall.us += int(config.max_delay_s * 1_000_000)
            broker._delivery.look()
            store = broker._store
            async with asyncio.timeout(60):
                while store.delays.batches or store.exposed < store.log.written:
                    await asyncio.sleep(SYNC_S)
            _, delivered = await _read_all(broker, list(found.ranges))
    report = Verification(directory).run()
    return Recovered(found, log, odd, [str(finding) for finding in report.findings], found, delivered)


def log_of(image: Image) -> Image:
    """Nothing but the log: what a rebuild begins with."""
    return {path: content for path, content in image.items() if path.split("/")[0] == "commitlog"}
