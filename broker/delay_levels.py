"""The levels of delay as an operator writes them: ``1s 5s 10s 30s 1m``, from level 1 on."""

from __future__ import annotations

import re
from typing import Final

from rmq.wire.errors import ConfigError

_LEVEL: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])\Z", re.ASCII)
_UNITS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
MAX_LEVELS: Final = 65_535  # what the field of a batch can name


def parse_levels(text: str) -> tuple[int, ...]:
    """
    How long each level is, in microseconds.

    Raises:
        ConfigError: there is none, one is no length of time, or there are more than a batch can name.
    """
    levels = tuple(map(_level, text.split()))
    if not 1 <= len(levels) <= MAX_LEVELS:
        raise ConfigError(
            f"message_delay_level must name 1 to {MAX_LEVELS} levels, such as '1s 10s 5m', not {len(levels)}"
        )
    return levels


def _level(text: str) -> int:
    match = _LEVEL.match(text)
    if match is None:
        raise ConfigError(f"message_delay_level holds {text[:40]!r}: a level is a number and s, m, h or d, such as 30s")
    return int(match[1]) * _UNITS[match[2]]
