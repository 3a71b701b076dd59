"""Owners that announced their leaving: known until the lease ends, over restarts, and to nobody else."""

from __future__ import annotations

import pytest

from rmq.broker.state.leases import LockTable
from rmq.broker.store.changes import LeaseGranted

from .test_leases import Q0, A, B, granted


@pytest.fixture
def table() -> LockTable:
    table = LockTable(lease_s=60.0)
    table.start(3)
    return table


def test_an_owner_that_announced_its_leaving_is_leaving_until_its_lease_ends_also_after_a_restart(
    table: LockTable,
) -> None:
    lease = granted(table.acquire("g", Q0, A, "a", now=0.0))
    announced = table.announce_leaving("g", Q0, A, lease.epoch, now=1.0)
    assert announced == lease.granted()._replace(leaving=True)
    assert table.renew("g", Q0, A, lease.epoch, now=2.0)
    assert table.announce_leaving("g", Q0, A, lease.epoch, now=3.0) is None, "it was said before"

    again = LockTable(lease_s=60.0)
    again.restore(LeaseGranted("g", "orders", 0, A, "a", lease.epoch), now=500.0)
    again.restore(announced, now=500.0)
    again.start(4)
    (restored,) = again.rows(now=500.0)

    assert restored.leaving
    assert not granted(again.acquire("g", Q0, A, "a", now=501.0)).leaving, "a new grant is a new beginning"


def test_an_owner_whose_epoch_is_revoked_while_it_leaves_is_still_leaving(table: LockTable) -> None:
    lease = granted(table.acquire("g", Q0, A, "a", now=0.0))
    table.announce_leaving("g", Q0, A, lease.epoch, now=1.0)

    revoked = table.revoke("g", Q0, now=2.0)

    assert revoked is not None
    assert revoked.leaving
    assert revoked.granted().leaving, "also after a restart"


@pytest.mark.parametrize(
    ("session", "epoch_off", "at"), [(B, 0, 0.0), (A, 1, 0.0), (A, 0, 60.001)], ids=["other", "epoch", "expired"]
)
def test_only_the_live_owner_can_announce_its_leaving(
    table: LockTable, session: bytes, epoch_off: int, at: float
) -> None:
    lease = granted(table.acquire("g", Q0, A, "a", now=0.0))

    assert table.announce_leaving("g", Q0, session, lease.epoch + epoch_off, now=at) is None

    assert not lease.leaving
