"""
Which parked batches wait, and in which order they are delivered.

The time by which delayed messages are delivered.

When a delayed batch is due.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.deferred import (
    ENTRY,
    RATE,
    SMALL_STEP_US,
    DeferredBatch,
    DelayClock,
    Delays,
    DelayTable,
    DeliveryMark,
)
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import BadDelay

from rigs.batches import MINIMAL, quick, settings_of

ALL = {"max_batches": 10_000, "max_bytes": 1 << 40}
SECOND = 1_000_000


def table_of(*entries: DeferredBatch, **options: Any) -> DelayTable:
    table = DelayTable(**options)
    for entry in entries:
        table.add(entry)
    return table


def test_batches_come_by_their_time_and_then_by_their_place() -> None:
    late, early, same, later = (
        DeferredBatch(9, 8, 1, 1),
        DeferredBatch(5, 16, 1, 1),
        DeferredBatch(5, 24, 1, 1),
        DeferredBatch(SECOND, 32, 1, 1),
    )

    table = table_of(later, same, late, early)

    assert table.due(SECOND, **ALL) == [early, same, late, later]


def test_a_batch_is_due_at_its_time_and_not_a_microsecond_earlier() -> None:
    table = table_of(DeferredBatch(5 * SECOND, 8, 1, 1))

    assert table.due(5 * SECOND - 1, **ALL) == []
    assert table.due(5 * SECOND, **ALL) == [(5 * SECOND, 8, 1, 1)]


def test_a_portion_is_bounded_and_holds_at_least_one() -> None:
    table = table_of(*(DeferredBatch(i * SECOND, 8 * i, 100, 1) for i in range(1, 10)))

    assert [entry.position for entry in table.due(100 * SECOND, max_batches=3, max_bytes=1 << 20)] == [8, 16, 24]
    assert [entry.position for entry in table.due(100 * SECOND, max_batches=9, max_bytes=250)] == [8, 16]
    assert [entry.position for entry in table.due(100 * SECOND, max_batches=9, max_bytes=1)] == [8]


def test_what_was_reached_is_gone() -> None:
    table = table_of(
        *(DeferredBatch(due, position, 10, 3) for due, position in [(5, 8), (5, 16), (7, 24), (2 * SECOND, 32)])
    )

    table.reach(DeliveryMark(5, 16))

    assert (len(table), table.messages, table.next_due) == (2, 6, 7)
    table.reach(DeliveryMark(SECOND, 0))
    assert (len(table), table.next_due) == (1, 2 * SECOND)
    table.reach(DeliveryMark(5, 16))  # it never falls
    assert table.reached == DeliveryMark(SECOND, 0)
    table.reach(DeliveryMark(2 * SECOND, 32))
    assert (len(table), table.messages, table.next_due, table.oldest) == (0, 0, 0, None)


def test_nothing_is_given_a_time_before_what_was_reached() -> None:
    table = DelayTable()
    assert table.earliest(0) == 1
    table.reach(DeliveryMark(500, 8))

    assert [table.earliest(due) for due in (1, 499, 500, 501)] == [500, 500, 500, 501]


def test_the_log_is_needed_from_the_oldest_waiting_batch_on() -> None:
    table = table_of(
        DeferredBatch(9, 5000, 1, 1), DeferredBatch(5, 9000, 1, 1), DeferredBatch(7, 13_000, 1, 1), grain_bytes=4096
    )

    assert table.oldest == 4096
    table.reach(DeliveryMark(7, 13_000))
    assert table.oldest == 4096
    table.reach(DeliveryMark(9, 5000))
    assert table.oldest is None


def test_a_batch_that_waits_takes_24_bytes() -> None:
    assert ENTRY.size == 24

    table = table_of(*(DeferredBatch(i // 1000, i, 1, 1) for i in range(10_000)))

    assert sum(map(len, table.packed())) == 240_000
    assert len(table.packed()) == 40  # all but the last of them full


def test_however_many_wait_for_the_same_second_in_no_order_no_more_than_a_chunk_is_touched() -> None:
    entries = [DeferredBatch(SECOND + i * 7919 % SECOND, 8 * i, 1, 1) for i in range(3000)]
    table = table_of(*entries, chunk=16)

    before = table.packed()
    table.add(DeferredBatch(SECOND + SECOND // 2, 24_000, 1, 1))

    assert len(set(before) - set(table.packed())) == 1
    assert max(map(len, table.packed())) <= 16 * 24
    assert len(table.packed()) < 2.5 * 3000 / 16
    assert table.due(2 * SECOND, **ALL) == sorted([*entries, DeferredBatch(SECOND + SECOND // 2, 24_000, 1, 1)])


@pytest.mark.parametrize("step", [1, -1, 7919, -7919])
@pytest.mark.parametrize("first", [0, 100])
def test_chunks_are_half_full_at_least_in_whatever_order_times_come(step: int, first: int) -> None:
    table = table_of(*(DeferredBatch(SECOND, 8 * i, 1, 1) for i in range(first)), chunk=8)
    entries = [DeferredBatch(2 * SECOND + step * i % SECOND, 8 * (first + i), 1, 1) for i in range(1000)]

    for entry in entries:
        table.add(entry)

    assert len(table.packed()) <= 2 * (first + 1000) / 8 + 2
    assert table.page(DeliveryMark(SECOND, 1 << 40), 1000) == sorted(entries)


def test_what_a_checkpoint_took_stays_as_it_was() -> None:
    entries = [DeferredBatch(i * 300_000, 8 * i, i, 1) for i in range(1, 50)]
    table = table_of(*entries, chunk=4)

    pieces = table.packed()
    table.add(DeferredBatch(400_000, 400, 1, 1))
    table.reach(DeliveryMark(20 * 300_000, 160))

    assert list(map(DeferredBatch._make, ENTRY.iter_unpack(b"".join(pieces)))) == entries


entries = st.builds(
    DeferredBatch, st.integers(1, 5 * SECOND), st.integers(0, 1 << 40), st.integers(0, 500), st.integers(1, 9)
)


@quick
@given(st.lists(entries, max_size=40, unique_by=lambda entry: entry.position), entries, st.integers(1, 50))
def test_a_page_holds_what_lies_after_a_place(waiting: list[DeferredBatch], place: DeferredBatch, limit: int) -> None:
    table = table_of(*waiting, chunk=4)

    page = table.page(DeliveryMark(*place[:2]), limit)

    assert page == [entry for entry in sorted(waiting) if entry[:2] > place[:2]][:limit]


@quick
@given(st.lists(entries, max_size=40, unique_by=lambda entry: entry.position))
def test_all_at_once_is_the_same_as_one_after_the_other(waiting: list[DeferredBatch]) -> None:
    one_by_one, loaded = table_of(*waiting, grain_bytes=64), DelayTable(64, chunk=4)

    loaded.load(waiting)

    assert loaded.page(DeliveryMark(), 100) == one_by_one.page(DeliveryMark(), 100) == sorted(waiting)
    for table in (loaded, one_by_one):
        table.reach(DeliveryMark(SECOND, 0))
    assert (len(loaded), loaded.messages, loaded.oldest) == (len(one_by_one), one_by_one.messages, one_by_one.oldest)


class AgainstASortedList(RuleBasedStateMachine):
    """The table beside a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.table = DelayTable(64, chunk=2)
        self.waiting: list[DeferredBatch] = []
        self.end = 8
        self.now = 0

    @rule(ahead=st.integers(-SECOND, 3 * SECOND), size=st.integers(1, 300), messages=st.integers(1, 5))
    def park(self, ahead: int, size: int, messages: int) -> None:
        entry = DeferredBatch(self.table.earliest(max(self.now + ahead, 0)), self.end, size, messages)
        self.table.add(entry)
        self.waiting.append(entry)
        self.end += 8

    @rule(later=st.integers(0, 2 * SECOND), most=st.integers(1, 5), max_bytes=st.integers(1, 900))
    def deliver(self, later: int, most: int, max_bytes: int) -> None:
        self.now += later
        found = self.table.due(self.now, max_batches=most, max_bytes=max_bytes)
        self.waiting.sort()
        due = [entry for entry in self.waiting if entry.due_at <= self.now]
        assert found == due[: len(found)]
        assert len(found) <= most
        assert len(found) <= 1 or sum(entry.size for entry in found) <= max_bytes
        assert bool(found) == bool(due)
        if found:
            self.table.reach(DeliveryMark(*found[-1][:2]))
            del self.waiting[: len(found)]

    @invariant()
    def says_the_same(self) -> None:
        table, waiting = self.table, self.waiting
        assert (len(table), table.messages) == (len(waiting), sum(entry.messages for entry in waiting))
        assert table.next_due == min((entry.due_at for entry in waiting), default=0)
        oldest = min((entry.position // 64 * 64 for entry in waiting), default=None)
        assert table.oldest == oldest


TestAgainstASortedList = AgainstASortedList.TestCase
TestAgainstASortedList.settings = settings_of(40)
NOON = 1_700_000_000_000_000


def test_it_is_the_wall_clock() -> None:
    clock = DelayClock()

    assert clock.read(NOON, 5.0) == NOON
    assert clock.read(NOON + 3, 5.1) == NOON + 3


def test_it_follows_a_wall_clock_that_is_set_forward() -> None:
    clock = DelayClock()
    clock.read(NOON, 5.0)

    assert clock.read(NOON + 3600 * SECOND, 5.5) == NOON + 3600 * SECOND


def test_the_old_time_goes_on_when_the_wall_clock_is_set_back() -> None:
    clock = DelayClock()
    clock.read(NOON, 5.0)
    back = NOON - 3600 * SECOND

    assert clock.read(back, 5.0) == NOON
    assert clock.read(back + 1 * SECOND, 6.0) == NOON + RATE
    assert clock.read(back + 10 * SECOND, 15.0) == NOON + 10 * RATE
    assert clock.read(NOON + 11 * SECOND, 15.5) == NOON + 11 * SECOND  # and back again


def test_many_reads_lose_nothing_of_the_time_that_goes_on() -> None:
    clock = DelayClock()
    clock.read(NOON, 0.0)

    for i in range(1, 10_001):
        told = clock.read(NOON - 3600 * SECOND, i / 10_000 * 1.00003)

    assert abs(told - NOON - 1.00003 * RATE) <= 1


@pytest.mark.parametrize("step_s", [0.06, 1.0, 2.0])
def test_a_step_back_is_made_up_for_in_the_end(step_s: float) -> None:
    """Times that people name would be early for as long as the broker runs else."""
    clock, back, shown = DelayClock(), round(step_s * SECOND), NOON
    clock.read(NOON, 0.0)
    for tenths in range(round(step_s * 5000) + 2):
        passed, wall = tenths * 100_000, NOON - back + tenths * 100_000
        told = clock.read(wall, tenths / 10)
        assert max(shown, wall) <= told <= shown + 100_000
        assert passed - (told - NOON) <= passed // 500 + SMALL_STEP_US + 100_000  # the last for the time between reads
        shown = told
    assert told == wall


def test_a_small_step_back_is_waited_for() -> None:
    """Steps of a time server would add up else, and everything would come early."""
    clock = DelayClock()
    clock.read(NOON, 5.0)

    assert clock.read(NOON - SMALL_STEP_US, 5.02) == NOON
    assert clock.read(NOON - SMALL_STEP_US + 20_000, 5.04) == NOON
    assert clock.read(NOON + 1, 5.06) == NOON + 1
    assert clock.read(NOON - SMALL_STEP_US, 5.06) == NOON + 1  # 1 us more than a small step
    assert clock.read(NOON - SMALL_STEP_US, 5.07) == NOON + 1 + RATE // 100


@quick
@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 100)), max_size=20))
def test_it_never_falls(steps: list[tuple[int, float]]) -> None:
    clock, last, steady = DelayClock(), 0, 0.0
    for wall, passed in steps:
        steady += passed
        told = clock.read(wall, steady)
        assert told >= max(last, wall)
        last = told


