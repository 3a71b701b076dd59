"""Which dead letters a command means: the options that say so, and the dead letters themselves, read in their order."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq.wire.errors import TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.redelivery import WAITING

from ..shell import exit_codes
from ..shell.command import Failure
from ..shell.times import time_of_option
from .dlq_select import ALL, STATES, DeadFilter, Span, parse_offsets

if TYPE_CHECKING:
    from datetime import datetime

    from rmq.client import Admin
    from rmq.wire.model import StoredMessage
    from rmq.wire.protocol.ops.redelivery import DeadRow, DeadRun


def _offsets(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[Span, ...]:
    try:
        return tuple(map(parse_offsets, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_CONDITIONS: Final = (
    click.option(
        "--offset", "offsets", metavar="N|N-M", multiple=True, callback=_offsets,
        help="At this offset of the dead letters, or from one to another. May be repeated.",
    ),
    click.option(
        "--id", "ids", metavar="ID", multiple=True,
        help="With this message id, or of the message with it. May be repeated.",
    ),
    click.option("--key", "keys", metavar="KEY", multiple=True, help="With this key. May be repeated."),
    click.option("--origin-topic", metavar="TOPIC", help="Of messages of this topic."),
    click.option("--origin-queue", metavar="N", type=click.IntRange(0), help="Of messages of the queue N."),
    click.option("--reason", metavar="TEXT", help="Whose reason has this in it, in capitals or not."),
    click.option(
        "--since", metavar="TIME", callback=time_of_option, help="Dead since then or later: 10m (ago), or ISO 8601."
    ),
    click.option("--until", metavar="TIME", callback=time_of_option, help="Dead before this time."),
)  # fmt: skip
_STATE = click.option(
    "--state",
    type=click.Choice([*STATES.values(), ALL]),
    help="What became of them; all if --offset or --id names them.  [default: waiting]",
)


def filtered(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Add the conditions; the callback gets them as ``which``."""

    @functools.wraps(callback)
    def with_filter(*args: Any, state: str | None, **more: Any) -> Any:
        given = {name: more.pop(name) for name in DeadFilter.__slots__ if name != "state"}
        is_named = given["offsets"] or given["ids"]
        chosen = state or (ALL if is_named else STATES[WAITING])
        return callback(*args, which=DeadFilter(**given, state=chosen), **more)

    decorated: Callable[..., Any] = with_filter
    for option in reversed((*_CONDITIONS, _STATE)):
        decorated = option(decorated)
    return decorated


class Letters(NamedTuple):
    """The dead letters of a group as they were when it was asked: later ones are not meant."""

    row: DeadRow
    runs: list[DeadRun]
    spans: list[Span]

    @property
    def total(self) -> int:
        """How many are looked at."""
        return sum(end - start for start, end in self.spans)

    @property
    def queue(self) -> MessageQueue:
        """Where they lie."""
        return MessageQueue(self.row.topic, 0)


async def find(admin: Admin, group: str, which: DeadFilter) -> Letters:
    """
    What is to be looked at.

    Raises:
        Failure: the group has no dead letters.
    """
    row = next((row for row in await admin.list_dead() if row.group == group), None)
    if row is None:
        raise _no_dead_letters(group)
    try:
        runs = await admin.dead_states(group)
    except TopicNotFound as error:  # deleted in between
        raise _no_dead_letters(group) from error
    letters = Letters(row, runs, [])
    first, end = row.min_offset, row.max_offset
    if which.since is not None:
        first = max(first, await _offset_at(admin, letters, which.since))
    if which.until is not None:
        end = min(end, await _offset_at(admin, letters, which.until))
    return letters._replace(spans=which.spans(first, end, runs))


async def _offset_at(admin: Admin, letters: Letters, time: datetime) -> int:
    (found,) = await admin.offsets_at([letters.queue], time)
    return found.offset


def _no_dead_letters(group: str) -> Failure:
    return Failure(
        f"the group {group!r} has no dead letters: `rmq-admin dlq list` shows those that have", exit_codes.NO_INPUT
    )


async def matching(
    admin: Admin, letters: Letters, which: DeadFilter, looked: Callable[[int], None] = lambda more: None
) -> AsyncIterator[StoredMessage]:
    """The dead letters that are meant, in order."""
    for start, end in letters.spans:
        async for some in admin.read(letters.queue, start, end):
            for letter in some:
                if which.matches(letter):
                    yield letter
            looked(len(some))
