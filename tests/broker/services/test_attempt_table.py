"""Failed deliveries are counted over take-overs and restarts, until a commit passes the message."""

from __future__ import annotations

import pytest

from rmq.broker.services.attempt_table import NO_ATTEMPT, AttemptTable
from rmq.broker.services.state import Attempted
from rmq.wire.model import MessageQueue

Q0, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)


@pytest.fixture
def table() -> AttemptTable:
    return AttemptTable()


def test_a_queue_where_nothing_failed_has_none(table: AttemptTable) -> None:
    table.record("g", Q0, 7, 1)

    assert table.get("g", Q1) == table.get("other", Q0) == (-1, 0)
    assert table.get("g", Q0) == (7, 1)


def test_a_count_grows_and_a_repeated_report_does_not_lower_it(table: AttemptTable) -> None:
    assert [table.record("g", Q0, 7, attempts) for attempts in (1, 2, 2, 1)] == [True, True, False, False]
    assert table.get("g", Q0) == (7, 2)


@pytest.mark.parametrize("queue_offset", [6, 8])
def test_another_message_starts_its_own_count(table: AttemptTable, queue_offset: int) -> None:
    table.record("g", Q0, 7, 5)

    assert table.record("g", Q0, queue_offset, 1)
    assert table.get("g", Q0) == (queue_offset, 1)


@pytest.mark.parametrize(("committed", "forgotten"), [(6, False), (7, False), (8, True), (100, True)])
def test_a_commit_forgets_the_message_once_it_has_passed_it(
    table: AttemptTable, committed: int, forgotten: bool
) -> None:
    table.record("g", Q0, 7, 3)

    assert table.forget_below("g", Q0, committed) is forgotten
    assert table.get("g", Q0) == ((-1, 0) if forgotten else (7, 3))


def test_a_commit_where_nothing_failed_forgets_nothing(table: AttemptTable) -> None:
    assert not table.forget_below("g", Q0, 100)


@pytest.mark.parametrize(("queue_end", "forgotten"), [(6, False), (5, True), (0, True)])
def test_a_message_at_or_behind_the_end_of_a_shortened_queue_is_forgotten(
    table: AttemptTable, queue_end: int, forgotten: bool
) -> None:
    table.record("g", Q0, 5, 3)
    before = list(table.rows())

    change = table.forget_from("g", Q0, queue_end)

    assert (change is not None) == forgotten
    assert table.get("g", Q0) == (NO_ATTEMPT if forgotten else (5, 3))
    assert table.forget_from("g", Q1, 0) is None
    again = AttemptTable()
    for row in [*before, *([change] if change is not None else [])]:
        again.apply(row)
    assert list(again.rows()) == list(table.rows())  # the log says so too


def test_the_rows_bring_the_table_back_and_the_last_change_stands(table: AttemptTable) -> None:
    table.apply(Attempted("g", "orders", 0, 7, 3))
    table.apply(Attempted("g", "orders", 0, 9, 1))
    again = AttemptTable()

    for row in table.rows():
        again.apply(row)

    assert list(again.rows()) == [Attempted("g", "orders", 0, 9, 1)]
