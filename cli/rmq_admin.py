"""``rmq-admin``: look at a broker and change it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq.wire.errors import ConnectionLost, RequestTimeout

from .admin_broker import broker as broker_group
from .admin_delays import delay
from .admin_dlq import dlq
from .admin_groups import group as group_group
from .admin_messages import message
from .admin_top import top
from .admin_topics import topic
from .command import Command, Group, run, version_option
from .options import broker_option, json_option, log_options
from .reach import admin_of
from .render import seconds, table, to_json

if TYPE_CHECKING:
    from rmq.client import Admin
    from rmq.wire.ops import LockRow

LOCK_COLUMNS = (
    "group",
    "topic",
    "queue_id",
    "owner",
    "session",
    "epoch",
    "held_for_s",
    "renewed_ago_s",
    "expires_in_s",
    "state",
)
_SESSION_DIGITS = 8
_CLEAR = "\x1b[H\x1b[2J"


@click.group(
    cls=Group,
    examples="""
    rmq-admin topic create orders --queues 8
    rmq-admin topic list
    rmq-admin group describe billing
    rmq-admin message query --key o-17
    rmq-admin delay list
    rmq-admin lock-status --watch
    rmq-admin top
    """,
)
@version_option
def command() -> None:
    """Look at a broker and change it."""


command.add_command(topic)


@command.command(
    "lock-status",
    cls=Command,
    examples="""
    rmq-admin lock-status
    rmq-admin lock-status --group billing --watch
    rmq-admin lock-status --json | python3 -m json.tool
    """,
)
@click.option("--group", metavar="GROUP", help="Only the locks of this group.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(0.1), default=1.0, show_default=True)
@json_option
@broker_option
@log_options("error")
def lock_status(group: str | None, watch: bool, interval: float, broker: str, as_json: bool) -> None:
    """
    Show who holds which queue of which group.

    The epoch is the fencing token that listeners see; a lock that is not renewed any more is free when "expires in"
    reaches 0. With --json: one array of objects (with --watch: one a line).
    """
    try:
        run(_lock_status(broker, group, as_json, interval if watch else None))
    except KeyboardInterrupt:
        if not watch:
            raise


async def _lock_status(broker: str, group: str | None, as_json: bool, interval: float | None) -> None:
    async with admin_of(broker) as admin:
        while True:
            shown = await _snapshot(admin, group, as_json, watching=interval is not None)
            click.echo(shown, nl=False)
            if interval is None:
                return
            await asyncio.sleep(interval)


async def _snapshot(admin: Admin, group: str | None, as_json: bool, *, watching: bool) -> str:
    """The table as it is now; someone who watches is told of a lost broker and goes on watching."""
    try:
        rows = await admin.lock_status(group)
    except (ConnectionLost, RequestTimeout) as error:
        if not watching:
            raise
        click.echo(str(error), err=True)
        return ""
    if as_json:
        return to_json([lock_object(row) for row in rows]) + "\n"
    clear = _CLEAR if watching and sys.stdout.isatty() else ""
    return clear + lock_table(rows) + ("\n" if watching and not clear else "")


def lock_object(row: LockRow) -> dict[str, Any]:
    """A lock as JSON; the session is shortened, as in member ids."""
    return {**row._asdict(), "session": row.session[:_SESSION_DIGITS]}


def lock_table(rows: Sequence[LockRow]) -> str:
    """The locks for people; without any, the heading alone."""
    return table(LOCK_COLUMNS, [_lock_cells(row) for row in rows])


def _lock_cells(row: LockRow) -> list[object]:
    return [seconds(value) if name.endswith("_s") else value for name, value in lock_object(row).items()]


command.add_command(group_group)
command.add_command(broker_group)
command.add_command(message)
command.add_command(dlq)
command.add_command(delay)
command.add_command(top)


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-admin")


if __name__ == "__main__":
    main()
