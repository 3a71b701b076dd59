"""The beginning and the end of a client: what it did before the clock, and how it fails."""

from __future__ import annotations

import gc
import sys

import pytest

from rmq.bench import processes
from rmq.wire.errors import RmqError


async def refused(**orders: object) -> None:
    raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [RmqError(f"no room\nfor {orders['what']}")])])


async def wrong() -> None:
    raise ExceptionGroup("tasks", [KeyError("oh")])


def test_what_a_broker_refuses_ends_a_client_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/sending.py", '{"what": "it"}'])

    with pytest.raises(SystemExit, match=r"^sending: no room for it$"):
        processes.run(refused)


def test_a_defect_is_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/sending.py", "{}"])

    with pytest.raises(ExceptionGroup):
        processes.run(wrong)


def test_what_was_made_before_the_clock_is_not_collected_and_what_comes_later_is() -> None:
    try:
        processes.settle()
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
