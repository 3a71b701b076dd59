"""``rmq-produce``: sends each line as one message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from rmq.wire.batch.compression import NUMBERS as COMPRESSIONS
from rmq.wire.batch.layout import MAX_BODY
from rmq.wire.deferral import MAX_LEVEL
from rmq.wire.errors import Refused, WireError
from rmq.wire.names import check_topic, wrap

from .output.stdout import Output
from .produce.lines import read_lines
from .shell import exit_codes
from .shell.command import Command, Failure, run, version_option
from .shell.options import broker_option, duration_of_option, json_option, key_of_option, log_options

if TYPE_CHECKING:
    from rmq.client import Message, Producer, Receipt

# Groups of lines (256 KiB each at most) that may wait for their receipts.
_AHEAD = 8


class InputLine(NamedTuple):
    """A line of the input and what decides its queue."""

    number: int
    body: bytes
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The attributes that every line's message gets."""

    topic: str
    key: str | None = None
    key_field: str | None = None
    tag: str | None = None
    index_keys: tuple[str, ...] = ()
    properties: Mapping[str, str]
    delay_level: int = 0
    delay_s: float | None = None

    def message(self, line: bytes) -> Message:
        """The message of a line."""
        from rmq.client import Message

        return Message(
            self.topic,
            line,
            tag=self.tag,
            index_keys=self.index_keys,
            properties=self.properties,
            delay_level=self.delay_level,
            delay_s=self.delay_s,
        )

    def lines(self, bodies: Sequence[bytes], first: int) -> tuple[list[InputLine], Failure | None]:
        """The lines with their keys, up to the first that cannot be sent, and what is wrong with that."""
        lines: list[InputLine] = []
        for number, body in enumerate(bodies, first):
            try:
                lines.append(InputLine(number, body, self._key_of(body)))
            except ValueError as error:
                text = f"line {number}: {error}; it and what follows was not sent"
                return lines, Failure(text, exit_codes.DATA_ERROR)
        return lines, None

    def _key_of(self, body: bytes) -> str | None:
        if len(body) > MAX_BODY:
            raise ValueError(f"more than the {MAX_BODY} bytes that a message may have")
        if self.key_field is None:
            return self.key
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        if type(fields) is not dict:
            raise ValueError("not a JSON object")
        if self.key_field not in fields:
            raise ValueError(f"no field {self.key_field!r}")
        key = fields[self.key_field]
        if type(key) is not str and type(key) is not int:
            raise ValueError(f"the field {self.key_field!r} must be a text or a whole number")
        if key == "":
            raise ValueError(f"the field {self.key_field!r} is empty")
        return str(key)


@click.command(
    cls=Command,
    examples="""
    echo hello | rmq-produce --topic greetings
    rmq-produce --topic orders --key o-17 --tag paid events.txt
    rmq-produce --topic orders --key-field order_id --json events.jsonl
    seq 1000 | rmq-produce --topic numbers --property source=seq --quiet
    rmq-produce --topic events --compression zlib --quiet events.jsonl
    echo wake up | rmq-produce --topic reminders --delay 90s
    echo try again | rmq-produce --topic reminders --delay-level 3
    """,
)
@click.option("--topic", metavar="TOPIC", help="Topic to send to; created with 4 queues if it does not exist.")
@click.option("--key", metavar="KEY", callback=key_of_option, help="Key of every message: equal keys stay in order.")
@click.option("--key-field", metavar="FIELD", help="Lines are JSON objects; this field is the key.")
@click.option("--tag", metavar="TAG", help="Tag of every message, for consumers that filter.")
@click.option(
    "--index-key",
    "index_keys",
    metavar="KEY",
    multiple=True,
    help="Key to search for the messages by. May be repeated.",
)
@click.option("--property", "properties", metavar="NAME=VALUE", multiple=True, help="A property. May be repeated.")
@click.option(
    "--delay-level", metavar="N", type=click.IntRange(0, MAX_LEVEL), default=0,
    help="Deliver after the Nth delay of the broker's table: 1 is 1s, 3 is 10s, 18 is 2h by default.",
)  # fmt: skip
@click.option(
    "--delay", "delay_s", metavar="TIME", callback=duration_of_option,
    help="Deliver this long after the line was read: 10s, 1500ms, 2m, 1h.",
)  # fmt: skip
@click.option("--compression", type=click.Choice(list(COMPRESSIONS)), help="Compress bodies; lz4 and zstd are extras.")
@click.option(
    "--namespace", metavar="NAME", default="", help="Keeps the topics of one team apart from those of others."
)
@click.option("--quiet", "-q", is_flag=True, help="Print no receipts.")
@json_option
@broker_option
@log_options("error")
@version_option
@click.argument("file", type=click.File("rb"), default="-")
def command(
    file: BinaryIO, topic: str | None, broker: str, *, compression: str | None, namespace: str, as_json: bool,
    quiet: bool, **shape: Any,
) -> None:  # fmt: skip
    """
    Send every line of FILE (or of standard input) as one message, in order.

    Prints a receipt for each message once the broker has stored it: topic/queue, offset and message id (a delayed
    message has "delayed" instead of an offset). Empty lines are empty messages; a last line without a newline counts.
    """
    run(
        _produce(
            broker, topic, shape, file, ReceiptPrinter(as_json, quiet), compression=compression, namespace=namespace
        )
    )


