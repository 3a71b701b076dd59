"""Log lines go to standard error in the requested form; a line that cannot be written is dropped and counted."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator

import pytest
import structlog

from rmq.cli.shell import logs
from rmq.cli.shell.logs import LogSink
from rmq.runtime.logging import get_logger


def written(form: str, level: str = "info") -> None:
    logs.configure(level, form)
    structlog.get_logger().info("lock.granted", group="g", queue="orders/2")
    structlog.get_logger().debug("never")
    logging.getLogger("rmq.client").warning("connection.lost address=%s", "h:1")


def test_logfmt_is_the_default_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    written("auto")

    out, err = capsys.readouterr()
    granted, lost = err.splitlines()
    assert out == ""
    assert granted.startswith("timestamp=")
    assert granted.endswith("level=info event=lock.granted group=g queue=orders/2")
    assert 'level=warning event="connection.lost address=h:1"' in lost


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    written("json")

    granted, lost = map(json.loads, capsys.readouterr().err.splitlines())
    assert granted["event"] == "lock.granted"
    assert granted["queue"] == "orders/2"
    assert (lost["event"], lost["level"]) == ("connection.lost address=h:1", "warning")


def test_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    written("console")

    err = capsys.readouterr().err
    assert "lock.granted" in err
    assert "group=g" in err


def test_the_level_is_a_threshold_for_both_kinds_of_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    written("logfmt", "error")

    assert capsys.readouterr().err == ""


def test_a_traceback_is_part_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError:
        structlog.get_logger().exception("broke")

    assert "ZeroDivisionError: oh" in json.loads(capsys.readouterr().err)["exception"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")])
def test_a_log_line_that_cannot_be_written_fails_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            tried.append(text)
            raise error

    monkeypatch.setattr(sys, "stderr", Full())
    logs.configure("info")

    structlog.get_logger("rmq").error("disk.full")

    assert "disk.full" in tried[0]


def test_an_event_that_a_command_says_itself_is_hidden_unless_with_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "logfmt")
    log = get_logger("rmq.consumer")

    with logs.hidden("consumer.failed"):
        log.error("consumer.failed", error="refused")
        log.warning("consumer.other")
        log.error("consumer.failed", exc_info=ValueError("a defect"))
    log.error("consumer.failed", error="told")

    told = capsys.readouterr().err
    assert [line.split("event=")[1].split()[0] for line in told.splitlines() if "event=" in line] == [
        "consumer.other", "consumer.failed", "consumer.failed",
    ]  # fmt: skip
    assert "refused" not in told
    assert "a defect" in told


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        yield reader, stream
    os.close(reader)


def test_lines_arrive_whole_and_in_order(pipe: tuple[int, io.TextIOWrapper]) -> None:
    sink = LogSink(pipe[1])

    sink.write("one\n")
    sink.write("zwei\u00f6\n")

    assert os.read(pipe[0], 100) == "one\nzwei\u00f6\n".encode()


def test_a_full_pipe_never_blocks_and_dropped_lines_are_counted(
    pipe: tuple[int, io.TextIOWrapper],
) -> None:
    sink = LogSink(pipe[1])
    line = "x" * 999 + "\n"

    for _ in range(200):
        sink.write(line)
    dropped = sink.dropped
    assert dropped > 100
    while len(os.read(pipe[0], 1 << 20)) == 1 << 20:
        pass
    sink.write("there again\n")

    notice = f"{dropped} log lines were dropped: standard error was not read"
    assert os.read(pipe[0], 1000).decode() == f"{notice}\nthere again\n"
    assert sink.dropped == 0


def test_a_reader_that_went_away_is_not_an_error(pipe: tuple[int, io.TextIOWrapper]) -> None:
    sink = LogSink(pipe[1])
    reader = os.dup(pipe[0])
    os.close(reader)
    os.dup2(os.open(os.devnull, os.O_RDONLY), pipe[0])  # nobody reads the pipe any more

    sink.write("to nobody\n")

    assert sink.dropped == 1


def test_a_stream_in_memory_is_written_to() -> None:
    stream = io.StringIO()

    LogSink(stream).write("here\n")

    assert stream.getvalue() == "here\n"
