"""
Selects dead letters by offset, id, key, origin, reason, time and state, and reads them in order.

Different conditions must all hold; of a repeated one, any. Offsets and states, which the broker knows without reading
messages, decide which part of the dead-letter topic is read at all.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq.wire.errors import TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun

from ..shell import exit_codes
from ..shell.command import Failure
from ..shell.options import time_of_option

if TYPE_CHECKING:
    from rmq.client import Admin
    from rmq.wire.model import StoredMessage
    from rmq.wire.protocol.ops.redelivery import DeadRow

STATES: Final = {WAITING: "waiting", REPLAYED: "replayed", DROPPED: "dropped"}
ALL: Final = "all"
MAX_DIGITS: Final = 18  # any such number fits the wire
Span = tuple[int, int]
"""Offsets from the first to before the second."""


def parse_offsets(text: str) -> Span:
    """
    ``3``, or ``10-20`` with both ends.

    Raises:
        ValueError: it is neither; the sentence says what would do.
    """
    first, dash, last = text.strip().partition("-")
    numbers = [first, last] if dash else [first, first]
    if not all(number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS for number in numbers):
        raise ValueError(f"{text!r} is not an offset: write 3, or 10-20 for a range")
    start, end = map(int, numbers)
    if end < start:
        raise ValueError(f"{text!r} ends before it starts")
    return start, end + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Conditions on dead letters; without any, all that wait match."""

    offsets: tuple[Span, ...] = ()
    ids: tuple[str, ...] = ()  # of dead letters, or of the messages they were
    keys: tuple[str, ...] = ()  # keys or index keys
    index_keys: tuple[str, ...] = ()
    origin_topic: str | None = None
    origin_queue: int | None = None
    reason: str | None = None  # a part of it
    since: datetime | None = None  # when it became a dead letter
    until: datetime | None = None
    state: str = STATES[WAITING]

    @property
    def is_everything(self) -> bool:
        """Whether no condition is given; a state does not count as one."""
        return not self.offsets and not self.needs_messages

    @property
    def needs_messages(self) -> bool:
        """Whether a dead letter has to be read before it can be judged."""
        others = (self.origin_topic, self.origin_queue, self.reason, self.since, self.until)
        return bool(self.ids or self.keys or self.index_keys) or any(other is not None for other in others)

    def spans(self, first: int, end: int, runs: Iterable[DeadRun]) -> list[Span]:
        """
        Return the parts of ``[first, end)`` that offsets and states select, in order.

        ``runs`` are the replayed or dropped dead letters, in order; all others wait.
        """
        pieces = list(_pieces(first, end, runs))
        if self.state != ALL:
            pieces = [piece for piece in pieces if STATES[piece.state] == self.state]
        wanted = _united(self.offsets) if self.offsets else [(first, end)]
        cut = [
            (max(start, piece.from_offset), min(stop, piece.end_offset)) for piece in pieces for start, stop in wanted
        ]
        return _united((start, stop) for start, stop in cut if start < stop)

    def matches(self, letter: StoredMessage) -> bool:
        """Return whether a dead letter of these parts matches the other conditions."""
        said = letter.properties
        return (
            (not self.ids or letter.message_id in self.ids or said.get("RMQ_ORIGIN_ID") in self.ids)
            and (not self.keys or letter.key in self.keys or not set(self.keys).isdisjoint(letter.index_keys))
            and (not self.index_keys or not set(self.index_keys).isdisjoint(letter.index_keys))
            and (self.origin_topic is None or said.get("RMQ_ORIGIN_TOPIC") == self.origin_topic)
            and (self.origin_queue is None or said.get("RMQ_ORIGIN_QUEUE") == str(self.origin_queue))
            and (self.reason is None or self.reason.casefold() in said.get("RMQ_DEAD_REASON", "").casefold())
            and (self.since is None or letter.stored_at >= self.since)
            and (self.until is None or letter.stored_at < self.until)
        )

    def missing_offsets(self, first: int, end: int) -> list[Span]:
        """Return the given offsets that do not exist."""
        return [(start, stop) for start, stop in self.offsets if stop <= first or start >= end]


