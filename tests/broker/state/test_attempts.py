"""Failed deliveries are counted for each message, over take-overs and restarts, until a commit passes it."""

from __future__ import annotations

import time
from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.attempts import MAX_RUNS, NO_ATTEMPT, AttemptTable, highest, joined
from rmq.broker.store.changes import Attempted, pack_changes, unpack_changes
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import AttemptRun, ResumedLease

Q0, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)
END = 40


@pytest.fixture
def table() -> AttemptTable:
    return AttemptTable()


def one(offset: int, attempts: int) -> list[AttemptRun]:
    """A single failing message."""
    return [AttemptRun(offset, offset + 1, attempts)]


def test_a_queue_where_nothing_failed_has_none(table: AttemptTable) -> None:
    table.record("g", Q0, one(7, 1))

    assert table.get("g", Q1) == table.get("other", Q0) == (-1, 0)
    assert table.get("g", Q0) == (7, 1)
    assert (table.runs("g", Q0), table.runs("g", Q1)) == (one(7, 1), [])


def test_a_count_grows_and_a_repeated_report_does_not_lower_it(table: AttemptTable) -> None:
    news = [table.record("g", Q0, one(7, attempts)) is not None for attempts in (1, 2, 2, 1)]

    assert news == [True, True, False, False]
    assert table.get("g", Q0) == (7, 2)


@pytest.mark.parametrize("queue_offset", [6, 8])
def test_another_message_has_its_own_count(table: AttemptTable, queue_offset: int) -> None:
    table.record("g", Q0, one(7, 5))

    assert table.record("g", Q0, one(queue_offset, 1))
    assert [table.of_message("g", Q0, offset) for offset in (queue_offset, 7, 5, 9)] == [1, 5, 0, 0]


def test_a_failed_batch_is_one_run_and_what_fails_again_of_it_is_cut_out(table: AttemptTable) -> None:
    table.record("g", Q0, [AttemptRun(10, 20, 1)])
    change = table.record("g", Q0, [AttemptRun(12, 14, 2)])

    runs = [AttemptRun(10, 12, 1), AttemptRun(12, 14, 2), AttemptRun(14, 20, 1)]
    assert change == Attempted("g", *Q0, 10, 1, runs)
    table.record("g", Q0, [AttemptRun(10, 20, 2)])
    assert table.runs("g", Q0) == [AttemptRun(10, 20, 2)]


@pytest.mark.parametrize(("committed", "left"), [(6, [(7, 9)]), (7, [(7, 9)]), (8, [(8, 9)]), (9, []), (100, [])])
def test_a_commit_forgets_the_messages_it_has_passed(
    table: AttemptTable, committed: int, left: list[tuple[int, int]]
) -> None:
    table.record("g", Q0, [AttemptRun(7, 9, 3)])

    assert table.forget_below("g", Q0, committed) is (left != [(7, 9)])
    assert [run[:2] for run in table.runs("g", Q0)] == left


def test_a_commit_where_nothing_failed_forgets_nothing(table: AttemptTable) -> None:
    assert not table.forget_below("g", Q0, 100)


@pytest.mark.parametrize(("queue_end", "left"), [(6, [(4, 6)]), (5, [(4, 5)]), (4, []), (0, [])])
def test_messages_at_or_after_the_end_of_a_shortened_queue_are_forgotten(
    table: AttemptTable, queue_end: int, left: list[tuple[int, int]]
) -> None:
    table.record("g", Q0, [AttemptRun(4, 6, 3)])
    before = list(table.rows())

    change = table.forget_from("g", Q0, queue_end)

    assert (change is None) == (left == [(4, 6)])
    assert [run[:2] for run in table.runs("g", Q0)] == left
    assert table.forget_from("g", Q1, 0) is None
    again = AttemptTable()
    for row in [*before, *([change] if change is not None else [])]:
        again.apply(row)
    assert list(again.rows()) == list(table.rows())  # the log says so too


def test_a_reset_forgets_the_queue_and_says_so_once(table: AttemptTable) -> None:
    table.record("g", Q0, one(3, 1))
    table.record("g", Q1, one(4, 1))

    assert table.forget_queue("g", Q0) == Attempted("g", *Q0, *NO_ATTEMPT)
    assert table.forget_queue("g", Q0) is None
    assert list(table.rows()) == [Attempted("g", *Q1, 4, 1)]


def test_the_rows_bring_the_table_back_and_the_last_change_stands(table: AttemptTable) -> None:
    table.apply(Attempted("g", "orders", 0, 7, 3))  # of a log from before there were runs
    table.apply(Attempted("g", "orders", 0, 9, 1))
    again = AttemptTable()

    for row in table.rows():
        again.apply(row)

    assert list(again.rows()) == [Attempted("g", "orders", 0, 9, 1)]


