"""
Which delayed messages of a store still wait. Pure.

RocketMQ keeps a delayed message in a queue of its level, and appends a copy to the real topic when its time comes. How
far each level is, is written down every 10 s: behind a crash it is too low. So a message waits if it lies at or behind
that offset *and* no copy of it lies behind it in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from rmq.wire.rocketmq.record import Record

from .naming import SCHEDULE

# What RocketMQ is set to unless told otherwise, in ms; only needed where a consume queue does not tell the time.
LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
_UNKNOWN_LEVEL_MS: Final = 1000
_SAME: Final = ("DELAY", "UNIQ_KEY", "KEYS", "TAGS", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC")


class Waiting(NamedTuple):
    """A message that waits: where its record lies, when it is due (ms), and where it goes then."""

    due_ms: int
    physical_offset: int
    topic: str
    queue_id: int
    is_passed: bool = False  # its level is said to be behind it


def target_of(record: Record) -> tuple[str, int] | None:
    """The real topic and queue of a record of the schedule topic; None if it does not tell them."""
    topic, queue_id = record.properties.get("REAL_TOPIC"), record.properties.get("REAL_QID", "")
    if not topic or not (queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 10):
        return None
    return topic, int(queue_id)


def due_by_level(record: Record) -> int:
    """When a delayed message is due by the levels of RocketMQ's own setting, in ms."""
    level = record.queue_id + 1
    return record.stored_at + (LEVELS_MS[level - 1] if level <= len(LEVELS_MS) else _UNKNOWN_LEVEL_MS)


class DelayedMessages:
    """Given every record in the order of the log, knows in the end what waits; ``offsets`` are those written down."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self._offsets = offsets
        self._open: dict[tuple[object, ...], deque[Waiting]] = {}
        self.delivered = 0  # copies that were found behind their originals

    def delay(self, record: Record, target: tuple[str, int], due_ms: int) -> None:
        """A record of the schedule topic."""
        passed = record.queue_offset < self._offsets.get(record.queue_id + 1, 0)
        waiting = Waiting(due_ms, record.physical_offset, *target, passed)
        self._open.setdefault(_fingerprint(record, target), deque()).append(waiting)

    def deliver(self, record: Record) -> None:
        """A record of any other topic: perhaps the copy of one that waits. Of equal ones the first is meant."""
        target = target_of(record) if "DELAY" in record.properties else None
        if record.topic == SCHEDULE or target != (record.topic, record.queue_id):
            return
        same = self._open.get(key := _fingerprint(record, target))
        if same:
            same.popleft()
            self.delivered += 1
            if not same:
                del self._open[key]

    def waiting(self) -> list[Waiting]:
        """What waits, in the order it becomes due."""
        return sorted(each for same in self._open.values() for each in same if not each.is_passed)

    @property
    def missing(self) -> int:
        """How many are said to be delivered, and no copy is in the log."""
        return sum(each.is_passed for same in self._open.values() for each in same)


def _fingerprint(record: Record, target: tuple[str, int]) -> tuple[object, ...]:
    """What a copy shares with its original."""
    return (
        *target, record.sysflag, record.flag, record.born_at, record.born_host, record.reconsume_times,
        len(record.body), hash(record.body), *(record.properties.get(name) for name in _SAME),
    )  # fmt: skip
