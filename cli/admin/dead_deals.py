"""``rmq-admin dlq replay`` and ``drop``: what is done about dead letters, told of each of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadResult

from ..output.progress import progress
from ..output.render import printable, to_json
from ..shell import exit_codes
from ..shell.command import Command, Failure, run
from ..shell.options import broker_option, json_option, log_options
from ..shell.reach import admin_of
from .dead_finding import Letters, filtered, find, matching
from .dlq_select import DeadFilter
from .dlq_text import VERBS, Outcomes

if TYPE_CHECKING:
    from rmq.client import Admin

PORTION: Final = 1024  # dead letters that one request deals with


def _deals(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Add what replaying and dropping share."""
    options = (
        click.argument("group", metavar="GROUP"),
        filtered,
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        json_option,
        broker_option,
        log_options("error"),
    )
    for option in reversed(options):
        callback = option(callback)
    return callback


@click.command(
    cls=Command,
    examples="""
    rmq-admin dlq replay billing --offset 3 --offset 10-20
    rmq-admin dlq replay billing --origin-topic orders --since 1h --dry-run
    rmq-admin dlq replay billing --to-topic --reason timeout --json
    rmq-admin dlq replay billing --yes
    """,
)
@click.option("--to-topic", is_flag=True, help="To the topic and queue they came from, for all groups.")
@_deals
def replay(**asked: Any) -> None:
    """
    Have dead letters of GROUP delivered again, in their order.

    They go to the group alone, by its retry topic, unless --to-topic is given. Each is replayed once, however often it
    is asked for. Without a condition it is all that wait, after a question. A line tells of each dead letter; with
    --json an object, the last is the sum. Exit code 3: some of them failed.
    """
    _deal(Deal(REPLAYED, **asked))


@click.command(
    cls=Command,
    examples="""
    rmq-admin dlq drop billing --offset 3
    rmq-admin dlq drop billing --until 7d --dry-run
    rmq-admin dlq drop billing --yes --json
    """,
)
@_deals
def drop(**asked: Any) -> None:
    """
    Mark dead letters of GROUP as dealt with: they are not replayed, and no longer wait.

    They can be read until retention removes them, and cannot be taken back. Without a condition it is all that wait,
    after a question. A line tells of each dead letter; with --json an object, the last is the sum. Exit code 3: some of
    them failed.
    """
    _deal(Deal(DROPPED, **asked))


class Deal(NamedTuple):
    """What is to be done, with which dead letters, and how it is told."""

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
        """What is done."""
        return VERBS[self.wanted][0]

    async def ask(self, admin: Admin, offsets: Sequence[int]) -> dict[int, DeadResult]:
        """Have it done with some."""
        if self.wanted == DROPPED:
            return await admin.drop_dead(self.group, offsets, dry_run=self.dry_run)
        return await admin.replay_dead(self.group, offsets, to_topic=self.to_topic, dry_run=self.dry_run)


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
        click.echo("nothing was done: leave --dry-run out to do it", err=True)
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
    """Ask whether all that there are now are meant; a script cannot be asked."""
    if deal.as_json or not sys.stdin.isatty():
        text = f"nobody can be asked whether to {deal.verb} all of them: give a condition, or --yes"
        raise Failure(text, exit_codes.USAGE)
    letters = run(_letters(deal))
    try:
        agreed = click.confirm(f"{deal.verb.title()} all {letters.total} dead letters of {deal.group}?", err=True)
    except click.Abort:  # the end of the input, or Ctrl-C
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise Failure("nothing was done; --yes does it without asking")
    return letters


async def _letters(deal: Deal) -> Letters:
    async with admin_of(deal.broker) as admin:
        return await find(admin, deal.group, deal.which)


async def _deal_with(deal: Deal, letters: Letters | None, outcomes: Outcomes) -> list[str]:
    """Deal with one portion after the other; returns what was named and does not exist."""
    which, looked = deal.which, 0
    ids = set(which.ids)

    def look(more: int) -> None:
        nonlocal looked
        looked += more

    async with admin_of(deal.broker) as admin:
        letters = letters or await find(admin, deal.group, which)
        bar = progress(f"{deal.verb}ing", letters.total, lambda: looked)
        # On a terminal the lines themselves show how it goes.
        shown: AbstractAsyncContextManager[None] = nullcontext() if sys.stdout.isatty() else bar
        async with shown:
            async for offsets in _portions(admin, letters, which, ids, look):
                for offset, result in (await deal.ask(admin, offsets)).items():
                    told = outcomes.add(offset, result)
                    click.echo(to_json(told) if deal.as_json else printable(outcomes.line(told)))
    row = letters.row
    spans = which.missing_offsets(row.min_offset, row.max_offset)
    missing = [f"at offset {start}" + (f"-{end - 1}" if end > start + 1 else "") for start, end in spans]
    return missing + [f"with the id {name}" for name in sorted(ids)]


async def _portions(
    admin: Admin, letters: Letters, which: DeadFilter, ids: set[str], look: Callable[[int], None]
) -> AsyncIterator[list[int]]:
    """The offsets that are meant, in order; ids that were seen are taken out of ``ids``."""
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
