"""``rmq-admin import-rocketmq``: take over the store of a RocketMQ broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from rmq.wire.errors import RmqError

from ..output.progress import progress, progress_bar
from ..output.render import printable, to_json
from ..shell import exit_codes
from ..shell.command import Command, Failure, run
from ..shell.options import broker_option, json_option, log_options
from ..shell.reach import require_broker
from .import_report import report_object, report_text

if TYPE_CHECKING:
    from rmq.client.importer.plan import Plan, Wishes
    from rmq.client.importer.store_files import BadStore
    from rmq.client.importer.survey import Store
    from rmq.client.importer.take_over import Outcome


def _names(_ctx: click.Context, _param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """``OLD=NEW`` as a table."""
    found: dict[str, str] = {}
    for pair in pairs:
        old, separator, new = pair.rpartition("=")
        if not (separator and old and new):
            raise click.BadParameter(f"{pair!r} is not OLD=NEW")
        if old in found:
            raise click.BadParameter(f"{old!r} is given two names")
        found[old] = new
    return found


@click.command(
    "import-rocketmq",
    cls=Command,
    examples="""
    rmq-admin import-rocketmq /var/lib/rocketmq/store --dry-run
    rmq-admin import-rocketmq /var/lib/rocketmq/store
    rmq-admin import-rocketmq store --topic orders --topic stock --json
    rmq-admin import-rocketmq store --map orders=old-orders --skip-damaged
    """,
)
@click.argument("store", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic. May be repeated.")
@click.option(
    "--map", "topic_names", metavar="OLD=NEW", multiple=True, callback=_names, help="Another name for a topic."
)
@click.option("--map-group", "group_names", metavar="OLD=NEW", multiple=True, callback=_names, help="For a group.")
@click.option("--skip-damaged", is_flag=True, help="Import the rest of a damaged store, and tell what is missing.")
@click.option("--dry-run", is_flag=True, help="Read the store and report; no broker is asked.")
@json_option
@broker_option
@log_options("error")
def import_rocketmq(
    *,
    store: Path,
    topics: tuple[str, ...],
    topic_names: dict[str, str],
    group_names: dict[str, str],
    skip_damaged: bool,
    dry_run: bool,
    as_json: bool,
    broker: str,
) -> None:
    """
    Take over the store of a RocketMQ 4.9 broker from DIR, its root folder, which holds commitlog/.

    Messages keep their order in each queue, with body, tag, keys and properties; groups go on at the message they were
    at; what is delayed is delivered at its time. Retry and dead-letter messages go to the topics RETRY-group and
    DLQ-group. DIR is only read; its broker must be stopped. An import that was cut off goes on when it is run again.
    A damaged store is reported and not imported, unless --skip-damaged is given (exit code 3).
    """
    from rmq.client.importer.plan import Wishes

    wishes = Wishes(set(topics) or None, topic_names, group_names, skip_damaged)
    opened, plan = _read(store, wishes)
    is_refused = bool(plan.damage) and not skip_damaged
    outcome = None if dry_run or is_refused else run(_take_over(opened, plan, wishes, broker))
    click.echo(to_json(report_object(plan, outcome)) if as_json else report_text(plan, outcome), nl=as_json)
    if is_refused:
        places = f"{len(plan.damage)} places" if len(plan.damage) > 1 else "1 place"
        text = f"the store is damaged in {places}, the first: {plan.damage[0]}"
        raise Failure(printable(f"{text}; --skip-damaged imports the rest"), exit_codes.DATA_ERROR)
    if plan.damage:
        places = f"{len(plan.damage)} damaged places were" if len(plan.damage) > 1 else "1 damaged place was"
        raise Failure(f"{places} left out: the report tells which", exit_codes.PARTIAL)


def _read(root: Path, wishes: Wishes) -> tuple[Store, Plan]:
    """The store, and what is to be done with it."""
    from rmq.client.importer.plan import make_plan
    from rmq.client.importer.store_files import BadStore
    from rmq.client.importer.survey import Store

    try:
        store = Store(root)
        with progress_bar("reading", store.log.end - store.log.start) as step:
            return store, make_plan(store, wishes, step)
    except BadStore as error:
        _refuse(error)


async def _take_over(store: Store, plan: Plan, wishes: Wishes, broker: str) -> Outcome:
    from rmq.client.importer.present import ImportRefused
    from rmq.client.importer.store_files import BadStore
    from rmq.client.importer.take_over import TakeOver

    await require_broker(broker)
    taking = TakeOver(store, plan, wishes, broker)
    try:
        async with progress("sending", taking.total, lambda: taking.progress):
            return await taking.run()
    except BadStore as error:
        _refuse(error)
    except ImportRefused as refusal:
        raise Failure(printable(str(refusal)), exit_codes.REFUSED) from refusal
    except RmqError as error:
        text = f"{error}; at least {taking.progress} of {taking.total} messages are stored"
        raise Failure(printable(f"{text}: run it again to go on behind them"), exit_codes.of(error)) from error


def _refuse(error: BadStore) -> NoReturn:
    from rmq.client.importer.store_files import StoreInUse, StoreMissing, StoreUnreadable

    codes: dict[type[BadStore], int] = {
        StoreMissing: exit_codes.NO_INPUT,
        StoreInUse: exit_codes.TEMPORARY,
        StoreUnreadable: exit_codes.OS_ERROR,
    }
    raise Failure(printable(str(error)), codes.get(type(error), exit_codes.DATA_ERROR)) from error
