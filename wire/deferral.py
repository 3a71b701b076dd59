"""
The delay of a deferred message: validated when the message is made, and encoded as two numbers of a batch header. Pure.

A message is deferred by a level of the broker's table, for a number of seconds from its birth, or until a point in
time. The last two are the same to a broker: an exact time, in microseconds.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

MAX_LEVEL: Final = 65535  # the largest that a header can hold; which of them exist is the broker's setting
MAX_DELAY_S: Final = 253_402_300_800.0  # from 1970 to the end of the calendar: no broker allows as much
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Delay(NamedTuple):
    """One of: a level, microseconds from the birth of a message, or microseconds since 1970. The others are 0."""

    level: int = 0
    after_us: int = 0
    at_us: int = 0

    def deliver_at(self, born_at: int) -> int:
        """Return the exact time for a message born at this time; 0 if the delay is a level."""
        return born_at + self.after_us if self.after_us else self.at_us


def delay_of(delay_level: int, delay_s: float | None, deliver_at: datetime | None) -> Delay | None:
    """
    Return the delay that one of the three arguments gives; None for a message that is not deferred.

    Raises:
        TypeError, ValueError: an argument is wrong, or more than one is given.
    """
    if delay_level == 0 and type(delay_level) is int and delay_s is None and deliver_at is None:
        return None
    if (delay_level != 0) + (delay_s is not None) + (deliver_at is not None) > 1:
        raise ValueError("give one of delay_level, delay_s and deliver_at: each of them says when it is delivered")
    if delay_s is not None:
        after_us = _microseconds(delay_s)
        return Delay(after_us=after_us) if after_us else None
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise TypeError(f"deliver_at must be a datetime, not {type(deliver_at).__name__}")
        at_us = max(0, to_us(deliver_at))
        return Delay(at_us=at_us) if at_us else None
    if isinstance(delay_level, bool) or not isinstance(delay_level, int):
        raise TypeError(f"delay_level must be a whole number, not {type(delay_level).__name__}")
    if not 0 < delay_level <= MAX_LEVEL:
        raise ValueError(f"delay_level must be 1 to {MAX_LEVEL}, or 0 for none, not {delay_level}")
    return Delay(level=delay_level)


def _microseconds(delay_s: float) -> int:
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float):
        raise TypeError(f"delay_s must be a number of seconds, not {type(delay_s).__name__}")
    if not 0 <= delay_s <= MAX_DELAY_S:  # which not-a-number is not, either
        raise ValueError(f"delay_s must be 0 or more and no longer than the calendar, not {delay_s}")
    # Never early; but 0.1 s are 100,000, whatever a sum of floats makes of it.
    return math.ceil(round(delay_s * 1e6, 3))


def to_us(time: datetime) -> int:
    """
    Return microseconds since 1970; a time without a zone is local.

    Raises:
        ValueError: it lies outside of the calendar in UTC.
    """
    try:
        return (time.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except (OverflowError, OSError) as error:
        raise ValueError(f"the time {time} lies outside of the calendar") from error
