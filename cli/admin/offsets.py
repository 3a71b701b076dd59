"""``rmq-admin group reset-offset``: moves a group to another offset of its queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ..output.render import table, to_json
from ..shell import exit_codes
from ..shell.command import Command, Failure
from ..shell.connect import ask
from ..shell.options import admin_options, parse_time

if TYPE_CHECKING:
    from rmq.client import Admin
    from rmq.wire.model import MessageQueue
    from rmq.wire.protocol.ops.core import ResetResult

COLUMNS = ("topic", "queue", "old_offset", "new_offset", "moves_by")

Place: TypeAlias = int | datetime | str  # an offset, a time, or one of the two that have a name

FIRST, LAST = "first", "last"
MAX_DIGITS = 18  # any such number fits the wire


def parse_place(text: str, now: datetime) -> Place:
    """
    ``first``, ``last``, an offset, or a point in time as other commands take it.

    Raises:
        ValueError: it is none of these; the sentence says what would do.
    """
    text = text.strip()
    if text in (FIRST, LAST):
        return text
    if text.isascii() and text.isdecimal():
        if len(text) > MAX_DIGITS:
            raise ValueError(f"an offset has at most {MAX_DIGITS} digits, not {len(text)}")
        return int(text)
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a place in a queue: write first, last, 1234 (an offset), 10m (ago), 2026-01-31T12:00 or "
            "@1769860800 (seconds since 1970)"
        ) from error


def _place_of_option(_ctx: click.Context, _param: click.Parameter, text: str) -> Place:
    try:
        return parse_place(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    "reset-offset",
    cls=Command,
    examples="""
    rmq-admin group reset-offset billing --topic orders --to first --dry-run
    rmq-admin group reset-offset billing --topic orders --to 30m
    rmq-admin group reset-offset billing --topic orders --queue 3 --to 1234
    rmq-admin group reset-offset billing --topic orders --to 2026-01-31T12:00 --json
    rmq-admin group reset-offset audit --topic orders --to last --create
    """,
)
@click.argument("name", metavar="GROUP")
@click.option("--topic", metavar="TOPIC", required=True, help="The topic whose queues are reset.")
@click.option(
    "--queue", "queue_ids", metavar="N", type=click.IntRange(0), multiple=True, help="Only this queue. May be repeated."
)
@click.option(
    "--to", "place", metavar="PLACE", required=True, callback=_place_of_option,
    help="first, last, an offset, or a time: 10m (ago), ISO 8601, or @SECONDS since 1970.",
)  # fmt: skip
@click.option("--create", is_flag=True, help="Create GROUP if it does not exist.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@admin_options
def reset_offset(
    *, name: str, topic: str, queue_ids: tuple[int, ...], place: Place, create: bool, dry_run: bool, broker: str,
    as_json: bool,
) -> None:  # fmt: skip
    """
    Move GROUP to another offset in the queues of a topic.

    Moving back delivers messages again; moving ahead skips messages, for this group only. Members may keep running:
    they lose these queues at once and continue at the new offset. If a queue does not have the offset, nothing is
    changed; the same if GROUP does not exist, unless --create is given. With --json: one array of objects.
    """
    results = ask(broker, lambda admin: _reset(admin, name, (topic, queue_ids, place), create=create, dry_run=dry_run))
    rows = [reset_object(queue, result) for queue, result in results.items()]
    click.echo(to_json(rows) if as_json else table(COLUMNS, [list(row.values()) for row in rows]), nl=as_json)
    if dry_run and not as_json:
        click.echo("dry run: nothing was changed", err=True)


def reset_object(queue: MessageQueue, result: ResetResult) -> dict[str, Any]:
    """Return the result for a queue as JSON; a group without progress had no offset."""
    old = None if result.old_offset < 0 else result.old_offset
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "old_offset": old,
        "new_offset": result.new_offset,
        "moves_by": None if old is None else result.new_offset - old,
    }


async def _reset(
    admin: Admin, group: str, asked: tuple[str, Sequence[int], Place], *, create: bool, dry_run: bool
) -> dict[MessageQueue, ResetResult]:
    if not create:
        await _require_group(admin, group)
    offsets = await _offsets(admin, *asked)
    results = _all_well(await admin.reset_offsets(group, offsets, dry_run=True))
    return results if dry_run else _all_well(await admin.reset_offsets(group, offsets))


async def _require_group(admin: Admin, group: str) -> None:
    """Refuse an unknown group: the broker would create it, and a misspelt name would keep progress forever."""
    from rmq.wire.errors import GroupNotFound

    try:
        await admin.describe_group(group)
    except GroupNotFound as error:
        text = f"{error}; add --create to create it"
        raise Failure(text, exit_codes.of(error)) from error


async def _offsets(admin: Admin, topic: str, queue_ids: Sequence[int], place: Place) -> dict[MessageQueue, int]:
    """Return the offset of the place in each queue."""
    from rmq.wire.model import MessageQueue

    known = {queue.queue_id for queue in (await admin.topic(topic)).queues}
    missing = sorted(set(queue_ids) - known)
    if missing:
        raise Failure(f"{topic} has the queues 0 to {len(known) - 1}, not {missing[0]}", exit_codes.NO_INPUT)
    queues = [MessageQueue(topic, queue_id) for queue_id in sorted(set(queue_ids) or known)]
    if isinstance(place, int):
        return dict.fromkeys(queues, place)
    if isinstance(place, datetime):
        at = await admin.offsets_at(queues, place)
        return {queue: found.offset for queue, found in zip(queues, at, strict=True)}
    ranges = await admin.ranges(queues)
    ends = [held.min_offset if place == FIRST else held.max_offset for held in ranges]
    return dict(zip(queues, ends, strict=True))


def _all_well(results: dict[MessageQueue, ResetResult]) -> dict[MessageQueue, ResetResult]:
    from rmq.wire.errors import from_wire

    refused = [result for result in results.values() if result.status]
    if refused:
        text = refused[0].text or "the broker gave no reason"
        others = f" (and {len(refused) - 1} more of {len(results)} queues)" if len(refused) > 1 else ""
        raise Failure(f"{text}{others}", exit_codes.of(from_wire(refused[0].status, text)))
    return results
