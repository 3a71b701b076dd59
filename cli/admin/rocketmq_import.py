"""``rmq-admin import-rocketmq``: imports the store of a RocketMQ broker and reports what it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rmq.wire.errors import RmqError

from ..output.render import counted, printable, table, to_json
from ..output.terminal import progress, progress_bar
from ..shell import exit_codes
from ..shell.command import Command, Failure, run
from ..shell.connect import require_broker
from ..shell.options import admin_options

if TYPE_CHECKING:
    from rmq.client.importer.plan import Plan, Wishes
    from rmq.client.importer.store_files import BadStore
    from rmq.client.importer.survey import DeferredRecord, RocketMQStore
    from rmq.client.importer.take_over import ImportResult


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
@click.option("--skip-damaged", is_flag=True, help="Import the rest of a damaged store, and report what is missing.")
@click.option("--dry-run", is_flag=True, help="Read the store and report, without a broker.")
@admin_options
def import_rocketmq(
    *, store: Path, topics: tuple[str, ...], topic_names: dict[str, str], group_names: dict[str, str],
    skip_damaged: bool, dry_run: bool, as_json: bool, broker: str,
) -> None:  # fmt: skip
    """
    Import the store of a RocketMQ 4.9 broker from DIR, its root folder, which holds commitlog/.

    Messages keep their order in each queue, with body, tag, keys and properties; groups continue where they were;
    delayed messages are delivered on time. Retry and dead-letter messages go to the topics RETRY-group and DLQ-group.
    DIR is only read; its broker must be stopped. Run an interrupted import again to continue it. A damaged store is
    reported and not imported, unless --skip-damaged is given (exit code 3).
    """
    from rmq.client.importer.plan import Wishes

    wishes = Wishes(set(topics) or None, topic_names, group_names, skip_damaged)
    opened, plan = _read(store, wishes)
    is_refused = bool(plan.damage) and not skip_damaged
    outcome = None if dry_run or is_refused else run(_take_over(opened, plan, wishes, broker))
    click.echo(to_json(report_object(plan, outcome)) if as_json else report_text(plan, outcome), nl=as_json)
    if is_refused:
        text = f"the store is damaged in {counted(len(plan.damage), 'place')}, the first: {plan.damage[0]}"
        raise Failure(printable(f"{text}; --skip-damaged imports the rest"), exit_codes.DATA_ERROR)
    if plan.damage:
        places = f"{len(plan.damage)} damaged places were" if len(plan.damage) > 1 else "1 damaged place was"
        raise Failure(f"{places} left out: see the report", exit_codes.PARTIAL)


def _read(root: Path, wishes: Wishes) -> tuple[RocketMQStore, Plan]:
    """Open the store and plan the import."""
    from rmq.client.importer.plan import make_plan
    from rmq.client.importer.store_files import BadStore
    from rmq.client.importer.survey import RocketMQStore

    try:
        store = RocketMQStore(root)
        with progress_bar("reading", store.log.end - store.log.start) as step:
            return store, make_plan(store, wishes, step)
    except BadStore as error:
        _refuse(error)


async def _take_over(store: RocketMQStore, plan: Plan, wishes: Wishes, broker: str) -> ImportResult:
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
        raise Failure(printable(f"{text}: run it again to continue after them"), exit_codes.of(error)) from error


def _refuse(error: BadStore) -> NoReturn:
    from rmq.client.importer.store_files import StoreInUse, StoreMissing, StoreUnreadable

    codes: dict[type[BadStore], int] = {
        StoreMissing: exit_codes.NO_INPUT,
        StoreInUse: exit_codes.TEMPORARY,
        StoreUnreadable: exit_codes.OS_ERROR,
    }
    raise Failure(printable(str(error)), codes.get(type(error), exit_codes.DATA_ERROR)) from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_YEAR_MS = 253_402_300_799_999  # no calendar here shows more


def report_object(plan: Plan, outcome: ImportResult | None) -> dict[str, Any]:
    """Return the report as JSON; ``outcome`` is None if nothing was sent."""
    return {
        "messages": plan.messages,
        "waiting": len(plan.deferred),
        "result": None if outcome is None else _result(outcome),
        "log": {"end": plan.end.physical_offset, "torn_bytes": plan.end.torn_bytes},
        "topics": [topic._asdict() for topic in plan.topics.values()],
        "queues": list(_queue_rows(plan)),
        "delays": list(_delay_rows(plan)),
        "groups": list(_group_rows(plan, outcome)),
        "left_out": dict(sorted(plan.skipped.items())),
        "damage": [{**found._asdict(), "lost": list(map(str, found.lost))} for found in plan.damage],
        "notes": plan.notes,
    }


def report_text(plan: Plan, outcome: ImportResult | None) -> str:
    """Return the report for people: contents first, then what is left out or damaged, then notes."""
    parts = [
        _section("messages", _queue_cells(plan)),
        _section("delayed", _delay_rows(plan)),
        _section("progress of groups", _group_cells(plan, outcome)),
        _section("left out", ({"kind": kind, "messages": n} for kind, n in sorted(plan.skipped.items()))),
        _lines("damaged", map(str, plan.damage)),
        _lines("notes", plan.notes),
        summary(plan, outcome) + "\n",
    ]
    return "\n".join(part for part in parts if part)


def summary(plan: Plan, outcome: ImportResult | None) -> str:
    """Return the last line: what was done, or would be."""
    what = f"{plan.messages} messages of {counted(len(plan.topics), 'topic')}, {len(plan.deferred)} delayed"
    if outcome is None:
        return f"{what}: nothing was sent"
    before = outcome.before + outcome.deferred_before
    earlier = f"; {before} of them by an earlier run" if before else ""
    return f"{what}: all are stored{earlier}"


def _result(outcome: ImportResult) -> dict[str, int]:
    return {
        "sent": outcome.sent,
        "sent_before": outcome.before,
        "waiting_sent": outcome.deferred_sent,
        "waiting_sent_before": outcome.deferred_before,
    }


def _queue_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    for (topic, queue_id), queue in sorted(plan.queues.items()):
        yield {
            "topic": plan.target(topic),
            "queue_id": queue_id,
            "messages": queue.messages,
            "old_first": queue.first,
            "old_last": queue.last,
            "new_first": 0,
            "new_last": queue.messages - 1,
            "holes": queue.holes,
            "old_topic": topic,
        }


def _queue_cells(plan: Plan) -> Iterator[dict[str, Any]]:
    for row in _queue_rows(plan):
        yield {
            "topic": row["topic"],
            "queue_id": row["queue_id"],
            "messages": row["messages"],
            "old_offsets": f"{row['old_first']}-{row['old_last']}",
            "new_offsets": f"{row['new_first']}-{row['new_last']}",
            "holes": row["holes"] or "",
            "old_topic": row["old_topic"] if row["old_topic"] != row["topic"] else "",
        }


def _delay_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    by_queue: dict[tuple[str, int], list[DeferredRecord]] = {}
    for each in plan.deferred:
        by_queue.setdefault((each.topic, each.queue_id), []).append(each)
    for (topic, queue_id), rows in sorted(by_queue.items()):
        yield {
            "topic": plan.target(topic),
            "queue_id": queue_id,
            "messages": len(rows),
            "first_due": _time(rows[0].due_ms),
            "last_due": _time(rows[-1].due_ms),
        }


def _group_rows(plan: Plan, outcome: ImportResult | None) -> Iterator[dict[str, Any]]:
    rows = outcome.groups if outcome is not None else [(row, row.new_offset) for row in plan.groups]
    for row, now in rows:
        yield {
            "group": row.new_group,
            "topic": plan.target(row.topic),
            "queue_id": row.queue_id,
            "old_offset": row.old_offset,
            "new_offset": now,
            "old_group": row.group,
            "remark": "" if now == row.new_offset else f"was here before: not moved to {row.new_offset}",
        }


def _group_cells(plan: Plan, outcome: ImportResult | None) -> Iterator[dict[str, Any]]:
    for row in _group_rows(plan, outcome):
        yield row | {"old_group": row["old_group"] if row["old_group"] != row["group"] else ""}


def _time(ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=min(max(ms, 0), _LAST_YEAR_MS))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _section(title: str, rows: Iterable[dict[str, Any]]) -> str:
    """Return a table under its title, without its empty columns."""
    shown = list(rows)
    if not shown:
        return ""
    names = [name for name in shown[0] if any(row[name] != "" for row in shown)]
    heading = ["queue" if name == "queue_id" else name for name in names]
    return f"{title}\n{table(heading, [[row[name] for name in names] for row in shown])}"


def _lines(title: str, lines: Iterable[str]) -> str:
    shown = [f"- {printable(line)}\n" for line in lines]
    return f"{title}\n{''.join(shown)}" if shown else ""
