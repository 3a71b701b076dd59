"""Events go where the program wants them, and nowhere by default."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import pytest
import structlog

from rmq.runtime.logging import get_broker_logger

log = get_broker_logger("rmq.broker.sample")


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has never heard of structlog."""
    monkeypatch.setattr(structlog, "is_configured", lambda: False)


@pytest.mark.usefixtures("unconfigured")
def test_nothing_is_printed_by_a_program_that_configured_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log.debug("session.greeted", member="a")
    log.info("lock.granted", group="g")

    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("unconfigured")
def test_events_are_lines_of_the_standard_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rmq.broker.sample"):
        log.debug("never")
        log.info("lock.granted", group="g", why="100 %s free")

    assert caplog.record_tuples == [
        ("rmq.broker.sample", logging.INFO, 'event=lock.granted group=g why="100 %s free"'),
    ]


@pytest.mark.usefixtures("unconfigured")
def test_a_traceback_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        log.error("request.failed", exc_info=error)

    assert "ValueError: boom" in caplog.text


def test_a_program_that_configured_structlog_gets_the_events_there(logs: list[MutableMapping[str, Any]]) -> None:
    log.info("lock.granted", group="g")

    assert logs == [{"event": "lock.granted", "group": "g", "log_level": "info"}]
