"""Small logs and stores for tests of the broker."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmq.broker.store.changes import Change, SnapshotEnded, Started
from rmq.broker.store.checkpoint import CheckpointWork
from rmq.broker.store.directory import DataDirectory
from rmq.broker.store.files import Files
from rmq.broker.store.message_store import MessageStore, Placed, Recovered
from rmq.broker.store.read import ColdRead
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.model import MessageQueue
from rmq.wire.stores import StoreIds

BORN_AT = 1_700_000_000_000_000
ORDERS = MessageQueue("orders", 0)
PAYMENTS = MessageQueue("payments", 1)


class WallClock:
    """Wall time that moves when told to."""

    def __init__(self, us: int = BORN_AT) -> None:
        self.us = us

    def __call__(self) -> int:
        return self.us


def make_batch(
    *bodies: bytes,
    to: MessageQueue = ORDERS,
    by: ProducerMark | None = None,
    tags: Sequence[str | None] | None = None,
    index_keys: Sequence[Sequence[str]] | None = None,
    keys: Sequence[str | None] | None = None,
) -> bytes:
    """A batch as a producer sends it."""
    mark = by if by is not None else ProducerMark()
    return bytes(
        batches.encode(
            to.topic, to.queue_id, Rows(bodies, BORN_AT, tags=tags, index_keys=index_keys, keys=keys), by=mark
        )
    )


class Opened:
    """A store that was recovered, with what recovery showed."""

    def __init__(
        self,
        path: Path,
        *,
        segment_bytes: int = 1 << 30,
        wall_us: WallClock | None = None,
        files: Files | None = None,
        **settings: int,
    ) -> None:
        self.directory = DataDirectory(path, files)
        self.generation = 1  # of all topics
        self.changes: list[Change] = []
        self.headers: list[layout.Header] = []
        try:
            self.store = MessageStore(
                self.directory, segment_bytes=segment_bytes, wall_us=wall_us or WallClock(), **settings
            )
            self.store.snapshot = self.snapshot
            self.recovered: Recovered = self.store.recover(self)
        except BaseException:
            self.directory.close()
            raise

    def change(self, change: Change) -> None:
        """Recovery shows a change."""
        self.changes.append(change)

    def batch(self, header: layout.Header) -> None:
        """Recovery shows a data batch."""
        self.headers.append(header)

    def deferred(self, header: layout.Header) -> None:
        """Recovery shows a deferred batch."""
        self.headers.append(header)

    def is_live(self, header: layout.Header) -> bool:
        """Every topic exists."""
        return True

    def snapshot(self) -> list[Change]:
        """What a new segment begins with."""
        told: list[Change] = [Started(self.store.stores.current, self.store.log_epoch), *self.store.queue_bounds()]
        return [*told, SnapshotEnded(self.store.log.written, len(told), 1)]

    def write(self) -> None:
        """Write what is staged, as the committer does."""
        self.store.write()
        if self.store.turn_over():
            self.store.write()

    def append(self, *bodies: bytes, to: MessageQueue = ORDERS, **more: Any) -> Placed:
        """Store one batch, as durable and readable as it can be."""
        placed = self.stage(*bodies, to=to, **more)
        self.write()
        self.sync()
        return placed

    def stage(self, *bodies: bytes, to: MessageQueue = ORDERS, **more: Any) -> Placed:
        """Stage one batch."""
        data = make_batch(*bodies, to=to, **more)
        return self.store.stage(to, self.generation, data, batches.check(data, stamped=False))

    def sync(self) -> None:
        """Make all that is written durable and readable."""
        self.store.log.durable = self.store.log.sync()
        self.store.expose(self.store.log.durable)

    def bodies(self, queue: MessageQueue = ORDERS) -> list[bytes]:
        """Every readable body of a queue, pulled from the first offset on."""
        found: list[bytes] = []
        end = self.store.queue(queue).readable
        while len(found) < end:
            run = self.store.read(queue, len(found), 1 << 20)
            if isinstance(run, ColdRead):
                run = run.run(self.store.files)
            for batch in batches.read_all(b"".join(run.buffers), stores=StoreIds(1)):
                found += [message.body for message in batch.messages(len(found))]
        return found

    def checkpoint(self) -> None:
        """Take a checkpoint of all that is durable."""
        self.sync()
        work = CheckpointWork(
            self.store.take_index_work(everything=True), self.store.log, self.directory.path,
            self.store.checkpoint(self.snapshot()),
        )  # fmt: skip
        work.run()
        self.store.backlog.done(work.indexes, None)

    def close(self) -> None:
        """Close cleanly."""
        self.store.close()


def log_bytes(path: Path) -> bytes:
    """The whole log of a data directory."""
    return b"".join(segment.read_bytes() for segment in segment_files(path))


def segment_files(path: Path) -> list[Path]:
    """The segments of a data directory, oldest first."""
    return sorted((path / "commitlog").iterdir())


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file of this process can grow beyond ``size`` bytes: writes come back short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def descriptors_limited_to(more: int) -> Iterator[None]:
    """This process can open so many more files, not one beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    plugs = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]  # so that no number below is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(plugs) + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for plug in plugs:
            os.close(plug)
