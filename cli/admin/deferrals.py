"""``rmq-admin delay``: lists delayed messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..output import terminal
from ..output.render import counted, iso, seconds, table, to_json
from ..shell.command import Group
from ..shell.connect import ask
from ..shell.options import admin_options

if TYPE_CHECKING:
    from rmq.client import DeferredBatches
    from rmq.wire.protocol.ops.deferrals import DelayRow

COLUMNS = ("due_at", "due_in", "topic", "queue", "level", "messages", "deferred_at", "message_id")
NARROW_COLUMNS = ("due_in", "queue", "level", "messages", "message_id")


@click.group(
    cls=Group,
    examples="""
    rmq-admin delay list
    rmq-admin delay list --topic reminders --limit 10
    """,
)
def delay() -> None:
    """List delayed messages."""


@delay.command(
    "list",
    examples="""
    rmq-admin delay list
    rmq-admin delay list --topic reminders --limit 10
    rmq-admin delay list --json | head -1
    """,
)
@click.option("--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=64, show_default=True, help="How many, the next due first."
)
@admin_options
def list_delays(topic: str | None, limit: int, broker: str, as_json: bool) -> None:
    """
    List delayed messages in the order in which they become due.

    A line is a batch: messages that one producer sent together, with the id of the first. LEVEL is "-" for messages
    sent with an exact time or a number of seconds. A narrow terminal shows no times of day. With --json: one object
    per line. Standard error gets the total of the broker.
    """
    found = ask(broker, lambda admin: admin.list_deferred(topic, limit))
    now = datetime.now(UTC)
    objects = "".join(f"{to_json(delay_object(row))}\n" for row in found.rows)
    click.echo(objects if as_json else delays_text(found.rows, now, terminal.columns()), nl=False)
    for remark in remarks(found):
        click.echo(remark, err=True)


def delays_text(rows: Sequence[DelayRow], now: datetime, columns: int = 0) -> str:
    """Return delayed batches for people; without times of day if ``columns`` are too few (0: unlimited)."""
    text = table(COLUMNS, [cells(row, now) for row in rows])
    return text if terminal.fits(text, columns) else table(NARROW_COLUMNS, [_narrow_cells(row, now) for row in rows])


def remarks(found: DeferredBatches) -> list[str]:
    """Return the lines for standard error."""
    said = [f"more than {len(found.rows)} may match: raise --limit"] if found.more else []
    messages, batches = counted(found.total_messages, "message"), found.total_batches
    verb = "waits" if found.total_messages == 1 else "wait"
    within = f" in {batches} {'batch' if batches == 1 else 'batches'}" if found.total_messages else ""
    return [*said, f"{messages}{within} {verb} on this broker"]


def delay_object(row: DelayRow) -> dict[str, Any]:
    """Return a delayed batch as JSON."""
    from rmq.wire.model import from_us

    return {
        "due_at": from_us(row.due_at),
        "topic": row.topic,
        "queue_id": row.queue_id,
        "delay_level": row.delay_level or None,
        "messages": row.messages,
        "parked_at": from_us(row.parked_at),
        "message_id": row.message_id,
        "position": row.position,
    }


def cells(row: DelayRow, now: datetime) -> list[object]:
    """Return a delayed batch as cells."""
    shown = delay_object(row)
    due_in = max(0.0, (shown["due_at"] - now).total_seconds())
    return [
        iso(shown["due_at"]), seconds(due_in), row.topic, row.queue_id,
        shown["delay_level"], row.messages, iso(shown["parked_at"]), row.message_id,
    ]  # fmt: skip


def _narrow_cells(row: DelayRow, now: datetime) -> list[object]:
    _, due_in, topic, queue_id, level, messages, _, message_id = cells(row, now)
    return [due_in, f"{topic}/{queue_id}", level, messages, message_id]
