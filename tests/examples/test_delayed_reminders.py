"""``examples/delayed_reminders.py``: the times say which reminder comes first, and one is not wanted any more."""

from __future__ import annotations

import re

import pytest

import delayed_reminders
from rmq.broker.testing import InMemoryBroker

from .running import run


def check(printed: str) -> None:
    *scheduled, waiting, first, second, third = printed.splitlines()

    assert scheduled == ["o-1: scheduled in 1.5 s", "o-2: scheduled in 0.5 s", "o-3: scheduled in 1.0 s"]
    assert re.fullmatch(r"waiting in the broker: \d", waiting)  # 3, unless this machine has no time for us
    assert re.fullmatch(r"o-2: reminded, (on time|\d+\.\d s late)", first)
    assert second == "o-3: paid by now, no reminder"
    assert re.fullmatch(r"o-1: reminded, (on time|\d+\.\d s late)", third)


@pytest.mark.slow
def test_reminders_come_at_their_time_and_not_to_those_who_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_BROKER", raising=False)

    check(run("delayed_reminders"))


async def test_with_a_broker_that_runs_it_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    async with InMemoryBroker() as broker:
        for _ in range(2):
            await delayed_reminders.remind(broker.address)
            check(capsys.readouterr().out)
