"""``rmq-admin dlq``: lists, shows, exports, replays and drops dead letters."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import click

from rmq.wire.errors import RmqError
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadResult

from ..output.render import printable, to_json
from ..output.terminal import columns, progress
from ..shell import exit_codes
from ..shell.command import Failure, Group, confirm, run
from ..shell.connect import admin_of, ask
from ..shell.options import admin_options, broker_option, log_options
from .dlq_filter import DeadFilter, Letters, filtered, find, matching, state_at
from .dlq_text import VERBS, Outcomes, letter_object, letters_text, row_object, rows_text

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
    """Show, replay, export and drop dead letters."""


def _deals(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options that replay and drop share."""
    options = (
        click.argument("group", metavar="GROUP"),
        filtered,
        click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        admin_options,
    )
    for option in reversed(options):
        callback = option(callback)
    return callback


@dlq.command(
    examples="""
    rmq-admin dlq replay billing --offset 3 --offset 10-20
    rmq-admin dlq replay billing --origin-topic orders --since 1h --dry-run
    rmq-admin dlq replay billing --to-topic --reason timeout --json
    rmq-admin dlq replay billing --yes
    """,
)
@click.option("--to-topic", is_flag=True, help="Send to the original topic and queue, for all groups.")
@_deals
def replay(**asked: Any) -> None:
    """
    Deliver dead letters of GROUP again, in order.

    Only GROUP receives them, through its retry topic, unless --to-topic is given. Replaying twice delivers once.
    Without a condition all waiting dead letters are replayed, after a confirmation. Prints one line per dead letter,
    or one object with --json, and a summary at the end. Exit code 3: some failed.
    """
    _deal(Deal(REPLAYED, **asked))


@dlq.command(
    examples="""
    rmq-admin dlq drop billing --offset 3
    rmq-admin dlq drop billing --until 7d --dry-run
    rmq-admin dlq drop billing --yes --json
    """,
)
@_deals
def drop(**asked: Any) -> None:
    """
    Mark dead letters of GROUP as handled, so that they no longer wait and are not replayed.

    This cannot be undone; they stay readable until retention removes them. Without a condition all waiting dead letters
    are dropped, after a confirmation. Prints one line per dead letter, or one object with --json, and a summary at the
    end. Exit code 3: some failed.
    """
    _deal(Deal(DROPPED, **asked))


@dlq.command(
    "list",
    examples="""
    rmq-admin dlq list
    rmq-admin dlq list --json
    """,
)
@admin_options
def list_dead(broker: str, as_json: bool) -> None:
    """
    List groups with dead letters: how many wait, were replayed or dropped.

    OLDEST and NEWEST: when the first and the last of them became dead letters.
    """
    rows = ask(broker, _list)
    click.echo(to_json(rows) if as_json else rows_text(rows, columns()), nl=as_json)


async def _list(admin: Admin) -> list[dict[str, Any]]:
    return [row_object(row, *await _times(admin, row)) for row in await admin.list_dead_letters()]


async def _times(admin: Admin, row: DeadRow) -> list[datetime | None]:
    """Return when the first and the last became dead letters; None if retention has removed them."""
    if row.min_offset == row.max_offset:
        return [None, None]
    return [await _died_at(admin, row, offset) for offset in (row.min_offset, row.max_offset - 1)]


async def _died_at(admin: Admin, row: DeadRow, offset: int) -> datetime | None:
    async for some in admin.read(Letters(row, [], []).queue, offset, offset + 1):
        for letter in some:
            return letter.stored_at
    return None  # retention was faster


@dlq.command(
    examples="""
    rmq-admin dlq show billing
    rmq-admin dlq show billing --origin-topic orders --reason timeout --limit 5
    rmq-admin dlq show billing --state all --json
    """,
)
@click.argument("group", metavar="GROUP")
@filtered
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="How many, the oldest first.")
@admin_options
def show(group: str, which: DeadFilter, limit: int, broker: str, as_json: bool) -> None:
    """
    Show the dead letters of GROUP, oldest first.

    With --json: one object per line, with the whole body and all properties.
    """
    found, states = ask(broker, lambda admin: _show(admin, group, which, limit))
    shown = list(zip(found[:limit], states, strict=False))
    if as_json:
        for letter, state in shown:
            click.echo(to_json(letter_object(letter, state)))
    else:
        click.echo(letters_text(shown, columns()), nl=False)
    if len(found) > limit:
        click.echo(f"more than {limit} match: raise --limit", err=True)


async def _show(admin: Admin, group: str, which: DeadFilter, limit: int) -> tuple[list[StoredMessage], list[str]]:
    found: list[StoredMessage] = []
    letters = await find(admin, group, which)
    async for letter in matching(admin, letters, which):
        found.append(letter)
        if len(found) > limit:
            break
    return found, [state_at(letters.runs, letter.queue_offset) for letter in found]


@dlq.command(
    examples="""
    rmq-admin dlq export billing --output letters.jsonl
    rmq-admin dlq export billing --state all --since 2026-01-31T12:00 --output -
    """,
)
@click.argument("group", metavar="GROUP")
@filtered
@click.option("--output", metavar="FILE", required=True, help="File to write; - is standard output.")
@broker_option
@log_options("error")
def export(group: str, which: DeadFilter, output: str, broker: str) -> None:
    """
    Write the dead letters of GROUP to a file, oldest first, one JSON object per line.

    The objects are those of `dlq show --json`. The file is replaced once it is complete; until then an older one stays.
    """
    try:
        with _written(output) as file:
            count = run(_export(broker, group, which, file))
    except OSError as error:
        if isinstance(error, BrokenPipeError | RmqError):
            raise
        text = f"cannot write {output}: {error.strerror}; choose another file with --output"
        raise Failure(text, exit_codes.OS_ERROR) from error
    click.echo(f"{group}: {count} exported", err=True)


