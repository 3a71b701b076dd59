"""Leases that end without being given back are held against one message, until a commit passes it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.crash_suspects import NOTHING, CrashMark, SuspectTable
from rmq.broker.store.changes import Suspected, pack_changes, unpack_changes
from rmq.wire.model import MessageQueue

Q0, Q1 = MessageQueue("orders", 0), MessageQueue("orders", 1)


@pytest.fixture
def table() -> SuspectTable:
    return SuspectTable()


def abandon(table: SuspectTable, committed: int, fetched: int, *, epoch: int = 1) -> int | None:
    """The offset that had been announced, -1 for none; None if nothing was in hand."""
    found = table.abandon("g", Q0, epoch=epoch, committed=committed, fetched=fetched)
    return None if found is None else found[1]


@pytest.mark.parametrize(("committed", "fetched"), [(5, 5), (5, 4), (5, -1), (-1, -1), (-1, 0)])
def test_an_owner_with_nothing_in_hand_leaves_no_mark(table: SuspectTable, committed: int, fetched: int) -> None:
    assert abandon(table, committed, fetched) is None
    assert table.get("g", Q0) == NOTHING


def test_the_first_end_marks_the_next_message_and_asks_for_no_care(table: SuspectTable) -> None:
    assert abandon(table, 5, 9) == -1
    assert table.get("g", Q0) == CrashMark(5, 1, 9, False)
    assert table.get("g", Q1) == table.get("h", Q0) == NOTHING


def test_a_group_that_never_committed_is_marked_at_the_first_message(table: SuspectTable) -> None:
    abandon(table, -1, 3)
    abandon(table, -1, 3)

    assert table.get("g", Q0) == CrashMark(0, 2, 3, True)


def test_the_second_end_at_the_same_offset_asks_for_care_up_to_the_last_read_offset(table: SuspectTable) -> None:
    abandon(table, 5, 9)
    abandon(table, 5, 7)

    assert table.get("g", Q0) == CrashMark(5, 2, 9, True)


def test_progress_between_two_ends_begins_the_count_again(table: SuspectTable) -> None:
    abandon(table, 5, 9)
    table.committed("g", Q0, 6)
    assert table.get("g", Q0) == NOTHING

    abandon(table, 6, 9)
    assert table.get("g", Q0) == CrashMark(6, 1, 9, False)


def test_a_commit_up_to_the_suspect_changes_nothing(table: SuspectTable) -> None:
    abandon(table, 5, 9)
    table.committed("g", Q0, 5)

    assert table.get("g", Q0).abandoned == 1


def test_care_lasts_until_a_commit_reaches_its_end(table: SuspectTable) -> None:
    abandon(table, 5, 9)
    abandon(table, 5, 9)
    table.committed("g", Q0, 8)

    assert table.get("g", Q0) == CrashMark(-1, 0, 9, True)
    table.committed("g", Q0, 9)
    assert table.get("g", Q0) == NOTHING


def test_a_careful_owner_convicts_exactly_the_message_it_announced(table: SuspectTable) -> None:
    """5 was suspected, 7 is the one that kills."""
    abandon(table, 5, 9)
    abandon(table, 5, 9)
    for offset in (5, 6, 7):
        table.committed("g", Q0, offset)
        table.announce("g", Q0, offset, 3)

    assert abandon(table, 7, 9, epoch=3) == 7
    assert table.get("g", Q0) == CrashMark(7, 1, 9, True)
    for times, epoch in ((2, 4), (3, 5), (4, 6), (5, 7)):
        table.announce("g", Q0, 7, epoch)
        assert abandon(table, 7, 9, epoch=epoch) == 7
        assert table.get("g", Q0).abandoned == times


def test_a_careful_owner_that_announced_nothing_died_of_something_else(table: SuspectTable) -> None:
    """Else one message that kills would convict the next message of each queue of its process."""
    abandon(table, 5, 9)
    abandon(table, 5, 9)
    before = table.get("g", Q0)

    assert abandon(table, 5, 12, epoch=3) is None
    table.announce("g", Q0, 5, 4)
    assert abandon(table, 5, 12, epoch=5) is None  # that was said under another lease
    assert table.get("g", Q0)[:4] == before[:4]


def test_the_suspect_itself_keeps_its_count_when_it_is_announced(table: SuspectTable) -> None:
    abandon(table, 5, 9)
    abandon(table, 5, 9)
    table.announce("g", Q0, 5, 3)

    assert table.get("g", Q0) == CrashMark(5, 2, 9, True, 3)
    assert abandon(table, 5, 9, epoch=3) == 5
    assert table.get("g", Q0).abandoned == 3


def test_an_announcement_ends_with_its_lease(table: SuspectTable) -> None:
    table.announce("g", Q0, 5, 3)

    assert abandon(table, 5, 9, epoch=4) == -1
    assert abandon(table, 5, 5, epoch=3) is None


def test_an_announced_message_was_in_hand_whatever_was_fetched(table: SuspectTable) -> None:
    """A lease from the log does not know what its owner had fetched before the broker went down."""
    table.announce("g", Q0, 5, 3)

    assert abandon(table, 5, -1, epoch=3) == 5
    assert table.get("g", Q0) == CrashMark(5, 1, 6, False)


def test_announcing_twice_is_no_news(table: SuspectTable) -> None:
    assert table.announce("g", Q0, 5, 3) is not None
    assert table.announce("g", Q0, 5, 3) is None
    assert table.announce("g", Q0, 5, 4) is not None


@pytest.mark.parametrize(
    ("end", "left"), [(9, CrashMark(5, 2, 9, True)), (7, CrashMark(5, 2, 7, True)), (5, NOTHING), (0, NOTHING)]
)
def test_what_recovery_cut_off_suspects_no_message(table: SuspectTable, end: int, left: CrashMark) -> None:
    abandon(table, 5, 9)
    abandon(table, 5, 9)
    before = list(table.rows())

    change = table.forget_from("g", Q0, end)

    assert table.get("g", Q0) == left
    again = SuspectTable()
    for row in [*before, *([change] if change is not None else [])]:
        again.apply(row)
    assert list(again.rows()) == list(table.rows())


def test_a_reset_clears_the_queue_and_the_end_of_a_topic_all_of_its_queues(table: SuspectTable) -> None:
    for queue in (Q0, Q1):
        table.abandon("g", queue, epoch=1, committed=0, fetched=3)

    assert table.forget_queue("g", Q0) == Suspected("g", *Q0, *NOTHING)
    assert table.forget_queue("g", Q0) is None
    table.forget_topic("orders")
    assert list(table.rows()) == []


class Marks(RuleBasedStateMachine):
    """Whatever happens: the log brings the marks back, and no mark stands below the committed offset."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SuspectTable()
        self.committed = 0
        self.epoch = 1
        self.log: list[Suspected | int] = []

    @rule(more=st.integers(-2, 6))
    def abandon(self, more: int) -> None:
        found = self.table.abandon("g", Q0, epoch=self.epoch, committed=self.committed, fetched=self.committed + more)
        self.epoch += 1
        self.log += [found[0]] if found else []

    @rule(more=st.integers(0, 3))
    def announce(self, more: int) -> None:
        change = self.table.announce("g", Q0, self.committed + more, self.epoch)
        self.log += [change] if change else []

    @rule(more=st.integers(1, 4))
    def commit(self, more: int) -> None:
        self.committed += more
        self.table.committed("g", Q0, self.committed)
        self.log.append(self.committed)

    @invariant()
    def nothing_is_held_against_a_done_message(self) -> None:
        mark = self.table.get("g", Q0)
        assert mark.suspect_offset == -1 or mark.suspect_offset >= self.committed
        assert not mark.is_careful or mark.careful_until > self.committed
        assert mark.abandoned < 2 or mark.is_careful

    def teardown(self) -> None:
        again = SuspectTable()
        for entry in self.log:
            if isinstance(entry, int):
                again.committed("g", Q0, entry)
            else:
                (change,) = unpack_changes(pack_changes([entry]))
                assert isinstance(change, Suspected)
                again.apply(change)
        assert list(again.rows()) == list(self.table.rows())


TestMarks = Marks.TestCase
