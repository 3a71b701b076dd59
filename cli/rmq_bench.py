"""
``rmq-bench``: how fast it is here, through the public API and with every check on.

The options of ``rmq-bench``: a benchmark has those that make a difference to it, with its own defaults.

The progress bar of ``rmq-bench``: on standard error, where somebody looks; elsewhere nothing.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self

import click

from rmq.bench.options import Load, Options, Rivals, no_rivals
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
    """How often."""
    text = f"Samples of each figure; they take turns.  [default: {default}, with --quick 1]"
    return click.option("--rounds", type=click.IntRange(1), help=text)


quick_option: Decorator = click.option(
    "--quick", is_flag=True, help="Small and once, to see that it works; such numbers mean nothing."
)


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
    """Shows which part of a whole is done, and what is measured now."""

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
            sys.stderr.write("\x1b[?25h")  # the bar hides the cursor; its own end would leave a line behind
            sys.stderr.flush()

    def __call__(self, done: float, what: str) -> None:
        """Draw it anew."""
        if self._bar is not None:
            self._bar.label = _label(what)
            self._bar.update(round(done * _PARTS) - self._bar.pos)
            self._bar.render_progress()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within the block there is room for lines of text; afterwards the bar is there again."""
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
    Measure this machine: what it takes to send, to consume, to wake up, to fail over, to start again.

    Everything goes through the public API, every check is on, and no two messages are alike. Clients are processes of
    their own. Each figure is taken several times, in turns with those it is compared with, and the middle one is told
    with the spread. Numbers of different machines say little about each other.

    A target that is not met is no failure: the exit code is 0 whenever everything was measured.
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
                from rmq.bench.options import Counted

                report = benchmark.measure(load, options, Counted(bar), **extra)
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
    Processes send; the clock stops with the last receipt.

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
    """Consumers catch up with a backlog that was sent before the clock."""


@_benchmark(
    "end-to-end",
    """
    rmq-bench end-to-end
    rmq-bench end-to-end --messages 200000 --queues 16 --json
    """,
)
def end_to_end() -> None:
    """
    Processes send while others consume in order, message by message.

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
    How long a message is under way: to an idle consumer, at a steady rate, and beside a flood.

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
    Consumers are killed, stopped and added under load; how long are their queues without one?

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
    """What many queues, many connections and a long log cost, batches being the same."""


@_benchmark(
    "recovery",
    """
    rmq-bench recovery
    rmq-bench recovery --quick --json
    """,
)
def recovery() -> None:
    """How long a broker with a long log takes to start: after a clean stop, and after kill -9."""


@_benchmark(
    "limit",
    """
    rmq-bench limit
    rmq-bench limit --size 1024 --json
    """,
)
def limit() -> None:
    """
    What this machine can do at best: bare loops of sending and consuming, a sync of the disk, an echo.

    A bare loop packs, sends, appends and unpacks the same batches and does nothing else; another one only moves the
    same bytes through a socket into a file. Then fdatasync alone, and an empty echo.
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
    that it can be repeated alone. Where one of them fails its targets are not shown, the others go on, and the exit
    code is 3 in the end. It is 0 also where targets are not met.
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
    """Turn what a benchmark raises into one line; SIGTERM ends it as Ctrl-C does, and none of them twice."""
    from rmq.bench.processes import BenchError

    def interrupt(number: int, _frame: object) -> None:
        for again in before:
            signal.signal(again, signal.SIG_IGN)  # the rest is ended in order, and that does not take long
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except BenchError as error:
        raise Failure(str(error), exit_codes.FAILURE) from error
    except KeyboardInterrupt:
        text = "interrupted: all that was started is ended, and its files are removed"
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