async def _export(broker: str, group: str, which: DeadFilter, file: BinaryIO) -> int:
    count = 0
    looked: list[int] = []
    async with admin_of(broker) as admin:
        letters = await find(admin, group, which)
        async with progress("exporting", letters.total, lambda: sum(looked)):
            async for letter in matching(admin, letters, which, looked.append):
                file.write(to_json(letter_object(letter, state_at(letters.runs, letter.queue_offset))).encode() + b"\n")
                count += 1
    return count


@contextmanager
def _written(output: str) -> Iterator[BinaryIO]:
    """Open a file that gets its name once it is complete and durable."""
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


PORTION: Final = 1024  # dead letters per request


class Deal(NamedTuple):
    """A replay or drop: the dead letters it applies to, and how results are printed."""

    wanted: int
    group: str
    which: DeadFilter
    dry_run: bool
    yes: bool
    as_json: bool
    broker: str
    to_topic: bool = False

    @property
    def verb(self) -> str:
        """The verb for what is done."""
        return VERBS[self.wanted][0]

    async def ask(self, admin: Admin, offsets: Sequence[int]) -> dict[int, DeadResult]:
        """Request it for some offsets."""
        if self.wanted == DROPPED:
            return await admin.drop_dead_letters(self.group, offsets, dry_run=self.dry_run)
        return await admin.replay_dead_letters(self.group, offsets, to_topic=self.to_topic, dry_run=self.dry_run)


def _deal(deal: Deal) -> None:
    letters = None
    if deal.which.is_everything and not deal.yes and not deal.dry_run:
        letters = _confirmed(deal)
    outcomes = Outcomes(deal.group, deal.wanted, dry_run=deal.dry_run)
    try:
        missing = run(_deal_with(deal, letters, outcomes))
    except BaseException:
        if outcomes.total:  # what was done before the broker went away
            _sum_up(deal, outcomes)
        raise
    _sum_up(deal, outcomes)
    if deal.dry_run:
        click.echo("dry run: nothing was changed", err=True)
    if outcomes.failed == outcomes.total and outcomes.first_error is not None:
        code = exit_codes.of(outcomes.first_error)
        raise Failure(f"all {outcomes.total} failed: {outcomes.first_error}", code)
    if outcomes.failed:
        raise Failure(f"{outcomes.failed} of {outcomes.total} failed", exit_codes.PARTIAL)
    if missing:
        text = f"the group {deal.group!r} has no dead letter {missing[0]}"
        raise Failure(f"{text}: `rmq-admin dlq show {deal.group} --state all` shows them", exit_codes.NO_INPUT)


def _sum_up(deal: Deal, outcomes: Outcomes) -> None:
    click.echo(to_json(outcomes.summary_object()) if deal.as_json else outcomes.summary())


def _confirmed(deal: Deal) -> Letters:
    """Ask whether to process all dead letters that exist now; refuse without a terminal."""
    if deal.as_json or not sys.stdin.isatty():
        text = f"cannot ask whether to {deal.verb} all of them without a terminal: give a condition, or --yes"
        raise Failure(text, exit_codes.USAGE)
    letters = ask(deal.broker, lambda admin: find(admin, deal.group, deal.which))
    question = f"{deal.verb.title()} all {letters.total} dead letters of {deal.group}?"
    confirm(question, "nothing was changed; --yes skips the question")
    return letters


async def _deal_with(deal: Deal, letters: Letters | None, outcomes: Outcomes) -> list[str]:
    """Process one portion after the other; return what was named and does not exist."""
    which = deal.which
    ids = set(which.ids)
    looked: list[int] = []
    async with admin_of(deal.broker) as admin:
        letters = letters or await find(admin, deal.group, which)
        bar = progress(f"{deal.verb}ing", letters.total, lambda: sum(looked))
        # On a terminal the lines themselves show how it goes.
        shown: AbstractAsyncContextManager[None] = nullcontext() if sys.stdout.isatty() else bar
        async with shown:
            async for offsets in _portions(admin, letters, which, ids, looked.append):
                for offset, result in (await deal.ask(admin, offsets)).items():
                    outcome = outcomes.add(offset, result)
                    click.echo(to_json(outcome) if deal.as_json else printable(outcomes.line(outcome)))
    row = letters.row
    spans = which.missing_offsets(row.min_offset, row.max_offset)
    missing = [f"at offset {start}" + (f"-{end - 1}" if end > start + 1 else "") for start, end in spans]
    return missing + [f"with the id {name}" for name in sorted(ids)]


async def _portions(
    admin: Admin, letters: Letters, which: DeadFilter, ids: set[str], look: Callable[[int], None]
) -> AsyncIterator[list[int]]:
    """Yield the selected offsets in order; ids that were seen are removed from ``ids``."""
    if not which.needs_messages:
        for start, end in letters.spans:
            for at in range(start, end, PORTION):
                yield (portion := list(range(at, min(at + PORTION, end))))
                look(len(portion))
        return
    offsets: list[int] = []
    async for letter in matching(admin, letters, which, look):
        ids -= {letter.message_id, letter.properties.get("RMQ_ORIGIN_ID")}
        offsets.append(letter.queue_offset)
        if len(offsets) == PORTION:
            yield offsets
            offsets = []
    if offsets:
        yield offsets
