"""What the job found, and how it is told: as text, and as data. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .audit import Fault, GroupAudit, Place, QueueAudit
from .orders import STATES

BUCKETS: Final = ((60, "< 1 min"), (120, "1-2 min"), (300, "2-5 min"), (600, "5-10 min"), (1200, "10-20 min"),
                  (3600, "20-60 min"), (7200, "1-2 h"))  # fmt: skip
"""The bars of the histogram: an upper end in seconds, and its name; longer times are in :data:`LONGER`."""

LONGER: Final = "> 2 h"


@dataclass(frozen=True, slots=True)
class PaidTimes:
    """How long it took from created to paid, over the orders that have both."""

    orders: int
    median_s: float
    p95_s: float
    longest_s: float
    histogram: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up, with where it lay."""

    group: str
    event_id: str
    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the job found."""

    topic: str
    messages: int
    unreadable: int
    orders: int
    hours: tuple[tuple[datetime, tuple[int, ...]], ...]  # each with how many orders reached each of STATES in it
    paid: PaidTimes
    queues: tuple[QueueAudit, ...]
    faults: tuple[Fault, ...]
    groups: tuple[GroupAudit, ...]
    dead_letters: tuple[DeadLetter, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        """How many orders reached each of STATES."""
        return tuple(sum(counts[at] for _, counts in self.hours) for at in range(len(STATES)))

    @property
    def span(self) -> str:
        """From the first hour to the last."""
        if not self.hours:
            return "no events"
        return f"{self.hours[0][0]:%Y-%m-%d %H:00} to {self.hours[-1][0]:%Y-%m-%d %H:59} UTC"

    def as_json(self) -> str:
        """The numbers for programs."""
        return json.dumps(dataclasses.asdict(self), default=lambda value: value.isoformat(), indent=1)


def render_text(report: Report) -> str:
    """The report for a terminal."""
    parts = [
        f"Orders: {report.messages} messages of {report.orders} orders in topic {report.topic}, {report.span}",
        f"{report.unreadable} messages cannot be read",
        "",
        "Orders per state and hour (UTC)",
        table(["hour", *STATES], [*hour_rows(report), ["all", *map(str, report.totals)]]),
        "",
        f"From created to paid, {report.paid.orders} orders: median {duration(report.paid.median_s)}, "
        f"95 % within {duration(report.paid.p95_s)}, longest {duration(report.paid.longest_s)}",
        _bars(report.paid.histogram),
        "",
        "Order audit: queues",
        table(QUEUE_HEAD, queue_rows(report)),
        "",
        f"Order audit: orders ({len(report.faults)} faults)",
        *(f"  {fault.kind}: order {fault.order_id}: {fault.text}" for fault in report.faults),
        "",
        "Order audit: groups",
        table(GROUP_HEAD, group_rows(report)),
        "",
        f"Dead letters ({len(report.dead_letters)})",
        *(f"  {letter_line(letter)}" for letter in report.dead_letters),
    ]
    return "\n".join(parts) + "\n"


QUEUE_HEAD: Final = ["queue", "offsets", "messages", "missing", "repeated offsets", "repeated events"]
GROUP_HEAD: Final = ["group", "passed", "lag", "wanted", "consumed", "again", "retried", "dead letters", "out of order",
                     "unaccounted"]  # fmt: skip


def hour_rows(report: Report) -> list[list[str]]:
    """The table of hours; nothing is a dot, which lets the eye find the rest."""
    return [
        [f"{hour:%m-%d %H:00}", *(str(count) if count else "." for count in counts)] for hour, counts in report.hours
    ]


def queue_rows(report: Report) -> list[list[str]]:
    """The table of queues."""
    return [
        [
            str(queue.queue_id),
            f"{queue.start}-{queue.end}",
            str(queue.messages),
            _some(
                queue.missing, [f"{start}-{end - 1}" if end - start > 1 else f"{start}" for start, end in queue.gaps]
            ),
            _some(len(queue.repeats), [str(offset) for offset in queue.repeats]),
            str(queue.event_repeats),
        ]
        for queue in report.queues
    ]


def group_rows(report: Report) -> list[list[str]]:
    """The table of groups."""
    return [
        [
            group.group,
            *(
                str(number)
                for number in (
                    group.passed, group.lag, group.wanted, group.consumed, group.repeated, group.retried,
                    group.dead_lettered, group.disordered, group.unaccounted,
                )
            ),
        ]
        for group in report.groups
    ]  # fmt: skip


def letter_line(letter: DeadLetter) -> str:
    """A dead letter in words."""
    return f"{letter.event_id} of group {letter.group}, {letter.place}: {letter.reason}"


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first to the left, the others to the right."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _some(count: int, which: Sequence[str]) -> str:
    """A number, with the first few of what it counts."""
    if not count:
        return "0"
    return f"{count} ({', '.join(which[:3])}{', ...' if len(which) > 3 else ''})"


def _bars(histogram: Sequence[tuple[str, int]]) -> str:
    most = max((count for _, count in histogram), default=0) or 1
    return "\n".join(
        f"  {name:>10}  {count:>7}  {'#' * round(40 * count / most)}".rstrip() for name, count in histogram
    )
