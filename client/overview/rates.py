"""
Rates between two samples of a broker, from totals that it counts since its start. Pure.

A restarted broker counts from 0: then the totals themselves are the growth, over its uptime. The same is true for a
topic that was deleted and created again.
"""

from __future__ import annotations

from typing import NamedTuple

from .sample import MOST_TOPICS, Sample


class TopicRates(NamedTuple):
    """Messages and bytes per second; None if unknown so far."""

    messages_in: float | None = None
    bytes_in: float | None = None
    messages_out: float | None = None
    bytes_out: float | None = None


class Span:
    """The growth between two samples; unknown without a first one."""

    def __init__(self, before: Sample | None, after: Sample) -> None:
        self.before = before
        self.after = after
        self.is_restart = before is not None and _life(before) != _life(after)
        self._lags = {row.group: row.lag for row in before.groups} if before is not None else {}

    @property
    def elapsed_s(self) -> float:
        """The seconds of growth; 0 if unknown."""
        if self.before is None:
            return 0.0
        elapsed_s = self.after.at - self.before.at
        return min(elapsed_s, self.after.number("broker", "up_s")) if self.is_restart else elapsed_s

    def growth(self, part: str, name: str) -> float | None:
        """Return the growth of a total."""
        if self.before is None:
            return None
        return grown(0 if self.is_restart else self.before.number(part, name), self.after.number(part, name))

    def rate(self, part: str, name: str) -> float | None:
        """Return the growth of a total per second."""
        return per(self.growth(part, name), self.elapsed_s)

    def mean(self, part: str, total: str, count: str) -> float | None:
        """Return the mean growth of a total per counted event; None without an event."""
        return per(self.growth(part, total), self.growth(part, count) or 0)

    def topic(self, topic: str) -> TopicRates:
        """Return the rates of a topic."""
        now = self.after.stats.get("topics", {})[topic]
        if self.before is None:
            return TopicRates()
        known = {} if self.is_restart else self.before.stats.get("topics", {})
        if topic not in known and len(known) >= MOST_TOPICS:
            return TopicRates()  # it may have existed without being reported
        was = known.get(topic, {})
        return TopicRates(*(per(grown(was.get(name, 0), now[name]), self.elapsed_s) for name in TopicRates._fields))

    def trend(self, group: str, lag: int) -> float | None:
        """Return the growth of a lag in messages per second; negative while the group catches up."""
        if self.before is None or group not in self._lags:
            return None
        return per(lag - self._lags[group], self.after.at - self.before.at)


def grown(before: float, after: float) -> float:
    """Return the growth of a total; one that fell was reset to 0."""
    return after - before if after >= before else after


def per(amount: float | None, each: float) -> float | None:
    """Return a quotient, or None without a divisor."""
    return None if amount is None or each <= 0 else amount / each


def _life(sample: Sample) -> tuple[object, object]:
    log = sample.stats.get("log", {})
    return log.get("store_id"), log.get("log_epoch")
