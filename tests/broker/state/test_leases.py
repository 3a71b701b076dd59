"""
One live owner per group and queue, epochs that only grow, and nothing for those who lost their lease.

Owners that announced their leaving: known until the lease ends, over restarts, and to nobody else.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.leases import Lease, LeaseTable
from rmq.broker.store.changes import LeaseEnded, LeaseGranted
from rmq.wire.errors import Fenced
from rmq.wire.model import MessageQueue

A_PLAIN, B_PLAIN = b"A" * 16, b"B" * 16
Q0_PLAIN, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)
EPS = 0.001


@pytest.fixture
def table() -> LeaseTable:
    table = LeaseTable(lease_s=60.0)
    table.start(3)
    return table


def granted_plain(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


def test_a_free_queue_is_granted(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=7.0))

    assert (lease.group, lease.queue, lease.session, lease.member) == ("g", Q0_PLAIN, A_PLAIN, "a")
    assert (lease.granted_at, lease.renewed_at) == (7.0, 7.0)
    assert table.holder("g", Q0_PLAIN, now=7.0) is lease
    assert len(table) == 1


def test_whether_a_group_holds_anything_of_a_topic(table: LeaseTable) -> None:
    granted_plain(table.acquire("g", Q1, A_PLAIN, "a", now=0.0))

    assert (table.topics("g"), table.topics("h")) == ({"orders"}, set())


def test_epochs_are_the_log_epoch_and_a_counter_from_1(table: LeaseTable) -> None:
    epochs = [
        granted_plain(table.acquire("g", queue, A_PLAIN, "a", now=0.0)).epoch for queue in (Q0_PLAIN, Q1, Q0_PLAIN)
    ]

    assert epochs == [3 << 32 | 1, 3 << 32 | 2, 3 << 32 | 3]


def test_the_holder_that_acquires_again_gets_a_new_epoch_and_the_old_one_is_dead(table: LeaseTable) -> None:
    old = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    new = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=1.0))

    assert new.epoch > old.epoch
    assert not table.renew("g", Q0_PLAIN, A_PLAIN, old.epoch, now=1.0)
    assert not table.release("g", Q0_PLAIN, A_PLAIN, old.epoch, now=1.0)
    assert table.of_session(A_PLAIN, now=1.0) == [new]


def test_groups_and_queues_are_leased_independently(table: LeaseTable) -> None:
    table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0)

    assert table.acquire("g", Q1, B_PLAIN, "b", now=0.0)
    assert table.acquire("h", Q0_PLAIN, B_PLAIN, "b", now=0.0)
    assert table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=0.0) is None


@pytest.mark.parametrize(("age", "free"), [(60.0 - EPS, False), (60.0, False), (60.0 + EPS, True)])
def test_a_foreign_lock_is_refused_until_it_is_older_than_60_s(table: LeaseTable, age: float, free: bool) -> None:
    """As RebalanceLockManager: expired only when strictly older."""
    old = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=100.0))

    new = table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=100.0 + age)

    assert (new is not None) is free
    assert table.of_session(A_PLAIN, now=100.0 + age) == ([] if free else [old])
    assert table.release_session(A_PLAIN) == ([] if free else [old])


@pytest.mark.parametrize(("age", "live"), [(60.0 - EPS, True), (60.0, True), (60.0 + EPS, False)])
def test_every_question_has_the_same_edge(table: LeaseTable, age: float, live: bool) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=100.0))
    now = 100.0 + age

    assert (table.holder("g", Q0_PLAIN, now=now) is lease) is live
    assert (table.of_session(A_PLAIN, now=now) == [lease]) is live
    assert (table.rows(now=now) == [lease]) is live
    assert (table.expire(now=now) == []) is live
    if live:
        table.check("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=now)
    else:
        with pytest.raises(Fenced):
            table.check("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=now)


@pytest.mark.parametrize(("age", "kept"), [(60.0 - EPS, True), (60.0, True), (60.0 + EPS, False)])
def test_a_renewal_extends_a_live_lease_and_never_revives_one(table: LeaseTable, age: float, kept: bool) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=100.0))
    now = 100.0 + age

    assert table.renew("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=now) is kept
    assert lease.granted_at == 100.0
    assert (table.holder("g", Q0_PLAIN, now=now + 60.0) is lease) is kept


@pytest.mark.parametrize(("session", "shift"), [(B_PLAIN, 0), (A_PLAIN, 1), (A_PLAIN, -1), (B_PLAIN, 1)])
def test_only_the_holder_with_its_epoch_renews_and_releases(table: LeaseTable, session: bytes, shift: int) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    assert not table.renew("g", Q0_PLAIN, session, lease.epoch + shift, now=1.0)
    assert not table.release("g", Q0_PLAIN, session, lease.epoch + shift, now=1.0)
    assert table.holder("g", Q0_PLAIN, now=60.0) is lease
    assert lease.renewed_at == 0.0


def test_a_renewal_of_a_free_queue_does_not_acquire_it(table: LeaseTable) -> None:
    assert not table.renew("g", Q0_PLAIN, A_PLAIN, 1, now=0.0)
    assert table.holder("g", Q0_PLAIN, now=0.0) is None


def test_a_release_frees_the_queue_at_once_and_again_is_no_error(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    assert table.release("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=1.0)
    assert not table.release("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=1.0)
    assert granted_plain(table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=1.0)).epoch > lease.epoch


@pytest.mark.parametrize(("age", "freed"), [(60.0 - EPS, True), (60.0, True), (60.0 + EPS, False)])
def test_an_expired_lease_is_freed_by_the_sweep_not_by_its_former_owner(
    table: LeaseTable, age: float, freed: bool
) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=100.0))

    assert (table.release("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=100.0 + age) is lease) is freed
    assert table.expire(now=100.0 + age) == ([] if freed else [lease])


def test_a_revoked_lease_fences_its_owner_and_is_not_granted_until_it_is_released(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    new = granted_plain(table.revoke("g", Q0_PLAIN, now=1.0))

    assert (new.epoch > lease.epoch, new.revoked, new.renewed_at) == (True, lease.epoch, 0.0)
    assert not table.renew("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=2.0)
    with pytest.raises(Fenced):
        table.check("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=2.0)
    assert table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=2.0) is None
    assert table.release("g", Q0_PLAIN, B_PLAIN, lease.epoch, now=2.0) is None
    assert table.release("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=2.0) is new
    assert granted_plain(table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=2.0)).epoch > new.epoch


def test_reacquiring_a_revoked_lease_gives_an_epoch_that_the_old_one_cannot_release(
    table: LeaseTable,
) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    revoked = granted_plain(table.revoke("g", Q0_PLAIN, now=1.0))

    again = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=1.0))

    assert again.epoch > revoked.epoch > lease.epoch
    assert table.release("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=2.0) is None
    assert table.holder("g", Q0_PLAIN, now=2.0) is again


def test_a_lease_that_is_revoked_twice_is_given_back_by_the_epoch_its_owner_knows(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    table.revoke("g", Q0_PLAIN, now=1.0)

    new = granted_plain(table.revoke("g", Q0_PLAIN, now=1.0))

    assert table.release("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=2.0) is new


@pytest.mark.parametrize(("age", "freed"), [(60.0, False), (60.0 + EPS, True)])
def test_a_revoked_lease_lives_no_longer_than_it_would_have(table: LeaseTable, age: float, freed: bool) -> None:
    table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0)
    new = granted_plain(table.revoke("g", Q0_PLAIN, now=30.0))

    assert (table.expire(now=age) == [new]) is freed
    assert (table.revoke("g", Q0_PLAIN, now=age) is None) is freed


def test_the_holder_passes_the_check(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    table.check("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=60.0)


def test_a_stale_epoch_is_fenced_with_both_epochs_and_the_owner(table: LeaseTable) -> None:
    old = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    new = granted_plain(table.acquire("g", Q0_PLAIN, B_PLAIN, "b#1", now=61.0))

    with pytest.raises(Fenced, match=rf"epoch {old.epoch} is not the live one \({new.epoch}, held by b#1\)"):
        table.check("g", Q0_PLAIN, A_PLAIN, old.epoch, now=61.0)


def test_a_missing_epoch_is_fenced_also_for_the_holder(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    with pytest.raises(Fenced, match=rf"an epoch is missing .*{lease.epoch}, held by a"):
        table.check("g", Q0_PLAIN, A_PLAIN, None, now=0.0)
    with pytest.raises(Fenced, match="the live one: none"):
        table.check("g", Q1, A_PLAIN, None, now=0.0)


def test_a_sentence_repeats_little_of_what_clients_wrote(table: LeaseTable) -> None:
    group, queue, member = "g" * 127, MessageQueue("t" * 127, 1023), "m" * 137
    lease = granted_plain(table.acquire(group, queue, A_PLAIN, member, now=0.0))

    for session, epoch in ((B_PLAIN, None), (B_PLAIN, lease.epoch), (B_PLAIN, 7), (A_PLAIN, None)):
        with pytest.raises(Fenced) as refused:
            table.check(group, queue, session, epoch, now=0.0)
        assert all(letter * 65 not in refused.value.text for letter in "gtm")
        assert len(refused.value.text) < 400


def test_an_epoch_of_a_free_queue_is_fenced(table: LeaseTable) -> None:
    with pytest.raises(Fenced, match=r"epoch 5 is not the live one \(none\)"):
        table.check("g", Q0_PLAIN, A_PLAIN, 5, now=0.0)


def test_the_live_epoch_does_not_let_another_session_pass(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    with pytest.raises(Fenced, match="held by a, not by this session"):
        table.check("g", Q0_PLAIN, B_PLAIN, lease.epoch, now=0.0)


def test_a_dead_session_frees_all_it_held_and_nothing_else(table: LeaseTable) -> None:
    mine = [granted_plain(table.acquire(group, Q0_PLAIN, A_PLAIN, "a", now=0.0)) for group in ("g", "h")]
    other = granted_plain(table.acquire("g", Q1, B_PLAIN, "b", now=0.0))

    assert table.release_session(A_PLAIN) == mine
    assert table.release_session(A_PLAIN) == []
    assert table.rows(now=0.0) == [other]


def test_the_sweep_frees_what_was_renewed_longest_ago_first(table: LeaseTable) -> None:
    first = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    second = granted_plain(table.acquire("g", Q1, A_PLAIN, "a", now=1.0))
    third = granted_plain(table.acquire("h", Q0_PLAIN, B_PLAIN, "b", now=2.0))
    table.renew("g", Q0_PLAIN, A_PLAIN, first.epoch, now=3.0)

    assert table.expire(now=62.0) == [second]
    assert table.expire(now=1000.0) == [third, first]
    assert table.expire(now=1000.0) == []
    assert table.acquire("g", Q1, B_PLAIN, "b", now=1000.0)


def test_rows_come_by_group_and_queue_and_of_one_group_if_asked(table: LeaseTable) -> None:
    for group, queue in (("h", Q0_PLAIN), ("g", Q1), ("g", Q0_PLAIN)):
        table.acquire(group, queue, A_PLAIN, "a", now=0.0)

    assert [(row.group, row.queue) for row in table.rows(now=0.0)] == [("g", Q0_PLAIN), ("g", Q1), ("h", Q0_PLAIN)]
    assert [row.queue for row in table.rows("g", now=0.0)] == [Q0_PLAIN, Q1]
    assert [(row.group, row.queue) for row in table.of_session(A_PLAIN, now=0.0)] == [
        ("g", Q0_PLAIN),
        ("g", Q1),
        ("h", Q0_PLAIN),
    ]


def test_leases_survive_a_restart_and_count_as_renewed_then(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    again = LeaseTable(lease_s=60.0)
    again.restore(lease.granted(), now=500.0)
    again.start(4)

    assert again.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=560.0) is None
    assert again.renew("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=560.0)
    assert granted_plain(again.acquire("g", Q1, B_PLAIN, "b", now=560.0)).epoch == 4 << 32 | 1


def test_owners_have_the_full_time_from_when_the_port_opens(table: LeaseTable) -> None:
    table.restore(LeaseGranted("g", "orders", 0, A_PLAIN, "a", 9), now=0.0)

    table.ready(now=100.0)

    assert table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=160.0) is None
    assert table.acquire("g", Q0_PLAIN, B_PLAIN, "b", now=160.001)


@pytest.mark.parametrize(
    ("renewed_at", "ends_at"),
    [(0.0, 160.0), (105.0, 170.0), (110.0, 170.0), (130.0, 190.0)],  # the last: promised longer than from now
)
def test_time_without_renewals_extends_leases_and_never_shortens_them(renewed_at: float, ends_at: float) -> None:
    table = LeaseTable(60.0)
    table.restore(LeaseGranted("g", "orders", 0, A_PLAIN, "a", 9), now=renewed_at)

    table.forgive(100.0, now=110.0)

    assert table.expire(now=ends_at) == []
    assert len(table.expire(now=ends_at + 0.001)) == 1


def test_replay_ends_with_the_owner_that_the_log_names_last(table: LeaseTable) -> None:
    table.restore(LeaseGranted("g", "orders", 0, A_PLAIN, "a", 10), now=0.0)
    table.restore(LeaseGranted("g", "orders", 0, B_PLAIN, "b", 11), now=0.0)
    table.restore_end(LeaseEnded("g", "orders", 0, 10))
    table.restore_end(LeaseEnded("g", "orders", 1, 12))
    assert [row.member for row in table.rows(now=0.0)] == ["b"]

    table.restore_end(table.rows(now=0.0)[0].ended())
    assert len(table) == 0


def test_an_epoch_of_the_log_is_never_granted_again_also_when_its_lease_has_ended() -> None:
    table = LeaseTable()
    table.restore_end(LeaseEnded("g", "orders", 0, 5 << 32 | 7))
    table.start(5)

    assert granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0)).epoch == 5 << 32 | 8


def test_a_start_without_a_raised_log_epoch_is_a_defect(table: LeaseTable) -> None:
    with pytest.raises(ValueError, match="log epoch 3 was not raised above 3"):
        table.start(3)


class Locks(RuleBasedStateMachine):
    """Sessions take, keep and give back queues at random over restarts; the model is owner, epoch and renewal."""

    sessions = st.sampled_from([A_PLAIN, B_PLAIN, b"C" * 16])
    keys = st.sampled_from([("g", Q0_PLAIN), ("g", Q1), ("h", Q0_PLAIN)])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.log_epoch = 1
        self.log: list[LeaseGranted | LeaseEnded] = []
        self.table = LeaseTable(lease_s=60.0)
        self.table.start(self.log_epoch)
        self.model: dict[tuple[str, MessageQueue], tuple[bytes, int, float]] = {}
        self.newest = 0
        self.seen: list[int] = [0]

    def live(self, key: tuple[str, MessageQueue]) -> tuple[bytes, int, float] | None:
        held = self.model.get(key)
        return held if held is not None and self.now - held[2] <= 60.0 else None

    @rule(step=st.sampled_from([0.001, 1.0, 20.0, 59.0, 60.0]))
    def tick(self, step: float) -> None:
        self.now += step

    @rule(key=keys, session=sessions)
    def acquire(self, key: tuple[str, MessageQueue], session: bytes) -> None:
        held = self.live(key)

        lease = self.table.acquire(*key, session, "m", now=self.now)

        assert (lease is None) is (held is not None and held[0] != session)
        if lease is not None:
            assert lease.epoch > self.newest
            self.newest = lease.epoch
            self.seen.append(lease.epoch)
            self.model[key] = (session, lease.epoch, self.now)
            self.log.append(lease.granted())

    @rule(key=keys, session=sessions, pick=st.integers(0, 5))
    def renew(self, key: tuple[str, MessageQueue], session: bytes, pick: int) -> None:
        epoch = self.seen[-1 - pick % len(self.seen)]
        held = self.live(key)
        mine = held is not None and held[:2] == (session, epoch)

        assert self.table.renew(*key, session, epoch, now=self.now) is mine
        if mine:
            self.model[key] = (session, epoch, self.now)

    @rule(key=keys, session=sessions, pick=st.integers(0, 5))
    def check(self, key: tuple[str, MessageQueue], session: bytes, pick: int) -> None:
        epoch = self.seen[-1 - pick % len(self.seen)]
        held = self.live(key)
        if held is not None and held[:2] == (session, epoch):
            self.table.check(*key, session, epoch, now=self.now)
        else:
            with pytest.raises(Fenced):
                self.table.check(*key, session, epoch, now=self.now)

    @rule(key=keys, session=sessions, pick=st.integers(0, 5))
    def release(self, key: tuple[str, MessageQueue], session: bytes, pick: int) -> None:
        epoch = self.seen[-1 - pick % len(self.seen)]
        held = self.live(key)
        mine = held is not None and held[:2] == (session, epoch)

        assert (self.table.release(*key, session, epoch, now=self.now) is not None) is mine
        if mine:
            del self.model[key]
            self.log.append(LeaseEnded(key[0], *key[1], epoch))

    @rule(session=sessions)
    def session_ends(self, session: bytes) -> None:
        self.free(self.table.release_session(session), [key for key, held in self.model.items() if held[0] == session])

    @rule()
    def sweep(self) -> None:
        self.free(self.table.expire(now=self.now), [key for key in self.model if self.live(key) is None])

    def free(self, leases: list[Lease], expected: list[tuple[str, MessageQueue]]) -> None:
        assert sorted((lease.group, lease.queue) for lease in leases) == sorted(expected)
        for lease in leases:
            del self.model[lease.group, lease.queue]
            self.log.append(lease.ended())

    @rule()
    def restart(self) -> None:
        self.log_epoch += 1
        self.table = LeaseTable(lease_s=60.0)
        for change in self.log:
            if isinstance(change, LeaseGranted):
                self.table.restore(change, now=self.now)
            else:
                self.table.restore_end(change)
        self.table.start(self.log_epoch)
        self.model = {key: (session, epoch, self.now) for key, (session, epoch, _) in self.model.items()}

    @invariant()
    def the_live_owner_is_the_only_one_and_the_right_one(self) -> None:
        rows = {
            (row.group, row.queue): (row.session, row.epoch, row.renewed_at) for row in self.table.rows(now=self.now)
        }
        assert rows == {key: held for key in self.model if (held := self.live(key)) is not None}
        for key in (("g", Q0_PLAIN), ("g", Q1), ("h", Q0_PLAIN)):
            holder = self.table.holder(*key, now=self.now)
            assert (holder and holder.epoch) == (rows[key][1] if key in rows else None)
        by_session = [
            lease for session in (A_PLAIN, B_PLAIN, b"C" * 16) for lease in self.table.of_session(session, now=self.now)
        ]
        assert len(by_session) == len(rows)


TestLocks = Locks.TestCase


def test_live_leases_are_reported_by_group(table: LeaseTable) -> None:
    table.acquire("a", Q0_PLAIN, A_PLAIN, "a", now=0.0)
    table.acquire("b", Q0_PLAIN, A_PLAIN, "a", now=10.0)

    assert {group: len(leases) for group, leases in table.by_group(now=60.0).items()} == {"a": 1, "b": 1}
    assert list(table.by_group(now=60.0 + EPS)) == ["b"]


def test_an_owner_that_announced_its_leaving_is_leaving_until_its_lease_ends_also_after_a_restart(
    table: LeaseTable,
) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    announced = table.announce_leaving("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=1.0)
    assert announced == lease.granted()._replace(leaving=True)
    assert table.renew("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=2.0)
    assert table.announce_leaving("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=3.0) is None, "it was said before"

    again = LeaseTable(lease_s=60.0)
    again.restore(LeaseGranted("g", "orders", 0, A_PLAIN, "a", lease.epoch), now=500.0)
    again.restore(announced, now=500.0)
    again.start(4)
    (restored,) = again.rows(now=500.0)

    assert restored.leaving
    assert not granted_plain(again.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=501.0)).leaving, (
        "a new grant is a new beginning"
    )


def test_an_owner_whose_epoch_is_revoked_while_it_leaves_is_still_leaving(table: LeaseTable) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))
    table.announce_leaving("g", Q0_PLAIN, A_PLAIN, lease.epoch, now=1.0)

    revoked = table.revoke("g", Q0_PLAIN, now=2.0)

    assert revoked is not None
    assert revoked.leaving
    assert revoked.granted().leaving, "also after a restart"


@pytest.mark.parametrize(
    ("session", "epoch_off", "at"),
    [(B_PLAIN, 0, 0.0), (A_PLAIN, 1, 0.0), (A_PLAIN, 0, 60.001)],
    ids=["other", "epoch", "expired"],
)
def test_only_the_live_owner_can_announce_its_leaving(
    table: LeaseTable, session: bytes, epoch_off: int, at: float
) -> None:
    lease = granted_plain(table.acquire("g", Q0_PLAIN, A_PLAIN, "a", now=0.0))

    assert table.announce_leaving("g", Q0_PLAIN, session, lease.epoch + epoch_off, now=at) is None

    assert not lease.leaving
