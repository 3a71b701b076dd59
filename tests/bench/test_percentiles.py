"""Percentiles are values that were measured, by their rank."""

from __future__ import annotations

import pytest

from rmq.bench.figures import percentile, percentiles


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [
        (1, 0.5, 1), (1, 0.999, 1), (1, 1.0, 1),
        (2, 0.5, 1), (2, 0.51, 2),
        (100, 0.5, 50), (100, 0.9, 90), (100, 0.99, 99), (100, 0.999, 100),
        (160, 0.99, 159), (300, 0.99, 297), (1000, 0.999, 999), (80_000, 0.999, 79_920),
    ],
)  # fmt: skip
def test_a_percentile_is_the_first_value_that_so_many_do_not_exceed(count: int, share: float, rank: int) -> None:
    assert percentile(range(1, count + 1), share) == rank


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_there_is_no_percentile_of_nothing_or_beyond_all(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_values_may_come_in_any_order() -> None:
    assert percentiles([3.0, 1.0, 2.0, 5.0, 4.0]) == {"p50": 3.0, "p90": 5.0, "p99": 5.0, "p99.9": 5.0, "max": 5.0}
