"""``examples/delayed_reminders.py``: the times say which reminder comes first, and one is not wanted any more."""

from __future__ import annotations

import re

import pytest

from .running import run


@pytest.mark.slow
def test_reminders_come_at_their_time_and_not_to_those_who_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_BROKER", raising=False)

    *scheduled, waiting, first, second, third = run("delayed_reminders").splitlines()

    assert scheduled == ["o-1: scheduled in 1.5 s", "o-2: scheduled in 0.5 s", "o-3: scheduled in 1.0 s"]
    assert re.fullmatch(r"waiting in the broker: \d", waiting)  # 3, unless this machine has no time for us
    assert re.fullmatch(r"o-2: reminded, (on time|\d+\.\d s late)", first)
    assert second == "o-3: paid by now, no reminder"
    assert re.fullmatch(r"o-1: reminded, (on time|\d+\.\d s late)", third)
