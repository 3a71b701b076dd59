"""
``rmq-admin top``: samples a broker and redraws one view of it.

The view is redrawn while a reply is pending, too, so that a frozen broker is visible.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from rmq.client.overview.sample import Sample, take
from rmq.wire.errors import RmqError

from ..output.render import to_json
from ..shell.command import Command, run
from ..shell.connect import admin_of
from ..shell.options import admin_options
from .view import view_object, view_of

if TYPE_CHECKING:
    from .screen import Screen


@click.command(
    cls=Command,
    examples="""
    rmq-admin top
    rmq-admin top --interval 5
    rmq-admin top --once
    rmq-admin top --json | python3 -m json.tool
    rmq-admin top --json --interval 10 --count 6 > minute.jsonl
    """,
)
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(0.1), help="Time between two refreshes.  [default: 1]"
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="Stop after N refreshes.")
@click.option("--once", is_flag=True, help="Print one snapshot as plain text, as without a terminal.")
@admin_options
def top(interval: float | None, count: int | None, once: bool, broker: str, as_json: bool) -> None:
    """
    Watch a broker: rates, lag, leases, parked pulls, disk latency.

    Groups with the largest lag come first. LAG: messages the group has not consumed. AGE: how long the oldest of them
    has been stored. TREND: growth of the lag. WAIT: time replies waited for durability. FDATASYNC: time spent in the
    sync itself. Press q to quit.

    Rates cover the time between two refreshes, so a snapshot takes one interval. With --json: one object, or one per
    line with --interval or --count.
    """
    is_one = once or (count is None and (interval is None if as_json else not sys.stdout.isatty()))
    interval_s = 1.0 if interval is None else interval
    try:
        if as_json or once or not sys.stdout.isatty() or is_dumb(os.environ.get("TERM")):
            run(_snapshots(broker, interval_s, 1 if is_one else count, as_json))
        else:
            run(_live(broker, interval_s, count))
    except KeyboardInterrupt:
        if is_one:
            raise


def is_dumb(term: str | None) -> bool:
    """Return whether the terminal cannot be drawn on."""
    return term in {None, "", "dumb", "unknown"}


async def _snapshots(broker: str, interval_s: float, count: int | None, as_json: bool) -> None:
    """Print one snapshot after the other. A lost broker ends a single one; otherwise it is reported and awaited."""
    async with admin_of(broker) as admin:
        before = await take(admin, time.monotonic)
        printed = 0
        while printed != count:
            await asyncio.sleep(interval_s)
            try:
                after = await take(admin, time.monotonic)
            except RmqError as error:
                if count == 1:
                    raise
                click.echo(str(error), err=True)
                continue
            click.echo(("\n" if printed and not as_json else "") + _snapshot(before, after, as_json), nl=False)
            before = after
            printed += 1


def _snapshot(before: Sample, after: Sample, as_json: bool) -> str:
    view, now = view_of(before, after), datetime.now().astimezone()
    if as_json:
        return to_json({"at": now, **view_object(view)}) + "\n"
    from .layout import lines, plain

    return plain(lines(view, shutil.get_terminal_size().columns, None, now=now))


async def _live(broker: str, interval_s: float, count: int | None) -> None:
    from rich.console import Console

    from .layout import lines
    from .screen import Screen

    async with admin_of(broker) as admin:
        with Screen(Console(highlight=False)) as screen:

            def draw(watch: BrokerWatch) -> None:
                if watch.after is None:
                    return
                notice = watch.notice(now=time.monotonic())
                view, now = view_of(watch.before, watch.after), datetime.now().astimezone()
                screen.draw(lines(view, *screen.size, now=now, notice=notice, hint=f"every {interval_s:g} s, q quits"))

            await follow(
                lambda: take(admin, time.monotonic),
                screen,
                draw,
                interval_s=interval_s,
                count=count,
                clock=time.monotonic,
            )


SILENT_S: Final = 2.0  # a reply may take this long before its absence is shown
REDRAW_S: Final = 1.0


class BrokerWatch:
    """Keeps the last two samples, and the state of the request for the next."""

    def __init__(self) -> None:
        self.before: Sample | None = None
        self.after: Sample | None = None
        self._error: str | None = None

    def answered(self, sample: Sample) -> None:
        """Record the reply of the broker."""
        self.before, self.after = self.after, sample
        self._error = None

    def failed(self, error: RmqError) -> None:
        """Record why there was no reply."""
        self._error = " ".join(str(error).split()) or type(error).__name__

    def notice(self, *, now: float) -> str | None:
        """Return what to show about a broker that does not reply, or None."""
        if self.after is None:
            return self._error
        silent_s = now - self.after.at
        if self._error is not None:
            return f"no answer for {silent_s:.0f} s: {self._error}"
        return f"no answer for {silent_s:.0f} s" if silent_s > SILENT_S else None


async def follow(
    look: Callable[[], Awaitable[Sample]], screen: Screen, draw: Callable[[BrokerWatch], None], *, interval_s: float,
    count: int | None, clock: Callable[[], float],
) -> None:  # fmt: skip
    """Take samples and draw them until the screen is closed, or until ``count`` replies."""
    watch, answers, next_at = BrokerWatch(), 0, clock()
    while not screen.is_over:
        asking = asyncio.ensure_future(look())
        asking.add_done_callback(lambda _: screen.wake())
        try:
            while not (asking.done() or screen.is_over):
                await screen.pause(REDRAW_S)
                if not asking.done() and watch.after is not None:
                    draw(watch)
            if not asking.done():
                return
            watch.answered(asking.result())
            answers += 1
        except RmqError as error:
            watch.failed(error)
        finally:
            asking.cancel()
        draw(watch)
        if answers == count:
            return
        next_at = max(next_at + interval_s, clock())
        while (left_s := next_at - clock()) > 0 and not screen.is_over:
            await screen.pause(min(left_s, REDRAW_S))
            draw(watch)
