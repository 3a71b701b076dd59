"""
Each batch of a producer is stored once and in order, whatever is lost, refused or sent twice.

A producer and a broker with everything between them that can go wrong: stored once, in order.
"""

from __future__ import annotations

import resource
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.broker.state.producers import SLOT, Known, ProducerTable, Resumed, Spent
from rmq.broker.store.changes import ProducerEpoch, ProducerKnown, pack_changes, unpack_changes
from rmq.wire.errors import OutOfSequence, ProducerFenced, SequenceConflict, TopicNotFound

P = 0xABC


EPS = 0.001


@pytest.fixture
def table() -> ProducerTable:
    return ProducerTable()


def crc(sequence: int) -> int:
    return sequence * 7919 % (1 << 32)


def known(sequence: int) -> Known:
    return Known(sequence, crc(sequence), sequence * 10, sequence * 64, 1_000_000 + sequence, sequence * 64 + 64)


def admit(table: ProducerTable, sequence: int, *, epoch: int = 0, producer: int = P, now: float = 0.0) -> Known | None:
    return table.admit(producer, epoch, sequence, crc(sequence), now=now)


def store(table: ProducerTable, *sequences: int, epoch: int = 0, producer: int = P, now: float = 0.0) -> None:
    for sequence in sequences:
        assert admit(table, sequence, epoch=epoch, producer=producer, now=now) is None
        table.record(producer, epoch, *known(sequence), now=now)


def refuse(table: ProducerTable, sequence: int, *, epoch: int = 0, producer: int = P, now: float = 0.0) -> None:
    assert admit(table, sequence, epoch=epoch, producer=producer, now=now) is None
    table.spend(producer, epoch, sequence, crc(sequence), TopicNotFound.code, now=now)


def told(table: ProducerTable, first_unresolved: int, *, epoch: int = 0) -> Resumed:
    """What a hello is answered with."""
    table.resume(P, epoch, first_unresolved, now=0.0)
    return table.resumed(P, epoch, first_unresolved, last=(table.next_sequence(P) or 0) - 1)


def test_the_next_number_is_new_and_a_known_one_is_answered_as_the_first_time(table: ProducerTable) -> None:
    store(table, 1, 2, 3)

    assert admit(table, 4) is None
    assert [admit(table, sequence) for sequence in (1, 2, 3)] == [known(1), known(2), known(3)]


def test_fields_of_any_size_come_back(table: ProducerTable) -> None:
    top = (1 << 64) - 1
    highest = (1 << 63) - 1
    table.record(top, 65535, top, (1 << 32) - 1, highest, top, -(1 << 63), top, now=0.0)

    duplicate = table.admit(top, 65535, top, (1 << 32) - 1, now=0.0)

    assert duplicate == (top, (1 << 32) - 1, highest, top, -(1 << 63), top)


def test_a_batch_without_an_offset_is_answered_so_again(table: ProducerTable) -> None:
    table.record(7, 0, 1, 99, -1, 4096, 5, 4200, now=0.0)

    assert table.admit(7, 0, 1, 99, now=0.0) == (1, 99, -1, 4096, 5, 4200)


@pytest.mark.parametrize("first", [0, 1, 1000])
def test_a_producer_that_is_not_known_may_begin_with_any_number(table: ProducerTable, first: int) -> None:
    store(table, first, first + 1)

    assert table.next_sequence(P) == first + 2


def test_a_gap_is_refused_with_the_number_that_is_next_and_spends_nothing(table: ProducerTable) -> None:
    store(table, 1)

    for _ in range(2):
        with pytest.raises(OutOfSequence, match="producer abc sent batch 3, but 2 is next"):
            admit(table, 3)
    store(table, 2, 3)


def test_a_batch_that_was_admitted_and_not_recorded_holds_up_those_after_it(table: ProducerTable) -> None:
    assert admit(table, 5) is None  # the disk is full

    with pytest.raises(OutOfSequence):
        admit(table, 6)
    store(table, 5, 6)


