"""
Collects the facts about a group from the broker and, through it, from the members, and explains each queue.

Each question is asked once. Only if a queue has a backlog without a visible cause, all are asked again a moment later,
to see whether the queue moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq.wire.errors import OK, Refused, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.names import retry_topic
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue

from . import rules
from .facts import BROADCASTING, DeferredMessages, Members, QueueFacts, number, of_broadcast, of_group
from .notes import Note, StoreCopy, notes_of
from .rules import QueueStory
from .wording import COPY_SHOWN_S, Reason, Urgency

if TYPE_CHECKING:
    from ..admin.admin import Admin

Stats = Mapping[str, dict[str, Any]]

WATCH_S: Final = 1.0
MAX_DEFERRED: Final = 1000  # delayed batches that are looked at, the next ones first
MAX_HEADS: Final = 8  # members of a broadcasting group whose first messages are looked at
LOOK_AGAIN: Final = frozenset(
    {
        Reason.CONSUMING,
        Reason.STANDING_STILL,
        Reason.FLOW_CONTROL,
        Reason.SLOTS_BUSY,
        Reason.LOOP_LATE,
        Reason.NOT_POLLED,
        Reason.WAITING_FOR_LOCK,
    }
)


class Explanation(NamedTuple):
    """Explains a group: its queues, worst first. ``ordered``, ``model``, ``strategy`` are None without members."""

    group: str
    ordered: bool | None
    model: str | None
    strategy: str | None
    members: int
    queues: list[QueueStory]
    notes: list[Note]

    @property
    def urgency(self) -> Urgency:
        """The urgency of the worst queue."""
        return max((story.urgency for story in self.queues), default=Urgency.OK)

    @property
    def requires_action(self) -> bool:
        """Whether a queue stays blocked until an operator acts."""
        return self.urgency is Urgency.ACTION_REQUIRED

    @property
    def lag(self) -> int:
        """How many messages wait in all queues; in a broadcasting group, for all members."""
        return sum(story.lag for story in self.queues)


class _BrokerClock:
    """
    The broker's time of day, which may differ from ours.

    It is ours if the broker's version does not report it.
    """

    def __init__(self, stats: Stats) -> None:
        time_us = _of_broker(stats).get("time_us")
        now_s = time_us / 1e6 if isinstance(time_us, int) else datetime.now(UTC).timestamp()
        self._ahead_s = now_s - asyncio.get_running_loop().time()

    def seconds_since(self, timestamp: float) -> float:
        """Return how long ago a time was, at least 0."""
        return max(asyncio.get_running_loop().time() + self._ahead_s - timestamp, 0.0)

    def seconds_until(self, timestamp: float) -> float:
        """Return how long it is until a time, at least 0."""
        return max(timestamp - asyncio.get_running_loop().time() - self._ahead_s, 0.0)


class _AtBroker(NamedTuple):
    """What was asked of the broker once, apart from the group."""

    deferred: dict[MessageQueue, DeferredMessages]
    refuses_sends: str
    up_s: float | None


async def _copied(admin: Admin, facts: Sequence[QueueFacts], clock: _BrokerClock) -> StoreCopy | None:
    """Return up to where the queues are those of the original, if the store was copied within a day."""
    former = admin.stores.former[-1:]
    queues = sorted({MessageQueue(each.topic, each.queue_id) for each in facts})
    if not former or not queues or (ago_s := clock.seconds_since(former[0].copied_at / 1e6)) > COPY_SHOWN_S:
        return None
    ranges = await admin.ranges(queues, log_epoch=former[0].log_epoch - 1)
    return StoreCopy(
        ago_s, {queue: held.agreed for queue, held in zip(queues, ranges, strict=True) if held.agreed >= 0}
    )


class _Sample(NamedTuple):
    described: GroupDescription
    members: Members
    facts: list[QueueFacts]


async def explain_group(admin: Admin, group: str, topic: str | None = None, *, watch_s: float = WATCH_S) -> Explanation:
    """
    Explain why each queue moves or does not.

    Raises:
        GroupNotFound: nothing is known of the group.
        TopicNotFound: there is no such topic, or the group has nothing to do with it.
    """
    stats = await admin.stats()
    clock = _BrokerClock(stats)
    deferred = await _deferred(admin, clock) if _any_deferred(stats) else {}
    at_broker = _AtBroker(
        deferred, str(_of_broker(stats).get("refuses_sends") or ""), number(_of_broker(stats), "up_s")
    )
    sample = await _sample(admin, group, topic, at_broker)
    stories = [rules.explain(facts) for facts in sample.facts]
    if any(story.reason in LOOK_AGAIN and (story.lag or story.urgency) for story in stories):
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(watch_s)
        first, sample = sample, await _sample(admin, group, topic, at_broker)
        sample = _compared(first, sample, asyncio.get_running_loop().time() - began)
    facts = await _with_heads(admin, sample.facts, clock)
    facts = await _with_newest_tags(admin, _with_errors(facts, sample.members))
    described = sample.described
    dead = sum(row.waiting for row in await admin.list_dead_letters() if row.group == group)
    return Explanation(
        described.group,
        described.ordered,
        described.model,
        described.strategy,
        len(described.members) + described.more_members,
        rules.worst_first(rules.explain(each) for each in facts),
        notes_of(
            described,
            sample.members,
            facts,
            dead=dead,
            refuses_sends=at_broker.refuses_sends,
            topic=topic,
            copied=await _copied(admin, facts, clock),
        ),
    )


async def _sample(admin: Admin, group: str, topic: str | None, at_broker: _AtBroker) -> _Sample:
    described = await admin.describe_group(group, topic)
    if topic is not None and not described.queues:
        others = sorted({queue.topic for queue in (await admin.describe_group(group)).queues})
        raise TopicNotFound(
            f"the group {group!r} has nothing to do with the topic {topic!r}: it consumes {', '.join(others[:10])}"
        )
    if topic not in (None, retry_topic(group)) and not described.ordered:
        described = described._replace(queues=[*described.queues, *await _retries(admin, group)])
    members = Members(await admin.members_info(group))
    if described.model == BROADCASTING:
        return _Sample(described, members, of_broadcast(described, members, deferred=at_broker.deferred))
    facts = of_group(
        described,
        members,
        deferred=at_broker.deferred,
        refuses_sends=at_broker.refuses_sends,
        broker_up_s=at_broker.up_s,
    )
    return _Sample(described, members, facts)


async def _retries(admin: Admin, group: str) -> list[GroupQueue]:
    """Return the retry queue of the group, if it exists."""
    try:
        return (await admin.describe_group(group, retry_topic(group))).queues
    except TopicNotFound:
        return []


def _compared(first: _Sample, second: _Sample, watched_s: float) -> _Sample:
    """Return the second sample, with the progress of each queue since the first."""
    before = {_key(facts): facts for facts in first.facts}
    compared = []
    for facts in second.facts:
        earlier = before.get(_key(facts))
        moved = None if earlier is None else max(_position(facts) - _position(earlier), 0)
        compared.append(replace(facts, moved=moved, watched_s=watched_s))
    return second._replace(facts=compared)


def _position(facts: QueueFacts) -> int:
    return facts.max_offset if facts.head_offset is None else facts.head_offset


def _key(facts: QueueFacts) -> tuple[str, int, str]:
    return facts.topic, facts.queue_id, facts.owner or "" if facts.model == BROADCASTING else ""


async def _deferred(admin: Admin, clock: _BrokerClock) -> dict[MessageQueue, DeferredMessages]:
    """Count the deferred messages of each queue; if they are very many, only those due next."""
    rows, more, *_ = await admin.list_deferred(limit=MAX_DEFERRED)
    found: dict[MessageQueue, DeferredMessages] = {}
    for row in rows:
        queue = MessageQueue(row.topic, row.queue_id)
        before = found.get(queue, DeferredMessages(0, clock.seconds_until(row.due_at / 1e6), more))
        found[queue] = before._replace(messages=before.messages + row.messages)
    return found


def _any_deferred(stats: Stats) -> bool:
    return stats.get("delays", {}).get("waiting_batches") != 0


def _of_broker(stats: Stats) -> dict[str, Any]:
    return stats.get("broker", {})


async def _with_heads(admin: Admin, facts: Sequence[QueueFacts], clock: _BrokerClock) -> list[QueueFacts]:
    """Look up the first unfinished message of each queue; in a broadcasting group there is one per member."""
    rounds: dict[MessageQueue, list[int]] = {}
    asked: list[dict[MessageQueue, int]] = []
    places: dict[int, tuple[int, MessageQueue]] = {}
    for index, each in enumerate(facts):
        if each.head_offset is None:
            continue
        queue = MessageQueue(each.topic, each.queue_id)
        taken = rounds.setdefault(queue, [])
        if len(taken) == MAX_HEADS:
            continue
        if len(taken) == len(asked):
            asked.append({})
        asked[len(taken)][queue] = each.head_offset
        places[index] = len(taken), queue
        taken.append(index)
    heads = [await admin.heads(part) for part in asked]
    found = list(facts)
    for index, (round_, queue) in places.items():
        head = heads[round_][queue]
        age_s = None if head.stored_at is None else clock.seconds_since(head.stored_at.timestamp())
        if head.status == OK and head.queue_offset == facts[index].head_offset:
            found[index] = replace(found[index], head=head, head_age_s=age_s)
    return found


async def _with_newest_tags(admin: Admin, facts: Sequence[QueueFacts]) -> list[QueueFacts]:
    """Look up the tag of the last message of some queues whose filter matches nothing: it often shows why."""
    found, asked = list(facts), 0
    for index, each in enumerate(facts):
        if asked == MAX_HEADS or rules.explain(each).reason is not Reason.FILTER_MATCHES_NOTHING:
            continue
        asked += 1
        queue, end = MessageQueue(each.topic, each.queue_id), each.max_offset
        with suppress(Refused):  # retention, or damage, may have come between
            async for messages in admin.read(queue, end - 1, end):
                found[index] = replace(each, newest_tag=messages[-1].tag or "")
    return found


def _with_errors(facts: Sequence[QueueFacts], members: Members) -> list[QueueFacts]:
    """Add a listener's error to the retry queue: its messages failed in another queue, which has the error."""
    error = next(iter(members.errors()), "")
    return [
        replace(each, report=each.report._replace(last_error=error))
        if error and each.is_retries and each.report is not None and not each.report.last_error
        else each
        for each in facts
    ]


def as_object(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data."""
    return {
        "group": explanation.group,
        "ordered": explanation.ordered,
        "model": explanation.model,
        "strategy": explanation.strategy,
        "members": explanation.members,
        "lag": explanation.lag,
        "urgency": explanation.urgency.name,
        "requires_action": explanation.requires_action,
        "queues": [
            {**story._asdict(), "reason": story.reason.value, "urgency": story.urgency.name}
            for story in explanation.queues
        ],
        "notes": [note._asdict() for note in explanation.notes],
    }
