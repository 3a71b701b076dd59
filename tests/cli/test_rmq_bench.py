"""Benchmarks run, count right, and end what they started; what they measure is nobody's promise."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rmq.cli import exit_codes
from rmq.cli.rmq_bench import command

from support.processes import Running

BENCH = "rmq.cli.rmq_bench"
SMALL = ("--messages", "5003", "--size", "20", "--batch", "100", "--queues", "3", "--json")


@pytest.mark.parametrize("path", [[], ["produce"], ["end-to-end"], ["failover"]])
def test_help_has_examples(path: list[str]) -> None:
    result = CliRunner().invoke(command, [*path, "--help"])

    assert result.exit_code == 0
    assert "Examples:\n  rmq-bench " in result.stdout
    assert "consume-all" not in result.stdout
    assert "failover-member" not in result.stdout


def test_flush_is_for_its_own_broker_only(nowhere: str) -> None:
    result = CliRunner().invoke(command, ["produce", "--broker", nowhere, "--flush", "sync"])

    assert result.exit_code == exit_codes.USAGE
    assert "does not go with --broker" in result.stderr


def test_no_consumer_of_a_failover_is_left_without_a_queue() -> None:
    result = CliRunner().invoke(command, ["failover", "--queues", "2", "--members", "3"])

    assert result.exit_code == exit_codes.USAGE
    assert "must not be more than --queues" in result.stderr


@pytest.mark.slow
def test_failover_measures_kills_stops_and_joins() -> None:
    with Running(BENCH, "failover", "--repeats", "1", "--queues", "4", "--members", "2", "--json") as process:
        assert process.wait(120) == 0, process.errors
    result = json.loads(process.lines[-1])
    figures = {figure["figure"]: figure for figure in result["figures"]}

    assert (result["queues"], result["members"], result["repeats"]) == (4, 2, 1)
    assert {name: figure["count"] for name, figure in figures.items()} == {
        "kill": 1, "stop": 1, "join": 2, "join-process": 2,
    }  # fmt: skip
    assert figures["kill"]["min_s"] > 4.0, "the lock of a killed consumer was given away within its grace"
    assert figures["kill"]["held"], "a killed consumer's queues were without one for longer than 10 s"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["produce", "end-to-end"])
def test_it_measures_with_a_broker_of_its_own(name: str) -> None:
    with Running(BENCH, name, *SMALL, "--flush", "async") as process:
        assert process.wait(60) == 0, process.errors
    result = json.loads(process.lines[-1])

    assert (result["benchmark"], result["messages"], result["size"]) == (name, 5003, 20)
    assert (result["queues"], result["flush"]) == (3, "async")
    assert result["messages_per_s"] == pytest.approx(5003 / result["took_s"], rel=0.01)


@pytest.mark.slow
def test_it_measures_a_broker_that_runs(broker: str) -> None:
    with Running(BENCH, "produce", "--messages", "100", "--broker", broker) as process:
        assert process.wait(60) == 0, process.errors

    assert process.lines[0].startswith("produce: ")
    assert process.lines[0].endswith(" MB/s")