def test_the_same_number_for_another_batch_is_a_conflict(table: ProducerTable) -> None:
    store(table, 1)

    with pytest.raises(SequenceConflict, match="number 1 of producer abc was used for another batch"):
        table.admit(P, 0, 1, crc(2), now=0.0)
    assert admit(table, 1) == known(1)


def test_the_last_256_are_known_and_those_before_are_not(table: ProducerTable) -> None:
    store(table, *range(1, 301))

    assert admit(table, 45) == known(45)
    with pytest.raises(SequenceConflict, match=r"number 44 .* too far before the next one, 301"):
        admit(table, 44)


@pytest.mark.parametrize("stored", [(), (7,)])
def test_a_number_before_the_first_is_not_known(table: ProducerTable, stored: tuple[int, ...]) -> None:
    table.resume(P, 0, 7, now=0.0)
    store(table, *stored)

    for sequence in (6, 3):
        with pytest.raises(SequenceConflict, match="not known any more"):
            admit(table, sequence)


def test_producers_do_not_touch_each_other(table: ProducerTable) -> None:
    store(table, 1, 2, producer=1)
    store(table, 1, producer=2)

    assert (table.next_sequence(1), table.next_sequence(2), table.next_sequence(3)) == (3, 2, None)


def test_producer_0_is_never_judged(table: ProducerTable) -> None:
    for _ in range(2):
        table.resume(0, 0, 5, now=0.0)
        assert table.admit(0, 0, 0, 1, now=0.0) is None
        table.record(0, 0, *known(0), now=0.0)
        table.spend(0, 0, 0, 1, TopicNotFound.code, now=0.0)

    assert len(table) == 0


# Numbers that are spent by a refusal


def test_a_refusal_for_good_spends_its_number(table: ProducerTable) -> None:
    store(table, 1)

    refuse(table, 2)

    store(table, 3)
    with pytest.raises(TopicNotFound, match=r"number 2 .* was refused when it came first"):
        admit(table, 2)
    with pytest.raises(SequenceConflict, match=r"number 2 .* spent by a batch that was refused"):
        table.admit(P, 0, 2, 77, now=0.0)


def test_the_first_batch_of_all_may_be_refused(table: ProducerTable) -> None:
    refuse(table, 1)

    store(table, 2)

    assert table.next_sequence(P) == 3


@pytest.mark.parametrize("sequence", [1, 4])
def test_only_the_next_number_can_be_spent(table: ProducerTable, sequence: int) -> None:
    store(table, 1, 2)

    table.spend(P, 0, sequence, 0, TopicNotFound.code, now=0.0)

    assert admit(table, 1) == known(1)
    assert table.next_sequence(P) == 3


# Epochs and hellos


def test_a_higher_epoch_fences_the_lower(table: ProducerTable) -> None:
    store(table, 1, epoch=1)
    store(table, 2, epoch=2)

    with pytest.raises(ProducerFenced, match="epoch 1 of producer abc was replaced by 2"):
        admit(table, 3, epoch=1)
    with pytest.raises(ProducerFenced):
        table.resume(P, 1, 3, now=0.0)
    with pytest.raises(ProducerFenced):
        table.resumed(P, 1, 1, last=2)
    assert table.next_sequence(P) == 3


def test_a_hello_with_a_higher_epoch_fences_before_anything_is_sent(table: ProducerTable) -> None:
    store(table, 1, epoch=1)

    table.resume(P, 2, 2, now=0.0)

    with pytest.raises(ProducerFenced):
        admit(table, 2, epoch=1)
    store(table, 2, epoch=2)


@pytest.mark.parametrize(("first_unresolved", "following"), [(1, 4), (3, 4), (4, 4), (5, 5), (9, 9)])
def test_after_a_hello_the_next_number_is_the_later_of_both_views(
    table: ProducerTable, first_unresolved: int, following: int
) -> None:
    store(table, 1, 2, 3)

    table.resume(P, 0, first_unresolved, now=0.0)

    assert table.next_sequence(P) == following
    assert admit(table, 3) == known(3)


