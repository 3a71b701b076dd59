"""Log lines that cannot be written are dropped and counted; nothing waits for them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest

from rmq.cli.shell.logs import LogSink


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


def test_a_pipe_that_nobody_reads_stops_nobody_and_the_gap_is_told_when_there_is_room(
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

    assert os.read(pipe[0], 1000).decode() == f"{dropped} log lines were dropped: nobody read them\nthere again\n"
    assert sink.dropped == 0


def test_a_reader_that_went_away_is_no_error(pipe: tuple[int, io.TextIOWrapper]) -> None:
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
