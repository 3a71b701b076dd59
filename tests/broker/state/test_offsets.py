"""
A commit never takes a group back; the log's last word stands.

A commit, the end of a topic, a reset and a cut take all that is known of the messages they concern.
"""

from __future__ import annotations

import pytest

from rmq.broker.state.offsets import Ledger, OffsetTable
from rmq.broker.store.changes import Attempted, Change, Committed, Copied, DeadHandled, Suspected
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.redelivery import REPLAYED

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
def test_an_offset_after_the_end_of_a_shortened_queue_is_lowered_to_it(
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


ELSEWHERE = MessageQueue("payments", 0)


def filled(*queues: MessageQueue) -> Ledger:
    """Offset 5 is committed, 5 to 7 failed, 5 is suspect, 6 and 8 are given up."""
    ledger = Ledger()
    for queue in queues:
        ledger.commit("g", queue, 5)
        ledger.attempts.record("g", queue, [AttemptRun(5, 8, 2)])
        ledger.suspects.abandon("g", queue, epoch=1, committed=5, fetched=9)
        ledger.copied.apply(Copied("g", *queue, [6, 8]))
    return ledger


def known(ledger: Ledger) -> list[str]:
    return sorted(type(row).__name__ for row in ledger.rows())


def test_a_commit_takes_with_it_what_it_has_passed() -> None:
    ledger = filled(Q0)

    assert ledger.commit("g", Q0, 7) == Committed("g", *Q0, 7)

    assert list(ledger.rows()) == [
        Committed("g", *Q0, 7), Attempted("g", *Q0, 7, 2), Copied("g", *Q0, [8], True),
    ]  # fmt: skip


@pytest.mark.parametrize("offset", [5, 4, 0])
def test_what_is_no_progress_changes_nothing(offset: int) -> None:
    ledger = filled(Q0)
    before = list(ledger.rows())

    assert ledger.commit("g", Q0, offset) is None
    assert list(ledger.rows()) == before


def test_the_log_repeats_a_commit_with_all_that_it_did() -> None:
    ledger, again = filled(Q0, Q1), Ledger()
    for row in ledger.rows():
        again.apply(row)

    change = ledger.commit("g", Q0, 8)
    assert change is not None
    again.apply(change)

    assert list(again.rows()) == list(ledger.rows())


@pytest.mark.parametrize("offset", [0, 5, 9])
def test_a_reset_leaves_nothing_but_the_offset_and_the_log_says_so(offset: int) -> None:
    ledger, again = filled(Q0, Q1), filled(Q0, Q1)

    for change in ledger.reset("g", Q0, offset):
        again.apply(change)  # type: ignore[arg-type]

    assert [row for row in ledger.rows() if row.queue_id == 0] == [Committed("g", *Q0, offset)]
    assert len([row for row in ledger.rows() if row.queue_id == 1]) == 4
    assert list(again.rows()) == list(ledger.rows())


def test_a_reset_where_nothing_is_known_is_a_commit() -> None:
    assert Ledger().reset("g", Q0, 3) == [Committed("g", *Q0, 3)]


def test_a_topic_that_is_gone_takes_all_of_its_queues() -> None:
    ledger = filled(Q0, Q1, ELSEWHERE)

    ledger.forget_topic("orders")

    assert known(ledger) == ["Attempted", "Committed", "Copied", "Suspected"]
    assert {row.topic for row in ledger.rows()} == {"payments"}


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (9, ["Attempted", "Committed", "Copied", "Suspected"]),
        (6, ["Attempted", "Committed", "Suspected"]),
        (5, ["Committed"]),
        (2, ["Committed"]),
    ],
)
def test_what_recovery_cut_off_is_forgotten_everywhere_and_the_log_says_so(end: int, left: list[str]) -> None:
    ledger, again = filled(Q0), filled(Q0)

    changes: list[Change] = ledger.lower(lambda queue: end)
    for change in changes:
        again.apply(change)  # type: ignore[arg-type]

    assert known(ledger) == left
    assert ledger.offsets.get("g", Q0) == min(end, 5)
    assert list(again.rows()) == list(ledger.rows())
    assert ledger.lower(lambda queue: end) == []


def with_dead_letters() -> Ledger:
    """Of the dead letters 2 to 8, 3 and 7 were replayed."""
    ledger = filled(Q0)
    ledger.apply(ledger.handled.change("%DLQ%g", [3, 7], REPLAYED))
    return ledger


def test_all_are_distinguished() -> None:
    kinds = {Committed, Attempted, Suspected, Copied, DeadHandled}

    assert {type(row) for row in with_dead_letters().rows()} == kinds


def test_dead_letters_that_recovery_cut_off_are_others_now_and_the_log_says_so() -> None:
    ledger, again = with_dead_letters(), with_dead_letters()

    changes = ledger.lower(lambda queue: 5 if queue == MessageQueue("%DLQ%g", 0) else 9)
    for change in changes:
        again.apply(change)  # type: ignore[arg-type]

    assert [type(change) for change in changes] == [DeadHandled]
    assert ledger.handled.counts("%DLQ%g") == again.handled.counts("%DLQ%g") == (1, 0)


def test_what_is_known_of_dead_letters_goes_with_them() -> None:
    ledger = with_dead_letters()

    ledger.trim(lambda queue: 4)
    assert ledger.handled.counts("%DLQ%g") == (1, 0)
    ledger.forget_topic("%DLQ%g")
    assert ledger.handled.topics() == []
