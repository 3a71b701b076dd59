"""``rmq-admin message tail``: shows and follows the newest messages of a topic, without joining a group."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq.wire.batch import tags
from rmq.wire.errors import QueueNotFound

from ..output.render import encoded, lag_remarks, no_such_key, printable, stored_object, to_json
from ..output.stdout import Output, OutputClosed
from ..shell import exit_codes
from ..shell.command import Command, Failure, run
from ..shell.connect import admin_of
from ..shell.options import admin_options, index_key_of_option, key_of_option, refuse_two_keys, time_of_option
from ..shell.signals import until_signal
from .groups import ask_ahead

if TYPE_CHECKING:
    from rmq.client import Admin, Tail
    from rmq.wire.model import StoredMessage

LINES: Final = 10
LINES_SINCE: Final = 10_000
KEY_LOOK_BACK: Final = 1024  # messages of a key that are looked at for some queues or tags
BODY_SHOWN: Final = 200  # characters of a body in a terminal


class Shown(NamedTuple):
    """The form of printed messages; ``body`` limits the characters of a body (0: all)."""

    as_json: bool
    ids: bool = False
    body: int = 0

    def text(self, messages: Sequence[StoredMessage]) -> bytes:
        """Return one line for each message."""
        if self.as_json:
            return encoded(to_json(stored_object(message)) for message in messages)
        return encoded(tail_line(message, ids=self.ids, body=self.body) for message in messages)


class TailQuery(NamedTuple):
    """Which messages; ``lines`` None: as many as is usual, no ``queues``: of all."""

    topic: str
    queues: tuple[int, ...] = ()
    expression: str = tags.ALL
    key: str | None = None
    lines: int | None = None
    since: datetime | None = None
    index_key: str | None = None

    @property
    def most(self) -> int:
        """The number of messages to begin with, at most."""
        if self.lines is not None:
            return self.lines
        return LINES if self.since is None else LINES_SINCE

    @property
    def has_key(self) -> bool:
        """Return whether only messages of a key are wanted."""
        return self.key is not None or self.index_key is not None

    def has(self, message: StoredMessage) -> bool:
        """Return whether a message has these queues, tags and keys."""
        wanted = tags.parse(self.expression)
        is_queue = not self.queues or message.queue_id in self.queues
        return (
            is_queue
            and (wanted is None or message.tag in wanted)
            and (self.key is None or self.key == message.key or self.key in message.index_keys)
            and (self.index_key is None or self.index_key in message.index_keys)
        )


def _expression(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    try:
        tags.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


@click.command(
    cls=Command,
    examples="""
    rmq-admin message tail orders
    rmq-admin message tail orders --follow
    rmq-admin message tail orders --lines 100 --tag "created || paid" --queue 2
    rmq-admin message tail orders --since 10m --json | head -5
    rmq-admin message tail %DLQ%billing --follow --lines 0
    """,
)
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--queue", "queues", metavar="N", type=click.IntRange(0), multiple=True, help="Only this queue. May be repeated."
)
@click.option(
    "--lines", "-n", metavar="N", type=click.IntRange(0),
    help=f"How many.  [default: {LINES}; with --since {LINES_SINCE}]",
)  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Follow new messages until Ctrl-C.")
@click.option(
    "--since", metavar="TIME", callback=time_of_option,
    help="Only messages stored since this time: 10m (ago), or ISO 8601, local unless it has a zone.",
)  # fmt: skip
@click.option(
    "--tag", "expression", metavar="EXPR", default=tags.ALL, callback=_expression, help='Only these tags, as "a || b".'
)
@click.option("--key", metavar="KEY", callback=key_of_option, help="Only messages with this key or index key.")
@click.option("--index-key", metavar="KEY", callback=index_key_of_option, help="Only messages with this index key.")
@click.option("--ids", is_flag=True, help="Show message ids, for `message trace`; --json always does.")
@click.option("--full", is_flag=True, help=f"Show whole bodies; a terminal shows {BODY_SHOWN} characters.")
@admin_options
def tail(
    *,
    topic: str,
    queues: tuple[int, ...],
    lines: int | None,
    follow: bool,
    since: datetime | None,
    expression: str,
    key: str | None,
    index_key: str | None,
    ids: bool,
    full: bool,
    broker: str,
    as_json: bool,
) -> None:
    """
    Show the newest messages of TOPIC, in the order they were stored.

    Reads all queues outside of any group: nothing is locked, committed or taken from a consumer. --follow continues
    until Ctrl-C, across broker restarts and into new queues. Times are when messages were stored, in UTC. With --json:
    one object per line.
    """
    refuse_two_keys(key, index_key)
    shown = Shown(as_json, ids, 0 if full or not sys.stdout.isatty() else BODY_SHOWN)
    showing = _tail(broker, TailQuery(topic, queues, expression, key, lines, since, index_key), shown, follow=follow)
    run(until_signal(showing) if follow else showing)


async def _tail(broker: str, asked: TailQuery, shown: Shown, *, follow: bool) -> None:
    output = Output()
    async with admin_of(broker) as admin:
        end = admin.tail(
            asked.topic, queues=asked.queues, expression=asked.expression, notice=_say,
            wanted=asked.has if asked.has_key else None,
        )  # fmt: skip
        try:
            messages, remarks = await (_of_key(admin, end, asked) if asked.has_key else _newest(admin, end, asked))
        except QueueNotFound as error:
            raise Failure(error.text, exit_codes.NO_INPUT) from error
        await output.write(shown.text(messages))
        for remark in remarks:
            _say(remark)
        if follow:
            await _follow(end, output, shown)


async def _newest(admin: Admin, end: Tail, asked: TailQuery) -> tuple[list[StoredMessage], list[str]]:
    now = datetime.now(UTC) + await ask_ahead(admin)  # a slow local clock would count far too many as the newest
    found = await end.newest(asked.most, now=now, since=asked.since)
    return found.messages, [found.left_out] if found.left_out else []


async def _of_key(admin: Admin, end: Tail, asked: TailQuery) -> tuple[list[StoredMessage], list[str]]:
    """The newest messages of a key, which the broker's index finds, however far back they are; and what to say."""
    held = await end.begin()
    if not asked.most:
        return [], []
    most = max(asked.most, KEY_LOOK_BACK)
    found = await admin.query_messages(asked.key, asked.topic, asked.since, None, most, index_key=asked.index_key)
    # What came since the beginning was looked at is for --follow to show.
    known = [
        message
        for message in found.messages
        if asked.has(message) and message.queue_offset < held[message.queue_id].max_offset
    ][: asked.most]
    is_cut = found.more and len(known) < asked.most
    said = [f"only the newest {len(found.messages)} messages with this key were looked at"] if is_cut else []
    said += [no_such_key(asked.key, asked.index_key)] if not found.messages else []
    return known[::-1], [*lag_remarks(found), *said]


async def _follow(end: Tail, output: Output, shown: Shown) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch_reader(output))
        async for messages in end.follow():
            await output.write(shown.text(messages))


async def _watch_reader(output: Output) -> None:
    await output.wait_closed()
    raise OutputClosed


def _say(text: str) -> None:
    click.echo(printable(text), err=True)


def tail_line(message: StoredMessage, *, ids: bool = False, body: int = 0) -> str:
    """A message as one line: ``01-31 12:00:05.123Z orders/2 @17 tag=paid key=o-17  body``; 0: all of the body."""
    at = message.stored_at
    parts = [f"{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03}Z"]
    parts += [message.message_id] if ids else []
    parts += [f"{message.topic}/{message.queue_id}", f"@{message.queue_offset}"]
    parts += [f"tag={message.tag}"] if message.tag else []
    parts += [f"key={message.key}"] if message.key else []
    parts += [f"index_keys={','.join(message.index_keys)}"] if message.index_keys else []
    text = (message.body if not body else message.body[: 4 * body + 4]).decode(errors="backslashreplace")
    if body and len(text) > body:
        text = f"{text[:body]}... ({len(message.body)} bytes)"
    return printable(f"{' '.join(parts)}  {text}")
