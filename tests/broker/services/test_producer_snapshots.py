"""The table comes back from rows and the headers behind them, and is the same as from the log alone."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.producers import Known, ProducerTable, Spent
from rmq.broker.store.changes import ProducerEpoch, ProducerKnown, pack_changes, unpack_changes
from rmq.wire.errors import ProducerFenced, SequenceConflict, TopicNotFound

P = 0xABC
WINDOW = 8


def crc(sequence: int) -> int:
    return sequence * 7919 % (1 << 32)


def known(sequence: int) -> Known:
    return Known(sequence, crc(sequence), sequence * 10, sequence * 64, 1_000_000 + sequence, sequence * 64 + 64)


def filled(*sequences: int, refused: tuple[int, ...] = (), now: float = 0.0) -> ProducerTable:
    table = ProducerTable()
    for sequence in sequences:
        if sequence in refused:
            table.spend(P, 0, sequence, crc(sequence), TopicNotFound.code, now=now)
        else:
            table.record(P, 0, *known(sequence), now=now)
    return table


def copy(table: ProducerTable, *, now: float = 0.0, rings: bool = True) -> ProducerTable:
    """Through a snapshot as it stands in the log."""
    other = ProducerTable(table.window)
    for change in unpack_changes(pack_changes(list(table.rows(now, rings=rings)))):
        assert isinstance(change, ProducerKnown)
        other.apply(change, now)
    return other


def fates(table: ProducerTable) -> list[Known | Spent]:
    return table.resumed(P, 0, 0, last=1 << 60).fates


def test_stored_and_refused_numbers_and_holes_come_back() -> None:
    table = filled(1, 2, 3, 4, refused=(2,))
    table.record(P, 0, *known(6), now=0.0)  # 5 is a hole

    back = copy(table)

    assert fates(back) == [known(1), Spent(2, crc(2), TopicNotFound.code), known(3), known(4), Spent(5, 0, 0), known(6)]
    assert back.next_sequence(P) == 7
    assert list(back.rows(0.0, rings=True)) == list(table.rows(0.0, rings=True))


def test_without_rings_old_numbers_are_spent_and_their_fate_is_not_known() -> None:
    back = copy(filled(1, 2, 3), rings=False)

    with pytest.raises(SequenceConflict, match="whether it was stored is not known any more"):
        back.admit(P, 0, 3, crc(3), now=0.0)
    assert back.resumed(P, 0, 2, last=3) == (4, True, 4, [])
    assert back.admit(P, 0, 4, crc(4), now=0.0) is None


def test_a_ring_of_another_length_is_as_good_as_none() -> None:
    (row,) = filled(1, 2, 3).rows(0.0, rings=True)
    back = ProducerTable(window=64)

    back.apply(row, 0.0)

    assert back.resumed(P, 0, 1, last=3) == (4, True, 4, [])
    assert back.used_bytes == 0


def test_headers_that_the_snapshot_has_change_nothing() -> None:
    table = filled(1, 2, 3)
    for back in (copy(table), copy(table, rings=False)):
        back.covers(known(3).end_position)
        before = list(back.rows(0.0, rings=True))

        for sequence in (1, 2, 3):
            back.replay(P, 0, *known(sequence), now=0.0)

        assert list(back.rows(0.0, rings=True)) == before
        back.replay(P, 0, *known(4), now=0.0)
        assert back.next_sequence(P) == 5


def test_a_walk_over_the_whole_log_keeps_its_rings_when_it_meets_rows_without() -> None:
    table = filled(1, 2)
    table.apply(ProducerKnown(P, 0, 3, 0.0, b""), 0.0)  # 3 was refused, which is not in the log

    assert fates(table) == [known(1), known(2), Spent(3, 0, 0)]


@pytest.mark.parametrize("row", [ProducerKnown(P, 0, 1, 0.0, b""), ProducerKnown(P, 1, 9, 0.0, b"")])
def test_a_row_of_another_line_replaces_what_the_log_told(row: ProducerKnown) -> None:
    table = filled(1, 2)

    table.apply(row, 0.0)

    assert table.next_sequence(P) == row.last + 1
    assert list(table.rows(0.0, rings=False)) == [row]


def test_a_fenced_epoch_stays_fenced() -> None:
    table = filled(1, 2)
    table.apply_epoch(ProducerEpoch(P, 3, 1), 0.0)

    for back in (table, copy(table), copy(table, rings=False)):
        with pytest.raises(ProducerFenced):
            back.admit(P, 2, 3, 0, now=0.0)
        assert back.next_sequence(P) == 1


def test_an_epoch_that_is_known_already_does_not_begin_a_line() -> None:
    table = filled()
    table.replay(P, 3, *known(5), now=0.0)

    for epoch in (2, 3):
        table.apply_epoch(ProducerEpoch(P, epoch, 1), 0.0)

    assert table.next_sequence(P) == 6


def test_producers_that_only_said_hello_are_not_in_a_snapshot_unless_they_fence() -> None:
    table = ProducerTable()
    table.resume(1, 0, 1, now=0.0)
    table.resume(2, 4, 1, now=0.0)

    assert [row.producer_id for row in table.rows(0.0, rings=True)] == [2]


def test_idleness_and_its_order_come_back() -> None:
    table = ProducerTable()
    for producer, now in ((3, 10.0), (1, 20.0), (2, 30.0)):
        table.record(producer, 0, *known(1), now=now)

    back = copy(table, now=100.0)

    assert [(row.producer_id, row.idle_s) for row in back.rows(100.0, rings=False)] == [(3, 90.0), (1, 80.0), (2, 70.0)]
    assert back.expire(now=86_400.0 + 15.0) == 1


class Entry(NamedTuple):
    """One thing in a log."""

    producer: int
    epoch: int
    sequence: int
    hello: bool  # an epoch that was raised, instead of a batch


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """A log: each producer's numbers rise, with holes; epochs rise, and a producer may begin anew."""
    state: dict[int, tuple[int, int]] = {}
    entries = []
    steps = st.tuples(
        st.integers(1, 3), st.sampled_from(["next", "next", "next", "hole", "epoch", "hello", "forgotten"])
    )
    for producer, step in draw(st.lists(steps, max_size=60)):
        epoch, last = state.get(producer, (0, 0))
        if step in ("epoch", "hello"):
            epoch, last = epoch + 1, draw(st.integers(0, 5))
        elif step == "forgotten":
            epoch, last = 0, 0
        sequence = last + (3 if step == "hole" else 1)
        entries.append(Entry(producer, epoch, sequence, step == "hello"))
        state[producer] = (epoch, sequence - 1 if step == "hello" else sequence)
    return entries


