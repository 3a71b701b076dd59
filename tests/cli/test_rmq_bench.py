"""``rmq-bench``: options become loads, benchmarks run and clean up, and the bar needs a terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rmq.bench.options import Load, Options
from rmq.bench.processes import BenchError
from rmq.bench.suite import CATALOG, ENTRIES, EXTRA, LOAD, PlannedRun
from rmq.cli.rmq_bench import BenchBar, command, ended_well, load_of, options_of, unheeded
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure

from rigs.processes import Running

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


def test_an_impossible_benchmark_is_one_line_and_a_code() -> None:
    result = CliRunner().invoke(command, ["failover", "--queues", "2", "--consumers", "3"], prog_name="rmq-bench")

    assert result.exit_code == exit_codes.FAILURE
    assert result.stderr == "rmq-bench: a failover needs two consumers or more, and a queue for each of them\n"


def test_an_error_of_a_benchmark_is_a_failure() -> None:
    with pytest.raises(Failure, match="the disk is full") as caught, ended_well():
        raise BenchError("the disk is full")

    assert caught.value.exit_code == exit_codes.FAILURE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_and_a_second_one_is_ignored(number: signal.Signals) -> None:
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
def test_it_measures_a_running_broker_with_its_own_durability(broker: str) -> None:
    line = ("produce", "--tags", "8", "--messages", "500", "--rounds", "1", "--broker", broker, "--json")
    with Running(BENCH, *line) as process:
        assert process.wait(60) == 0, process.errors
    report = json.loads(process.lines[-1])

    assert (report["benchmark"], report["load"]["messages"]) == ("produce", 500)
    assert {figure["flush"] for figure in report["figures"]} == {"sync"}
    assert {len(figure["samples"]) for figure in report["figures"]} == {1}
    assert [verdict["key"] for verdict in report["verdicts"]] == ["P10.tags"]
    assert process.errors == []  # no bar without a terminal


def given(line: str) -> dict[str, Any]:
    """What a command line, without the name of the program, hands over."""
    name, *words = line.split()
    return command.commands[name].make_context(name, words).params


@pytest.mark.parametrize("name", CATALOG)
def test_help_shows_the_default_load_of_a_benchmark(name: str) -> None:
    benchmark, params = CATALOG[name], given(name)

    assert load_of(benchmark, params) == benchmark.load
    assert options_of(benchmark, params) == Options(benchmark.flush or "async", None, benchmark.rounds, False)
    shown = {param.name: str(getattr(param, "help", "")) for param in command.commands[name].params}
    for field in set(benchmark.heeds) - {"keys"}:
        assert f"[default: {getattr(benchmark.load, field)}" in shown[field]


@pytest.mark.parametrize("name", CATALOG)
def test_every_benchmark_takes_the_same_options_and_shows_those_that_make_a_difference(name: str) -> None:
    benchmark, params = CATALOG[name], command.commands[name].params
    shown = {str(param.name) for param in params if isinstance(param, click.Option) and not param.hidden}

    assert {*LOAD, "flush", "rounds", "quick", "as_json"} <= given(name).keys()
    assert shown & {*LOAD, *EXTRA} == set(benchmark.heeds)
    assert ("flush" in shown) is (benchmark.flush is not None)
    assert ("broker" in given(name)) is benchmark.takes_broker


def test_an_option_that_makes_no_difference_is_named() -> None:
    line = "limit --size 10 --consumers 2 --in-flight 3 --flush sync"

    assert unheeded(CATALOG["limit"], given(line)) == ["--consumers", "--flush"]
    assert unheeded(CATALOG["end-to-end"], given(line.replace("limit", "end-to-end"))) == []


def test_every_option_of_a_load_arrives() -> None:
    sizes = "--messages 7 --size 6 --batch 5 --queues 4 --producers 3 --in-flight 9"
    params = given(f"produce {sizes} --connections 2 --tags 8 --keys")

    assert load_of(CATALOG["produce"], params) == Load(7, 6, 5, 4, 9, 3, connections=2, tags=8, keys=True)


def test_a_quick_run_is_small_and_once_by_default() -> None:
    produce = CATALOG["produce"]

    assert load_of(produce, given("produce --quick")).messages == 10_000
    assert load_of(produce, given("produce --quick --messages 30000")).messages == 30_000
    assert load_of(CATALOG["failover"], given("failover --quick --consumers 5")).consumers == 5
    assert options_of(produce, given("produce --quick")).rounds == 1
    assert options_of(produce, given("produce --quick --rounds 2")).rounds == 2


def test_flush_does_not_go_with_a_broker_that_runs() -> None:
    with pytest.raises(click.UsageError, match="does not go with --broker"):
        options_of(CATALOG["produce"], given("produce --broker 127.0.0.1:1 --flush sync"))


def test_a_broker_that_runs_is_asked_for_its_durability(broker: str) -> None:
    assert options_of(CATALOG["produce"], given(f"produce --broker {broker}")).flush == "sync"


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry.command_line(Options())))
def test_the_command_line_of_every_part_of_all_repeats_it(entry: PlannedRun, quick: bool) -> None:
    options = entry.options(Options(rounds=1 if quick else 5, quick=quick))
    program, line = entry.command_line(options).split(" ", 1)

    assert program == "rmq-bench"
    assert load_of(entry.benchmark, given(line)) == entry.loaded(options)
    assert options_of(entry.benchmark, given(line)) == options


class Screen(io.StringIO):
    """A terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with BenchBar() as bar:
        bar(0.5, "produce.bodies")
        with bar.aside():
            pass

    assert capsys.readouterr() == ("", "")


def test_the_bar_makes_room_for_text_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with BenchBar() as bar:
        bar(0.5, "produce.bodies")
        with bar.aside():
            screen.write("a table\n")
        lines = screen.getvalue().split("\r\x1b[2K")[1].split("\n")

    assert lines[0] == "a table"
    assert lines[1].startswith("produce.bodies")
    assert "50%" in lines[1]


def test_the_bar_says_how_far_it_is_and_what_is_measured_now(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with BenchBar() as bar:
        bar(0.5, "produce.bodies")
        drawn = screen.getvalue()

    assert "produce.bodies" in drawn
    assert "50%" in drawn
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is shown again, and no line is left


def test_a_long_label_does_not_make_the_line_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with BenchBar() as bar:
        bar(0.9, "x" * 200)
        drawn = screen.getvalue()

    assert max(len(line) for line in drawn.split("\r")) < 80
