"""What became of dead letters is known message by message, told in runs, and forgotten with the messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.dead_letters import PIECE_RUNS, HandledTable
from rmq.broker.store.changes import DeadHandled, pack_changes, unpack_changes
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun

from support.batches import quick

TOPIC = "%DLQ%g"
END = 40


@pytest.fixture
def table() -> HandledTable:
    """2 to 4 are replayed, 5 and 9 are dropped."""
    table = HandledTable()
    table.apply(table.change(TOPIC, [2, 3, 4], REPLAYED))
    table.apply(table.change(TOPIC, [5, 9], DROPPED))
    return table


def states(table: HandledTable) -> dict[int, int]:
    found = {offset: table.state_of(TOPIC, offset) for offset in range(END)}
    return {offset: state for offset, state in found.items() if state != WAITING}


def test_states_are_known_by_message_and_told_in_runs(table: HandledTable) -> None:
    assert states(table) == {2: REPLAYED, 3: REPLAYED, 4: REPLAYED, 5: DROPPED, 9: DROPPED}
    assert table.runs(TOPIC, 0, 9) == [DeadRun(2, 5, REPLAYED), DeadRun(5, 6, DROPPED), DeadRun(9, 10, DROPPED)]
    assert (table.counts(TOPIC), table.length(TOPIC)) == ((3, 2), 3)
    assert (table.counts("%DLQ%h"), table.length("%DLQ%h"), table.runs("%DLQ%h", 0, 9)) == ((0, 0), 0, [])
    assert table.state_of("%DLQ%h", 3) == WAITING


@pytest.mark.parametrize(
    ("from_offset", "limit", "found"),
    [
        (0, 1, [(2, 5, REPLAYED)]),
        (4, 2, [(4, 5, REPLAYED), (5, 6, DROPPED)]),
        (5, 2, [(5, 6, DROPPED), (9, 10, DROPPED)]),
        (10, 2, []),
    ],
)
def test_runs_are_told_page_by_page(
    table: HandledTable, from_offset: int, limit: int, found: list[tuple[int, int, int]]
) -> None:
    assert table.runs(TOPIC, from_offset, limit) == found


@pytest.mark.parametrize(
    ("offsets", "state", "after"),
    [
        ([], REPLAYED, 3), ([12], REPLAYED, 4), ([1], REPLAYED, 3), ([6, 7, 8], DROPPED, 2), ([6, 8], DROPPED, 3),
        ([8], REPLAYED, 4),
    ],
)  # fmt: skip
def test_it_is_known_before_how_many_runs_there_would_be(
    table: HandledTable, offsets: list[int], state: int, after: int
) -> None:
    change = table.change(TOPIC, offsets, state)

    assert table.length_after(change) == after
    table.apply(change)
    assert table.length(TOPIC) == after


def test_neighbours_of_one_state_become_one_run(table: HandledTable) -> None:
    table.apply(table.change(TOPIC, [6, 7, 8], DROPPED))

    assert table.runs(TOPIC, 5, 9) == [DeadRun(5, 10, DROPPED)]


@pytest.mark.parametrize(("first", "left"), [(2, [2, 3, 4, 5, 9]), (4, [4, 5, 9]), (6, [9]), (10, [])])
def test_what_retention_has_taken_is_forgotten(table: HandledTable, first: int, left: list[int]) -> None:
    table.forget_below(TOPIC, first)
    table.forget_below("%DLQ%h", first)

    assert list(states(table)) == left
    assert sum(table.counts(TOPIC)) == len(left)
    assert table.topics() == ([TOPIC] if left else [])


@pytest.mark.parametrize(("end", "left"), [(10, [2, 3, 4, 5, 9]), (9, [2, 3, 4, 5]), (3, [2]), (0, [])])
def test_what_recovery_cut_off_is_another_message_now_and_the_log_says_so(
    table: HandledTable, end: int, left: list[int]
) -> None:
    again = HandledTable()
    for row in table.rows():
        again.apply(row)

    change = table.forget_from(TOPIC, end)

    assert list(states(table)) == left
    assert (change is None) == (end == 10)
    if change is not None:
        (told,) = unpack_changes(pack_changes([change]))
        assert isinstance(told, DeadHandled)
        again.apply(told)
    assert states(again) == states(table)
    assert table.forget_from("%DLQ%h", 0) is None


def test_a_topic_that_is_gone_takes_it_all(table: HandledTable) -> None:
    table.forget_topic(TOPIC)
    table.forget_topic("%DLQ%h")

    assert (table.topics(), list(table.rows())) == ([], [])


def test_all_of_it_is_told_again_in_pieces() -> None:
    table, again = HandledTable(), HandledTable()
    table.apply(table.change(TOPIC, range(0, 2 * PIECE_RUNS + 2, 2), DROPPED))

    rows = list(table.rows())
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
    table, model = HandledTable(), dict.fromkeys(range(END + 10), WAITING)
    for start, count, state in asked:
        table.apply(DeadHandled(TOPIC, [DeadRun(start, start + count, state)]))
        model.update(dict.fromkeys(range(start, start + count), state))

    assert [table.state_of(TOPIC, offset) for offset in model] == list(model.values())
    assert table.counts(TOPIC) == tuple(sum(is_in == state for is_in in model.values()) for state in (1, 2))
    runs = table.runs(TOPIC, 0, 1000)
    assert all(run.from_offset < run.end_offset and run.state != WAITING for run in runs)
    assert all(
        a.end_offset < b.from_offset or (a.end_offset == b.from_offset and a.state != b.state)
        for a, b in pairwise(runs)
    )
    again = HandledTable()
    for row in table.rows():
        again.apply(row)
    assert again.runs(TOPIC, 0, 1000) == runs
