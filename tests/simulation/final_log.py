"""
What the log may hold at the end, whichever group consumed it: pure.

- Every acknowledged message lies in its topic once, at the place its producer learned, and in the order it was sent.
- What waits for its time is stored when that has come, not before, and at most 100 ms later, or as much later than the
  broker came back; once.
- What a group gave back lies in its retry topic once for each number of deliveries, below the limit; what it gave up
  lies in its dead-letter topic once. Both name the place of their original.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from simulation.groups import Group, Levels
from simulation.history import BrokerDown, BrokerUp, Event, OffsetReset, Row, Sent

TINY_S = 1e-5  # clocks of the log count microseconds


class Log:
    """The rows of the log, found by place and by body."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self.at = {(row.queue, row.offset): row for row in self.rows}
        self._of_topic: defaultdict[str, defaultdict[bytes, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            self._of_topic[row.queue.topic][row.body].append(row)

    def of(self, topic: str, body: bytes) -> list[Row]:
        """Where a topic has a message."""
        return self._of_topic[topic].get(body, []) if topic in self._of_topic else []

    def topic(self, topic: str) -> list[Row]:
        """All of a topic."""
        return [row for row in self.rows if row.queue.topic == topic]

    def copied(self, group: Group, row: Row) -> bool:
        """Whether a group gave this row back, or up."""
        later = any(copy.attempts > row.attempts for copy in self.of(group.retries, row.body))
        return later or bool(self.of(group.dead, row.body))


class Downtimes:
    """When the broker was away."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._spans: list[tuple[float, float]] = []
        down: float | None = None
        for event in events:
            if isinstance(event, BrokerDown):
                down = event.at
            elif isinstance(event, BrokerUp) and down is not None:
                self._spans.append((down, event.at))
                down = None

    def touch(self, since: float, until: float) -> bool:
        """Whether it was away at some time of a span."""
        return any(down <= until and up >= since for down, up in self._spans)

    def back(self, since: float, until: float) -> float:
        """When it came back last in a span, at the latest; the begin of it if it was never away."""
        return max([min(up, until) for down, up in self._spans if since <= up and down <= until], default=since)


def judge_log(events: list[Event], log: Log, groups: Sequence[Group], levels: Levels, topic: str) -> list[str]:
    """What is wrong with the log."""
    accepted = [event for event in events if isinstance(event, Sent)]
    # After a reset a message may be given up again, so that it is a dead letter twice.
    reset = {event.group for event in events if isinstance(event, OffsetReset)}
    again = {group.dead for group in groups if group.name in reset}
    bad = _once(log, topic, accepted, again)
    bad += _order(accepted)
    downtimes = Downtimes(events)
    for sent in accepted:
        if sent.delay_s or sent.due is not None:
            bad += [
                f"{row.at:.3f} s: {text}"
                for row in log.of(topic, sent.body)
                for text in _time(sent, row, downtimes, levels.late_s)
            ]
    for group in groups:
        bad += _copies(log, group, levels, topic, again)
    return bad


def _once(log: Log, topic: str, accepted: list[Sent], again: set[str]) -> list[str]:
    bad = []
    for sent in accepted:
        rows = log.of(topic, sent.body)
        if len(rows) != 1:
            bad.append(f"{sent.at:.3f} s: {sent.body!r:.40} was acknowledged, and is in the log {len(rows)} times")
        elif sent.offset >= 0 and (rows[0].queue, rows[0].offset) != (sent.queue, sent.offset):
            bad.append(f"{sent.at:.3f} s: {sent.body!r:.40} was stored at {sent.offset}, and is at {rows[0].offset}")
    counts = Counter(row.body for row in log.topic(topic))
    bad += [f"the end: {body!r:.40} is in the log {count} times" for body, count in counts.items() if count > 1]
    copies = [row for row in log.rows if row.origin is not None and row.queue.topic not in again]
    origins = Counter((row.queue.topic, row.origin) for row in copies)
    return bad + [
        f"the end: {origin} has {count} copies in {to}" for (to, origin), count in origins.items() if count > 1
    ]


def _order(accepted: list[Sent]) -> list[str]:
    bad = []
    last: dict[tuple[str, object], tuple[int, int]] = {}
    for sent in accepted:
        if sent.offset < 0:
            continue
        number, offset = last.get((sent.producer, sent.queue), (-1, -1))
        if (sent.number > number) != (sent.offset > offset):
            bad.append(f"{sent.at:.3f} s: {sent.producer} sent {sent.number} after {number}, it is at {sent.offset}")
        last[sent.producer, sent.queue] = max((sent.number, sent.offset), (number, offset))
    return bad


def _time(sent: Sent, row: Row, downtimes: Downtimes, late_s: float) -> list[str]:
    if row.at < sent.earliest - TINY_S:
        return [f"{sent.body!r:.40} was due at {sent.earliest:.3f} s: it is early"]
    limit = max(sent.latest, downtimes.back(sent.sent_at, row.at + TINY_S)) + late_s + TINY_S
    return [f"{sent.body!r:.40} was due at {sent.latest:.3f} s: it is late"] if row.at > limit else []


def _copies(log: Log, group: Group, levels: Levels, topic: str, again: set[str]) -> list[str]:
    bad = []
    if not group.shared:
        bad += [f"the end: {name} exists" for name in (group.retries, group.dead) if log.topic(name)]
    places = {row.body: f"{row.queue.topic}/{row.queue.queue_id}/{row.offset}" for row in log.topic(topic)}
    for name in (group.retries, group.dead):
        for row in log.topic(name):
            if row.first != places.get(row.body):
                bad.append(f"{row.at:.3f} s: a copy in {name} comes from {row.first}, not {places.get(row.body)}")
    again = Counter((row.body, row.attempts) for row in log.topic(group.retries))
    for (body, attempts), count in again.items():
        if count > 1:
            bad.append(f"the end: {body!r:.40} was given back {count} times after delivery {attempts} to {group.name}")
        if attempts >= levels.limit(group):
            bad.append(f"the end: {body!r:.40} was given back after delivery {attempts}, the last, to {group.name}")
    dead = Counter(row.body for row in log.topic(group.dead) if group.dead not in again)
    return bad + [
        f"the end: {body!r:.40} is {count} dead letters of {group.name}" for body, count in dead.items() if count > 1
    ]