NOW = 1_700_000_000_000_000
LEVELS = (1 * SECOND, 5 * SECOND, 7200 * SECOND)


def header(level: int = 0, deliver_at: int = 0) -> layout.Header:
    return layout.parse_header(batches.encode("orders", 0, MINIMAL, delay_level=level, deliver_at=deliver_at))


@pytest.fixture
def table() -> DelayTable:
    return DelayTable()


@pytest.fixture
def delays(table: DelayTable) -> Delays:
    return Delays(table, LEVELS, max_delay_s=3600.0, now_us=lambda: NOW)


def test_a_batch_without_a_delay_is_delivered_now(delays: Delays) -> None:
    assert delays.due_at(header()) == 0


@pytest.mark.parametrize(("level", "after_s"), [(1, 1), (2, 5)])
def test_a_level_counts_from_now(delays: Delays, level: int, after_s: int) -> None:
    assert delays.due_at(header(level)) == NOW + after_s * SECOND


def test_a_time_of_delivery_is_kept_exactly(delays: Delays) -> None:
    assert delays.due_at(header(deliver_at=NOW + 1)) == NOW + 1
    assert delays.due_at(header(deliver_at=NOW + 3600 * SECOND)) == NOW + 3600 * SECOND


@pytest.mark.parametrize("deliver_at", [1, NOW - 1, NOW])
def test_what_should_have_been_delivered_already_is_delivered_now(delays: Delays, deliver_at: int) -> None:
    assert delays.due_at(header(deliver_at=deliver_at)) == 0


