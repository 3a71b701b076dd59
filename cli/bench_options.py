"""The options of ``rmq-bench``: a benchmark has those that make a difference to it, with its own defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from rmq.bench.catalog import EXTRA, LOAD, Benchmark, quickly
from rmq.bench.load import Load
from rmq.bench.options import Options
from rmq.wire.names import MAX_QUEUES

from .shell.command import run
from .shell.reach import admin_of

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_MAX_PROCESSES = 64
_SUBJECTS: dict[str, tuple[click.IntRange, str]] = {
    "messages": (click.IntRange(1), "Messages of a sample."),
    "size": (click.IntRange(1, 1 << 22), "Bytes of each message."),
    "batch": (click.IntRange(1), "Messages a send call."),
    "queues": (click.IntRange(1, MAX_QUEUES), "Queues of the topic."),
    "producers": (click.IntRange(1, _MAX_PROCESSES), "Processes that send."),
    "consumers": (click.IntRange(1, _MAX_PROCESSES), "Processes that consume."),
    "in_flight": (click.IntRange(1), "Send calls of a process that wait for their answer at once."),
    "connections": (click.IntRange(1), "Connections of each process that sends."),
    "tags": (click.IntRange(0), "So many tags take turns; 0: no message has one."),
}


def load_options(benchmark: Benchmark) -> Decorator:
    """
    The options of a benchmark, but for ``--json`` and those of logging.

    All of them take the same ones, so that one line of options does for each; what makes no difference to one is not
    in its help, and :func:`unheeded` says so.
    """
    made = [_of_load(name, benchmark) for name in (*LOAD, *EXTRA) if name in (*LOAD, *benchmark.heeds)]
    made += [_flush(benchmark), *([_broker] if benchmark.takes_broker else [])]
    return together(*made, rounds_option(benchmark.rounds), quick_option)


def unheeded(benchmark: Benchmark, given: dict[str, Any]) -> list[str]:
    """The options that were given and make no difference."""
    names = [name for name in LOAD if name not in benchmark.heeds] + ([] if benchmark.flush else ["flush"])
    return [f"--{_typed(name)}" for name in names if given[name] is not None]


def together(*options: Decorator) -> Decorator:
    """Several options as one, in this order."""

    def decorate(callback: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            callback = option(callback)
        return callback

    return decorate


def rounds_option(default: int) -> Decorator:
    """How often."""
    text = f"Samples of each figure; they take turns.  [default: {default}, with --quick 1]"
    return click.option("--rounds", type=click.IntRange(1), help=text)


quick_option: Decorator = click.option(
    "--quick", is_flag=True, help="Small and once, to see that it works; such numbers mean nothing."
)
_broker: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT",
    help="A broker that runs already; without, each sample has one of its own.",
)


def load_of(benchmark: Benchmark, given: dict[str, Any]) -> Load:
    """The load that was asked for; what was not is the benchmark's own, and small where it is to be quick."""
    load = quickly(benchmark.load) if given["quick"] else benchmark.load
    asked = {name: given[name] for name in benchmark.heeds if given[name] is not None}
    return dataclasses.replace(load, **asked)


def options_of(benchmark: Benchmark, given: dict[str, Any]) -> Options:
    """
    How it is to be run; a broker that runs is asked how durable what it acknowledges is.

    Raises:
        click.UsageError: durability was asked for of a broker that runs.
    """
    broker, flush = given.get("broker"), given.get("flush")
    if broker is not None and flush is not None:
        raise click.UsageError("--flush is for the broker that rmq-bench starts itself; it does not go with --broker.")
    if broker is not None:
        flush = run(_flush_of(broker))
    rounds = given["rounds"] or (1 if given["quick"] else benchmark.rounds)
    return Options(flush or benchmark.flush or "async", broker, rounds, given["quick"])


async def _flush_of(broker: str) -> str:
    async with admin_of(broker) as admin:
        return str((await admin.config())["flush"])


def _of_load(name: str, benchmark: Benchmark) -> Decorator:
    if name == "keys":
        return click.option("--keys", is_flag=True, default=None, help="Give each message a key of its own.")
    kind, text = _SUBJECTS[name]
    usual, quick = getattr(benchmark.load, name), getattr(quickly(benchmark.load), name)
    text = f"{text}  [default: {usual}{f', with --quick {quick}' if quick != usual else ''}]"
    return click.option(f"--{_typed(name)}", name, type=kind, help=text, hidden=name not in benchmark.heeds)


def _flush(benchmark: Benchmark) -> Decorator:
    text = f"How the broker that is started acknowledges.  [default: {benchmark.flush}]"
    return click.option("--flush", type=click.Choice(["sync", "async"]), help=text, hidden=benchmark.flush is None)


def _typed(name: str) -> str:
    return name.replace("_", "-")
