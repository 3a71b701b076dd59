"""Retention and what waits: the log is kept from the oldest batch on that a crash would have to deliver."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.broker.jobs.maintenance import RETENTION_S
from rmq.broker.state.deferred import Mark
from rmq.wire.batch import batch as batches

from ..builders import BORN_AT, ORDERS
from ..delay_rig import delayed
from .test_maintenance import SCHEDULE, Rig, fill, shorten, take_checkpoint

DUE = BORN_AT + 100 * 3_600_000_000


def park(rig: Rig) -> None:
    data = delayed(b"waits", level=1)
    rig.store.stage(ORDERS, 1, data, batches.check(data, stamped=False), 0, DUE)


def short(path: Path) -> Rig:
    return Rig(path, SCHEDULE._replace(retention_s=4 * 3600.0), segment_bytes=300)


@pytest.mark.parametrize("parked_first", [True, False])
def test_a_segment_with_a_waiting_batch_stays_and_all_behind_it(memory_path: Path, parked_first: bool) -> None:
    rig = short(memory_path)
    if not parked_first:
        fill(rig, 2)
    park(rig)
    fill(rig, 10)
    (entry,) = rig.store.delays.page(Mark(), 9)

    shorten(rig)

    assert rig.store.log.start <= entry.position
    assert (rig.store.log.start > 0) is not parked_first
    rig.opened.store.abandon()


def test_a_segment_goes_only_when_a_checkpoint_knows_that_nothing_of_it_waits(memory_path: Path) -> None:
    """The copy may not be durable yet: a crash that takes it must find the parked batch."""
    rig = short(memory_path)
    park(rig)
    fill(rig, 10)
    rig.store.delays.reach(Mark(DUE, 1 << 40))

    rig.pass_time(RETENTION_S)
    rig.work()
    assert rig.store.log.start == 0

    take_checkpoint(rig)
    shorten(rig)
    assert rig.store.log.start > 0
    rig.opened.store.abandon()
