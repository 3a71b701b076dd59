"""
``rmq-admin lock-status``: the owner of each queue of each group.

The table has every field of a lock in a file, in a pipe or with ``--wide``. In a terminal too narrow for it, an owner
is shown by the end of its member id, and what keeps it from progressing is printed below.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq.wire.errors import ConnectionLost, GroupNotFound, RequestTimeout, TopicNotFound

from ..output.render import counted, epoch_text, member_end, printable, seconds, shortened, table, to_json
from ..shell.command import Command, run
from ..shell.connect import admin_of, ask
from ..shell.options import admin_options
from ..shell.signals import until_signal

if TYPE_CHECKING:
    from rmq.client import Admin
    from rmq.wire.protocol.ops.core import LockRow

LOCK_COLUMNS: Final = (
    "group", "topic", "queue", "owner", "session", "epoch", "held", "renewed", "expires", "state",
)  # fmt: skip
NARROW_COLUMNS: Final = ("group", "queue", "owner", "epoch", "held", "renewed", "expires", "state")
_SESSION_DIGITS: Final = 8
_SHORTEST: Final = 8  # characters that are left of a name
_CLEAR: Final = "\x1b[H\x1b[2J"


class LockFilter(NamedTuple):
    """The requested locks."""

    group: str | None = None
    topic: str | None = None

    def __str__(self) -> str:
        parts = [f"{name} {value!r}" for name, value in self._asdict().items() if value is not None]
        return " and the ".join(parts)


class Layout(NamedTuple):
    """The form of the output; ``columns`` and ``lines`` are those of the terminal, or 0: unlimited."""

    as_json: bool
    columns: int = 0
    lines: int = 0


@click.command(
    "lock-status",
    cls=Command,
    examples="""
    rmq-admin lock-status
    rmq-admin lock-status --group billing --watch
    rmq-admin lock-status --topic orders --wide
    rmq-admin lock-status --json | python3 -m json.tool
    """,
)
@click.option("--group", metavar="GROUP", help="Only locks of this group.")
@click.option("--topic", metavar="TOPIC", help="Only locks on queues of this topic.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(0.1), default=1.0, show_default=True,
    help="How often --watch refreshes.",
)  # fmt: skip
@click.option("--wide", is_flag=True, help="All columns and full names, even if the terminal is too narrow.")
@admin_options
def lock_status(
    *, group: str | None, topic: str | None, watch: bool, interval: float, wide: bool, broker: str, as_json: bool
) -> None:
    """
    Show the owner of each queue lock.

    EPOCH: the fencing token that listeners see. EXPIRES: when the queue becomes free unless the lock is renewed. A
    narrow terminal shows the end of the owner's member id. With --json: one array of objects (with --watch: one per
    line).
    """
    wanted = LockFilter(group, topic)
    if watch:
        run(until_signal(_watch(broker, wanted, interval, as_json=as_json, wide=wide)))
    else:
        ask(broker, lambda admin: _show(admin, wanted, layout_of(as_json=as_json, wide=wide)))


def layout_of(*, as_json: bool, wide: bool) -> Layout:
    """Return the form for the current standard output."""
    if not sys.stdout.isatty():
        return Layout(as_json)
    columns, lines = shutil.get_terminal_size()
    return Layout(as_json, 0 if wide else columns, lines)


async def _show(admin: Admin, wanted: LockFilter, layout: Layout) -> None:
    rows = await _rows(admin, wanted)
    why_none = "" if rows else await _why_none(admin, wanted)
    if layout.as_json:
        click.echo(to_json([lock_object(row) for row in rows]))
    elif rows:
        click.echo(lock_text(rows, layout.columns), nl=False)
    if why_none:
        click.echo(why_none, err=True)


async def _rows(admin: Admin, wanted: LockFilter) -> list[LockRow]:
    """
    Return the requested locks.

    Raises:
        TopicNotFound: there is no such topic.
    """
    if wanted.topic is not None:
        await admin.topic(wanted.topic)
    rows = await admin.lock_status(wanted.group)
    return [row for row in rows if wanted.topic in (None, row.topic)]


async def _why_none(admin: Admin, wanted: LockFilter) -> str:
    """Explain an empty list. A group exists once a member joins, so a missing one is not a mistake."""
    if wanted.group is None:
        return f"the {wanted} has no locks" if wanted.topic else "no locks: no queue has an owner"
    try:
        await admin.describe_group(wanted.group)
    except GroupNotFound as error:
        return f"no locks: {error}"
    return f"no locks of the {wanted}" if wanted.topic else f"the {wanted} has no locks"


# ---- watching


class LockWatch:
    """Builds each refresh of --watch: the newest locks, or the last ones and why there are no newer ones."""

    def __init__(self, wanted: LockFilter, layout: Layout) -> None:
        self.layout = layout
        self._wanted = wanted
        self._rows: Sequence[LockRow] = ()
        self._seen_at: datetime | None = None
        self._lost = ""

    def seen(self, rows: Sequence[LockRow], now: datetime) -> str:
        """Return the text after a reply."""
        self._rows, self._seen_at, self._lost = rows, now, ""
        if self.layout.as_json:
            return to_json([lock_object(row) for row in rows]) + "\n"
        of = f" of the {self._wanted}" if any(self._wanted) else ""
        return self._screen(f"{now:%H:%M:%S}  {printable(counted(len(rows), 'lock') + of)}")

    def failed(self, error: str) -> tuple[str, str]:
        """Return the text after a failed request, and a line for standard error; the same line appears once."""
        is_news, self._lost = error != self._lost, error
        if not self.layout.lines:
            return "", error if is_news else ""
        since = f"as it was at {self._seen_at:%H:%M:%S}: " if self._seen_at else ""
        return self._screen(printable(since + error)), ""

    def _screen(self, heading: str) -> str:
        text = lock_text(self._rows, self.layout.columns) if self._rows else ""
        lines = [heading, *text.splitlines()]
        if not self.layout.lines:
            return "\n".join(lines) + "\n\n"
        room = max(self.layout.lines - 2, 2)  # the last line of a terminal stays free
        if len(lines) > room + 1:
            lines = [*lines[:room], f"and {len(lines) - room} more lines: --group and --topic show fewer"]
        return _CLEAR + "\n".join(lines) + "\n"


async def _watch(broker: str, wanted: LockFilter, interval: float, *, as_json: bool, wide: bool) -> None:
    watch = LockWatch(wanted, layout_of(as_json=as_json, wide=wide))
    async with admin_of(broker) as admin:
        if wanted.topic is not None:
            await admin.topic(wanted.topic)  # one that is not there now is a mistake; one that ends later is news
        while True:
            watch.layout = layout_of(as_json=as_json, wide=wide)  # a window may have been made larger
            try:
                shown, said = watch.seen(await _rows(admin, wanted), datetime.now().astimezone()), ""
            except (ConnectionLost, RequestTimeout, TopicNotFound) as error:
                shown, said = watch.failed(str(error))
            click.echo(shown, nl=False)
            if said:
                click.echo(said, err=True)
            await asyncio.sleep(interval)


# ---- tables


def lock_object(row: LockRow) -> dict[str, Any]:
    """Return a lock as JSON; the session is shortened, as in member ids."""
    return {**row._asdict(), "session": row.session[:_SESSION_DIGITS], "epoch": epoch_text(row.epoch)}


def lock_text(rows: Sequence[LockRow], columns: int = 0) -> str:
    """Return the locks for people; with every field if they fit into ``columns`` (0: unlimited)."""
    whole = table(LOCK_COLUMNS, [_cells(row) for row in rows])
    if not columns or _width(whole) <= columns:
        return whole
    troubles = [f"{row.group}, {row.topic}/{row.queue_id}: {trouble}" for row in rows if (trouble := _state(row)[1])]
    below = "".join(f"{printable(trouble)}\n" for trouble in troubles)
    return _narrow(rows, columns) + (f"\n{below}" if below else "")


def _narrow(rows: Sequence[LockRow], columns: int) -> str:
    longest = max((max(len(row.group), len(row.topic)) for row in rows), default=0)
    text = table(NARROW_COLUMNS, [_narrow_cells(row, longest) for row in rows])
    while _width(text) > columns and longest > _SHORTEST:
        longest = max(_SHORTEST, longest - max(1, (_width(text) - columns) // 2))  # two columns have names
        text = table(NARROW_COLUMNS, [_narrow_cells(row, longest) for row in rows])
    return text


def _cells(row: LockRow) -> list[object]:
    return [seconds(value) if name.endswith("_s") else value for name, value in lock_object(row).items()]


def _narrow_cells(row: LockRow, longest: int) -> list[object]:
    return [
        shortened(row.group, longest), f"{shortened(row.topic, longest)}/{row.queue_id}", member_end(row.owner),
        row.epoch, seconds(row.held_for_s), seconds(row.renewed_ago_s), seconds(row.expires_in_s), _state(row)[0],
    ]  # fmt: skip


def _state(row: LockRow) -> tuple[str, str]:
    """Split the state of a lease from what keeps its owner from progressing."""
    state, _, trouble = row.state.partition(", ")
    return state, trouble


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))
