"""Parked batches in the store: placed, not published, and known to wait once they are written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rmq.broker.state.deferred import Mark, Parked
from rmq.broker.store.message_store import keyed_of
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout

from ..builders import BORN_AT, ORDERS, Opened, make_batch
from ..delay_rig import delayed
from ..faulty_files import FaultyFiles

DUE = BORN_AT + 5_000_000


def stage(opened: Opened, data: bytes, *, due_at: int = DUE, origin: int = 0) -> tuple[int, int, int, int]:
    return opened.store.stage(ORDERS, 1, data, batches.check(data, stamped=False), origin, due_at)


def test_a_parked_batch_has_a_place_and_no_offset(memory_path: Path) -> None:
    opened = Opened(memory_path)
    data, told = delayed(b"a", b"b", level=1, keys=[["k"], []]), []
    opened.store.on_parked = told.append

    placed = stage(opened, data)
    assert opened.store.delays.batches == 0
    opened.store.write()

    assert placed == (-1, 0, BORN_AT, len(data))
    assert opened.store.delays.page(Mark(), 9) == [Parked(DUE, 0, len(data), 2)]
    assert told == [DUE]
    assert opened.store.queue(ORDERS).published == 0
    assert opened.store.index_lag == 0
    assert opened.store.batches_written == 1
    opened.close()


def test_recovery_shows_it_with_its_time_and_origin(memory_path: Path) -> None:
    opened = Opened(memory_path)
    stage(opened, delayed(b"a", level=2))
    stage(opened, make_batch(b"a copy for a retry"), due_at=DUE + 1, origin=4096)
    opened.write()
    opened.store.abandon()

    again = Opened(memory_path)

    first, second = again.headers
    assert (first.kind, first.base_offset, first.delay_level, first.origin) == (layout.KIND_PARKED, DUE, 2, 0)
    assert (second.kind, second.base_offset, second.delay_level, second.origin) == (1, DUE + 1, 0, 4096)
    assert again.store.queue(ORDERS).published == 0
    again.close()


def test_a_write_that_fails_leaves_nothing_waiting(memory_path: Path) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    opened.append(b"before")
    stage(opened, delayed(b"a", level=1))
    files.fail("write", "commitlog", errno.ENOSPC, times=1)

    with pytest.raises(OSError):
        opened.store.write()

    assert opened.store.delays.batches == 0
    opened.append(b"behind")
    assert opened.bodies() == [b"before", b"behind"]
    opened.close()


def test_nothing_is_parked_before_what_was_delivered_last(memory_path: Path) -> None:
    """It would be taken for delivered."""
    opened = Opened(memory_path)
    opened.store.delays.reach(Mark(DUE, 0))
    opened.append(b"something")

    stage(opened, delayed(b"a", level=1), due_at=DUE - 1)
    opened.store.write()

    (entry,) = opened.store.delays.page(Mark(), 9)
    assert entry.due_at == DUE
    assert entry[:2] > opened.store.delays.reached
    opened.close()


def test_the_key_index_notes_batches_with_keys_only() -> None:
    keyed, plain = (batches.check(make_batch(b"a", keys=keys), stamped=False) for keys in ([["k"]], None))

    assert keyed_of(8, 9, plain.columns) is None
    noted = keyed_of(8, 9, keyed.columns)
    assert noted is not None
    assert (noted.position, noted.stored_at, len(noted.hashes)) == (8, 9, 1)