def test_the_hello_of_a_producer_that_is_not_known_sets_its_start(table: ProducerTable) -> None:
    table.resume(P, 0, 7, now=0.0)

    with pytest.raises(OutOfSequence, match="7 is next"):
        admit(table, 8)
    store(table, 7)


def test_a_higher_epoch_begins_a_line_of_its_own(table: ProducerTable) -> None:
    store(table, *range(1, 11), epoch=1)

    assert told(table, 1, epoch=2) == Resumed(1, False, 1, [])

    store(table, 1, 2, epoch=2)
    assert table.next_sequence(P) == 3


@pytest.mark.parametrize(
    ("before", "epoch", "raised"), [(None, 0, False), (None, 1, True), (1, 1, False), (1, 2, True)]
)
def test_a_hello_tells_when_it_raised_the_epoch(
    table: ProducerTable, before: int | None, epoch: int, raised: bool
) -> None:
    if before is not None:
        store(table, 1, epoch=before)

    assert table.resume(P, epoch, 5, now=0.0) == (ProducerEpoch(P, epoch, 5) if raised else None)
    assert table.resume(P, epoch, 5, now=0.0) is None


# What a hello is told


def test_a_hello_learns_what_became_of_each_number(table: ProducerTable) -> None:
    store(table, 1, 2)
    refuse(table, 3)
    store(table, 4)

    assert told(table, 2) == Resumed(5, True, 2, [known(2), Spent(3, crc(3), TopicNotFound.code), known(4)])
    assert told(table, 5) == Resumed(5, True, 5, [])
    assert told(table, 9) == Resumed(9, True, 9, [])


def test_a_producer_is_unknown_until_it_has_spent_a_number(table: ProducerTable) -> None:
    for first in (7, 7, 9):
        assert told(table, first) == Resumed(first, False, first, [])

    store(table, 9)

    assert told(table, 9) == Resumed(10, True, 9, [known(9)])


def test_a_producer_that_is_forgotten_before_the_answer_is_unknown(table: ProducerTable) -> None:
    store(table, 1)
    table.expire(now=1e9)

    assert table.resumed(P, 0, 1, last=1) == Resumed(1, False, 1, [])


def test_at_most_256_fates_are_reported_and_what_lies_before_is_not_known(table: ProducerTable) -> None:
    store(table, *range(1, 301))

    resumed = told(table, 1)

    assert resumed == Resumed(301, True, 45, [known(sequence) for sequence in range(45, 301)])


def test_a_number_between_stored_ones_was_not_stored_whatever_else_is_known_of_it(table: ProducerTable) -> None:
    for sequence in (4, 6):  # 5 was refused before a crash
        table.replay(P, 0, *known(sequence), now=0.0)

    assert told(table, 4).fates == [known(4), Spent(5, 0, 0), known(6)]


def test_what_a_failed_write_took_back_is_not_reported_as_stored(table: ProducerTable) -> None:
    store(table, 1, 2, 3)
    table.resume(P, 0, 1, now=0.0)
    table.retract(P, 0, 2)

    assert table.resumed(P, 0, 1, last=3) == Resumed(2, True, 1, [known(1)])


def test_what_came_after_the_hello_is_not_reported(table: ProducerTable) -> None:
    store(table, 1, 2, 3)

    assert table.resumed(P, 0, 1, last=1) == Resumed(2, True, 1, [known(1)])


# Writes that fail, and recovery


def test_a_write_that_failed_takes_back_its_batch_and_all_after_it(table: ProducerTable) -> None:
    store(table, 1, 2, 3, 4)

    table.retract(P, 0, 3)
    table.retract(P, 0, 4)

    assert admit(table, 2) == known(2)
    with pytest.raises(OutOfSequence):
        admit(table, 4)
    store(table, 3, 4)


