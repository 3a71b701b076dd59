"""``rmq-consume``: prints the messages of a group, or passes them to a function of the user."""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import replace
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from rmq.consumer.config import ConsumerConfig
from rmq.wire.names import check_readable, wrap

from .shell import exit_codes, logs
from .shell.command import Command, Failure, run, version_option
from .shell.options import config_options, json_option, log_options
from .shell.signals import first_of, stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rmq.consumer.listener import Listener

    from .consume.listeners import Printer
    from .output.stdout import Output

_FLAGS = {
    "broker": "--broker HOST:PORT",
    "group": "--group GROUP",
    "start_from": "--from first|last|TIME",
    "on_gap": "--on-gap stop|skip",
    "instance": "--instance NAME",
    "offsets_dir": "--offsets-dir DIR",
}


@click.command(
    cls=Command,
    examples="""
    rmq-consume --orderly --topic orders
    rmq-consume --orderly --topic orders --tags "created || paid" --group billing --json
    rmq-consume --orderly --topic orders --count 10 --from last
    rmq-consume --orderly --topic orders --listener billing:on_order -o slots=4
    rmq-consume --concurrent --topic mails --listener mailer:send -o slots=50 -o batch=10
    rmq-consume --pull --topic orders -o batch=100
    rmq-consume --orderly --broadcast --topic prices --instance left
    rmq-consume --show-config > consumer.toml
    """,
)
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Topic to consume. May be repeated.")
@click.option("--tags", metavar="EXPR", default="*", show_default=True, help='Only these tags, as "a || b".')
@click.option("--orderly", is_flag=True, help="Process each queue in order, one message at a time, under a lock.")
@click.option("--concurrent", is_flag=True, help="Process messages in parallel; failed ones are retried later.")
@click.option("--pull", is_flag=True, help="Poll for batches; printed messages are committed every 5 s.")
@click.option("--broadcast", is_flag=True, help="Deliver every message to every member; each keeps its own progress.")
@click.option("--count", metavar="N", type=click.IntRange(1), help="Stop after N messages.")
@click.option(
    "--no-wait", is_flag=True, help="Exit with 69 or 66 if the broker or a topic is missing, instead of waiting."
)
@click.option("--listener", metavar="MODULE:FUNCTION", help="Pass messages to this function instead of printing them.")
@json_option
@config_options(ConsumerConfig, "RMQ_CONSUMER_", _FLAGS, {"broker": "RMQ_BROKER"})
@log_options("warning")
@version_option
def command(
    *, config: ConsumerConfig, topics: tuple[str, ...], tags: str, orderly: bool, concurrent: bool, pull: bool,
    broadcast: bool, count: int | None, listener: str | None, no_wait: bool, as_json: bool,
) -> None:  # fmt: skip
    """
    Consume topics as a member of a group, until Ctrl-C.

    Prints one line per message, or one object with --json. A message counts as consumed once its line is written.
    Waits for a broker or topic that does not exist yet. Ctrl-C or SIGTERM finishes running calls, releases the queue
    locks and exits with code 0; a second signal exits at once.
    """
    modes = {"--orderly": orderly, "--concurrent": concurrent, "--pull": pull}
    if list(modes.values()).count(True) != 1:
        raise Failure(f"choose how to consume: give one of {', '.join(modes)}", exit_codes.USAGE)
    if pull and listener is not None:
        raise click.UsageError("--listener cannot be combined with --pull, which prints messages.")
    if pull and broadcast:
        raise click.UsageError("--broadcast cannot be combined with --pull, which shares the queues of its group.")
    if listener is not None and (as_json or count is not None):
        raise click.UsageError("--json and --count cannot be combined with --listener, which prints nothing.")
    config = replace(config, orderly=not concurrent)
    if broadcast:
        config = replace(config, model="broadcasting")
    if config.model != "broadcasting" and (given := _given("instance", "offsets_dir")):
        raise click.UsageError(f"{given} requires --broadcast: only broadcasting members keep their own progress.")
    if pull and not config.auto_commit_every_s:
        raise click.UsageError("--pull commits what it prints automatically: auto_commit_every_s must be more than 0.")
    wanted = dict.fromkeys(topics, tags)
    names = names_of(config, wanted)  # before waiting for a topic that can never exist
    if no_wait:
        from .consume.prerequisites import require

        run(require(config.broker, names))
    with logs.hidden("consumer.failed", "connection.failed", "topic.awaited"):  # which this command says itself
        if listener is None:
            run(_print(config, wanted, as_json, count, pull=pull))
        else:
            run(_hand_over(config, wanted, listener))


def names_of(config: ConsumerConfig, topics: Iterable[str]) -> list[str]:
    """The topics as the broker calls them; raises BadName for one that cannot be."""
    names = [wrap(config.namespace, topic) for topic in topics]
    for name in names:
        check_readable(name)
    return names


def _given(*names: str) -> str | None:
    """The first of these options that stands on the command line."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            return _FLAGS[name].partition(" ")[0]
    return None


async def _print(
    config: ConsumerConfig, topics: Mapping[str, str], as_json: bool, count: int | None, *, pull: bool
) -> None:
    from .consume.listeners import Printer
    from .output.stdout import Output, OutputClosed

    if count is not None:
        config = replace(config, batch=1)  # a batch is committed as a whole
    output = Output()
    printer = Printer(output, as_json=as_json, limit=count)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_watch_reader(output, printer))
        if pull:
            from .consume.listeners import poll_and_print

            await poll_and_print(config, topics, printer)
        else:
            await _consume(config, topics, printer, printer.done)
        watch.cancel()
    if printer.failure is not None:
        raise printer.failure
    if printer.closed:
        raise OutputClosed


async def _watch_reader(output: Output, printer: Printer) -> None:
    await output.wait_closed()
    printer.reader_has_gone()


async def _hand_over(config: ConsumerConfig, topics: Mapping[str, str], listener: str) -> None:
    from .consume.listeners import load_listener

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # prints are seen at once, in a file or a journal too
    await _consume(config, topics, load_listener(listener), asyncio.Event())


async def _consume(config: ConsumerConfig, topics: Mapping[str, str], listener: Listener, done: asyncio.Event) -> None:
    """Consume until ``done`` or a signal; then stop cleanly."""
    from rmq.consumer import Consumer

    from .consume.prerequisites import report_missing
    from .shell.connect import refuse_missing_topic

    if not topics:
        await refuse_missing_topic(config.broker)
    consumer = Consumer(listener=listener, topics=topics, config=config, handle_signals=False)
    gc.collect()
    gc.freeze()  # what was imported stays for good: looking through it would hold the loop for 10 ms
    with stop_signals() as asked:
        running = asyncio.create_task(consumer.run())
        enough = asyncio.create_task(first_of(asked, done))
        try:
            async with report_missing(config.broker, names_of(config, topics)):
                await asyncio.wait([running, enough], return_when=asyncio.FIRST_COMPLETED)
            await consumer.stop()
            await running  # raises what ended it, if that was an error
        finally:
            enough.cancel()


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-consume")


if __name__ == "__main__":
    main()
