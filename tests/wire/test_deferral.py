"""When a message is to be delivered, in three ways to say it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.deferral import MAX_DELAY_S, MAX_LEVEL, Delay, delay_of, to_us

BORN_AT = 1_700_000_000_000_000
NOON = datetime(2026, 1, 31, 12, 0, 0, 123_457, tzinfo=UTC)
NOON_US = 1_769_860_800_123_457


@pytest.mark.parametrize(
    ("given_", "delay", "deliver_at"),
    [
        ({"delay_level": 1}, Delay(level=1), 0),
        ({"delay_level": MAX_LEVEL}, Delay(level=MAX_LEVEL), 0),
        ({"delay_s": 10}, Delay(after_us=10_000_000), BORN_AT + 10_000_000),
        ({"delay_s": 0.1}, Delay(after_us=100_000), BORN_AT + 100_000),
        ({"delay_s": 1e-7}, Delay(after_us=1), BORN_AT + 1),
        ({"deliver_at": NOON}, Delay(at_us=NOON_US), NOON_US),
        ({"deliver_at": NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))}, Delay(at_us=NOON_US), NOON_US),
        ({"deliver_at": NOON.astimezone().replace(tzinfo=None)}, Delay(at_us=NOON_US), NOON_US),
    ],
)
def test_a_delay_is_a_level_or_an_exact_time(given_: dict[str, Any], delay: Delay, deliver_at: int) -> None:
    found = delay_of(**{"delay_level": 0, "delay_s": None, "deliver_at": None, **given_})

    assert found == delay
    assert delay.deliver_at(BORN_AT) == deliver_at


@pytest.mark.parametrize(
    "given_",
    [
        {},
        {"delay_s": 0},
        {"delay_s": 0.0},
        {"deliver_at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"deliver_at": datetime(1914, 6, 28, tzinfo=UTC)},
    ],
)
def test_no_time_to_wait_is_no_delay(given_: dict[str, Any]) -> None:
    assert delay_of(**{"delay_level": 0, "delay_s": None, "deliver_at": None, **given_}) is None


@pytest.mark.parametrize(
    ("given_", "error", "why"),
    [
        ({"delay_level": 1, "delay_s": 1}, ValueError, "give one of delay_level, delay_s and deliver_at"),
        ({"delay_s": 0, "deliver_at": NOON}, ValueError, "give one of"),
        ({"delay_level": 3, "deliver_at": NOON}, ValueError, "give one of"),
        ({"delay_level": -1}, ValueError, "delay_level must be 1 to 65535, or 0 for none, not -1"),
        ({"delay_level": 65536}, ValueError, "not 65536"),
        ({"delay_level": 1.0}, TypeError, "delay_level must be a whole number, not float"),
        ({"delay_level": 0.0}, TypeError, "not float"),
        ({"delay_level": True}, TypeError, "not bool"),
        ({"delay_level": False}, TypeError, "not bool"),
        ({"delay_level": "3"}, TypeError, "not str"),
        ({"delay_level": None}, TypeError, "not NoneType"),
        ({"delay_s": -0.001}, ValueError, "delay_s must be 0 or more and no longer than the calendar, not -0.001"),
        ({"delay_s": math.nan}, ValueError, "not nan"),
        ({"delay_s": math.inf}, ValueError, "not inf"),
        ({"delay_s": MAX_DELAY_S + 1}, ValueError, "delay_s must be"),
        ({"delay_s": 10**400}, ValueError, "delay_s must be"),
        ({"delay_s": "10s"}, TypeError, "delay_s must be a number of seconds, not str"),
        ({"delay_s": timedelta(1)}, TypeError, "not timedelta"),
        ({"delay_s": True}, TypeError, "not bool"),
        ({"deliver_at": 17}, TypeError, "deliver_at must be a datetime, not int"),
        ({"deliver_at": NOON.date()}, TypeError, "not date"),
        ({"deliver_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))}, ValueError, "of the calendar"),
    ],
)
def test_what_is_no_delay_is_refused_in_one_sentence(given_: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        delay_of(**{"delay_level": 0, "delay_s": None, "deliver_at": None, **given_})


@given(st.floats(0, 1e7), st.integers(0, 1 << 50))
def test_a_number_of_seconds_is_never_cut_short(delay_s: float, born_at: int) -> None:
    delay = delay_of(0, delay_s, None) or Delay()

    assert -1e-3 <= delay.deliver_at(born_at) - born_at * bool(delay.after_us) - delay_s * 1e6 <= 1


def test_a_time_keeps_its_microseconds_in_any_zone() -> None:
    assert to_us(NOON) == to_us(NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))) == NOON_US
