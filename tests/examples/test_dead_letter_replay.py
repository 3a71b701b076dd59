"""``examples/dead_letter_replay.py``: what could not be read is read in the end, and booked once."""

from __future__ import annotations

import pytest
import structlog

import dead_letter_replay
from rmq.testing.broker import InMemoryBroker

from .running import run


def check(printed: str, letter: int = 0) -> None:
    assert printed.splitlines() == [
        "booked 10.00",
        "booked 20.00",
        "attempt 1: cannot read '30,00'",
        "attempt 2: cannot read '30,00'",
        "booked 40.00",
        f"dead letter {letter}: '30,00'",
        "  delivery 2 failed: ValueError: could not convert string to float: '30,00'",
        "replayed: 1",
        "booked 30.00",
        "booked in all: 100.00",
    ]


@pytest.mark.slow
def test_a_dead_letter_is_replayed_to_the_mended_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_BROKER", raising=False)

    check(run("dead_letter_replay"))


async def test_with_a_broker_that_runs_it_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()  # else the broker may print as an earlier test of this process told it to
    async with InMemoryBroker() as broker:
        for letter in range(2):
            await dead_letter_replay.tell(broker.address)
            check(capsys.readouterr().out, letter)
