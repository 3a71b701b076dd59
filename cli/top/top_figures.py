"""Numbers in few characters, for views in which they must not move about. Pure."""

from __future__ import annotations

from typing import Final

from ..output.render import seconds

UNKNOWN: Final = "-"
_STEPS: Final = ("", "k", "M", "G", "T", "P", "E")


def count(value: float | None) -> str:
    """A number of things, at most 7 characters: ``12,345``, ``123k``, ``4.56M``."""
    if value is None:
        return UNKNOWN
    return f"{round(value):,}" if abs(value) < 99_999.5 else _short(value)


def rate(value: float | None) -> str:
    """How many a second: ``0.3/s``, ``12,345/s``."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 9.95:
        return f"{value:.1f}/s"
    return f"{count(value)}/s"


def trend(value: float | None) -> str:
    """A rate with its sign."""
    if value is None:
        return UNKNOWN
    return f"+{rate(value)}" if value > 0 else rate(value)


def size(value: float | None) -> str:
    """Bytes: ``512 B``, ``1.2 MB``, ``120 GB``."""
    if value is None:
        return UNKNOWN
    if abs(value) < 999.5:
        return f"{value:.0f} B"
    short = _short(value)
    return f"{short[:-1]} {short[-1]}B"


def size_rate(value: float | None) -> str:
    """Bytes a second."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def short_time(value: float | None) -> str:
    """The time that something of the disk takes: ``0.21 ms``, ``12.3 ms``, ``1.25 s``."""
    if value is None:
        return UNKNOWN
    if value < 0.01:
        return f"{value * 1000:.2f} ms"
    return f"{value * 1000:.1f} ms" if value < 0.9995 else f"{value:.2f} s"


def long_time(value: float | None) -> str:
    """How old or how far away something is: ``12.3s``, ``3h05m``, ``12d07h``."""
    if value is None:
        return UNKNOWN
    if value < 48 * 3600:
        return seconds(value)
    days, hours = divmod(round(value / 3600), 24)
    return f"{days}d{hours:02}h"


def percent(value: float | None) -> str:
    """A share: ``45%``."""
    return UNKNOWN if value is None else f"{value:.0%}"


def _short(value: float) -> str:
    """Three digits and a letter."""
    power = 0
    while abs(value) >= 999.5 and power < len(_STEPS) - 1:
        value /= 1000
        power += 1
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{_STEPS[power]}"
