"""``rmq-admin message``: stored messages by id or key; its sub-commands tail and trace have modules of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ..output import terminal
from ..output.render import cut, iso, lag_remarks, no_such_key, printable, stored_object, table, to_json
from ..shell.command import Group
from ..shell.connect import ask
from ..shell.options import (
    admin_options,
    index_key_of_option,
    key_of_option,
    message_id_argument,
    refuse_two_keys,
    time_of_option,
)
from .tail import tail, tail_line
from .trace import trace

if TYPE_CHECKING:
    from rmq.client import FoundMessages
    from rmq.wire.model import StoredMessage

COLUMNS = ("stored_at", "topic", "queue_id", "queue_offset", "message_id", "key", "tag", "index_keys", "body")
BODY_SHOWN = 40  # characters of a body in a table
CARD_BODY = 4096  # characters of a body that a terminal is shown


@click.group(
    cls=Group,
    examples="""
    rmq-admin message query --key o-17 --since 10m
    rmq-admin message get 8f1c0a5f6f2e4b90000000000012c003
    rmq-admin message tail orders --follow
    rmq-admin message trace 8f1c0a5f6f2e4b90000000000012c003
    """,
)
def message() -> None:
    """Find and trace stored messages."""


message.add_command(tail)
message.add_command(trace)


@message.command(
    examples="""
    rmq-admin message get 8f1c0a5f6f2e4b90000000000012c003
    rmq-admin message get 8f1c0a5f6f2e4b90000000000012c003 --json
    """,
)
@message_id_argument
@click.option("--full", is_flag=True, help=f"Show the whole body; a terminal shows {CARD_BODY} characters.")
@admin_options
def get(message_id: str, full: bool, broker: str, as_json: bool) -> None:
    """
    Show the message with this ID, which receipts and consumers show.

    Times are in UTC. With --json: one object, with the whole body.
    """
    found = ask(broker, lambda admin: admin.message(message_id))
    is_cut = sys.stdout.isatty() and not full
    click.echo(to_json(stored_object(found)) if as_json else card(found, CARD_BODY if is_cut else 0), nl=as_json)


@message.command(
    examples="""
    rmq-admin message query --key o-17
    rmq-admin message query --key o-17 --topic orders --since 10m
    rmq-admin message query --index-key c-3
    rmq-admin message query --key o-17 --since 2026-01-31T12:00 --until 2026-01-31T13:00 --json
    """,
)
@click.option(
    "--key",
    metavar="KEY",
    callback=key_of_option,
    help="The key the messages were sent with, or one of their index keys.",
)
@click.option("--index-key", metavar="KEY", callback=index_key_of_option, help="One of their index keys.")
@click.option("--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option(
    "--since", metavar="TIME", callback=time_of_option,
    help="Stored at this time or later: 10m (ago), or ISO 8601, local unless it has a zone.",
)  # fmt: skip
@click.option("--until", metavar="TIME", callback=time_of_option, help="Stored before this time, written likewise.")
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="How many, the newest first.")
@admin_options
def query(
    *,
    key: str | None,
    index_key: str | None,
    topic: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    broker: str,
    as_json: bool,
) -> None:
    """
    Show the messages that have a key or an index key, newest first.

    Times are shown in UTC. With --json: one object per line, with the whole body. Standard error says if the index
    lags or more messages may match.
    """
    refuse_two_keys(key, index_key)
    if key is None and index_key is None:
        raise click.UsageError("Missing option '--key' or '--index-key'.")
    found = ask(broker, lambda admin: admin.query_messages(key, topic, since, until, limit, index_key=index_key))
    if as_json:
        for item in found.messages:
            click.echo(to_json(stored_object(item)))
    elif found.messages:
        click.echo(query_text(found.messages, terminal.columns()), nl=False)
    if not found.messages:
        click.echo(no_such_key(key, index_key), err=True)
    for remark in remarks(found):
        click.echo(remark, err=True)


def query_text(found: Sequence[StoredMessage], columns: int = 0) -> str:
    """Return messages for people: a table, or lines if it does not fit into ``columns`` (0: unlimited)."""
    text = table(COLUMNS, [_cells(item) for item in found])
    if not terminal.fits(text, columns):
        return "".join(f"{tail_line(item, ids=True, body=BODY_SHOWN)}\n" for item in found)
    return text


def remarks(found: FoundMessages) -> list[str]:
    """Return what limits a result: a lagging index, more matches."""
    more = [f"more than {len(found.messages)} may match: raise --limit"] if found.more else []
    return [*lag_remarks(found), *more]


def card(item: StoredMessage, longest: int = 0) -> str:
    """Return a message for people, one field per line, then ``longest`` characters of the body (0: all)."""
    fields = stored_object(item)
    body = fields.pop("body", None)
    if body is None:
        body = fields.pop("body_base64")
        fields["body"] = f"{len(item.body)} bytes that are not text, as base64:"
    if fields["stored_topic"] == item.topic:
        del fields["stored_topic"]
    fields["index_keys"] = " ".join(item.index_keys) or None
    fields["properties"] = " ".join(f"{name}={value}" for name, value in item.properties.items()) or None
    for name in ("born_at", "stored_at"):
        fields[name] = fields[name].isoformat()
    width = max(map(len, fields))
    texts = {name: "-" if value is None else printable(str(value)) for name, value in fields.items()}
    lines = [f"{name.ljust(width)}  {text}" for name, text in texts.items()]
    if longest and len(body) > longest:
        cut = f"... cut: the body has {len(item.body)} bytes; --full and --json show all of it"
        body = body[:longest] + "\n" + cut
    shown = "\n".join(printable(line) for line in body.split("\n"))
    return "\n".join([*lines, "", shown]) + "\n"


def _cells(item: StoredMessage) -> list[object]:
    body = item.body.decode(errors="backslashreplace")
    shown = cut(body, BODY_SHOWN)
    stored_at = iso(item.stored_at)
    return [
        stored_at, item.topic, item.queue_id, item.queue_offset, item.message_id, item.key, item.tag,
        " ".join(item.index_keys), shown,
    ]  # fmt: skip
