"""Points in time and durations as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rmq.cli.shell.options import parse_duration, parse_time

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("10m", timedelta(minutes=10)),
        ("1.5h", timedelta(minutes=90)),
        ("30 s", timedelta(seconds=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
    ],
)
def test_a_duration_is_that_long_ago(text: str, ago: timedelta) -> None:
    assert parse_time(text, NOW) == NOW - ago


def test_an_iso_time_with_a_zone_is_what_it_says() -> None:
    assert parse_time("2026-01-31T13:00+01:00", NOW) == NOW
    assert parse_time(" 2026-01-31T12:00:00.000Z", NOW) == NOW


def test_a_time_since_1970_is_in_seconds_or_milliseconds() -> None:
    assert parse_time("@1769860800", NOW) == NOW
    assert parse_time("@1769860800250", NOW) == NOW + timedelta(milliseconds=250)
    for text in ("@", "@x", "@999999999999999"):
        with pytest.raises(ValueError, match="seconds since 1970"):
            parse_time(text, NOW)


def test_an_iso_time_without_a_zone_is_local() -> None:
    assert parse_time("2026-01-31 12:00", NOW) == datetime(2026, 1, 31, 12, 0).astimezone()
    assert parse_time("2026-01-31", NOW) == datetime(2026, 1, 31).astimezone()


@pytest.mark.parametrize("text", ["", "10", "m", "10 weeks", "-5m", "yesterday", "2026-13-01", "9" * 40 + "d"])
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: 10m is ten minutes ago"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1500ms", 1.5), ("2m", 120), ("1h", 3600), (" 1.5 d", 129_600), ("0s", 0)],
)
def test_a_duration_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-5s", "5 weeks", "2026-01-31"])
def test_what_is_no_duration_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: write 10s, 1500ms, 2m, 1h or 1d"):
        parse_duration(text)
