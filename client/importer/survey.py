"""
Classifies each record of a store: a message of a queue, a deferred one, or one that is not taken over, and why.

The consume queue decides whether a record is the message at its offset. A record that it names is. A record that it
passed over, because a later one has the offset and is there, is not. A record after its end would have been indexed at
the next start after a crash. Any other disagreement is reported as damage. Every pass over a store gives the same
result.

RocketMQ keeps a delayed message in a queue of its level, and appends a copy to the real topic when it is due. It saves
the progress of each level every 10 s, so after a crash that is too low. So a message is still deferred if it lies at or
after that offset *and* no copy of it follows in the log.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Final, NamedTuple

from rmq.wire.batch.layout import MAX_BODY
from rmq.wire.rocketmq.record import PREPARED, BadRecord, Record

from .config_files import Config, TopicConfig
from .config_files import read as read_config
from .log_walk import End, LogDamage, LogWalk, LostMessage
from .messages import SCHEDULE, BodyTooLarge, content, is_system_topic
from .queue_index import Named, QueueEntry, QueueIndex
from .store_files import RocketMQLog, StoreInUse, StoreMissing, holder, is_folder

QUEUED: Final = "queued"
DELAYED: Final = "delayed"
DELETED: Final = "deleted topic "  # and its name: a kind that is left out
INHERIT: Final = 1


class SurveyedRecord(NamedTuple):
    """A record and what it is: ``QUEUED``, ``DELAYED``, or the kind under which it is left out."""

    kind: str
    record: Record
    body: bytes = b""
    target: tuple[str, int] = ("", 0)
    due_ms: int = 0


class RocketMQStore:
    """A store that is not in use, opened for reading."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not is_folder(root):
            raise StoreMissing(f"{root} is not a folder: give the root folder of a store, the one with commitlog/")
        process = holder(root)
        if process:
            where = f"process {process}" if process > 0 else "in a container or on another machine"
            raise StoreInUse(f"the broker of {root} is running ({where}): stop it first, or import a copy")
        self.lock_is_known = process is not None
        self.is_clean = not (root / "abort").exists()
        self.log = RocketMQLog(root / "commitlog")
        self.index = QueueIndex(root / "consumequeue")
        self.config: Config = read_config(root / "config")

    def walk(self) -> LogWalk:
        """A walk over the log, from its beginning."""
        return LogWalk(copy(self.log), self.index, clean=self.is_clean)

    @property
    def clusters(self) -> set[str]:
        """Topics that stand for a cluster or a broker: others inherit their settings."""
        return {name for name, config in (self.config.topics or {}).items() if config.perm & INHERIT}


