"""A small log for tests of recovery, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rmq.broker.store.changes import Attempted, Committed
from rmq.broker.store.read import ColdRead
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, Opened, segment_files


class Small(NamedTuple):
    """A log of data and state batches in two segments, closed as by ``kill -9``."""

    path: Path
    bounds: list[int]  # where batches begin and the last one ends
    bodies: list[list[bytes]]  # of orders/0 after so many batches
    changes: list[int]  # how many changes were made after so many batches

    @property
    def last(self) -> Path:
        return segment_files(self.path)[-1]

    @property
    def last_start(self) -> int:
        return int(self.last.name)


def build(path: Path, *, synced: bool) -> Small:
    """Three to five batches a segment; ``synced`` says whether each batch was durable before the next."""
    opened = Opened(path, segment_bytes=1000)
    store, bounds, changes = opened.store, [0], [0]
    bodies: list[list[bytes]] = [[]]
    small = Small(path, bounds, bodies, changes)

    def note(data: Sequence[bytes] = (), made: int = 0) -> None:
        bounds.append(store.log.written)
        bodies.append([*bodies[-1], *data])
        changes.append(changes[-1] + made)
        if synced:
            opened.sync()

    def write(data: Sequence[bytes] = (), made: int = 0) -> None:
        store.write()
        note(data, made)
        if store.turn_over():
            store.write()
            note(made=2)  # a snapshot: the start, and its end

    for i, count in enumerate((3, 2, 1, 4)):
        data = [b"%d.%d" % (i, j) for j in range(count)]
        opened.stage(*data, by=ProducerMark(7, i))
        write(data)
        store.stage_changes([Committed("g", *ORDERS, i), Attempted("g", *ORDERS, i, 1)])
        write(made=2)
    store.abandon()
    return small


def pull(opened: Opened, offset: int) -> tuple[list[bytes], int]:
    """The bodies from an offset on, and where to go on."""
    found = opened.store.read(ORDERS, offset, 1 << 20)
    if isinstance(found, ColdRead):
        found = found.run(opened.store.files)
    bodies = []
    for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1)):
        bodies += [message.body for message in batch.messages(offset)]
    return bodies, found.next_offset


def rest(opened: Opened, offset: int) -> list[bytes]:
    """All bodies from an offset on, with as many reads as that takes."""
    bodies: list[bytes] = []
    while offset < opened.store.queue(ORDERS).readable:
        more, offset = pull(opened, offset)
        bodies += more
    return bodies


def check_everything_readable(opened: Opened, small: Small, kept: int) -> None:
    assert opened.bodies() == small.bodies[kept]
    assert len(opened.changes) == small.changes[kept]
    assert [header.sequence for header in opened.headers] == list(range(len(opened.headers)))
    assert opened.store.log.end == opened.store.log.written == opened.store.log.durable == small.bounds[kept]
