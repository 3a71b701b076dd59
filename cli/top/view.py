"""
Computes what ``rmq-admin top`` shows from two samples of a broker, worst first, and formats its numbers. Pure.

Formatted numbers have few characters, so that columns do not move between refreshes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from rmq.client.overview.rates import Span, TopicRates
from rmq.client.overview.sample import MOST_LEASES, Sample
from rmq.wire.protocol.ops.core import LockRow
from rmq.wire.protocol.ops.groups import GroupRow

from ..output.render import epoch_text, seconds

LATE_S: Final = 30.0  # an owner trusts its lease this long: one not renewed since then is lost to it


@dataclass(frozen=True)
class GroupLine:
    """A group; ``lag`` is None if each member has its own, ``behind_s`` if it is unknown."""

    group: str
    mode: str | None
    members: int
    leases: int
    lag: int | None
    is_lag_partial: bool
    behind_s: float | None
    lag_per_s: float | None  # by how much the lag grows


@dataclass(frozen=True)
class TopicLine:
    """A topic with its rates."""

    topic: str
    flow: TopicRates


@dataclass(frozen=True)
class LeaseLine:
    """A lease; ``is_well``: it has an owner, is renewed in time, and its queue has no failures."""

    group: str
    topic: str
    queue_id: int
    owner: str
    epoch: int
    renewed_ago_s: float
    expires_in_s: float
    state: str
    is_well: bool


@dataclass(frozen=True)
class View:
    """The figures of a broker; rates are per second, and None until there are two samples."""

    name: str
    address: str
    flush: str
    up_s: float
    traffic: TopicRates
    log_bytes_per_s: float | None
    syncs_per_s: float | None
    sync_s: float | None  # mean since the last sample, as is the wait
    wait_s: float | None
    waiting_answers: int
    longest_waiting_s: float
    disk_free_bytes: int
    log_bytes: int
    connections: int
    producers: int
    parked_pulls: int
    leases: int
    lease_states: dict[str, int]
    delays_waiting: int
    next_delay_s: float | None
    sent_back: int
    dead_letters: int
    cpu: float | None  # 1.0: one processor is busy
    memory_bytes: int | None
    groups: list[GroupLine]
    topics: list[TopicLine]
    lease_lines: list[LeaseLine]
    troubles: list[str]


def view_of(before: Sample | None, after: Sample) -> View:
    """Return what to show after a sample and, if there is one, the sample before it."""
    span = Span(before, after)
    broker, number = after.stats["broker"], after.number
    locks = after.locks or []
    return View(
        name=str(broker["name"]),
        address=str(broker["address"]),
        flush=str(broker["flush"]),
        up_s=broker["up_s"],
        traffic=TopicRates(*(span.rate("traffic", name) for name in TopicRates._fields)),
        log_bytes_per_s=_log_rate(span),
        syncs_per_s=span.rate("flush", "syncs"),
        sync_s=span.mean("flush", "total_sync_s", "syncs"),
        wait_s=span.mean("commit", "total_wait_s", "waited_turns"),
        waiting_answers=int(number("commit", "waiting_answers")),
        longest_waiting_s=number("commit", "longest_waiting_s"),
        disk_free_bytes=int(number("broker", "free_disk_bytes")),
        log_bytes=int(number("log", "log_bytes")),
        connections=int(number("serving", "connections")),
        producers=int(number("serving", "producers")),
        parked_pulls=int(number("serving", "parked_pulls")),
        leases=int(number("serving", "leases")),
        lease_states=_states(after.locks),
        delays_waiting=int(number("delays", "waiting_messages")),
        next_delay_s=_next_delay(after),
        sent_back=int(number("serving", "sent_back")),
        dead_letters=int(number("serving", "dead_letters")),
        cpu=span.rate("broker", "cpu_s"),
        memory_bytes=broker.get("memory_bytes"),
        groups=_groups(span),
        topics=_topics(span),
        lease_lines=_leases(locks),
        troubles=_troubles(after),
    )


def view_object(view: View) -> dict[str, Any]:
    """Return the view as JSON, with all lines."""
    topics = [{"topic": line.topic, **_flow_object(line.flow)} for line in view.topics]
    leases = [{**asdict(line), "epoch": epoch_text(line.epoch)} for line in view.lease_lines]
    return {**asdict(view), "traffic": _flow_object(view.traffic), "topics": topics, "lease_lines": leases}


def _flow_object(flow: TopicRates) -> dict[str, float | None]:
    return {f"{name}_per_s": value for name, value in flow._asdict().items()}


def _log_rate(span: Span) -> float | None:
    """Return the growth of the log, whose position survives a restart; one truncated or replaced has no rate."""
    if span.before is None or span.is_restart:
        return None
    return span.rate("log", "log_written")


def _next_delay(sample: Sample) -> float | None:
    due_at = sample.number("delays", "next_due_at")
    return max((due_at - sample.number("broker", "time_us")) / 1_000_000, 0.0) if due_at else None


def _groups(span: Span) -> list[GroupLine]:
    lines = [_group(row, span) for row in span.after.groups]
    return sorted(lines, key=lambda line: (-(line.lag or 0), -(line.behind_s or 0.0), line.group))


def _group(row: GroupRow, span: Span) -> GroupLine:
    mode = None if row.ordered is None else "orderly" if row.ordered else "concurrent"
    is_broadcasting = row.model == "broadcasting"
    return GroupLine(
        group=row.group,
        mode="broadcasting" if is_broadcasting else mode,
        members=row.members,
        leases=row.leases,
        lag=None if is_broadcasting else row.lag,
        is_lag_partial=row.more_queues > 0,
        behind_s=0.0 if not row.lag and not is_broadcasting else span.after.behind_s.get(row.group),
        lag_per_s=None if is_broadcasting else span.trend(row.group, row.lag),
    )


def _topics(span: Span) -> list[TopicLine]:
    lines = [TopicLine(topic, span.topic(topic)) for topic in span.after.stats.get("topics", {})]
    return sorted(lines, key=lambda line: (-_busy(line.flow), line.topic))


def _busy(flow: TopicRates) -> float:
    return (flow.messages_in or 0.0) + (flow.messages_out or 0.0)


def _leases(rows: list[LockRow]) -> list[LeaseLine]:
    """Return leases with a trouble first, by how soon they expire; the order of the others is stable."""
    lines = [
        LeaseLine(
            row.group, row.topic, row.queue_id, row.owner, row.epoch, row.renewed_ago_s, row.expires_in_s, row.state,
            is_well=row.state == "held" and row.renewed_ago_s <= LATE_S,
        )
        for row in rows
    ]  # fmt: skip
    return sorted(
        lines,
        key=lambda line: (
            line.is_well,
            0.0 if line.is_well else line.expires_in_s,
            line.group,
            line.topic,
            line.queue_id,
        ),
    )


def _states(rows: list[LockRow] | None) -> dict[str, int]:
    """Count leases by state, if they were listed; one that retries in its grace counts for both."""
    if rows is None:
        return {}
    counts = {"held": 0, "grace": 0, "late": 0, "retrying": 0, "careful": 0}
    for row in rows:
        counts["grace" if row.state.startswith("grace") else "held"] += 1
        counts["late"] += row.renewed_ago_s > LATE_S
        counts["retrying"] += "retrying" in row.state
        counts["careful"] += "careful" in row.state
    return counts


def _troubles(sample: Sample) -> list[str]:
    """Return what an operator should look after, in words."""
    number, found = sample.number, []
    if refusal := sample.stats["broker"].get("refuses_sends"):
        found.append(f"sends are refused: {refusal}")
    counted = {
        "{} damaged places in the log: rmq-admin broker verify-store, then restore": number("broker", "damaged_places"),
        "{} writes to the log failed since the broker started": number("commit", "failed_writes"),
        "{} replies were damaged on disk": number("serving", "damaged_reads"),
        "upkeep failed {} times: see the log of the broker": number("upkeep", "failures"),
        "delayed messages could not be delivered {} times": number("delays", "failures"),
        "{} pulls were woken late: please report this": number("serving", "rescued_pulls"),
    }
    found += [text.format(int(count)) for text, count in counted.items() if count]
    if sample.locks is None:
        found.append(f"more than {MOST_LEASES} leases: `rmq-admin lock-status --group GROUP` lists those of a group")
    return found


UNKNOWN: Final = "-"
_STEPS: Final = ("", "k", "M", "G", "T", "P", "E")


def count(value: float | None) -> str:
    """Return a number of things, in at most 7 characters: ``12,345``, ``123k``, ``4.56M``."""
    if value is None:
        return UNKNOWN
    return f"{round(value):,}" if abs(value) < 99_999.5 else _short(value)


def rate(value: float | None) -> str:
    """Return a rate: ``0.3/s``, ``12,345/s``."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 9.95:
        return f"{value:.1f}/s"
    return f"{count(value)}/s"


