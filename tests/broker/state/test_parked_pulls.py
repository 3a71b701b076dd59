"""A parked pull is handed out exactly once: for the first arrival, at its time, or with its owner."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.parked_pulls import SLACK, ParkedPull, ParkedPullTable
from rmq.wire.model import MessageQueue

Q0, Q1, Q2 = (MessageQueue("orders", queue_id) for queue_id in range(3))
EPS = 0.001


@pytest.fixture
def table() -> ParkedPullTable:
    return ParkedPullTable()


def test_an_arrival_takes_out_all_that_wait_for_the_queue_in_the_order_they_came(table: ParkedPullTable) -> None:
    first = table.park("c1", "first", (Q0,), 15.0)
    table.park("c1", "other", (Q1,), 15.0)
    second = table.park("c2", "second", (Q0,), 10.0)

    assert table.of_queue(Q0) == [first, second]
    assert [parked.token for parked in table.arrived(Q0)] == ["first", "second"]
    assert table.arrived(Q0) == table.of_queue(Q0) == []
    assert len(table) == 1


def test_a_pull_of_several_queues_is_taken_out_of_all_of_them(table: ParkedPullTable) -> None:
    parked = table.park("c1", "pull", (Q0, Q1, Q2), 15.0)

    assert table.arrived(Q1) == [parked]
    assert table.arrived(Q0) == table.arrived(Q2) == table.expired(now=15.0) == table.drop_owner("c1") == []
    assert not table.cancel(parked)
    assert len(table) == 0


def test_a_pull_that_names_a_queue_twice_is_handed_out_once(table: ParkedPullTable) -> None:
    parked = table.park("c1", "pull", (Q0, Q0), 15.0)

    assert table.arrived(Q0) == [parked]
    assert len(table) == 0


def test_a_pull_of_no_queue_waits_for_its_time(table: ParkedPullTable) -> None:
    parked = table.park("c1", "pull", (), 15.0)

    assert table.expired(now=15.0) == [parked]


@pytest.mark.parametrize(("at", "over"), [(15.0 - EPS, False), (15.0, True), (15.0 + EPS, True)])
def test_a_pull_ends_at_its_time(table: ParkedPullTable, at: float, over: bool) -> None:
    parked = table.park("c1", "pull", (Q0,), 15.0)

    assert table.expired(now=at) == ([parked] if over else [])
    assert len(table) == (0 if over else 1)


def test_pulls_end_in_the_order_of_their_times_and_equal_ones_in_that_they_came(table: ParkedPullTable) -> None:
    for token, expires_at in (("late", 9.0), ("b", 5.0), ("c", 5.0), ("a", 1.0)):
        table.park("c1", token, (Q0,), expires_at)

    assert [parked.token for parked in table.expired(now=5.0)] == ["a", "b", "c"]
    assert [parked.token for parked in table.expired(now=9.0)] == ["late"]


def test_an_owner_that_is_gone_takes_its_pulls_along_and_no_others(table: ParkedPullTable) -> None:
    mine = [table.park("c1", "1", (Q0, Q1), 15.0), table.park("c1", "2", (Q1,), 1.0)]
    other = table.park("c2", "3", (Q1,), 15.0)

    assert table.drop_owner("c1") == mine
    assert table.drop_owner("c1") == []
    assert table.arrived(Q0) == []
    assert table.of_queue(Q1) == [other]


def test_all_that_wait_can_be_listed_and_go_on_waiting(table: ParkedPullTable) -> None:
    parked = [table.park("c1", "1", (Q0, Q1), 15.0), table.park("c2", "2", (Q1,), 15.0)]
    table.cancel(table.park("c1", "3", (Q0,), 15.0))

    assert table.all() == parked
    assert len(table) == 2


def test_pulls_that_are_woken_at_once_leave_nothing(table: ParkedPullTable) -> None:
    waiting = [table.park("c0", "waits", (Q1,), 1e9) for _ in range(10)]

    for _ in range(10_000):
        table.park("c1", "pull", (Q0,), 15.0)
        table.arrived(Q0)

    assert len(table._heap) <= 2 * len(waiting) + SLACK + 1
    assert set(table._of_queue) == {Q1}
    assert set(table._of_owner) == {"c0"}
    assert table.expired(now=1e9) == waiting


class Holds(RuleBasedStateMachine):
    """Pulls park, messages arrive, time passes and connections break at random; the model is a plain list."""

    queues = st.sampled_from([Q0, Q1, Q2])
    owners = st.sampled_from(["c1", "c2", "c3"])

    def __init__(self) -> None:
        super().__init__()
        self.table = ParkedPullTable()
        self.now = 0.0
        self.model: list[ParkedPull] = []
        self.handed_out: list[ParkedPull] = []

    def taken(self, got: list[ParkedPull], expected: list[ParkedPull]) -> None:
        assert got == expected
        assert not set(map(id, got)) & set(map(id, self.handed_out))
        self.handed_out += got
        self.model = [parked for parked in self.model if parked not in got]

    @rule(owner=owners, queues=st.lists(queues, max_size=4), wait=st.sampled_from([0.0, 1.0, 15.0]))
    def park(self, owner: str, queues: list[MessageQueue], wait: float) -> None:
        parked = self.table.park(owner, object(), tuple(queues), self.now + wait)
        assert parked.waits
        self.model.append(parked)

    @rule(queue=queues)
    def many_are_woken_at_once(self, queue: MessageQueue) -> None:
        for _ in range(SLACK):
            self.park("c1", [queue], 15.0)
        self.arrive(queue)

    @rule(queue=queues)
    def arrive(self, queue: MessageQueue) -> None:
        self.taken(self.table.arrived(queue), [parked for parked in self.model if queue in parked.queues])

    @rule(step=st.sampled_from([0.0, 0.5, 1.0, 15.0]))
    def time_passes(self, step: float) -> None:
        self.now += step
        over = [parked for parked in self.model if parked.expires_at <= self.now]
        self.taken(self.table.expired(now=self.now), sorted(over, key=lambda parked: parked.expires_at))

    @rule(owner=owners)
    def break_connection(self, owner: str) -> None:
        self.taken(self.table.drop_owner(owner), [parked for parked in self.model if parked.owner == owner])

    @rule(pick=st.integers(0, 9))
    def cancel(self, pick: int) -> None:
        candidates = self.model + self.handed_out[-5:]
        if candidates:
            parked = candidates[pick % len(candidates)]
            waited = parked in self.model
            assert self.table.cancel(parked) is waited
            if waited:
                self.taken([parked], [parked])

    @invariant()
    def the_table_is_the_list(self) -> None:
        assert len(self.table) == len(self.model)
        for queue in (Q0, Q1, Q2):
            assert self.table.of_queue(queue) == [parked for parked in self.model if queue in parked.queues]
        for owner in ("c1", "c2"):
            assert self.table.of_owner(owner) == [parked for parked in self.model if parked.owner == owner]
        assert not any(parked.waits for parked in self.handed_out)


TestHolds = Holds.TestCase
