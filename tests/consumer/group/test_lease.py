"""What a client may believe about a lease: two limits, each at a moment before, exactly, and a moment after."""

from __future__ import annotations

import pytest

from rmq.consumer.group.assignment import Lease, silence_limit
from rmq.wire.model import MessageQueue

QUEUE = MessageQueue("orders", 0)
EPS = 1e-6


def until(lease: Lease, answered_sent_at: float, *, grace_s: float = 5.0) -> float:
    return lease.believed_until(answered_sent_at=answered_sent_at, lock_ttl_s=30.0, grace_s=grace_s)


@pytest.mark.parametrize(("at", "believed"), [(130 - EPS, True), (130.0, True), (130 + EPS, False)])
def test_a_lease_is_believed_for_30_s_after_its_lock_was_asked_for(at: float, believed: bool) -> None:
    lease = Lease(QUEUE, 7, lock_sent_at=100.0)

    assert (at <= until(lease, answered_sent_at=129.5)) is believed


@pytest.mark.parametrize(("at", "believed"), [(114 - EPS, True), (114.0, True), (114 + EPS, False)])
def test_a_lease_is_believed_for_the_grace_less_a_second_after_the_newest_answered_request(
    at: float, believed: bool
) -> None:
    lease = Lease(QUEUE, 7, lock_sent_at=100.0)

    assert (at <= until(lease, answered_sent_at=110.0)) is believed


def test_a_renewal_counts_from_when_it_was_sent_and_a_late_answer_takes_nothing_back() -> None:
    lease = Lease(QUEUE, 7, lock_sent_at=100.0)

    lease.renewed(121.0)
    lease.renewed(101.0)

    assert until(lease, answered_sent_at=150.0) == 151.0


def test_what_is_lost_is_never_believed_again() -> None:
    lease = Lease(QUEUE, 7, lock_sent_at=100.0)
    lease.lost = True
    lease.renewed(120.0)

    assert until(lease, answered_sent_at=120.0) == float("-inf")


def test_without_any_answer_nothing_is_believed() -> None:
    assert until(Lease(QUEUE, 7, lock_sent_at=100.0), answered_sent_at=float("-inf")) == float("-inf")


@pytest.mark.parametrize(("grace_s", "limit"), [(5.0, 4.0), (60.0, 59.0), (2.0, 1.0), (1.0, 0.5), (0.5, 0.25)])
def test_the_margin_is_a_second_and_never_the_whole_grace(grace_s: float, limit: float) -> None:
    assert silence_limit(grace_s) == limit
