"""``rmq-admin message``: find stored messages by id and by key."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .command import Command, Group, run
from .options import broker_option, json_option, log_options
from .reach import admin_of
from .render import message_object, printable, table, to_json
from .times import time_of_option

if TYPE_CHECKING:
    from rmq.client import FoundMessages
    from rmq.wire.model import StoredMessage

COLUMNS = ("stored_at", "topic", "queue_id", "queue_offset", "message_id", "tag", "keys", "body")
BODY_SHOWN = 40  # characters of a body in a table


@click.group(
    cls=Group,
    examples="""
    rmq-admin message query --key o-17 --since 10m
    rmq-admin message get 8f1c0a5f6f2e4b90000000000012c003
    """,
)
def message() -> None:
    """Find stored messages by id and by key."""


@message.command(
    cls=Command,
    examples="""
    rmq-admin message get 8f1c0a5f6f2e4b90000000000012c003
    rmq-admin message get 8f1c0a5f6f2e4b90000000000012c003 --json
    """,
)
@click.argument("message_id", metavar="ID")
@json_option
@broker_option
@log_options("error")
def get(message_id: str, broker: str, as_json: bool) -> None:
    """Show the message with this ID, as receipts and consumers name it."""
    run(_get(broker, message_id, as_json))


async def _get(broker: str, message_id: str, as_json: bool) -> None:
    async with admin_of(broker) as admin:
        found = await admin.message(message_id)
    click.echo(to_json(stored_object(found)) if as_json else card(found), nl=as_json)


@message.command(
    cls=Command,
    examples="""
    rmq-admin message query --key o-17
    rmq-admin message query --key o-17 --topic orders --since 10m
    rmq-admin message query --key o-17 --since 2026-01-31T12:00 --until 2026-01-31T13:00 --json
    """,
)
@click.option("--key", metavar="KEY", required=True, help="One of the keys the messages were sent with.")
@click.option("--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option(
    "--since", metavar="TIME", callback=time_of_option, help="Stored at this time or later: 10m (ago), or ISO 8601."
)
@click.option("--until", metavar="TIME", callback=time_of_option, help="Stored before this time.")
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="How many, the newest first.")
@json_option
@broker_option
@log_options("error")
def query(
    *,
    key: str,
    topic: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    broker: str,
    as_json: bool,
) -> None:
    """
    Show the messages that have a key, newest first.

    With --json: one object a line. When the broker has not indexed all keys yet, or there may be more messages than
    asked for, standard error says so.
    """
    run(_query(broker, (key, topic, since, until, limit), as_json))


async def _query(broker: str, asked: tuple[Any, ...], as_json: bool) -> None:
    async with admin_of(broker) as admin:
        found = await admin.query_messages(*asked)
    if as_json:
        for item in found.messages:
            click.echo(to_json(stored_object(item)))
    else:
        click.echo(table(COLUMNS, [_cells(item) for item in found.messages]), nl=False)
    for remark in remarks(found):
        click.echo(remark, err=True)


def remarks(found: FoundMessages) -> list[str]:
    """What the reader of an answer must know besides."""
    said = []
    if found.lag_bytes:
        lag = f"{found.lag_bytes / (1 << 20):.1f} MiB" if found.lag_bytes >= 1 << 20 else f"{found.lag_bytes} bytes"
        said.append(f"the index lags by {lag}: the newest messages may be missing, ask again")
    if found.more:
        said.append(f"there may be more than these {len(found.messages)}: raise --limit")
    return said


def stored_object(item: StoredMessage) -> dict[str, Any]:
    """A stored message as JSON: as a consumer sees it, but for what belongs to a delivery."""
    shown = message_object(item, 0)
    del shown["epoch"], shown["attempt"]
    return shown


def card(item: StoredMessage) -> str:
    """A message for people, one field a line, the body at the end."""
    fields = stored_object(item)
    body = fields.pop("body", None)
    if body is None:
        body = fields.pop("body_base64")
        fields["body"] = f"{len(item.body)} bytes that are no text, as base64:"
    fields["keys"] = " ".join(item.keys) or None
    fields["properties"] = " ".join(f"{name}={value}" for name, value in item.properties.items()) or None
    for name in ("born_at", "stored_at"):
        fields[name] = fields[name].isoformat()
    width = max(map(len, fields))
    texts = {name: "-" if value is None else printable(str(value)) for name, value in fields.items()}
    lines = [f"{name.ljust(width)}  {text}" for name, text in texts.items()]
    shown = "\n".join(printable(line) for line in body.split("\n"))
    return "\n".join([*lines, "", shown]) + "\n"


def _cells(item: StoredMessage) -> list[object]:
    body = item.body.decode(errors="backslashreplace")
    shown = body if len(body) <= BODY_SHOWN else body[: BODY_SHOWN - 3] + "..."
    stored_at = item.stored_at.isoformat(timespec="milliseconds")
    return [
        stored_at, item.topic, item.queue_id, item.queue_offset, item.message_id, item.tag, " ".join(item.keys), shown,
    ]  # fmt: skip
