"""A message is sent back or given up once, also if somebody asks again after a crash."""

from __future__ import annotations

import pytest

from rmq.broker.state.dead_letters import CopiedTable
from rmq.broker.store.changes import Copied
from rmq.wire.model import MessageQueue

Q0, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)


@pytest.fixture
def table() -> CopiedTable:
    table = CopiedTable()
    table.apply(table.change("g", Q0, [5, 7]))
    return table


def known(table: CopiedTable) -> list[int]:
    return sorted(table.offsets("g", Q0))


def test_what_was_copied_is_known_by_group_and_queue(table: CopiedTable) -> None:
    table.apply(table.change("g", Q0, [6]))

    assert known(table) == [5, 6, 7]
    assert not table.offsets("h", Q0) and 5 not in table.offsets("g", Q1)


@pytest.mark.parametrize(("committed", "left"), [(5, [5, 7]), (6, [7]), (8, [])])
def test_a_commit_forgets_what_it_has_passed(table: CopiedTable, committed: int, left: list[int]) -> None:
    table.forget_below("g", Q0, committed)
    table.forget_below("g", Q1, committed)

    assert known(table) == left
    assert [row.queue_offsets for row in table.rows()] == ([left] if left else [])


@pytest.mark.parametrize(("end", "left"), [(8, [5, 7]), (7, [5]), (5, [])])
def test_what_recovery_cut_off_is_another_message_now(table: CopiedTable, end: int, left: list[int]) -> None:
    again = CopiedTable()
    for row in table.rows():
        again.apply(row)

    change = table.forget_from("g", Q0, end)

    assert known(table) == left
    assert (change is None) == (left == [5, 7])
    if change is not None:
        again.apply(change)
    assert known(again) == left


def test_a_reset_or_the_end_of_the_topic_forgets_it(table: CopiedTable) -> None:
    table.apply(table.change("g", Q1, [1]))

    assert table.forget_queue("g", Q0) == Copied("g", *Q0, [], True)
    assert table.forget_queue("g", Q0) is None
    assert [row.queue_id for row in table.rows()] == [1]
    table.forget_topic("orders")
    assert list(table.rows()) == []