def trend(value: float | None) -> str:
    """Return a rate with its sign."""
    if value is None:
        return UNKNOWN
    return f"+{rate(value)}" if value > 0 else rate(value)


def size(value: float | None) -> str:
    """Return a size: ``512 B``, ``1.2 MB``, ``120 GB``."""
    if value is None:
        return UNKNOWN
    if abs(value) < 999.5:
        return f"{value:.0f} B"
    short = _short(value)
    return f"{short[:-1]} {short[-1]}B"


def size_rate(value: float | None) -> str:
    """Return bytes per second."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def short_time(value: float | None) -> str:
    """Return a latency: ``0.21 ms``, ``12.3 ms``, ``1.25 s``."""
    if value is None:
        return UNKNOWN
    if value < 0.01:
        return f"{value * 1000:.2f} ms"
    return f"{value * 1000:.1f} ms" if value < 0.9995 else f"{value:.2f} s"


def long_time(value: float | None) -> str:
    """Return an age or a time to go: ``12.3s``, ``3h05m``, ``12d07h``."""
    if value is None:
        return UNKNOWN
    if value < 48 * 3600:
        return seconds(value)
    days, hours = divmod(round(value / 3600), 24)
    return f"{days}d{hours:02}h"


def percent(value: float | None) -> str:
    """Return a share: ``45%``."""
    return UNKNOWN if value is None else f"{value:.0%}"


def _short(value: float) -> str:
    """Return three digits and a letter."""
    power = 0
    while abs(value) >= 999.5 and power < len(_STEPS) - 1:
        value /= 1000
        power += 1
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{_STEPS[power]}"
