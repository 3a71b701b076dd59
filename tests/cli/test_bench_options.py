"""What the options of ``rmq-bench`` make of a load."""

from __future__ import annotations

from typing import Any

import click
import pytest

from rmq.bench.options import Load, Options
from rmq.bench.suite import CATALOG, ENTRIES, EXTRA, LOAD, Entry
from rmq.cli.rmq_bench import command, load_of, options_of, unheeded


def given(line: str) -> dict[str, Any]:
    """What a command line, without the name of the program, hands over."""
    name, *words = line.split()
    return command.commands[name].make_context(name, words).params


@pytest.mark.parametrize("name", CATALOG)
def test_without_options_a_benchmark_has_its_own_load_and_is_told_so_in_its_help(name: str) -> None:
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


def test_a_quick_run_is_small_and_once_unless_told_otherwise() -> None:
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
def test_the_command_line_of_every_part_of_all_repeats_it(entry: Entry, quick: bool) -> None:
    options = entry.options(Options(rounds=1 if quick else 5, quick=quick))
    program, line = entry.command_line(options).split(" ", 1)

    assert program == "rmq-bench"
    assert load_of(entry.benchmark, given(line)) == entry.loaded(options)
    assert options_of(entry.benchmark, given(line)) == options