def test_a_level_that_does_not_exist_is_refused(delays: Delays) -> None:
    with pytest.raises(BadDelay, match="there is no delay level 4: this broker has 1 to 3"):
        delays.due_at(header(4))


def test_a_delay_that_is_too_long_is_refused(delays: Delays) -> None:
    with pytest.raises(BadDelay, match=r"7200 s is longer than this broker allows \(max_delay_s = 3600\)"):
        delays.due_at(header(3))
    with pytest.raises(BadDelay, match="longer than this broker allows"):
        delays.due_at(header(deliver_at=NOW + 3600 * SECOND + 1))


def test_nothing_is_due_before_what_was_delivered_last(delays: Delays, table: DelayTable) -> None:
    """The clock of an earlier run was ahead of this one."""
    table.reach(DeliveryMark(NOW + 9 * SECOND, 8))

    assert delays.due_at(header(1)) == NOW + 9 * SECOND
    assert delays.due_at(header(deliver_at=NOW + 2)) == NOW + 9 * SECOND
    assert delays.due_of_level(1) == NOW + 9 * SECOND


@pytest.mark.parametrize(("level", "after_s"), [(-1, 1), (0, 1), (1, 1), (3, 7200), (4, 7200), (99, 7200)])
def test_what_the_broker_puts_off_has_the_nearest_level_there_is(delays: Delays, level: int, after_s: int) -> None:
    """A message that failed more often than there are levels waits for the last one: 2 h by default."""
    assert delays.due_of_level(level) == NOW + after_s * SECOND


def test_every_time_can_be_shown() -> None:
    end = layout.MAX_TIME - 1
    delays = Delays(DelayTable(), LEVELS, max_delay_s=1e9, now_us=lambda: end)

    assert delays.due_at(header(3)) == end
    assert delays.due_of_level(3) == end


@pytest.mark.parametrize(
    ("ahead_us", "earliest"), [(-SECOND, NOW), (50_000, NOW + 50_000), (50_001, NOW), (3600 * SECOND, NOW)]
)
def test_a_start_with_a_clock_that_was_set_far_back_goes_by_that_clock(
    delays: Delays, table: DelayTable, ahead_us: int, earliest: int
) -> None:
    table.reach(DeliveryMark(NOW + ahead_us, 8))

    delays.start(0)

    assert table.earliest(NOW) == earliest
