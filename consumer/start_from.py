"""Where a group without progress begins, as it is set: ``first``, ``last``, or a point in time. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmq.wire.errors import ConfigError

FIRST = "first"
LAST = "last"
_TIMESTAMP = "timestamp:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_start(text: str) -> str | datetime:
    """
    ``first``, ``last``, or the time of ``2026-01-31T12:00`` or ``timestamp:2026-01-31T12:00``.

    A time is one of ISO 8601, local unless it has a zone.

    Raises:
        ConfigError: it is none of them.
    """
    if text in (FIRST, LAST):
        return text
    try:
        return datetime.fromisoformat(text.removeprefix(_TIMESTAMP)).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f'start_from must be "first", "last" or a time such as 2026-01-31T12:00, not {text!r}'
        ) from error


def to_us(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)
