"""``rmq-admin dlq``: look at dead letters, have them delivered again, take them out, drop them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rmq.wire.errors import RmqError

from ..output import terminal
from ..output.progress import progress
from ..output.render import to_json
from ..shell import exit_codes
from ..shell.command import Command, Failure, Group, run
from ..shell.options import broker_option, json_option, log_options
from ..shell.reach import admin_of
from .dead_deals import drop, replay
from .dead_finding import Letters, filtered, find, matching
from .dlq_select import DeadFilter, state_at
from .dlq_text import letter_object, letters_text, row_object, rows_text

if TYPE_CHECKING:
    from datetime import datetime

    from rmq.client import Admin
    from rmq.wire.model import StoredMessage
    from rmq.wire.protocol.ops.redelivery import DeadRow


@click.group(
    cls=Group,
    examples="""
    rmq-admin dlq list
    rmq-admin dlq show billing --since 1h
    rmq-admin dlq replay billing --reason timeout --dry-run
    rmq-admin dlq export billing --output letters.jsonl
    rmq-admin dlq drop billing --offset 10-20
    """,
)
def dlq() -> None:
    """Look at dead letters, deliver them again, export or drop them."""


dlq.add_command(replay)
dlq.add_command(drop)


@dlq.command(
    "list",
    cls=Command,
    examples="""
    rmq-admin dlq list
    rmq-admin dlq list --json
    """,
)
@json_option
@broker_option
@log_options("error")
def list_dead(broker: str, as_json: bool) -> None:
    """
    List the groups with dead letters: how many wait, and what became of the others.

    Oldest and newest are when the first and the last of them became dead letters.
    """
    rows = run(_list(broker))
    if as_json:
        click.echo(to_json(rows))
    else:
        click.echo(rows_text(rows, terminal.columns()), nl=False)


async def _list(broker: str) -> list[dict[str, Any]]:
    async with admin_of(broker) as admin:
        return [row_object(row, *await _times(admin, row)) for row in await admin.list_dead()]


async def _times(admin: Admin, row: DeadRow) -> list[datetime | None]:
    """When the first and the last of them became dead letters; nothing, if there are none (any more)."""
    if row.min_offset == row.max_offset:
        return [None, None]
    return [await _died_at(admin, row, offset) for offset in (row.min_offset, row.max_offset - 1)]


async def _died_at(admin: Admin, row: DeadRow, offset: int) -> datetime | None:
    async for some in admin.read(Letters(row, [], []).queue, offset, offset + 1):
        for letter in some:
            return letter.stored_at
    return None  # retention was faster


@dlq.command(
    cls=Command,
    examples="""
    rmq-admin dlq show billing
    rmq-admin dlq show billing --origin-topic orders --reason timeout --limit 5
    rmq-admin dlq show billing --state all --json
    """,
)
@click.argument("group", metavar="GROUP")
@filtered
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="How many, the oldest first.")
@json_option
@broker_option
@log_options("error")
def show(group: str, which: DeadFilter, limit: int, broker: str, as_json: bool) -> None:
    """
    Show the dead letters of GROUP, oldest first.

    With --json: one object a line, with the whole body and all properties.
    """
    found, states = run(_show(broker, group, which, limit))
    shown = list(zip(found[:limit], states, strict=False))
    if as_json:
        for letter, state in shown:
            click.echo(to_json(letter_object(letter, state)))
    else:
        click.echo(letters_text(shown, terminal.columns()), nl=False)
    if len(found) > limit:
        click.echo(f"there are more than these {limit}: raise --limit", err=True)


async def _show(broker: str, group: str, which: DeadFilter, limit: int) -> tuple[list[StoredMessage], list[str]]:
    found: list[StoredMessage] = []
    async with admin_of(broker) as admin:
        letters = await find(admin, group, which)
        async for letter in matching(admin, letters, which):
            found.append(letter)
            if len(found) > limit:
                break
    return found, [state_at(letters.runs, letter.queue_offset) for letter in found]


@dlq.command(
    cls=Command,
    examples="""
    rmq-admin dlq export billing --output letters.jsonl
    rmq-admin dlq export billing --state all --since 2026-01-31T12:00 --output -
    """,
)
@click.argument("group", metavar="GROUP")
@filtered
@click.option("--output", metavar="FILE", required=True, help="Where to write; - is standard output.")
@broker_option
@log_options("error")
def export(group: str, which: DeadFilter, output: str, broker: str) -> None:
    """
    Write the dead letters of GROUP to a file, oldest first, one JSON object a line.

    The objects are those of `dlq show --json`. The file is there when all of it is: one that was there before stays
    until then.
    """
    try:
        with _written(output) as file:
            count = run(_export(broker, group, which, file))
    except OSError as error:
        if isinstance(error, BrokenPipeError | RmqError):
            raise
        text = f"{output} cannot be written: {error.strerror}; name another file with --output"
        raise Failure(text, exit_codes.OS_ERROR) from error
    click.echo(f"{group}: {count} exported", err=True)


async def _export(broker: str, group: str, which: DeadFilter, file: BinaryIO) -> int:
    count = looked = 0

    def look(more: int) -> None:
        nonlocal looked
        looked += more

    async with admin_of(broker) as admin:
        letters = await find(admin, group, which)
        async with progress("exporting", letters.total, lambda: looked):
            async for letter in matching(admin, letters, which, look):
                file.write(to_json(letter_object(letter, state_at(letters.runs, letter.queue_offset))).encode() + b"\n")
                count += 1
    return count


@contextmanager
def _written(output: str) -> Iterator[BinaryIO]:
    """A file that takes its name when it is whole and on the disk."""
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), output)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
