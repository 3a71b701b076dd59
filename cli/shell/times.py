"""Points in time and durations as people type them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_LONG = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\Z", re.ASCII)
_SINCE_1970 = re.compile(r"@(\d{1,15})\Z", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_time(text: str, now: datetime) -> datetime:
    """
    ``10m`` (that long before ``now``; ms, s, m, h or d), ``@1769860800`` (seconds since 1970, or milliseconds if it has
    12 digits and more), or a date or time as of ISO 8601, local unless it has a zone.

    Raises:
        ValueError: it is neither; the sentence says what would do.
    """
    ago, since = _LONG.match(text.strip()), _SINCE_1970.match(text.strip())
    try:
        if since is not None:
            return datetime.fromtimestamp(int(since[1]) / (1000 if len(since[1]) >= 12 else 1), UTC)
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"{text!r} is no time: 10m is ten minutes ago, 2026-01-31T12:00 is a local time, @1769860800 are seconds "
            "since 1970"
        ) from error


def time_of_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """The callback of an option that is a point in time."""
    try:
        return None if text is None else parse_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_duration(text: str) -> float:
    """
    Seconds, of ``10s``, ``1500ms``, ``2m``, ``1h`` or ``1d``.

    Raises:
        ValueError: it is none of these; the sentence says what would do.
    """
    found = _LONG.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration: write 10s, 1500ms, 2m, 1h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def duration_of_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """The callback of an option that is a duration."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
