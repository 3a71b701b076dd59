"""What ``rmq-admin import-rocketmq`` tells: tables for people, one object for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..output.render import printable, table

if TYPE_CHECKING:
    from rmq.client.importer.plan import Plan
    from rmq.client.importer.survey import Waiting
    from rmq.client.importer.take_over import Outcome

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_YEAR_MS = 253_402_300_799_999  # no calendar here shows more


def report_object(plan: Plan, outcome: Outcome | None) -> dict[str, Any]:
    """All of it as JSON; ``outcome`` is None of a run that sent nothing."""
    return {
        "messages": plan.messages,
        "waiting": len(plan.waiting),
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


def report_text(plan: Plan, outcome: Outcome | None) -> str:
    """All of it for people: what there is, then what is left out, damaged or worth to know."""
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


def summary(plan: Plan, outcome: Outcome | None) -> str:
    """The last line: what was done, or would be."""
    topics = f"{len(plan.topics)} topic{'' if len(plan.topics) == 1 else 's'}"
    what = f"{plan.messages} messages of {topics}, {len(plan.waiting)} delayed"
    if outcome is None:
        return f"{what}: nothing was sent"
    before = outcome.before + outcome.waiting_before
    earlier = f"; {before} of them by an earlier run" if before else ""
    return f"{what}: all are stored{earlier}"


def _result(outcome: Outcome) -> dict[str, int]:
    return {
        "sent": outcome.sent,
        "sent_before": outcome.before,
        "waiting_sent": outcome.waiting_sent,
        "waiting_sent_before": outcome.waiting_before,
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
    by_queue: dict[tuple[str, int], list[Waiting]] = {}
    for each in plan.waiting:
        by_queue.setdefault((each.topic, each.queue_id), []).append(each)
    for (topic, queue_id), rows in sorted(by_queue.items()):
        yield {
            "topic": plan.target(topic),
            "queue_id": queue_id,
            "messages": len(rows),
            "first_due": _time(rows[0].due_ms),
            "last_due": _time(rows[-1].due_ms),
        }


def _group_rows(plan: Plan, outcome: Outcome | None) -> Iterator[dict[str, Any]]:
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


def _group_cells(plan: Plan, outcome: Outcome | None) -> Iterator[dict[str, Any]]:
    for row in _group_rows(plan, outcome):
        yield row | {"old_group": row["old_group"] if row["old_group"] != row["group"] else ""}


def _time(ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=min(max(ms, 0), _LAST_YEAR_MS))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _section(title: str, rows: Iterable[dict[str, Any]]) -> str:
    """A table under its title; columns without anything in them are not shown."""
    shown = list(rows)
    if not shown:
        return ""
    names = [name for name in shown[0] if any(row[name] != "" for row in shown)]
    heading = ["queue" if name == "queue_id" else name for name in names]
    return f"{title}\n{table(heading, [[row[name] for name in names] for row in shown])}"


def _lines(title: str, lines: Iterable[str]) -> str:
    shown = [f"- {printable(line)}\n" for line in lines]
    return f"{title}\n{''.join(shown)}" if shown else ""