@dataclass(frozen=True, slots=True)
class ReceiptPrinter:
    """Renders receipts for standard output."""

    as_json: bool
    quiet: bool

    def text(self, topic: str, receipts: Sequence[Receipt]) -> bytes:
        """Return one line for each receipt."""
        from .output.render import encoded, receipt_line, receipt_object, to_json

        if self.quiet:
            return b""
        if self.as_json:
            return encoded(to_json(receipt_object(topic, receipt)) for receipt in receipts)
        return encoded(receipt_line(topic, receipt) for receipt in receipts)


async def _produce(
    broker: str, topic: str | None, options: Mapping[str, Any], file: BinaryIO, printer: ReceiptPrinter, *,
    compression: str | None, namespace: str,
) -> None:  # fmt: skip
    from rmq.client import Producer

    from .shell.connect import refuse_missing_topic, require_broker

    if topic is None:
        await refuse_missing_topic(broker)
    check_topic(wrap(namespace, str(topic)))
    shape = _shape(str(topic), options)
    unopened = Producer(broker, compression=compression, namespace=namespace, on_refusal=_say_why)
    await require_broker(broker)
    if file.isatty():
        click.echo("each line you type is sent as a message; Ctrl-D to finish", err=True)
    async with unopened as producer:
        await _send_all(producer, shape, file, printer)


def _say_why(refusal: WireError | None) -> None:
    """Report at once that sending has paused, and why; None: it continues."""
    program = click.get_current_context().find_root().info_name
    if refusal is None:
        click.echo(f"{program}: the broker accepts messages again", err=True)
    else:
        click.echo(f"{program}: the broker refuses messages for now: {refusal} (retrying; Ctrl-C to quit)", err=True)


def _shape(topic: str, options: Mapping[str, Any]) -> Shape:
    if options["key"] is not None and options["key_field"] is not None:
        raise click.UsageError("--key and --key-field exclude each other.")
    if options["delay_level"] and options["delay_s"] is not None:
        raise click.UsageError("--delay and --delay-level cannot be combined.")
    properties = {}
    for text in options["properties"]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--property {text}: write it as name=value.")
        properties[name] = value
    shape = Shape(topic=topic, **{**options, "properties": properties})
    try:
        shape.message(b"")
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    return shape


async def _send_all(producer: Producer, shape: Shape, file: BinaryIO, printer: ReceiptPrinter) -> None:
    """Read, send and print side by side; what was read before a bad line is sent and printed first."""
    sends = Sends(producer, shape)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_print_all(sends, printer))
        failure = await _read_all(sends, shape, file)
        await sends.end()
    if failure is not None:
        raise failure


class Sends:
    """Sends groups of lines, at most :data:`_AHEAD` at a time, and returns their receipts in order."""

    def __init__(self, producer: Producer, shape: Shape) -> None:
        self.topic = shape.topic
        self._producer = producer
        self._shape = shape
        self._waiting: asyncio.Queue[asyncio.Task[Sequence[Receipt]] | None] = asyncio.Queue(_AHEAD)
        self._awaited: asyncio.Task[Sequence[Receipt]] | None = None

    async def begin(self, lines: Sequence[InputLine]) -> None:
        """Start to send a group; waits while too many are in flight."""
        task = asyncio.create_task(self._send(lines))
        task.add_done_callback(_seen)  # after the first failure the others are not awaited
        await self._waiting.put(task)

    async def end(self) -> None:
        """Mark the end of the input."""
        await self._waiting.put(None)

    async def next(self) -> Sequence[Receipt] | None:
        """The receipts of the next group, or None at the end; raises what the sending raised."""
        self._awaited = await self._waiting.get()
        return None if self._awaited is None else await self._awaited

    async def abandon(self) -> None:
        """Cancel all sends whose receipts have not been returned."""
        tasks = [self._awaited]
        while not self._waiting.empty():
            tasks.append(self._waiting.get_nowait())
        left = [task for task in tasks if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _send(self, lines: Sequence[InputLine]) -> Sequence[Receipt]:
        messages = [self._shape.message(line.body) for line in lines]
        try:
            if self._shape.key_field is None:
                return await self._producer.send_many(messages, key=self._shape.key)
            keyed = zip(messages, lines, strict=True)
            return await asyncio.gather(*(self._producer.send(m, key=line.key) for m, line in keyed))
        except Refused as error:
            first, last = lines[0].number, lines[-1].number
            where = f"line {first}" if first == last else f"lines {first} to {last}"
            raise Failure(f"{where}: {error}", exit_codes.of(error)) from error


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # else asyncio would report it, with a traceback


async def _read_all(sends: Sends, shape: Shape, file: BinaryIO) -> Failure | None:
    """Send line after line; returns what is wrong with the first that cannot be sent."""
    first = 1
    async for bodies in read_lines(file, MAX_BODY):
        lines, failure = shape.lines(bodies, first)
        if lines:
            await sends.begin(lines)
        if failure is not None:
            return failure
        first += len(bodies)
    return None


async def _print_all(sends: Sends, printer: ReceiptPrinter) -> None:
    output = Output()
    try:
        while (group := await sends.next()) is not None:
            await output.write(printer.text(sends.topic, group))
    finally:
        await sends.abandon()


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-produce")


if __name__ == "__main__":
    main()
