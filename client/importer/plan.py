"""
What of a store goes where: topics with their queues, messages with their new offsets, progress of groups, delays.

The new offset of a message is the number of messages of its queue that are taken over before it: equal to the old one
where the queue begins at 0 and has no holes. Progress is translated to the same message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rmq.wire.errors import BadName
from rmq.wire.names import MAX_QUEUES
from rmq.wire.rocketmq.record import Record

from .log_walk import End, LogDamage
from .messages import GROUP_PREFIXES, is_system_group, is_system_topic, new_group, new_topic
from .store_files import BadStore, StoreMissing
from .survey import DELAYED, DELETED, QUEUED, DeferredRecord, DeferredRecords, RocketMQStore, Survey, SurveyedRecord

_STEP: Final = 1 << 20  # bytes between two steps of a progress bar
_DEFAULT_RETRIES: Final = 16
_SOME: Final = 10  # names in a sentence

Queue = tuple[str, int]


class Wishes(NamedTuple):
    """What the user asked for: these topics only (None: all), other names, and to go on without what is damaged."""

    topics: Collection[str] | None = None
    topic_names: Mapping[str, str] = {}
    group_names: Mapping[str, str] = {}
    skip_damaged: bool = False


class QueuePlan:
    """The messages of one queue that are taken over, as runs of old offsets without a hole."""

    __slots__ = ("_before", "_firsts", "_lasts", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._before: list[int] = []  # messages before each run

    def add(self, queue_offset: int) -> None:
        """The next message."""
        if not self._lasts or queue_offset != self._lasts[-1] + 1:
            self._firsts.append(queue_offset)
            self._lasts.append(queue_offset)
            self._before.append(self.messages)
        self._lasts[-1] = queue_offset
        self.messages += 1

    @property
    def first(self) -> int | None:
        """The old offset of the first message."""
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        """The old offset of the last message."""
        return self._lasts[-1] if self._lasts else None

    @property
    def holes(self) -> int:
        """How many times old offsets are missing between two messages."""
        return max(0, len(self._firsts) - 1)

    @property
    def first_hole(self) -> tuple[int, int] | None:
        """The first of the old offsets that are missing between two messages, and the one after them."""
        return (self._lasts[0] + 1, self._firsts[1]) if self.holes else None

    def translate(self, queue_offset: int) -> int:
        """The new offset for an old one: how many messages are taken over before it."""
        run = bisect_right(self._firsts, queue_offset) - 1
        if run < 0:
            return 0
        return self._before[run] + min(queue_offset - self._firsts[run], self._lasts[run] - self._firsts[run] + 1)


class TopicPlan(NamedTuple):
    """A topic of the store, its name here, and how many queues it needs."""

    old: str
    new: str
    queues: int


class GroupPlan(NamedTuple):
    """Where a group goes on in a queue; ``topic`` is the old name."""

    group: str
    new_group: str
    topic: str
    queue_id: int
    old_offset: int
    new_offset: int


@dataclass(slots=True)
class Plan:
    """Everything that an import does, and the notes that an operator should read."""

    topics: dict[str, TopicPlan] = field(default_factory=dict)
    queues: dict[Queue, QueuePlan] = field(default_factory=dict)
    deferred: list[DeferredRecord] = field(default_factory=list)
    groups: list[GroupPlan] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    damage: list[LogDamage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    end: End = field(default=End(0, 0))
    first: Record | None = None  # the first record of the log, which tells stores apart

    @property
    def messages(self) -> int:
        """How many messages are taken over, but for those that wait."""
        return sum(queue.messages for queue in self.queues.values())

    def target(self, topic: str) -> str:
        """The new name of an old topic."""
        return self.topics[topic].new


def make_plan(store: RocketMQStore, wishes: Wishes, step: Callable[[int], None] = lambda more: None) -> Plan:
    """
    Read the whole log once; ``step`` gets the number of bytes that were read since its last call.

    Raises:
        BadStore: something asked for is not there, or has a name or a size that is refused here.
    """
    plan = Plan()
    survey = Survey(store, wishes.topics)
    delays = DeferredRecords(store.config.delays or {})
    reported = store.log.start
    for found in survey:
        _take(plan, delays, found)
        if survey.walk.position - reported >= _STEP:
            step(survey.walk.position - reported)
            reported = survey.walk.position
    step(store.log.end - reported)
    plan.deferred = delays.undelivered()
    _name_topics(plan, store, wishes)
    _place_groups(plan, store, wishes)
    _cross_check(plan, store, survey)
    _add_notes(plan, store, survey, delays)
    return plan


def _take(plan: Plan, delays: DeferredRecords, found: SurveyedRecord | LogDamage | End) -> None:
    if isinstance(found, End):
        plan.end = found
        return
    if isinstance(found, LogDamage):
        plan.damage.append(found)
        return
    kind, record = found.kind, found.record
    plan.first = plan.first or record
    if kind == DELAYED:
        delays.delay(record, found.target, found.due_ms)
        return
    delays.deliver(record)
    if kind != QUEUED:
        plan.skipped[kind] += 1
        return
    plan.queues.setdefault((record.topic, record.queue_id), QueuePlan()).add(record.queue_offset)


def _name_topics(plan: Plan, store: RocketMQStore, wishes: Wishes) -> None:
    """Choose the topics and their names; refuse illegal and equal names."""
    known = store.config.topics or {}
    needed: dict[str, int] = {}
    for topic, config in known.items():
        # RocketMQ makes a retry topic for each group; an empty one is of no use here.
        wanted = not topic.startswith(GROUP_PREFIXES) if wishes.topics is None else topic in wishes.topics
        if wanted and topic not in store.clusters and not is_system_topic(topic, store.clusters):
            needed[topic] = max(1, config.queues)
    for topic, queue_id in [*plan.queues, *((each.topic, each.queue_id) for each in plan.deferred)]:
        needed[topic] = max(needed.get(topic, 1), queue_id + 1)
    for topic in [*(wishes.topics or ()), *wishes.topic_names]:
        if topic not in needed:
            raise StoreMissing(_no_topic(topic, store))
    taken: dict[str, str] = {}
    for topic in sorted(needed):
        try:
            new = new_topic(topic, wishes.topic_names)
        except BadName as error:
            raise BadStore(str(error)) from error
        if new in taken:
            text = f"the topics {taken[new]!r} and {topic!r} would both become {new!r}"
            raise BadStore(f"{text}: choose another name with --map '{topic}=NAME'")
        if needed[topic] > MAX_QUEUES:
            text = f"the topic {topic!r} has {needed[topic]} queues, and a topic here has at most {MAX_QUEUES}"
            raise BadStore(f"{text}: leave it out by naming the others with --topic")
        taken[new] = topic
        plan.topics[topic] = TopicPlan(topic, new, needed[topic])


def _no_topic(topic: str, store: RocketMQStore) -> str:
    there = {*(store.config.topics or {}), *(queue.queue[0] for queue in store.index.queues())}
    names = sorted(name for name in there - store.clusters if not is_system_topic(name, store.clusters))
    some = ", ".join(names[:_SOME]) + (f" and {len(names) - _SOME} more" if len(names) > _SOME else "")
    if topic in there:
        return f"the topic {topic!r} is not taken over, as it is empty or not among those of --topic: do not name it"
    return f"the store has no topic {topic!r}: it has {some or 'none that can be taken over'}"


def _place_groups(plan: Plan, store: RocketMQStore, wishes: Wishes) -> None:
    """Translate the progress of each group."""
    for name in wishes.group_names:
        if not any(name == group for _, group in store.config.offsets or {}):
            raise StoreMissing(f"the store has no progress of a group {name!r}, which --map-group names")
    for (topic, group), offsets in sorted((store.config.offsets or {}).items()):
        if is_system_group(group) or topic not in plan.topics:
            what = "empty retry topics" if topic.startswith(GROUP_PREFIXES) else "topics that are not taken over"
            plan.skipped[f"progress in {what}"] += 1
            continue
        try:
            name = new_group(group, wishes.group_names)
        except BadName as error:
            raise BadStore(str(error)) from error
        for queue_id, offset in sorted(offsets.items()):
            if queue_id >= plan.topics[topic].queues:
                plan.notes.append(f"{group} has progress in {topic}/{queue_id}, a queue that does not exist: left out")
                continue
            new = plan.queues.get((topic, queue_id), QueuePlan()).translate(offset)
            plan.groups.append(GroupPlan(group, name, topic, queue_id, offset, new))
    names = {row.new_group: row.group for row in plan.groups}
    for row in plan.groups:
        if names[row.new_group] != row.group:
            text = f"the groups {row.group!r} and {names[row.new_group]!r} would both become {row.new_group!r}"
            raise BadStore(f"{text}: choose another name with --map-group '{row.group}=NAME'")


def _cross_check(plan: Plan, store: RocketMQStore, survey: Survey) -> None:
    """Report entries of consume queues whose messages were neither found nor reported as lost."""
    ahead = older = 0
    lost: dict[Queue, set[int]] = defaultdict(set)
    for each in (each for damage in plan.damage for each in damage.lost):
        lost[each.topic, each.queue_id].add(each.queue_offset)
    for queue in store.index.queues():
        begin, beyond = queue.from_position(store.log.start), queue.from_position(plan.end.physical_offset)
        ahead += queue.end - beyond
        older += begin - queue.first
        reported = sum(queue.entry(offset) is not None for offset in lost[queue.queue])
        missing = beyond - begin - survey.found[queue.queue] - reported
        if missing > 0:
            topic, queue_id = queue.queue
            text = f"names {missing} messages, of {beyond - begin}, that are not in the log"
            plan.damage.append(LogDamage(f"consumequeue/{topic}/{queue_id}", 0, 0, text))
    if older:
        text = f"{older} messages that consume queues name are older than the log, which begins at {store.log.start}"
        plan.notes.append(f"{text}: gone")
    _check_holes(plan, store)
    absent = sum(queue.end - queue.from_position(store.log.end) for queue in store.index.queues())
    if absent:
        plan.damage.append(LogDamage("consumequeue", 0, 0, f"names {absent} messages behind the last file of the log"))
    elif ahead and store.is_clean:
        plan.damage.append(LogDamage("consumequeue", 0, 0, f"names {ahead} messages behind the end of the log"))
    elif ahead:
        plan.notes.append(f"consume queues name {ahead} messages behind the end of the log: the crash took them")


def _check_holes(plan: Plan, store: RocketMQStore) -> None:
    """Report gaps in the offsets of a queue: a message is lost there, or a record has a wrong offset."""
    if plan.damage:
        return  # that is why
    for (topic, queue_id), queue in plan.queues.items():
        text = ""
        if queue.first_hole is not None:
            first, behind = queue.first_hole
            text = f"has no messages of {topic}/{queue_id} between the queue offsets {first} and {behind}"
        elif queue.first and not store.log.start:
            text = f"has no messages of {topic}/{queue_id} before the queue offset {queue.first}, and begins at 0"
        if text:
            plan.damage.append(LogDamage("commitlog", 0, 0, text))


def _add_notes(plan: Plan, store: RocketMQStore, survey: Survey, delays: DeferredRecords) -> None:
    """Add notes that an operator should read, although nothing is wrong."""
    notes = plan.notes
    notes += store.config.notes
    if not store.lock_is_known:
        notes.append("it is unknown whether its broker runs: the lock cannot be queried")
    if not store.is_clean:
        torn = plan.end.torn_bytes
        tail = f"; {torn} bytes behind it are a torn tail" if torn else ""
        notes.append(f"its broker was not stopped in order (abort is there): the log ends at {plan.end[0]}{tail}")
    elif plan.end.torn_bytes:
        notes.append(f"{plan.end.torn_bytes} bytes behind the end of the log are left from an earlier crash")
    if store.index.light_queues:
        notes.append(f"{store.index.light_queues} queues of light topics (%LMQ%) are not taken over as such")
    if survey.not_indexed:
        notes.append(f"{survey.not_indexed} messages are in the log and not yet in a consume queue: taken over")
    if survey.times_by_level:
        notes.append(f"{survey.times_by_level} delayed messages have no time in a consume queue: default levels used")
    _note_deleted(plan, store)
    if delays.delivered or delays.missing or plan.deferred:
        _note_deferred(plan, store, delays)
    for name, group in sorted((store.config.groups or {}).items()):
        if not group.enabled or group.max_retries != _DEFAULT_RETRIES:
            state = f"retryMaxTimes {group.max_retries}{'' if group.enabled else ', consuming disabled'}"
            notes.append(f"settings of the group {name} are not taken over: {state}")


def _note_deleted(plan: Plan, store: RocketMQStore) -> None:
    for topic in sorted(kind.removeprefix(DELETED) for kind in plan.skipped if kind.startswith(DELETED)):
        if store.index.has(topic):
            text = f"{topic} is not in topics.json and has consume queues: left out"
            plan.notes.append(f"{text}, --topic '{topic}' takes it")


def _note_deferred(plan: Plan, store: RocketMQStore, delays: DeferredRecords) -> None:
    if store.config.delays is None:
        plan.notes.append("without delayOffset.json every delayed message waits that has no delivered copy in the log")
    if delays.missing:
        text = f"{delays.missing} delayed messages are said to be delivered, and the log has no copy: not taken over"
        plan.notes.append(text)
