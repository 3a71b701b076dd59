"""
``rmq-bench``: measures this machine through the public API, with every check on.

Each command takes the options that make a difference to its benchmark, with the benchmark's own defaults. Progress is
shown on standard error if that is a terminal.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self

import click

from rmq.bench.options import Load, Options
from rmq.bench.rivals import Rivals, no_rivals
from rmq.bench.suite import CATALOG, EXTRA, LOAD, Benchmark, quickly
from rmq.wire.names import MAX_QUEUES

from .output.render import counted, to_json
from .shell import exit_codes
from .shell.command import Command, Failure, Group, run, version_option
from .shell.connect import admin_of
from .shell.options import json_option, log_options

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar


def rounds_option(default: int) -> Decorator:
    """Make the option that says how often."""
    text = f"Samples of each figure; they take turns.  [default: {default}, with --quick 1]"
    return click.option("--rounds", type=click.IntRange(1), help=text)


quick_option: Decorator = click.option(
    "--quick", is_flag=True, help="Small and once, to see that it works; the numbers mean nothing."
)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_MAX_PROCESSES = 64
_SUBJECTS: dict[str, tuple[click.IntRange, str]] = {
    "messages": (click.IntRange(1), "Messages of a sample."),
    "size": (click.IntRange(1, 1 << 22), "Bytes of each message."),
    "batch": (click.IntRange(1), "Messages per send call."),
    "queues": (click.IntRange(1, MAX_QUEUES), "Queues of the topic."),
    "producers": (click.IntRange(1, _MAX_PROCESSES), "Processes that send."),
    "consumers": (click.IntRange(1, _MAX_PROCESSES), "Processes that consume."),
    "in_flight": (click.IntRange(1), "Send calls of a process in flight at once."),
    "connections": (click.IntRange(1), "Connections of each process that sends."),
    "tags": (click.IntRange(0), "Number of tags that take turns; 0: no message has one."),
}


def load_options(benchmark: Benchmark) -> Decorator:
    """
    Make the options of a benchmark, except ``--json`` and those of logging.

    All benchmarks take the same ones, so that one line of options works for each; those that make no difference to it
    are not in its help, and :func:`unheeded` names them.
    """
    made = [_of_load(name, benchmark) for name in (*LOAD, *EXTRA) if name in (*LOAD, *benchmark.heeds)]
    made += [_flush(benchmark), *([_broker] if benchmark.takes_broker else [])]
    return together(*made, rounds_option(benchmark.rounds), quick_option)


def unheeded(benchmark: Benchmark, given: dict[str, Any]) -> list[str]:
    """Return the options that were given and make no difference."""
    names = [name for name in LOAD if name not in benchmark.heeds] + ([] if benchmark.flush else ["flush"])
    return [f"--{_typed(name)}" for name in names if given[name] is not None]


def together(*options: Decorator) -> Decorator:
    """Combine several options, in this order."""

    def decorate(callback: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            callback = option(callback)
        return callback

    return decorate


_broker: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT",
    help="A broker that already runs; by default each sample has one of its own.",
)


def load_of(benchmark: Benchmark, given: dict[str, Any]) -> Load:
    """Return the load: what was given, else the benchmark's own, which is small for a quick run."""
    load = quickly(benchmark.load) if given["quick"] else benchmark.load
    asked = {name: given[name] for name in benchmark.heeds if given[name] is not None}
    return dataclasses.replace(load, **asked)


def options_of(benchmark: Benchmark, given: dict[str, Any]) -> Options:
    """
    Return how it is run; a broker that already runs is asked for its durability.

    Raises:
        click.UsageError: ``--flush`` was given for a broker that already runs.
    """
    broker, flush = given.get("broker"), given.get("flush")
    if broker is not None and flush is not None:
        raise click.UsageError("--flush is for the broker that rmq-bench starts itself; it does not go with --broker.")
    if broker is not None:
        flush = run(_flush_of(broker))
    rounds = given["rounds"] or (1 if given["quick"] else benchmark.rounds)
    return Options(flush or benchmark.flush or "async", broker, rounds, given["quick"])


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


