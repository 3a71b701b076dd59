"""
What a consumer does at this moment, and how much it has done. Pure, time is an argument.

``running_info`` is one map for people, read in one stretch so that it fits together. It is bounded, so that a consumer
with thousands of queues answers, too: queues that require action come first, the number of the others is included.
``Statistics`` has totals, and rates over the last minute; they are counted where work happens and added in portions, so
that a message costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rmq.wire.model import MessageQueue

from .config import ConsumerConfig
from .group.assignment import Assignment
from .listener import ResultType

MAX_QUEUES: Final = 128  # that are listed one by one
MAX_WAITS: Final = 32  # that it was refused
MAX_TOPICS: Final = 64  # whose statistics are listed
MAX_TEXT: Final = 160  # characters of a text that may have any length
MAX_BYTES: Final = 256  # of them


class Program(NamedTuple):
    """What is reported besides the queues."""

    version: str
    member: str
    group: str
    up_s: float
    loop_lag_s: float
    turns: int
    waits_for: Mapping[MessageQueue, str] = MappingProxyType({})  # queues that it was refused, and why
    polled_ago_s: float | None = None  # since when its user has not polled; None: a listener is called


def running_info(
    program: Program,
    config: ConsumerConfig,
    assignments: Iterable[Assignment],
    statistics: Mapping[str, TopicStatistics],
    *,
    now: float,
) -> dict[str, Any]:
    """The map: the program, its settings that are not the default, its statistics, and its queues."""
    owned = sorted(assignments, key=lambda assignment: (*_rank(assignment), assignment.queue))
    shown = sorted(owned[:MAX_QUEUES], key=lambda assignment: assignment.queue)
    return {
        **program._asdict(),
        "up_s": round(program.up_s, 3),
        "loop_lag_s": round(program.loop_lag_s, 3),
        "waits_for": [[*queue, _short(program.waits_for[queue])] for queue in sorted(program.waits_for)[:MAX_WAITS]],
        "polled_ago_s": None if program.polled_ago_s is None else round(program.polled_ago_s, 3),
        "slots": config.slots,
        "settings": changed_settings(config),
        "cached_messages": sum(assignment.cache.messages for assignment in owned),
        "cached_bytes": sum(assignment.cache.size for assignment in owned),
        "statistics": {name: _topic(topic) for name, topic in list(statistics.items())[:MAX_TOPICS]},
        "queues": [queue_info(assignment, now) for assignment in shown],
        "more_queues": len(owned) - len(shown),
    }


def changed_settings(config: ConsumerConfig) -> dict[str, Any]:
    """The settings with another value than the default; the group is reported anyway."""
    values = {item.name: getattr(config, item.name) for item in fields(config) if item.name != "group"}
    defaults = {item.name: item.default for item in fields(config)}
    return {name: _short(value) for name, value in values.items() if value != defaults[name]}


def queue_info(assignment: Assignment, now: float) -> dict[str, Any]:
    """
    A queue, its lease and its cache; times are seconds from ``now``, None where nothing applies.

    ``head_offset`` is the first message that is not done and ``attempt`` the number of its delivery, under way or next;
    ``stopped`` is why nothing goes on until an operator acts, in words, as a code, and for the offsets from
    ``stopped_from`` to ``stopped_to``; a tag expression ``selected`` so many messages and ``left_out`` others, both 0
    without one; ``last_error`` is what the listener failed with at ``failed_offset``, which it
    may have got over since; ``abandoned`` owners before us were lost with this queue,
    so that it goes message by message until ``careful_until``; ``dropped``: it is being handed over.
    """
    cache = assignment.cache
    head_offset, attempt = cache.head
    return {
        "topic": assignment.queue.topic,
        "queue_id": assignment.queue.queue_id,
        "epoch": assignment.epoch,
        "head_offset": head_offset,
        "attempt": attempt,
        "retry_in_s": None if assignment.retry_at is None else round(max(assignment.retry_at - now, 0.0), 3),
        "called_for_s": _ago(assignment.called_at, now),
        "in_flight": len(cache.in_flight),
        "cached_messages": cache.messages,
        "cached_bytes": cache.size,
        "end_offset": cache.end_offset,
        "commit_offset": cache.commit_offset,
        "reported_offset": assignment.reported,
        "lock_age_s": _ago(assignment.lease.lock_sent_at, now),
        "pulled_ago_s": _ago(assignment.pulled_at, now),
        "flow_control": None if assignment.flow_control is None else _short(assignment.flow_control),
        "paused": assignment.paused,
        "stopped": stopped_because(assignment),
        **_stopped_at(assignment),
        "selected": assignment.selection.came,
        "left_out": assignment.selection.left_out,
        "last_error": None if assignment.last_failure is None else _short(assignment.last_failure[1]),
        "failed_offset": None if assignment.last_failure is None else assignment.last_failure[0],
        "abandoned": 0 if assignment.suspicion is None else assignment.suspicion.abandoned,
        "careful_until": None if assignment.suspicion is None else assignment.suspicion.careful_until,
        "dropped": assignment.dropped,
        "lost": assignment.lost.is_set(),
        "tries_to_unlock": assignment.tries_to_unlock,
    }


def stopped_because(assignment: Assignment) -> str | None:
    """Why a queue waits for an operator, if it does."""
    reason = assignment.crash_loop
    if reason is None and assignment.stopped is not None:
        reason = str(assignment.stopped.gap)
    return None if reason is None else _short(reason)


def _stopped_at(assignment: Assignment) -> dict[str, Any]:
    """Why and where a queue waits for an operator, for programs."""
    code, first, last = None, None, None
    if assignment.crash_loop is not None:
        code = "CRASH_LOOP"
        first = last = None if assignment.suspicion is None else assignment.suspicion.suspect_offset
    elif assignment.stopped is not None:
        gap = assignment.stopped.gap
        code, first, last = gap.reason, gap.from_offset, gap.end_offset - 1
    return {"stopped_code": code, "stopped_from": first, "stopped_to": last}


def _rank(assignment: Assignment) -> tuple[int, float]:
    """Which are listed if there is no room for all: first the stopped, then those that wait, hang, or have messages."""
    if stopped_because(assignment) is not None:
        return 0, 0.0
    if assignment.retry_at is not None or assignment.tries_to_unlock or assignment.paused:
        return 1, 0.0
    if assignment.called_at is not None:
        return 2, assignment.called_at
    return 3 if assignment.cache.messages else 4, 0.0


def _topic(statistics: TopicStatistics) -> dict[str, Any]:
    rates = {name: asdict(getattr(statistics, name)) for name in ("consumed_ok", "consumed_failed", "pulled")}
    return {**rates, "results": {kind.value: count for kind, count in statistics.results.items()}}


def _ago(moment: float | None, now: float) -> float | None:
    return None if moment is None or not math.isfinite(moment) else round(max(now - moment, 0.0), 3)


def _short(value: Any) -> Any:
    """A text that fits, and can be sent: what a listener raises may hold half of a character."""
    if not isinstance(value, str):
        return value
    encoded = value[:MAX_TEXT].encode(errors="backslashreplace")
    if len(value) <= MAX_TEXT and len(encoded) <= MAX_BYTES:
        return encoded.decode()
    return encoded[:MAX_BYTES].decode(errors="ignore")[: MAX_TEXT - 1] + "…"


BUCKET_S = 10.0
BUCKETS = 6  # whole ones; together with the one that is being filled they span 60 to 70 s


@dataclass(frozen=True, slots=True)
class Rate:
    """Something countable that takes time: since the start, and over about the last minute."""

    total: int  # items since the start
    calls: int  # calls since the start; a call may have handled several items, or none
    per_s: float  # items each second, over the last minute
    mean_s: float  # the mean duration of a call of the last minute; 0 if there was none


class Meter:
    """Counts items, calls and the time they took in buckets of 10 s; a minute is kept, and the totals."""

    __slots__ = ("_began", "_bucket", "_calls", "_items", "_ring", "_seconds", "calls", "total")

    def __init__(self) -> None:
        self.total = 0
        self.calls = 0
        self._began: float | None = None  # when the first was added: a rate is not diluted by time before it
        self._bucket = 0  # the number of the bucket that is being filled
        self._items = self._calls = 0
        self._seconds = 0.0
        self._ring: list[tuple[int, int, float]] = []  # whole buckets, the oldest first

    def add(self, now: float, items: int, calls: int = 1, seconds: float = 0.0) -> None:
        """Count ``items``, handled in ``calls`` calls that took ``seconds`` together and ended by ``now``."""
        if self._began is None:
            self._began = now - seconds
            self._bucket = int(now // BUCKET_S)
        elif now >= (self._bucket + 1) * BUCKET_S:
            self._turn(now)
        self.total += items
        self.calls += calls
        self._items += items
        self._calls += calls
        self._seconds += seconds

    def rate(self, now: float) -> Rate:
        """What was added, as of ``now``."""
        if self._began is None:
            return Rate(0, 0, 0.0, 0.0)
        if now >= (self._bucket + 1) * BUCKET_S:
            self._turn(now)
        items = self._items + sum(bucket[0] for bucket in self._ring)
        calls = self._calls + sum(bucket[1] for bucket in self._ring)
        seconds = self._seconds + sum(bucket[2] for bucket in self._ring)
        since = max(self._began, (self._bucket - len(self._ring)) * BUCKET_S)
        span = max(now - since, 1.0)  # a rate over a moment says nothing
        return Rate(self.total, self.calls, items / span, seconds / calls if calls else 0.0)

    def _turn(self, now: float) -> None:
        """Put the bucket that is full after the others, and empty ones for the time nothing was added."""
        passed = int(now // BUCKET_S) - self._bucket
        self._ring.append((self._items, self._calls, self._seconds))
        self._ring += [(0, 0, 0.0)] * min(passed - 1, BUCKETS)
        del self._ring[:-BUCKETS]
        self._bucket += passed
        self._items = self._calls = 0
        self._seconds = 0.0


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """What was done with one topic; each :class:`Rate` of messages has the time of the calls it is about."""

    consumed_ok: Rate  # messages the listener finished; ``mean_s`` is the response time of those calls
    consumed_failed: Rate  # messages it was given in vain
    pulled: Rate  # messages that came; ``mean_s`` is the response time of the pulls that found any
    results: Mapping[ResultType, int] = field(default_factory=dict)  # calls of the listener by how they ended


class TopicMeter:
    """The meters of one topic."""

    __slots__ = ("failed", "ok", "pulled", "results")

    def __init__(self) -> None:
        self.ok = Meter()
        self.failed = Meter()
        self.pulled = Meter()
        self.results: dict[ResultType, int] = dict.fromkeys(ResultType, 0)

    def succeeded(self, now: float, messages: int, calls: int, seconds: float, timed_out: bool = False) -> None:
        """The listener finished ``messages`` messages in ``calls`` calls, the last of which may have taken too long."""
        if not calls:
            return
        self.ok.add(now, messages, calls, seconds)
        self.results[ResultType.SUCCESS] += calls - timed_out
        self.results[ResultType.TIME_OUT] += timed_out

    def gave_in_vain(self, now: float, messages: int, seconds: float, result: ResultType) -> None:
        """A call was given ``messages`` messages in vain."""
        self.failed.add(now, messages, 1, seconds)
        self.results[result] += 1

    def read(self, now: float) -> TopicStatistics:
        """What was counted, as of ``now``."""
        return TopicStatistics(self.ok.rate(now), self.failed.rate(now), self.pulled.rate(now), dict(self.results))


class Statistics:
    """The meters of a consumer, one set for each topic, named ``topic@group``."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._topics: dict[str, TopicMeter] = {}

    def of(self, topic: str) -> TopicMeter:
        """The meters of a topic, made when it is first asked for."""
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = TopicMeter()
        return meter

    def read(self, now: float) -> dict[str, TopicStatistics]:
        """Everything that was counted, by ``topic@group``, as of ``now``."""
        return {f"{topic}@{self._group}": meter.read(now) for topic, meter in sorted(self._topics.items())}
