"""
What became of dead letters is known message by message, told in runs, and forgotten with the messages.

A message is sent back or given up once, also if somebody asks again after a crash.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.dead_letters import PIECE_RUNS, CopiedTable, HandledTable
from rmq.broker.store.changes import Copied, DeadHandled, pack_changes, unpack_changes
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun

from rigs.batches import quick

TOPIC = "%DLQ%g"
END = 40


@pytest.fixture
def table_plain() -> HandledTable:
    """2 to 4 are replayed, 5 and 9 are dropped."""
    table_plain = HandledTable()
    table_plain.apply(table_plain.change(TOPIC, [2, 3, 4], REPLAYED))
    table_plain.apply(table_plain.change(TOPIC, [5, 9], DROPPED))
    return table_plain


def states(table_plain: HandledTable) -> dict[int, int]:
    found = {offset: table_plain.state_of(TOPIC, offset) for offset in range(END)}
    return {offset: state for offset, state in found.items() if state != WAITING}


def test_states_are_known_by_message_and_reported_in_runs(table_plain: HandledTable) -> None:
    assert states(table_plain) == {2: REPLAYED, 3: REPLAYED, 4: REPLAYED, 5: DROPPED, 9: DROPPED}
    assert table_plain.runs(TOPIC, 0, 9) == [DeadRun(2, 5, REPLAYED), DeadRun(5, 6, DROPPED), DeadRun(9, 10, DROPPED)]
    assert (table_plain.counts(TOPIC), table_plain.length(TOPIC)) == ((3, 2), 3)
    assert (table_plain.counts("%DLQ%h"), table_plain.length("%DLQ%h"), table_plain.runs("%DLQ%h", 0, 9)) == (
        (0, 0),
        0,
        [],
    )
    assert table_plain.state_of("%DLQ%h", 3) == WAITING


@pytest.mark.parametrize(
    ("from_offset", "limit", "found"),
    [
        (0, 1, [(2, 5, REPLAYED)]),
        (4, 2, [(4, 5, REPLAYED), (5, 6, DROPPED)]),
        (5, 2, [(5, 6, DROPPED), (9, 10, DROPPED)]),
        (10, 2, []),
    ],
)
def test_runs_are_reported_page_by_page(
    table_plain: HandledTable, from_offset: int, limit: int, found: list[tuple[int, int, int]]
) -> None:
    assert table_plain.runs(TOPIC, from_offset, limit) == found


@pytest.mark.parametrize(
    ("offsets", "state", "after"),
    [
        ([], REPLAYED, 3), ([12], REPLAYED, 4), ([1], REPLAYED, 3), ([6, 7, 8], DROPPED, 2), ([6, 8], DROPPED, 3),
        ([8], REPLAYED, 4),
    ],
)  # fmt: skip
def test_it_is_known_before_how_many_runs_there_would_be(
    table_plain: HandledTable, offsets: list[int], state: int, after: int
) -> None:
    change = table_plain.change(TOPIC, offsets, state)

    assert table_plain.length_after(change) == after
    table_plain.apply(change)
    assert table_plain.length(TOPIC) == after


def test_neighbours_of_one_state_become_one_run(table_plain: HandledTable) -> None:
    table_plain.apply(table_plain.change(TOPIC, [6, 7, 8], DROPPED))

    assert table_plain.runs(TOPIC, 5, 9) == [DeadRun(5, 10, DROPPED)]


@pytest.mark.parametrize(("first", "left"), [(2, [2, 3, 4, 5, 9]), (4, [4, 5, 9]), (6, [9]), (10, [])])
def test_what_retention_has_taken_is_forgotten(table_plain: HandledTable, first: int, left: list[int]) -> None:
    table_plain.forget_below(TOPIC, first)
    table_plain.forget_below("%DLQ%h", first)

    assert list(states(table_plain)) == left
    assert sum(table_plain.counts(TOPIC)) == len(left)
    assert table_plain.topics() == ([TOPIC] if left else [])


@pytest.mark.parametrize(("end", "left"), [(10, [2, 3, 4, 5, 9]), (9, [2, 3, 4, 5]), (3, [2]), (0, [])])
def test_what_recovery_cut_off_is_another_message_now_and_the_log_says_so(
    table_plain: HandledTable, end: int, left: list[int]
) -> None:
    again = HandledTable()
    for row in table_plain.rows():
        again.apply(row)

    change = table_plain.forget_from(TOPIC, end)

    assert list(states(table_plain)) == left
    assert (change is None) == (end == 10)
    if change is not None:
        (told,) = unpack_changes(pack_changes([change]))
        assert isinstance(told, DeadHandled)
        again.apply(told)
    assert states(again) == states(table_plain)
    assert table_plain.forget_from("%DLQ%h", 0) is None


def test_a_topic_that_is_gone_takes_it_all(table_plain: HandledTable) -> None:
    table_plain.forget_topic(TOPIC)
    table_plain.forget_topic("%DLQ%h")

    assert (table_plain.topics(), list(table_plain.rows())) == ([], [])


def test_rows_bring_everything_back_in_pieces() -> None:
    table_plain, again = HandledTable(), HandledTable()
    table_plain.apply(table_plain.change(TOPIC, range(0, 2 * PIECE_RUNS + 2, 2), DROPPED))

    rows = list(table_plain.rows())
    for row in rows:
        again.apply(row)

    assert [len(row.runs) for row in rows] == [PIECE_RUNS, 1]
    assert all(row.is_again for row in rows)
    assert again.counts(TOPIC) == (0, PIECE_RUNS + 1)


steps = st.lists(
    st.tuples(st.integers(0, END - 1), st.integers(1, 9), st.sampled_from([WAITING, REPLAYED, DROPPED])), max_size=30
)


@quick
@given(steps)
def test_runs_say_the_same_as_a_state_for_each_message(asked: list[tuple[int, int, int]]) -> None:
    table_plain, model = HandledTable(), dict.fromkeys(range(END + 10), WAITING)
    for start, count, state in asked:
        table_plain.apply(DeadHandled(TOPIC, [DeadRun(start, start + count, state)]))
        model.update(dict.fromkeys(range(start, start + count), state))

    assert [table_plain.state_of(TOPIC, offset) for offset in model] == list(model.values())
    assert table_plain.counts(TOPIC) == tuple(sum(is_in == state for is_in in model.values()) for state in (1, 2))
    runs = table_plain.runs(TOPIC, 0, 1000)
    assert all(run.from_offset < run.end_offset and run.state != WAITING for run in runs)
    assert all(
        a.end_offset < b.from_offset or (a.end_offset == b.from_offset and a.state != b.state)
        for a, b in pairwise(runs)
    )
    again = HandledTable()
    for row in table_plain.rows():
        again.apply(row)
    assert again.runs(TOPIC, 0, 1000) == runs


Q0, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)


@pytest.fixture
def table_copied_table() -> CopiedTable:
    table_copied_table = CopiedTable()
    table_copied_table.apply(table_copied_table.change("g", Q0, [5, 7]))
    return table_copied_table


def known(table_copied_table: CopiedTable) -> list[int]:
    return sorted(table_copied_table.offsets("g", Q0))


def test_what_was_copied_is_known_by_group_and_queue(table_copied_table: CopiedTable) -> None:
    table_copied_table.apply(table_copied_table.change("g", Q0, [6]))

    assert known(table_copied_table) == [5, 6, 7]
    assert not table_copied_table.offsets("h", Q0) and 5 not in table_copied_table.offsets("g", Q1)


@pytest.mark.parametrize(("committed", "left"), [(5, [5, 7]), (6, [7]), (8, [])])
def test_a_commit_forgets_what_it_has_passed(table_copied_table: CopiedTable, committed: int, left: list[int]) -> None:
    table_copied_table.forget_below("g", Q0, committed)
    table_copied_table.forget_below("g", Q1, committed)

    assert known(table_copied_table) == left
    assert [row.queue_offsets for row in table_copied_table.rows()] == ([left] if left else [])


@pytest.mark.parametrize(("end", "left"), [(8, [5, 7]), (7, [5]), (5, [])])
def test_what_recovery_cut_off_is_another_message_now(
    table_copied_table: CopiedTable, end: int, left: list[int]
) -> None:
    again = CopiedTable()
    for row in table_copied_table.rows():
        again.apply(row)

    change = table_copied_table.forget_from("g", Q0, end)

    assert known(table_copied_table) == left
    assert (change is None) == (left == [5, 7])
    if change is not None:
        again.apply(change)
    assert known(again) == left


def test_a_reset_or_the_end_of_the_topic_forgets_it(table_copied_table: CopiedTable) -> None:
    table_copied_table.apply(table_copied_table.change("g", Q1, [1]))

    assert table_copied_table.forget_queue("g", Q0) == Copied("g", *Q0, [], True)
    assert table_copied_table.forget_queue("g", Q0) is None
    assert [row.queue_id for row in table_copied_table.rows()] == [1]
    table_copied_table.forget_topic("orders")
    assert list(table_copied_table.rows()) == []