_PARTS = 1000
_LABEL = 30  # columns, so that the bar does not move with its label
_WIDTH = 24


class BenchBar:
    """Shows how much is done, and what is measured now."""

    def __init__(self) -> None:
        self._bar: ProgressBar[int] | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = click.progressbar(length=_PARTS, label=_label("starting"), file=sys.stderr, width=_WIDTH)
            self._bar.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._clear()
            sys.stderr.write("\x1b[?25h")  # the bar hides the cursor; its own end would leave an extra line
            sys.stderr.flush()

    def __call__(self, done: float, what: str) -> None:
        """Redraw it."""
        if self._bar is not None:
            self._bar.label = _label(what)
            self._bar.update(round(done * _PARTS) - self._bar.pos)
            self._bar.render_progress()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make room for lines of text within the block, then show the bar again."""
        self._clear()
        yield
        if self._bar is not None:
            sys.stderr.write(self._bar.format_progress_line())
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._bar is not None:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _label(what: str) -> str:
    return what[:_LABEL].ljust(_LABEL)


@click.group(
    cls=Group,
    examples="""
    rmq-bench produce
    rmq-bench end-to-end --messages 200000 --size 1024 --flush sync
    rmq-bench produce --broker 127.0.0.1:10911 --json
    rmq-bench all --quick
    """,
)
@version_option
def command() -> None:
    """
    Measure throughput, latency, failover and recovery on this machine.

    Everything goes through the public API, every check is on, and no two messages are alike. Clients are processes of
    their own. Each figure is taken several times, in turns with those it is compared with, and shown as median and
    spread. Numbers of different machines say little about each other.

    The exit code is 0 whenever everything was measured, also if a target was missed.
    """


def benchmark_command(
    benchmark: Benchmark, examples: str, *more: Callable[..., Any]
) -> Callable[[Callable[[], None]], click.Command]:
    """Make a command of a benchmark; the function has nothing but the text of its help."""

    def decorate(about: Callable[[], None]) -> click.Command:
        def callback(as_json: bool, **given: Any) -> None:
            load, options = load_of(benchmark, given), options_of(benchmark, given)
            options = dataclasses.replace(options, rivals=_rivals())
            for option in unheeded(benchmark, given):
                click.echo(f"note: {option} makes no difference to rmq-bench {benchmark.name}", err=True)
            extra = {key: given[key] for key in given.keys() & {"rate"}}
            with ended_well(), BenchBar() as bar:
                from rmq.bench.options import Steps

                report = benchmark.measure(load, options, Steps(bar), **extra)
            if as_json:
                click.echo(to_json(report.as_object()))
            else:
                from rmq.bench.table import as_text

                click.echo(as_text(report), nl=False)

        callback.__doc__ = about.__doc__
        decorated = together(load_options(benchmark), *more, json_option, log_options("warning"))(callback)
        return click.command(benchmark.name, cls=Command, examples=examples)(decorated)

    return decorate


def _rivals() -> Rivals:
    """Return the other brokers that the caller of the command compares with: ``command(obj=...)``."""
    return click.get_current_context().obj or no_rivals


def _benchmark(name: str, examples: str, *more: Callable[..., Any]) -> Callable[[Callable[[], None]], click.Command]:
    def decorate(about: Callable[[], None]) -> click.Command:
        made = benchmark_command(CATALOG[name], examples, *more)(about)
        command.add_command(made)
        return made

    return decorate


@_benchmark(
    "produce",
    """
    rmq-bench produce
    rmq-bench produce --messages 5000000 --batch 2000 --flush sync --json
    rmq-bench produce --batch 1 --in-flight 64
    rmq-bench produce --tags 8 --keys
    """,
)
def produce() -> None:
    """
    Measure sending; the clock stops with the last receipt.

    Three times: with Message objects made before the clock, made inside it, and by send_bodies.
    """


@_benchmark(
    "consume",
    """
    rmq-bench consume
    rmq-bench consume --size 1024 --consumers 2 --json
    """,
)
def consume() -> None:
    """Measure consumers that catch up with a backlog, which was sent before the clock."""


@_benchmark(
    "end-to-end",
    """
    rmq-bench end-to-end
    rmq-bench end-to-end --messages 200000 --queues 16 --json
    """,
)
def end_to_end() -> None:
    """
    Measure processes that send while others consume in order, message by message.

    The rate is messages / (last one consumed - first one sent).
    """


@_benchmark(
    "latency",
    """
    rmq-bench latency
    rmq-bench latency --flush sync --json
    """,
)
def latency() -> None:
    """
    Measure latencies: of single sends, to a parked consumer, at a steady rate, and of pings during a flood.

    Every message has a time at which it is due, and its latency counts from then, also when it is sent later.
    """


@_benchmark(
    "failover",
    """
    rmq-bench failover
    rmq-bench failover --rounds 10 --queues 16 --consumers 5 --json
    """,
    click.option("--rate", type=click.IntRange(1), default=1000, show_default=True, help="Messages sent a second."),
)
def failover() -> None:
    """
    Measure how long queues are without a consumer when one is killed, stopped or added under load.

    Everything is at default settings. Each round lets a consumer join, stops the oldest (SIGTERM), lets one join, and
    kills the oldest (SIGKILL).
    """


@_benchmark(
    "scale",
    """
    rmq-bench scale
    rmq-bench scale --quick
    """,
)
def scale() -> None:
    """Measure what many queues, many connections and a long log cost, with batches of the same size."""


@_benchmark(
    "recovery",
    """
    rmq-bench recovery
    rmq-bench recovery --quick --json
    """,
)
def recovery() -> None:
    """Measure how long a broker with a long log takes to start, after a clean stop and after kill -9."""


@_benchmark(
    "limit",
    """
    rmq-bench limit
    rmq-bench limit --size 1024 --json
    """,
)
def limit() -> None:
    """
    Measure what this machine can do at best: bare loops of sending and consuming, a sync of the disk, an echo.

    A bare loop packs, sends, appends and unpacks the same batches and does nothing else; another one only moves the
    same bytes through a socket into a file. Also fdatasync alone, and an empty echo.
    """


@command.command(
    "all",
    cls=Command,
    examples="""
    rmq-bench all
    rmq-bench all --quick
    rmq-bench all --json > figures.json
    """,
)
@rounds_option(5)
@quick_option
@json_option
@log_options("warning")
def every(as_json: bool, rounds: int | None, quick: bool) -> None:
    """
    Run every benchmark with the loads that the targets P1 to P10 name, and end with a table of the targets.

    It takes up to 20 minutes on two cores, with --quick less than one. The command line of each part is printed, so
    that it can be repeated alone. If one of them fails, its targets are not shown, the others continue, and the exit
    code is 3 in the end. It is 0 also if targets are missed.
    """
    from rmq.bench.options import Options
    from rmq.bench.suite import Suite

    suite = Suite(Options(rounds=rounds or (1 if quick else 5), quick=quick, rivals=_rivals()))
    with ended_well(), BenchBar() as bar, closing(suite.parts(bar)) as parts:
        for part in parts:
            if not as_json:
                with bar.aside():
                    click.echo(part.as_text())
    click.echo(to_json(suite.as_object()) if as_json else suite.as_text(), nl=as_json)
    failed = [part.line for part in suite.done if part.why_not]
    if failed:
        raise Failure(f"{counted(len(failed), 'benchmark')} failed: {', '.join(failed)}", exit_codes.PARTIAL)


@contextmanager
def ended_well() -> Iterator[None]:
    """Turn what a benchmark raises into one line; SIGTERM ends it like Ctrl-C, and a second signal is ignored."""
    from rmq.bench.processes import BenchError

    def interrupt(number: int, _frame: object) -> None:
        for again in before:
            signal.signal(again, signal.SIG_IGN)  # the rest ends in order, and soon
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except BenchError as error:
        raise Failure(str(error), exit_codes.FAILURE) from error
    except KeyboardInterrupt:
        text = "interrupted: every process was ended, and its files were removed"
        raise Failure(text, exit_codes.INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-bench")


async def _flush_of(broker: str) -> str:
    async with admin_of(broker) as admin:
        return str((await admin.config())["flush"])


if __name__ == "__main__":
    main()