def state_at(runs: Sequence[DeadRun], offset: int) -> str:
    """Return the name of the state of a dead letter."""
    following = bisect_right(runs, offset, key=lambda run: run.from_offset)
    run = runs[following - 1] if following else None
    return STATES[run.state if run is not None and offset < run.end_offset else WAITING]


def _pieces(first: int, end: int, runs: Iterable[DeadRun]) -> Iterator[DeadRun]:
    """Split ``[first, end)`` by state, including what waits."""
    at = first
    for run in runs:
        start, stop = max(run.from_offset, at), min(run.end_offset, end)
        if start >= stop:
            continue
        if at < start:
            yield DeadRun(at, start, WAITING)
        yield DeadRun(start, stop, run.state)
        at = stop
    if at < end:
        yield DeadRun(at, end, WAITING)


def _united(spans: Iterable[Span]) -> list[Span]:
    """Return the same offsets in order, each once."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def _offsets(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[Span, ...]:
    try:
        return tuple(map(parse_offsets, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_CONDITIONS: Final = (
    click.option(
        "--offset", "offsets", metavar="N|N-M", multiple=True, callback=_offsets,
        help="Only this offset or range of offsets in the dead-letter topic. May be repeated.",
    ),
    click.option(
        "--id", "ids", metavar="ID", multiple=True,
        help="Only the dead letter with this id, or of the message with it. May be repeated.",
    ),
    click.option("--key", "keys", metavar="KEY", multiple=True, help="With this key or index key. May be repeated."),
    click.option(
        "--index-key", "index_keys", metavar="KEY", multiple=True, help="With this index key. May be repeated."
    ),
    click.option("--origin-topic", metavar="TOPIC", help="Only messages from this topic."),
    click.option("--origin-queue", metavar="N", type=click.IntRange(0), help="Only messages from queue N."),
    click.option("--reason", metavar="TEXT", help="Only if the reason contains TEXT, ignoring case."),
    click.option(
        "--since", metavar="TIME", callback=time_of_option, help="Dead since this time: 10m (ago), or ISO 8601."
    ),
    click.option("--until", metavar="TIME", callback=time_of_option, help="Dead before this time."),
)  # fmt: skip
_STATE = click.option(
    "--state",
    type=click.Choice([*STATES.values(), ALL]),
    help="Only dead letters in this state.  [default: waiting; all with --offset or --id]",
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
    """The dead letters of a group when the broker was asked; later ones are not included."""

    row: DeadRow
    runs: list[DeadRun]
    spans: list[Span]

    @property
    def total(self) -> int:
        """The number of dead letters to read."""
        return sum(end - start for start, end in self.spans)

    @property
    def queue(self) -> MessageQueue:
        """The queue that stores them."""
        return MessageQueue(self.row.topic, 0)


async def find(admin: Admin, group: str, which: DeadFilter) -> Letters:
    """
    Return the dead letters to read.

    Raises:
        Failure: the group has no dead letters.
    """
    row = next((row for row in await admin.list_dead_letters() if row.group == group), None)
    if row is None:
        raise _no_dead_letters(group)
    try:
        runs = await admin.dead_letter_states(group)
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
    text = f"the group {group!r} has no dead letters: `rmq-admin dlq list` shows the groups that have some"
    return Failure(text, exit_codes.NO_INPUT)


async def matching(
    admin: Admin, letters: Letters, which: DeadFilter, looked: Callable[[int], None] = lambda more: None
) -> AsyncIterator[StoredMessage]:
    """Yield the matching dead letters in order."""
    for start, end in letters.spans:
        async for some in admin.read(letters.queue, start, end):
            for letter in some:
                if which.matches(letter):
                    yield letter
            looked(len(some))
