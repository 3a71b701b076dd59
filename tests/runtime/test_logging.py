"""
Events go where the program wants them, and nowhere by default.

Events go through the standard logging, never to standard output.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import pytest
import structlog

from rmq.runtime.logging import get_broker_logger, get_logger

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


def test_an_event_is_one_line_with_its_keys(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rmq.test"):
        get_logger("rmq.test").info("lock.granted", group="g", owner="a b", percent="100%s")

    assert [record.getMessage() for record in caplog.records] == ["lock.granted group=g owner='a b' percent=100%s"]


def test_an_exception_comes_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        get_logger("rmq.test").exception("it.failed")

    assert "ValueError: boom" in caplog.records[0].getMessage()


def test_a_stack_comes_below_the_line_and_is_a_field_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("rmq.test").warning("loop.blocked", group="g", stack="  File x\n  File y")

    assert caplog.records[0].getMessage() == "loop.blocked group=g\n  File x\n  File y"
    assert caplog.records[0].__dict__["rmq_fields"]["stack"] == "  File x\n  File y"


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("rmq.test").info("quiet")

    assert capsys.readouterr().out == ""
