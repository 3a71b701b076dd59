"""Which parked batches a start finds, and which of them were delivered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.deferred import ENTRY, DelayTable, Mark, Parked
from rmq.broker.state.replay import ParkedLog
from rmq.broker.store.changes import DelaysReached, DelaysWaiting
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout

from support.batches import MINIMAL, STAMP, quick, stamped

DATA = batches.encode("orders", 0, MINIMAL, delay_level=1)


def header(position: int, due_at: int) -> layout.Header:
    by = STAMP._replace(physical_offset=position, base_offset=due_at, kind=layout.KIND_PARKED)
    return layout.parse_header(stamped(DATA, by))


def left(log: ParkedLog) -> list[tuple[int, int]]:
    table = DelayTable()
    log.fill(table)
    return [entry[:2] for entry in table.page(Mark(), 10_000)]


def origin(position: int) -> int:
    return batches.handle(position, 0)


def test_what_was_parked_and_not_delivered_waits() -> None:
    log = ParkedLog()
    for position, due_at in [(8, 50), (16, 20), (24, 30)]:
        log.parked(header(position, due_at))

    assert log.delivered(origin(16))

    assert left(log) == [(30, 24), (50, 8)]


def test_what_comes_before_a_delivered_batch_was_passed() -> None:
    log = ParkedLog()
    for position, due_at in [(8, 50), (16, 20), (24, 30)]:
        log.parked(header(position, due_at))

    assert log.delivered(origin(24))

    assert left(log) == [(50, 8)]


def test_a_copy_of_something_else_is_no_delivery() -> None:
    log = ParkedLog()
    log.parked(header(16, 20))

    assert [log.delivered(origin(position)) for position in (8, 24, 1 << 40)] == [False] * 3
    assert left(log) == [(20, 16)]


def test_a_checkpoint_tells_what_waits_and_how_far_delivery_was() -> None:
    log = ParkedLog()
    log.apply(DelaysReached(20, 16))
    log.apply(DelaysWaiting(ENTRY.pack(30, 24, 1, 1) + ENTRY.pack(50, 8, 1, 1)))
    log.apply(DelaysWaiting(ENTRY.pack(60, 4, 1, 1)))
    log.parked(header(32, 55))

    assert not log.delivered(origin(16))
    assert log.delivered(origin(24))
    assert log.delivered(origin(8))

    assert left(log) == [(55, 32), (60, 4)]


def test_what_a_snapshot_has_reached_does_not_wait() -> None:
    """Segments that begin with a snapshot tell the watermark only."""
    log = ParkedLog()
    log.parked(header(8, 20))
    log.apply(DelaysReached(20, 8))
    log.apply(DelaysReached(10, 16))
    log.parked(header(24, 20))

    table = DelayTable()
    log.fill(table)

    assert table.reached == Mark(20, 8)
    assert table.page(Mark(), 9) == [Parked(20, 24, len(DATA), 1)]


@pytest.mark.parametrize("tidy", [1, 10, 1000])
def test_what_was_delivered_takes_no_memory(tidy: int) -> None:
    log = ParkedLog(tidy)

    for i in range(1, 500):
        log.parked(header(8 * i, i))
        assert log.delivered(origin(8 * i))
        assert len(log._positions) <= tidy + 3

    assert left(log) == []


@quick
@given(st.data())
def test_any_log_says_what_a_broker_that_never_stopped_would(data: st.DataObject) -> None:
    log, table, end = ParkedLog(tidy=3), DelayTable(), 8
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.integers(0, 9)) == 0:  # it stops, and starts with a clock that was set back
            table.set_back(data.draw(st.integers(0, 9)))
            if data.draw(st.booleans()):
                log.apply(DelaysReached(*table.reached))
        if data.draw(st.booleans()) or not len(table):
            entry = Parked(table.earliest(data.draw(st.integers(1, 9))), end, len(DATA), 1)
            table.add(entry)
            log.parked(header(end, entry.due_at))
        else:
            (first,) = table.page(Mark(), 1)
            table.reach(Mark(*first[:2]))
            assert log.delivered(origin(first.position))
        end += 8

    assert left(log) == [entry[:2] for entry in table.page(Mark(), 100)]
