"""
A bit that flips, anywhere in a data directory: it is noticed, or it does no harm.

Never is a wrong message handed out, and never a good one kept back. ``make test`` flips every byte of a small store
and a thousand of a larger one; ``make chaos`` flips a thousand more with every seed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from rmq.broker.store.changes import Started
from rmq.broker.store.directory import StoreError
from rmq.broker.store.read import ColdRead, DamagedRange
from rmq.wire.batch import batch as batches
from rmq.wire.model import MessageQueue
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, PAYMENTS, Opened

QUEUES = (ORDERS, PAYMENTS)
FLIPS = 1000


class Batch(NamedTuple):
    """A stored batch: its messages, and where it lies."""

    queue: MessageQueue
    offset: int
    bodies: list[bytes]
    position: int
    end: int


class Store(NamedTuple):
    """A directory, what is in it, and the position up to which a start can know that it was synced."""

    path: Path
    settings: dict[str, int]
    batches: list[Batch]
    proven: int

    def bodies(self, queue: MessageQueue) -> list[bytes]:
        return [body for batch in self.batches if batch.queue == queue for body in batch.bodies]

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of damaged stores have much to say."""
    with capture_logs():
        yield


def build(path: Path, count: int, random: Random, *, stopped: bool, **settings: int) -> Store:
    """A store with several segments, stopped behind a checkpoint or killed some batches behind one."""
    opened = Opened(path, recent_bytes=0, **settings)
    opened.store.stage_changes([Started(opened.store.stores.current, 1)])
    opened.write()
    made: list[Batch] = []
    for i in range(count):
        queue = random.choice(QUEUES)
        bodies = [b"%d.%d " % (i, j) * random.randrange(1, 6) for j in range(random.randrange(1, 4))]
        placed = opened.append(*bodies, to=queue, index_keys=[(f"k{i}",)] * len(bodies))
        made.append(Batch(queue, placed.base_offset, bodies, placed.physical_offset, placed.end))
        if i == count * 3 // 4:
            opened.checkpoint()
    if stopped:
        opened.checkpoint()
    proven = opened.store.log.written if stopped else made[-1].position
    opened.store.abandon()
    return Store(path, {"recent_bytes": 0, **settings}, made, proven)


def read(opened: Opened, queue: MessageQueue) -> tuple[dict[int, bytes], set[int]]:
    """All that can be had of a queue, by offset; and the offsets that are said to be damaged."""
    got: dict[int, bytes] = {}
    damaged: set[int] = set()
    offset, end = 0, opened.store.queue(queue).readable
    while offset < end:
        try:
            found = opened.store.read(queue, offset, 1 << 20)
            if isinstance(found, ColdRead):
                found = found.run(opened.store.files)
        except DamagedRange as damage:
            damaged |= set(range(offset, damage.next_offset))
            assert damage.next_offset > offset
            offset = damage.next_offset
            continue
        for batch in batches.read_all(b"".join(found.buffers), stores=StoreIds(1)):
            got.update({message.queue_offset: message.body for message in batch.messages(offset)})
        assert found.next_offset > offset
        offset = found.next_offset
    return got, damaged


def flip(store: Store, file: Path, at: int, mask: int, work: Path) -> None:
    """Start on a copy with one byte changed, and look at every message."""
    copy = shutil.copytree(store.path, work)
    target = copy / file.relative_to(store.path)
    content = bytearray(target.read_bytes())
    content[at] ^= mask
    target.write_bytes(content)
    try:
        opened = Opened(copy, **store.settings)
    except StoreError:
        assert file.name == "store.json"  # which says so, and that it may be removed
        return
    try:
        position = int(file.name) + at if file.parent.name == "commitlog" else None
        judge(store, opened, position)
    finally:
        opened.store.abandon()
        shutil.rmtree(copy)


def judge(store: Store, opened: Opened, position: int | None) -> None:
    cut = opened.recovered.cut
    for queue in QUEUES:
        bodies = store.bodies(queue)
        got, damaged = read(opened, queue)
        assert all(bodies[offset] == body for offset, body in got.items())
        lost = set(range(len(bodies))) - set(got)
        hit = {
            offset
            for batch in store.batches
            if position is not None and batch.queue == queue and batch.position <= position < batch.end
            for offset in range(batch.offset, batch.offset + len(batch.bodies))
        }
        if cut is None:
            assert lost <= hit, f"{lost} are lost, only {hit} were hit"
            # A header that rots is of no queue. If nothing of its queue follows, no offset can be said to be damaged;
            # then the start has told of the place.
            told = any(damage.position <= position < damage.end for damage in opened.recovered.damages if position)
            assert lost <= damaged or (told and min(lost) >= opened.store.queue(queue).readable)
        else:  # nothing tells a flipped bit in the last commit from a torn one: it was put aside
            assert position is not None
            assert cut.position >= store.proven
            assert lost <= {offset for batch in store.batches for offset in range(batch.offset, len(bodies))}
            assert cut.kept_in.stat().st_size == cut.size


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_every_flipped_byte_of_a_small_store_is_noticed_or_harmless(memory_path: Path, stopped: bool) -> None:
    random = Random(3)
    store = build(memory_path / "a", 8, random, stopped=stopped, segment_bytes=700, entries_per_file=4)

    for file in store.files():
        for at in range(file.stat().st_size):
            try:
                flip(store, file, at, 1 << at % 8, memory_path / f"{file.name}-{at}")
            except Exception as error:
                error.add_note(f"byte {at} of {file.relative_to(store.path)}")
                raise


@pytest.mark.slow
@pytest.mark.seeds(1)
def test_random_flipped_bytes_of_a_larger_store_are_noticed_or_harmless(memory_path: Path, seed: int) -> None:
    random = Random(seed)
    store = build(memory_path / "a", 150, random, stopped=bool(seed % 2), segment_bytes=9000, entries_per_file=50)
    files = store.files()
    weights = [file.stat().st_size for file in files]

    for i in range(FLIPS):
        (file,) = random.choices(files, weights)
        at, mask = random.randrange(file.stat().st_size), random.randrange(1, 256)
        try:
            flip(store, file, at, mask, memory_path / str(i))
        except Exception as error:
            error.add_note(f"seed {seed}: byte {at} of {file.relative_to(store.path)} changed by {mask}")
            raise
