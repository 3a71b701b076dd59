"""Events go through the standard logging, never to standard output."""

from __future__ import annotations

import logging

import pytest

from rmq.runtime.logging import get_logger


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