class Survey:
    """One pass over a store; ``wanted`` are the only topics to take over, or None for all."""

    def __init__(self, store: RocketMQStore, wanted: Collection[str] | None = None) -> None:
        self._index = store.index
        self._topics: Mapping[str, TopicConfig] | None = store.config.topics
        self._clusters = store.clusters
        self._wanted = wanted
        self._is_clean = store.is_clean
        self.walk = store.walk()
        self._later = store.walk()  # looks ahead without losing what the other has read
        self._named = Named(store.index)
        self._last: dict[tuple[str, int], int] = {}
        self.found: Counter[tuple[str, int]] = Counter()  # records that their consume queue names, by queue
        self.not_indexed = 0
        self.times_by_level = 0  # deferred messages whose time is in no consume queue

    def __iter__(self) -> Iterator[SurveyedRecord | LogDamage | End]:
        for found in self.walk:
            yield self._item(found) if isinstance(found, Record) else found

    def _item(self, record: Record) -> SurveyedRecord | LogDamage:
        queue = record.topic, record.queue_id
        found = self.found[queue]
        try:
            return self._sort(record)
        except (BadRecord, BodyTooLarge) as error:
            self.found[queue] = found  # it is reported as lost instead
            file = self.walk.file_of(record.physical_offset)
            lost = LostMessage(record.topic, record.queue_id, record.queue_offset)
            at = record.physical_offset
            return LogDamage(file.path.name, at - file.start, at, f"the record {error}", (lost,))

    def _sort(self, record: Record) -> SurveyedRecord:
        if not record.has_place:
            return SurveyedRecord("prepared" if record.transaction == PREPARED else "rolled back", record)
        entry = self._place(record)
        if entry is not None and entry.physical_offset != record.physical_offset:
            return SurveyedRecord("superseded", record)
        item = self._delayed(record, entry) if record.topic == SCHEDULE else self._queued(record)
        self.not_indexed += entry is None and item.kind in (QUEUED, DELAYED)
        return item

    def _queued(self, record: Record) -> SurveyedRecord:
        kind = self._left_out(record.topic)
        if kind:
            return SurveyedRecord(kind, record)
        return SurveyedRecord(QUEUED, record, content(record, MAX_BODY), (record.topic, record.queue_id))

    def _delayed(self, record: Record, entry: QueueEntry | None) -> SurveyedRecord:
        target = target_of(record)
        if target is None:
            raise BadRecord("waits for its time and does not tell its real topic and queue")
        kind = self._left_out(target[0])
        if kind:
            return SurveyedRecord(f"delayed, {kind}", record)
        due_ms = entry.tags_code if entry is not None else 0
        if due_ms <= 0:
            self.times_by_level += 1
            due_ms = due_by_level(record)
        return SurveyedRecord(DELAYED, record, content(record, MAX_BODY), target, due_ms)

    def _left_out(self, topic: str) -> str:
        """Why a topic is not taken over; empty if it is."""
        if is_system_topic(topic, self._clusters):
            return f"system topic {topic}"
        if self._wanted is not None:
            return "" if topic in self._wanted else "other topics"
        if self._topics is not None and topic not in self._topics:
            return DELETED + topic
        return ""

    def _place(self, record: Record) -> QueueEntry | None:
        """
        The entry of the consume queue at a record's place; None if the record was not indexed yet.

        Raises:
            BadRecord: log and consume queue contradict each other.
        """
        queue, offset = (record.topic, record.queue_id), record.queue_offset
        entries = self._index.queue(*queue)
        newest = entries.entry(entries.end - 1) if entries is not None else None
        if entries is not None and newest is not None and record.physical_offset <= newest.physical_offset:
            if offset < entries.first:
                raise BadRecord(f"has the queue offset {offset}, and its consume queue begins at {entries.first}")
            entry = entries.entry(offset) or newest
            if entry.physical_offset > record.physical_offset:
                self._check_later(entry, (*queue, min(offset, entries.end - 1)))
                return entry  # the topic was deleted and made anew, or the log was cut and written again
            if entry[:2] != (record.physical_offset, record.size):
                raise BadRecord(f"is not the one its consume queue names: that lies at {entry.physical_offset}")
            if record.topic != SCHEDULE and not entry.is_tagged(record.properties.get("TAGS", "")):
                raise BadRecord("has another tag than its consume queue says")
            self.found[queue] += 1
            self._last[queue] = offset
            return entry
        if self._is_clean and self._must_be_indexed(record.topic):
            text = "is in no consume queue, though its broker was stopped in order"
            raise BadRecord(f"{text} (as where a topic was deleted, and made anew)")
        if (named := self._named.at(record.physical_offset)) not in (None, queue):
            raise BadRecord(f"tells another place than the consume queue of {named[0]}/{named[1]}, which names it")
        if offset <= self._last.get(queue, -1):
            raise BadRecord(f"has the queue offset {offset}, which an earlier one has")
        self._last[queue] = offset
        return None

    def _must_be_indexed(self, topic: str) -> bool:
        """Whether each record of a topic is in a consume queue once all was written; what nobody wants need not be."""
        if not self._index.exists or (topic != SCHEDULE and self._left_out(topic)):
            return False
        return self._wanted is None or topic == SCHEDULE or self._index.has(topic)  # else it was asked for, though gone

    def _check_later(self, entry: QueueEntry, place: tuple[str, int, int]) -> None:
        """A place was given away only if the record that has it now is there."""
        try:
            found = self._later.record_at(entry.physical_offset, entry.size)
        except BadRecord:
            found = None
        if found is None or (found.topic, found.queue_id, found.queue_offset) != place:
            raise BadRecord(f"is not the one its consume queue names: nor is one at {entry.physical_offset}")


# What RocketMQ is set to unless told otherwise, in ms; only needed where a consume queue does not tell the time.
LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
_UNKNOWN_LEVEL_MS: Final = 1000
_SAME: Final = ("DELAY", "UNIQ_KEY", "KEYS", "TAGS", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC")


class DeferredRecord(NamedTuple):
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


class DeferredRecords:
    """Given every record in the order of the log, knows in the end what waits; ``offsets`` are those written down."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self._offsets = offsets
        self._open: dict[tuple[object, ...], deque[DeferredRecord]] = {}
        self.delivered = 0  # copies that were found behind their originals

    def delay(self, record: Record, target: tuple[str, int], due_ms: int) -> None:
        """A record of the schedule topic."""
        passed = record.queue_offset < self._offsets.get(record.queue_id + 1, 0)
        found = DeferredRecord(due_ms, record.physical_offset, *target, passed)
        self._open.setdefault(_fingerprint(record, target), deque()).append(found)

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

    def undelivered(self) -> list[DeferredRecord]:
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
