"""
How much a consumer does, and how long that takes: totals, and rates over the last minute. Pure, time is an argument.

What happens is counted by whoever does it and added in portions, so that nothing of this is paid for each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .results import ResultType

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
        """Put the bucket that is full behind the others, and empty ones for the time nothing was added."""
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
