"""``first``, ``last`` or a point in time; anything else is refused with what would do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rmq.consumer.config import parse_start, to_us
from rmq.wire.errors import ConfigError

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("first", "first"),
        ("last", "last"),
        ("2026-01-31T12:00Z", NOON),
        ("timestamp:2026-01-31T12:00Z", NOON),
        ("2026-01-31T14:00+02:00", NOON),
        ("20260131T120000Z", NOON),
    ],
)
def test_what_is_meant(text: str, meant: object) -> None:
    assert parse_start(text) == meant


def test_a_time_without_a_zone_is_local() -> None:
    assert parse_start("2026-01-31T12:00") == datetime(2026, 1, 31, 12).astimezone(UTC)


@pytest.mark.parametrize("text", ["", "middle", "timestamp:", "timestamp:last", "2026-13-01"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match='start_from must be "first", "last" or a time such as 2026-01-31T12:00'):
        parse_start(text)


def test_a_time_travels_as_microseconds() -> None:
    assert to_us(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