def test_a_batch_that_was_taken_back_is_never_answered_as_a_duplicate(table: ProducerTable) -> None:
    store(table, 1, 2, 3)
    table.retract(P, 0, 2)

    table.resume(P, 0, 4, now=0.0)

    with pytest.raises(SequenceConflict):
        admit(table, 3)


def test_a_refusal_after_a_write_that_failed_is_taken_back_too(table: ProducerTable) -> None:
    store(table, 1)
    refuse(table, 2)
    store(table, 3)

    for sequence in (3, 2, 1):
        table.retract(P, 0, sequence)

    assert told(table, 1).fates == []
    store(table, 1, 2)


def test_the_batches_of_another_epoch_are_not_taken_back(table: ProducerTable) -> None:
    store(table, 1, 2, 3, epoch=1)
    store(table, 3, 4, epoch=2)

    table.retract(P, 1, 2)

    assert table.next_sequence(P) == 5


def test_more_than_the_window_can_be_taken_back(table: ProducerTable) -> None:
    store(table, *range(1, 400))

    table.retract(P, 0, 100)

    assert told(table, 90) == Resumed(100, True, 100, []), "those before were overwritten in the ring"
    store(table, 100, 101)


def test_numbers_that_were_never_seen_are_no_obstacle_to_taking_back(table: ProducerTable) -> None:
    store(table, 1, 2)
    table.resume(P, 0, 5, now=0.0)
    store(table, 5)

    table.retract(P, 0, 2)

    assert table.next_sequence(P) == 2
    assert admit(table, 1) == known(1)


def test_taking_back_what_is_not_there_does_nothing(table: ProducerTable) -> None:
    store(table, 1)

    table.retract(P, 0, 2)
    table.retract(7, 0, 1)

    assert table.next_sequence(P) == 2


def test_recovery_records_what_the_log_has_and_holes_are_not_missed(table: ProducerTable) -> None:
    for sequence in (4, 6):  # 5 was refused
        table.record(P, 3, *known(sequence), now=0.0)

    assert (admit(table, 4, epoch=3), admit(table, 6, epoch=3)) == (known(4), known(6))
    assert table.next_sequence(P) == 7
    with pytest.raises(ProducerFenced):
        admit(table, 7, epoch=2)


def test_recovery_ends_with_the_highest_epoch(table: ProducerTable) -> None:
    table.record(P, 1, *known(1), now=0.0)
    table.record(P, 2, *known(2), now=0.0)

    with pytest.raises(ProducerFenced):
        admit(table, 3, epoch=1)


def test_a_line_that_begins_again_in_the_log_replaces_the_forgotten_one(table: ProducerTable) -> None:
    for epoch, sequence in ((1, 100), (0, 1), (0, 2)):
        table.record(P, epoch, *known(sequence), now=0.0)

    assert table.next_sequence(P) == 3
    assert admit(table, 1) == known(1)


# Forgetting


@pytest.mark.parametrize(("age", "gone"), [(86_400 - EPS, 0), (86_400.0, 0), (86_400 + EPS, 1)])
def test_a_producer_is_forgotten_after_more_than_24_h(table: ProducerTable, age: float, gone: int) -> None:
    store(table, 1, now=0.0)
    admit(table, 1, now=1000.0)

    assert table.expire(now=1000.0 + age) == gone
    assert len(table) == 1 - gone


def test_only_the_idle_are_forgotten(table: ProducerTable) -> None:
    for producer in (1, 2, 3):
        store(table, 1, producer=producer, now=0.0)
    table.resume(2, 0, 2, now=50.0)
    table.spend(1, 0, 2, 0, TopicNotFound.code, now=60.0)

    assert table.expire(now=86_401.0) == 1
    assert table.next_sequence(3) is None
    assert table.expire(now=86_455.0) == 1
    assert table.next_sequence(2) is None
    assert table.next_sequence(1) == 3