def replay(table: ProducerTable, entries: list[Entry], since: int = 0) -> None:
    for place, entry in enumerate(entries, since):
        if entry.hello:
            table.apply_epoch(ProducerEpoch(entry.producer, entry.epoch, entry.sequence), 0.0)
        else:
            fields = (crc(entry.sequence), place * 10, place * 64, place, place * 64 + 64)
            table.replay(entry.producer, entry.epoch, entry.sequence, *fields, now=0.0)


def content(table: ProducerTable) -> list[ProducerKnown]:
    return sorted(table.rows(0.0, rings=True))


@given(histories(), st.data())
def test_a_snapshot_and_the_rest_of_the_log_are_the_whole_log(entries: list[Entry], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(entries)), "snapshot at")
    again = data.draw(st.integers(0, at), "walk from")
    whole, first = ProducerTable(WINDOW), ProducerTable(WINDOW)
    replay(whole, entries)
    replay(first, entries[:at])

    back = copy(first)
    back.covers(at * 64)
    replay(back, [entry for entry in entries[again:at] if not entry.hello], again)
    replay(back, entries[at:], at)

    assert content(back) == content(whole)


@given(histories(), st.data())
def test_rows_without_rings_agree_on_every_number_that_is_next(entries: list[Entry], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(entries)), "snapshot at")
    whole, first = ProducerTable(WINDOW), ProducerTable(WINDOW)
    replay(whole, entries)
    replay(first, entries[:at])
    back = copy(first, rings=False)
    replay(back, entries[at:], at)
    walked = ProducerTable(WINDOW)  # which meets the snapshot on its way
    replay(walked, entries[:at])
    for row in first.rows(0.0, rings=False):
        walked.apply(row, 0.0)
    replay(walked, entries[at:], at)

    assert content(walked) == content(whole)
    assert [row[:3] for row in content(back)] == [row[:3] for row in content(whole)]
