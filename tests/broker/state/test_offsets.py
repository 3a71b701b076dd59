"""A commit never takes a group back; the log's last word stands."""

from __future__ import annotations

import pytest

from rmq.broker.state.offsets import OffsetTable
from rmq.broker.store.changes import Committed
from rmq.wire.model import MessageQueue

Q0, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)


@pytest.fixture
def table() -> OffsetTable:
    return OffsetTable()


def test_a_group_that_never_committed_has_no_offset(table: OffsetTable) -> None:
    table.commit("g", Q0, 5)

    assert table.get("other", Q0) == table.get("g", Q1) == -1


@pytest.mark.parametrize(("later", "changed", "stands"), [(4, False, 5), (5, False, 5), (6, True, 6), (-1, False, 5)])
def test_a_commit_never_lowers_an_offset(table: OffsetTable, later: int, changed: bool, stands: int) -> None:
    assert table.commit("g", Q0, 5)

    assert table.commit("g", Q0, later) is changed
    assert table.get("g", Q0) == stands


def test_the_first_commit_may_be_0_and_none_may_be_below(table: OffsetTable) -> None:
    assert not table.commit("g", Q0, -1)
    assert list(table.rows()) == []
    assert table.commit("g", Q0, 0)
    assert table.get("g", Q0) == 0


def test_groups_and_queues_do_not_touch_each_other(table: OffsetTable) -> None:
    table.commit("a", Q0, 1)
    table.commit("a", Q1, 2)
    table.commit("b", Q0, 3)

    assert [table.get(group, queue) for group in "abc" for queue in (Q0, Q1)] == [1, 2, 3, -1, -1, -1]


def test_replay_takes_the_log_at_its_word_also_when_it_goes_back(table: OffsetTable) -> None:
    for queue_offset in (100, 90):
        table.apply(Committed("g", "orders", 0, queue_offset))

    assert table.get("g", Q0) == 90


@pytest.mark.parametrize(("end", "lowered", "stands"), [(9, True, 9), (10, False, 10), (11, False, 10)])
def test_an_offset_behind_the_end_of_a_shortened_queue_is_lowered_to_it(
    table: OffsetTable, end: int, lowered: bool, stands: int
) -> None:
    table.commit("g", Q0, 10)

    assert table.lower("g", Q0, end) is lowered
    assert table.get("g", Q0) == stands


def test_a_group_without_offset_is_not_lowered(table: OffsetTable) -> None:
    assert not table.lower("g", Q0, 0)


def test_the_rows_bring_the_table_back(table: OffsetTable) -> None:
    table.commit("a", Q0, 1)
    table.commit("b", Q1, 2)
    again = OffsetTable()

    for row in table.rows():
        again.apply(row)

    assert list(again.rows()) == [Committed("a", "orders", 0, 1), Committed("b", "orders", 1, 2)]


def test_the_topics_of_a_group_are_those_it_has_an_offset_in(table: OffsetTable) -> None:
    table.commit("g", Q0, 5)
    table.apply(Committed("g", "payments", 3, 1))
    table.commit("h", Q1, 5)
    assert (table.names(), table.topics("g"), table.topics("h"), table.topics("other")) == (
        ["g", "h"], {"orders", "payments"}, {"orders"}, set(),
    )  # fmt: skip

    table.forget_topic("orders")

    assert (table.names(), table.topics("g"), table.topics("h")) == (["g"], {"payments"}, set())
    table.commit("a", Q0, 5)
    assert table.names() == ["a", "g"]
