"""What a turn does before its next batch: one row for each rule, and each limit at its edge."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.dispatch.turns import Step, next_step, retry_pause

EPS = 1e-6
FINE: dict[str, Any] = {"dropped": False, "now": 10.0, "believed_until": 30.0, "began": 0.0, "max_continuous_s": 60.0}


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, Step.RUN),
        ({"dropped": True}, Step.STOP),
        ({"dropped": True, "believed_until": 0.0, "now": 100.0}, Step.STOP),
        ({"now": 30.0 - EPS}, Step.RUN),
        ({"now": 30.0}, Step.RUN),
        ({"now": 30.0 + EPS}, Step.RELOCK),
        ({"believed_until": float("-inf")}, Step.RELOCK),
        ({"now": 60.0 - EPS, "believed_until": 90.0}, Step.RUN),
        ({"now": 60.0, "believed_until": 90.0}, Step.RUN),
        ({"now": 60.0 + EPS, "believed_until": 90.0}, Step.YIELD),
        ({"now": 61.0, "believed_until": 60.5}, Step.RELOCK),
        ({"now": 30.0 + EPS, "entering": True}, Step.RELOCK_ENTRY),
        ({"entering": True}, Step.RUN),
        ({"stalled": True}, Step.YIELD),
        ({"stalled": True, "now": 31.0}, Step.RELOCK),
        ({"stalled": True, "dropped": True}, Step.STOP),
        ({"paused": True}, Step.PAUSE),
        ({"paused": True, "dropped": True}, Step.STOP),
        ({"paused": True, "now": 61.0}, Step.PAUSE),
        ({"turn_share_s": 5.0}, Step.RUN),
        ({"others_wait": True}, Step.RUN),
        ({"turn_share_s": 5.0, "others_wait": True}, Step.YIELD),
        ({"turn_share_s": 10.0, "others_wait": True}, Step.RUN),
        ({"turn_share_s": 20.0, "others_wait": True}, Step.RUN),
    ],
)
def test_next_step(changes: dict[str, Any], step: Step) -> None:
    assert next_step(**{**FINE, **changes}) is step


def test_pauses_double_from_one_second_to_thirty() -> None:
    assert [retry_pause(attempt, None, 1.0) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert retry_pause(1_000_000, None, 1.0) == 30


@pytest.mark.parametrize(
    ("asked_s", "suspend_s", "pause_s"),
    [(None, 1.0, 1.0), (-1.0, 1.0, 1.0), (0.005, 1.0, 0.01), (99.0, 1.0, 30.0), (None, 0.0, 0.01), (None, 99.0, 30.0)],
)
def test_a_pause_is_from_ten_milliseconds_to_thirty_seconds(
    asked_s: float | None, suspend_s: float, pause_s: float
) -> None:
    assert retry_pause(1, asked_s, suspend_s) == pause_s


def test_what_the_listener_asks_for_does_not_grow() -> None:
    assert [retry_pause(attempt, 2.5, 1.0) for attempt in (1, 5, 50)] == [2.5, 2.5, 2.5]
