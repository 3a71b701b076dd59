from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.cli.top import view as figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (0, "0"), (999, "999"), (12_345, "12,345"), (99_999, "99,999"), (99_999.7, "100k"),
        (123_456, "123k"), (999_400, "999k"), (999_600, "1.00M"), (4_560_000, "4.56M"), (-123_456, "-123k"),
    ],
)  # fmt: skip
def test_counts(value: float | None, shown: str) -> None:
    assert figures.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0, "0/s"), (0.3, "0.3/s"), (9.94, "9.9/s"), (9.96, "10/s"), (12_345, "12,345/s")]
)
def test_rates(value: float | None, shown: str) -> None:
    assert figures.rate(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0, "0/s"), (12, "+12/s"), (-0.5, "-0.5/s"), (-40, "-40/s")])
def test_trends_have_a_sign(value: float | None, shown: str) -> None:
    assert figures.trend(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (70_900_000_000, "70.9 GB"), (5e21, "5000 EB")],
)
def test_sizes(value: float | None, shown: str) -> None:
    assert figures.size(value) == shown
    assert figures.size_rate(value) == (shown if value is None else f"{shown}/s")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.00021, "0.21 ms"), (0.0123, "12.3 ms"), (0.9994, "999.4 ms"), (1.25, "1.25 s")],
)
def test_times_of_the_disk(value: float | None, shown: str) -> None:
    assert figures.short_time(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.04, "0.0s"), (12.34, "12.3s"), (130, "2m10s"), (3 * 3600, "3h00m"), (55 * 3600, "2d07h")],
)
def test_ages(value: float | None, shown: str) -> None:
    assert figures.long_time(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.0, "0%"), (0.456, "46%"), (1.9, "190%")])
def test_shares(value: float | None, shown: str) -> None:
    assert figures.percent(value) == shown


@given(st.floats(0, 1e20))
def test_no_number_takes_more_room_than_it_was_given(value: float) -> None:
    assert len(figures.count(value)) <= 7
    assert len(figures.rate(value)) <= 9
    assert len(figures.size(value)) <= 7
