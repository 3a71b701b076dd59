"""However many producers come, what is kept of them is bounded, and the longest idle go first."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rmq.broker.state.producers import SLOT, Known, ProducerTable
from rmq.wire.errors import SequenceConflict, TopicNotFound

RING = 256 * SLOT.size


def known(sequence: int) -> Known:
    return Known(sequence, 7, sequence, sequence * 64, 0, sequence * 64 + 64)


def fill(table: ProducerTable, producer: int, *, now: float = 0.0) -> None:
    """A producer with a full ring."""
    table.record(producer, 0, *known(255), now=now)


def test_rings_are_counted_whatever_happens_to_their_producers() -> None:
    table = ProducerTable(max_producers=4)
    for producer in range(1, 7):
        table.record(producer, 0, *known(producer), now=producer)
    table.spend(6, 0, 7, 7, TopicNotFound.code, now=6.0)
    table.record(5, 1, *known(1), now=6.0)
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
    assert table.admit(2, 0, 255, 7, now=0.0) == known(255)


def test_a_producer_whose_ring_was_dropped_gets_one_with_its_next_batch() -> None:
    table = ProducerTable(ring_bytes=RING)
    fill(table, 1)
    fill(table, 2)

    table.record(1, 0, *known(256), now=0.0)

    assert table.resumed(1, 0, 250, last=256) == (257, True, 256, [known(256)])


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
