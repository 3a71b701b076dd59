"""Benchmarks run, count right, and end what they started; what they measure is nobody's promise."""

from __future__ import annotations

import json
import os
import signal

import pytest
from click.testing import CliRunner

from rmq.bench.processes import BenchError
from rmq.cli.rmq_bench import command, ended_well
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure

from support.processes import Running

BENCH = "rmq.cli.rmq_bench"


@pytest.mark.parametrize("path", [[], *([name] for name in command.commands)])
def test_help_has_examples(path: list[str]) -> None:
    result = CliRunner().invoke(command, [*path, "--help"])

    assert result.exit_code == 0
    assert "Examples:\n  rmq-bench " in result.stdout


def test_flush_is_for_its_own_broker_only(nowhere: str) -> None:
    result = CliRunner().invoke(command, ["produce", "--broker", nowhere, "--flush", "sync"])

    assert result.exit_code == exit_codes.USAGE
    assert "does not go with --broker" in result.stderr


def test_what_a_benchmark_cannot_do_is_one_line_and_a_code() -> None:
    result = CliRunner().invoke(command, ["failover", "--queues", "2", "--consumers", "3"], prog_name="rmq-bench")

    assert result.exit_code == exit_codes.FAILURE
    assert result.stderr == "rmq-bench: a failover needs two consumers or more, and a queue for each of them\n"


def test_an_error_of_a_benchmark_is_a_failure() -> None:
    with pytest.raises(Failure, match="the disk is full") as caught, ended_well():
        raise BenchError("the disk is full")

    assert caught.value.exit_code == exit_codes.FAILURE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_and_a_second_one_does_not_disturb_the_end(number: signal.Signals) -> None:
    before, ended = signal.getsignal(number), []

    with pytest.raises(Failure, match="interrupted") as caught, ended_well():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            ended.append(True)

    assert caught.value.exit_code == exit_codes.INTERRUPTED
    assert ended == [True]
    assert signal.getsignal(number) is before


@pytest.mark.slow
def test_it_measures_a_broker_that_runs_and_says_how_durable_that_is(broker: str) -> None:
    line = ("produce", "--tags", "8", "--messages", "500", "--rounds", "1", "--broker", broker, "--json")
    with Running(BENCH, *line) as process:
        assert process.wait(60) == 0, process.errors
    report = json.loads(process.lines[-1])

    assert (report["benchmark"], report["load"]["messages"]) == ("produce", 500)
    assert {figure["flush"] for figure in report["figures"]} == {"sync"}
    assert {len(figure["samples"]) for figure in report["figures"]} == {1}
    assert [verdict["key"] for verdict in report["verdicts"]] == ["P10.tags"]
    assert process.errors == []  # no bar where nobody looks