def test_the_longest_idle_makes_room_for_a_new_one() -> None:
    table = ProducerTable(max_producers=3)
    for producer in (1, 2, 3):
        store(table, 1, producer=producer)
    table.record(1, 0, *known(2), now=0.0)

    store(table, 1, producer=4)

    assert [table.next_sequence(producer) for producer in (1, 2, 3, 4)] == [3, None, 2, 2]


def test_a_producer_that_was_forgotten_begins_where_it_is(table: ProducerTable) -> None:
    store(table, 1, now=0.0)
    table.expire(now=1e9)

    store(table, 2, now=1e9)

    assert table.next_sequence(P) == 3


def test_a_thousand_full_windows_fit_into_16_mib() -> None:
    table = ProducerTable()
    for producer in range(1, 1001):
        table.record(producer, 0, *known(255), now=0.0)

    assert sum(len(line.ring) for line in table._producers.values()) <= 16 << 20


WINDOW = 4


@dataclass(eq=False)
class Batch:
    sequence: int
    bad: bool
    outcome: int | str | None = None  # offset, "refused", or not known


@dataclass
class Reply:
    batch: Batch
    outcome: int | str  # offset, "refused", or "later"
    position: int  # the log must be durable to here


class Link(RuleBasedStateMachine):
    """
    A producer keeps its batches in line until each is answered and sends again what was put off; the broker stores
    them in a log. Frames and answers get lost, writes fail, the broker crashes and loses what was not
    durable. Each hello is answered with what became of the batches in line, when that is durable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line: list[Batch] = []  # all, ever
        self.sent: set[Batch] = set()
        self.put_off: set[Batch] = set()  # to be sent again, as all that was sent behind them
        self.requests: deque[Batch] = deque()
        self.waiting: list[Reply] = []
        self.replies: deque[Reply] = deque()
        self.log: list[Batch] = []
        self.durable = 0
        self.table = ProducerTable(window=WINDOW)
        self.hello()

    # the producer

    def unresolved(self) -> list[Batch]:
        return [batch for batch in self.line if batch.outcome is None]

    def first_unresolved(self) -> int:
        unresolved = self.unresolved()
        return unresolved[0].sequence if unresolved else len(self.line) + 1

    def hello(self) -> None:
        self.requests.clear()
        self.replies.clear()
        self.waiting.clear()
        self.sent.clear()
        self.put_off.clear()
        first = self.first_unresolved()
        self.table.resume(P, 0, first, now=0.0)
        self.durable = len(self.log)
        resumed = self.table.resumed(P, 0, first, last=(self.table.next_sequence(P) or 0) - 1)
        for batch in self.line[first - 1 : resumed.first - 1]:
            # A refusal before the first batch that the log has: after a crash nothing shows that it was one.
            assert batch.bad
            batch.outcome = "refused"
        for fate in resumed.fates:
            batch = self.line[fate.sequence - 1]
            if batch.outcome is None:
                assert isinstance(fate, Known) is not batch.bad
                batch.outcome = fate.base_offset if isinstance(fate, Known) else "refused"
        between = self.line[resumed.next_sequence - 1 : self.first_unresolved() - 1]
        assert all(batch.bad for batch in between), "refusals that were told, and lost in a crash"
        assert self.first_unresolved() >= resumed.next_sequence

    @precondition(lambda self: len(self.line) + 1 - self.first_unresolved() < WINDOW)
    @rule(bad=st.sampled_from([False, False, False, True]))
    def make(self, bad: bool) -> None:
        self.line.append(Batch(len(self.line) + 1, bad))

    @rule()
    def send(self) -> None:
        for batch in self.unresolved():
            if batch not in self.sent:
                self.sent.add(batch)
                self.put_off.discard(batch)
                self.requests.append(batch)

    @rule(count=st.integers(1, 4))
    def receive(self, count: int) -> None:
        for _ in range(min(count, len(self.replies))):
            reply = self.replies.popleft()
            if reply.outcome == "later":
                self.sent.discard(reply.batch)
                self.put_off.add(reply.batch)
            else:
                assert (reply.outcome == "refused") is reply.batch.bad
                reply.batch.outcome = reply.outcome
            unresolved = self.unresolved()
            if unresolved and unresolved[0] in self.put_off and not self.sent.intersection(unresolved):
                self.hello()  # nothing of ours is before it: the broker lost a refusal that it told us
                return

    # the broker

    @rule(count=st.integers(1, 4), fault=st.sampled_from(["", "", "", "full", "write"]))
    def turn(self, count: int, fault: str) -> None:
        staged: list[Batch] = []
        self.refused: list[Batch] = []
        answers = [self.judge(self.requests.popleft(), staged, fault) for _ in range(min(count, len(self.requests)))]
        if fault == "write":
            for batch in sorted(staged + self.refused, key=lambda batch: -batch.sequence):
                self.table.retract(P, 0, batch.sequence)
            for answer in answers:
                if answer.position > len(self.log) or answer.batch in self.refused:
                    answer.outcome, answer.position = "later", 0
        else:
            self.log += staged
        self.waiting += answers
        self.release()

    def judge(self, batch: Batch, staged: list[Batch], fault: str) -> Reply:
        sequence = batch.sequence
        try:
            duplicate = self.table.admit(P, 0, sequence, crc(sequence), now=0.0)
        except OutOfSequence:
            return Reply(batch, "later", 0)
        except (SequenceConflict, TopicNotFound):
            return Reply(batch, "refused", 0)  # receive() sees to it that this happens to bad ones only
        if duplicate is not None:
            return Reply(batch, duplicate.base_offset, duplicate.end_position)
        if batch.bad:
            self.table.spend(P, 0, sequence, crc(sequence), TopicNotFound.code, now=0.0)
            self.refused.append(batch)
            return Reply(batch, "refused", 0)
        if fault == "full":
            return Reply(batch, "later", 0)
        offset = len(self.log) + len(staged)
        staged.append(batch)
        self.table.record(P, 0, sequence, crc(sequence), offset, offset, 0, offset + 1, now=0.0)
        return Reply(batch, offset, offset + 1)

    def release(self) -> None:
        self.replies += [reply for reply in self.waiting if reply.position <= self.durable]
        self.waiting = [reply for reply in self.waiting if reply.position > self.durable]

    @rule()
    def flush(self) -> None:
        self.durable = len(self.log)
        self.release()

    # what goes wrong

    @rule(arrive=st.integers(0, 4))
    def lose_connection(self, arrive: int) -> None:
        self.turn(arrive, "")
        self.hello()

    @rule(kept=st.integers(0, 8))
    def crash(self, kept: int) -> None:
        del self.log[self.durable + kept :]
        self.durable = len(self.log)
        self.table = ProducerTable(window=WINDOW)
        for offset, batch in enumerate(self.log):
            self.table.record(P, 0, batch.sequence, crc(batch.sequence), offset, offset, 0, offset + 1, now=0.0)
        self.hello()

    @invariant()
    def what_is_stored_is_stored_once_and_in_order(self) -> None:
        numbers = [batch.sequence for batch in self.log]
        assert numbers == sorted(set(numbers))
        assert not any(batch.bad for batch in self.log)
        for batch in self.line:
            if isinstance(batch.outcome, int):
                assert self.log[batch.outcome] is batch

    def teardown(self) -> None:
        for _ in range(4 * len(self.line) + 8):
            self.send()
            self.turn(len(self.requests), "")
            self.flush()
            self.receive(len(self.replies))
        assert self.unresolved() == []
        assert self.log == [batch for batch in self.line if not batch.bad]


TestLink = Link.TestCase


# ---- however many producers come, what is kept of them is bounded, and the longest idle go first


RING = 256 * SLOT.size


def known_bounds(sequence: int) -> Known:
    return Known(sequence, 7, sequence, sequence * 64, 0, sequence * 64 + 64)


def fill(table: ProducerTable, producer: int, *, now: float = 0.0) -> None:
    """A producer with a full ring."""
    table.record(producer, 0, *known_bounds(255), now=now)


def test_rings_are_counted_whatever_happens_to_their_producers() -> None:
    table = ProducerTable(max_producers=4)
    for producer in range(1, 7):
        table.record(producer, 0, *known_bounds(producer), now=producer)
    table.spend(6, 0, 7, 7, TopicNotFound.code, now=6.0)
    table.record(5, 1, *known_bounds(1), now=6.0)
    table.retract(6, 0, 7)
    table.expire(now=86_404.5)
    other = ProducerTable()
    for row in table.rows(0.0, rings=True):
        other.apply(row, 0.0)
        other.apply(row, 0.0)

    for made in (table, other):
        assert made.used_bytes == sum(len(line.ring) for line in made._producers.values()) > 0
    assert len(table) == 2


def test_beyond_the_budget_the_longest_idle_are_known_by_their_last_number_only() -> None:
    table = ProducerTable(ring_bytes=8 * RING)
    for producer in range(1, 9):
        fill(table, producer)
    assert table.used_bytes == 8 * RING
    table.admit(1, 0, 255, 7, now=1.0)  # it is not idle any more

    fill(table, 9, now=2.0)

    assert table.used_bytes == 7 * RING
    assert [producer for producer, line in table._producers.items() if not line.ring] == [2, 3]
    assert table.admit(2, 0, 256, 7, now=2.0) is None
    with pytest.raises(SequenceConflict, match="whether it was stored is not known any more"):
        table.admit(2, 0, 255, 7, now=2.0)
    assert table.resumed(2, 0, 250, last=255) == (256, True, 256, [])


def test_one_ring_is_kept_however_small_the_budget_is() -> None:
    table = ProducerTable(ring_bytes=1)
    fill(table, 1)
    fill(table, 2)

    assert table.used_bytes == RING
    assert table.admit(2, 0, 255, 7, now=0.0) == known_bounds(255)


def test_a_producer_whose_ring_was_dropped_gets_one_with_its_next_batch() -> None:
    table = ProducerTable(ring_bytes=RING)
    fill(table, 1)
    fill(table, 2)

    table.record(1, 0, *known_bounds(256), now=0.0)

    assert table.resumed(1, 0, 250, last=256) == (257, True, 256, [known_bounds(256)])


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_hundred_thousand_producers_take_no_more_than_the_first_twenty_thousand() -> None:
    """Each with a ring of full length; the default bounds."""
    table = ProducerTable()
    sizes = []
    for first in range(1, 100_001, 20_000):
        for producer in range(first, first + 20_000):
            table.admit(producer, 0, 255, 7, now=float(producer))
            fill(table, producer, now=float(producer))
        sizes.append(resident())

    assert len(table) == 20_000
    assert 56 << 20 <= table.used_bytes <= 64 << 20
    growth = (max(sizes[1:]) - sizes[0]) >> 20
    assert growth <= 8, f"{growth} MiB more than after the first 20,000: {[size >> 20 for size in sizes]}"


# ---- the table comes back from rows and the headers behind them, and is the same as from the log alone


WINDOW_SNAPSHOTS = 8


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
def test_a_row_of_another_epoch_replaces_what_the_log_said(row: ProducerKnown) -> None:
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
    whole, first = ProducerTable(WINDOW_SNAPSHOTS), ProducerTable(WINDOW_SNAPSHOTS)
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
    whole, first = ProducerTable(WINDOW_SNAPSHOTS), ProducerTable(WINDOW_SNAPSHOTS)
    replay(whole, entries)
    replay(first, entries[:at])
    back = copy(first, rings=False)
    replay(back, entries[at:], at)
    walked = ProducerTable(WINDOW_SNAPSHOTS)  # which meets the snapshot on its way
    replay(walked, entries[:at])
    for row in first.rows(0.0, rings=False):
        walked.apply(row, 0.0)
    replay(walked, entries[at:], at)

    assert content(walked) == content(whole)
    assert [row[:3] for row in content(back)] == [row[:3] for row in content(whole)]
