"""When a delayed batch is due."""

from __future__ import annotations

import pytest

from rmq.broker.state.deferred import Delays, DelayTable, Mark
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import BadDelay

from support.batches import MINIMAL

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
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
    table.reach(Mark(NOW + 9 * SECOND, 8))

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
def test_a_start_with_a_clock_that_is_far_behind_goes_by_that_clock(
    delays: Delays, table: DelayTable, ahead_us: int, earliest: int
) -> None:
    table.reach(Mark(NOW + ahead_us, 8))

    delays.start(0)

    assert table.earliest(NOW) == earliest