def test_a_queue_has_at_most_1024_runs_and_no_count_goes_down_for_that(table: AttemptTable) -> None:
    scattered = [AttemptRun(2 * i, 2 * i + 1, 1 + i % 3) for i in range(MAX_RUNS)]
    table.record("g", Q0, scattered)
    table.record("g", Q0, [AttemptRun(2 * MAX_RUNS + 10, 2 * MAX_RUNS + 11, 7)])

    runs = table.runs("g", Q0)
    assert len(runs) == MAX_RUNS
    assert all(table.of_message("g", Q0, run.from_offset) >= run.attempts for run in scattered)
    assert runs[-1] == (2 * MAX_RUNS + 10, 2 * MAX_RUNS + 11, 7)


some_runs = st.lists(st.tuples(st.integers(0, END - 1), st.integers(1, 9), st.integers(1, 5)), max_size=6).map(
    lambda rows: highest(sorted_out(rows), [])
)


def sorted_out(rows: list[tuple[int, int, int]]) -> list[AttemptRun]:
    """Runs in order and without overlap, from any."""
    taken, behind = [], 0
    for first, length, attempts in sorted(rows):
        start = max(first, behind)
        behind = max(behind, min(first + length, END))
        if start < behind:
            taken.append(AttemptRun(start, behind, attempts))
    return taken


def counts(runs: list[AttemptRun]) -> dict[int, int]:
    """The same, message by message."""
    return {offset: run.attempts for run in runs for offset in range(run.from_offset, run.end_offset)}


@given(some_runs, some_runs)
def test_the_higher_count_of_two_reports_stands_for_each_message(
    ours: list[AttemptRun], theirs: list[AttemptRun]
) -> None:
    merged, mine, others = highest(ours, theirs), counts(ours), counts(theirs)

    assert counts(merged) == {at: max(mine.get(at, 0), others.get(at, 0)) for at in mine | others}
    assert all(a.end_offset < b.from_offset or a.attempts != b.attempts for a, b in pairwise(merged))


@given(some_runs, st.integers(1, 4))
def test_joining_lowers_no_count(runs: list[AttemptRun], most: int) -> None:
    fewer = joined(runs, most)

    assert len(fewer) <= most
    assert all(counts(fewer)[at] >= count for at, count in counts(runs).items())


def test_joining_as_many_runs_as_two_reports_can_make_keeps_the_loop_for_a_moment_only() -> None:
    runs = [AttemptRun(2 * place, 2 * place + 1, 1 + place % 7) for place in range(4096)]

    began = time.process_time()
    fewer = joined(runs)

    assert time.process_time() - began < 1.0  # one pair after the other took 20 s
    assert len(fewer) == MAX_RUNS


def test_all_that_failed_in_ten_thousand_queues_fits_the_answer_to_a_hello() -> None:
    runs = [AttemptRun(2 * i, 2 * i + 1, 1 + i) for i in range(1 << 30, (1 << 30) + MAX_RUNS)]
    leases = [ResumedLease("a-group", "a-topic", i, 1 << 40, 1 << 31, 1 << 31, 1 << 30, runs) for i in range(10_000)]

    assert len(msgpack.packb(leases)) < frames.MAX_FRAME - (64 << 10)


class Model(RuleBasedStateMachine):
    """The table against a dictionary of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.table = AttemptTable()
        self.model: dict[int, int] = {}
        self.log: list[Attempted | int] = []  # changes, and commits, as they would stand in the log

    @rule(runs=some_runs)
    def fail(self, runs: list[AttemptRun]) -> None:
        change = self.table.record("g", Q0, runs)
        before = dict(self.model)
        for at, count in counts(runs).items():
            self.model[at] = max(self.model.get(at, 0), count)
        assert (change is not None) == (self.model != before)
        self.log += [change] if change else []

    @rule(offset=st.integers(0, END))
    def commit(self, offset: int) -> None:
        self.table.forget_below("g", Q0, offset)
        self.model = {at: count for at, count in self.model.items() if at >= offset}
        self.log.append(offset)

    @rule(end=st.integers(0, END))
    def cut(self, end: int) -> None:
        change = self.table.forget_from("g", Q0, end)
        self.model = {at: count for at, count in self.model.items() if at < end}
        self.log += [change] if change else []

    @invariant()
    def says_the_same(self) -> None:
        assert counts(self.table.runs("g", Q0)) == self.model
        assert self.table.get("g", Q0) == min(self.model.items(), default=NO_ATTEMPT)
        assert [self.table.of_message("g", Q0, at) for at in range(END)] == [self.model.get(at, 0) for at in range(END)]

    def teardown(self) -> None:
        again = AttemptTable()
        for entry in self.log:
            if isinstance(entry, int):
                again.forget_below("g", Q0, entry)
            else:
                (change,) = unpack_changes(pack_changes([entry]))
                assert isinstance(change, Attempted)
                again.apply(change)
        assert list(again.rows()) == list(self.table.rows())


TestModel = Model.TestCase
