"""
Why a queue of a group goes on, or does not, in one word and one sentence, and what to do about it. Pure.

``explain`` looks at the facts of a queue by a table of rules; the first that fits tells the story. So where two causes
come together, the one that has to go first is told: a queue that is paused and has a failing message does not go on
before it is resumed, whatever becomes of the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from .explain_facts import BROADCASTING, QueueFacts, Told

LONG_CALL_S: Final = 5.0  # a call that runs longer is told of
SUSPICIOUS_CALL_S: Final = 60.0  # and one that runs this long needs somebody
SUSPICIOUS_ATTEMPT: Final = 4  # a message whose delivery has this number needs somebody
CAREFUL_OWNERS: Final = 2  # lost at the same message, they are a pattern
UNPOLLED_S: Final = 5.0  # a program that has not polled for longer is told of
LATE_S: Final = 1.0  # an event loop that is later than this is told of
_MEMBER: Final = re.compile(r"(?P<host>[^@\s]+)@(?P<pid>\d+)#")


class Reason(Enum):
    """Why a queue is as it is. The value is what scripts see; it does not change."""

    DAMAGED = "DAMAGED"
    MESSAGES_LOST = "MESSAGES_LOST"
    CRASH_LOOP = "CRASH_LOOP"
    NO_MEMBER = "NO_MEMBER"
    NOT_SUBSCRIBED = "NOT_SUBSCRIBED"
    NOT_ALLOCATED = "NOT_ALLOCATED"
    MEMBER_SILENT = "MEMBER_SILENT"
    WAITING_FOR_LOCK = "WAITING_FOR_LOCK"
    PAUSED = "PAUSED"
    LISTENER_RUNNING = "LISTENER_RUNNING"
    RETRYING = "RETRYING"
    NOT_POLLED = "NOT_POLLED"
    SLOTS_BUSY = "SLOTS_BUSY"
    LOOP_LATE = "LOOP_LATE"
    FLOW_CONTROL = "FLOW_CONTROL"
    STANDING_STILL = "STANDING_STILL"
    CONSUMING = "CONSUMING"
    NO_NEW_MESSAGES = "NO_NEW_MESSAGES"


class Urgency(IntEnum):
    """Who has to do something: nobody, perhaps somebody if it stays so, somebody."""

    WELL = 0
    WATCH = 1
    ACT = 2


class Finding(NamedTuple):
    """What a rule says of a queue."""

    reason: Reason
    urgency: Urgency
    sentence: str
    advice: str = ""


class QueueStory(NamedTuple):
    """
    A queue, who holds it, its first message that is not done, and why it goes on or does not.

    Of a broadcasting group, ``owner`` is the member whose queue it is, without a lock. What is not known is None.
    """

    topic: str
    queue_id: int
    reason: Reason
    urgency: Urgency
    sentence: str
    advice: str
    lag: int
    owner: str | None
    epoch: int | None
    lease_left_s: float | None
    head_offset: int | None
    head_id: str | None
    head_age_s: float | None
    attempt: int
    retry_in_s: float | None
    called_for_s: float | None
    per_s: float | None


Rule = Callable[[QueueFacts], Finding | None]


def explain(facts: QueueFacts) -> QueueStory:
    """The story of a queue."""
    finding = next(found for rule in RULES if (found := rule(facts)) is not None)
    told = facts.told
    head = facts.head_offset
    return QueueStory(
        topic=facts.topic,
        queue_id=facts.queue_id,
        reason=finding.reason,
        urgency=finding.urgency,
        sentence=finding.sentence,
        advice=finding.advice,
        lag=facts.lag,
        owner=facts.owner,
        epoch=facts.epoch if facts.owner is not None and facts.epoch else None,
        lease_left_s=facts.lease_left_s,
        head_offset=head,
        head_id=None if facts.head is None or head is None else facts.head.message_id,
        head_age_s=None if head is None else facts.head_age_s,
        attempt=facts.attempt if head is not None else 1,
        retry_in_s=None if told is None else told.retry_in_s,
        called_for_s=None if told is None else told.called_for_s,
        per_s=_per_s(facts),
    )


def worst_first(stories: Iterable[QueueStory]) -> list[QueueStory]:
    """What needs somebody comes first, then by the order of the reasons, then by queue."""
    order = {reason: place for place, reason in enumerate(Reason)}
    return sorted(stories, key=lambda story: (-story.urgency, order[story.reason], story[:2], story.owner or ""))


# ---- rules: stopped queues


def _stopped(facts: QueueFacts) -> Finding | None:
    """The owner stopped the queue itself: nothing else matters before somebody has acted."""
    told = facts.told
    if told is None or not told.stopped_code:
        return None
    where = _offsets(told)
    if told.stopped_code == "CRASH_LOOP":
        return _crash_loop(facts, told.abandoned, told.stopped_from)
    behind = None if told.stopped_to is None else told.stopped_to + 1
    on = f"`{_reset(facts, behind)}` goes on behind them" if behind is not None else "reset the offset behind them"
    if facts.model == BROADCASTING:
        on = 'run this member with on_gap = "skip" to go on behind them'
    if told.stopped_code == "DAMAGED":
        return Finding(
            Reason.DAMAGED,
            Urgency.ACT,
            f"{where} cannot be read: a part of the log is damaged; the queue stopped before it.",
            f"find out what rotted (`rmq-admin broker verify-store`), restore a backup if you have one; {on}.",
        )
    return Finding(
        Reason.MESSAGES_LOST,
        Urgency.ACT,
        f"{where} were removed by retention before the group got to them; the queue stopped before the gap.",
        f"{on}; keep messages longer (retention_hours, retention_bytes) or consume faster.",
    )


def _crash_loop(facts: QueueFacts, owners: int, offset: int | None) -> Finding:
    place = "a message" if offset is None else f"message {offset}"
    return Finding(
        Reason.CRASH_LOOP,
        Urgency.ACT,
        f"{owners} owners in a row were lost while they processed {place}: it seems to end the process.",
        f"{_look(facts)}, mend the listener, then `{_reset(facts, offset)}` to try it again, "
        f"or {_behind(offset)} to skip it.",
    )


def _careful(facts: QueueFacts) -> Finding | None:
    """Owners were lost at one message: that nobody is there, or a lock is waited for, is what comes of it."""
    if facts.abandoned < CAREFUL_OWNERS or facts.suspect_offset < 0 or facts.is_retries:
        return None
    if facts.owner is None or facts.in_grace:
        return _crash_loop(facts, facts.abandoned, facts.suspect_offset)
    if facts.head_offset is None or facts.head_offset > facts.suspect_offset:
        return None  # it got over it
    return Finding(
        Reason.CRASH_LOOP,
        Urgency.WATCH,
        f"{facts.abandoned} owners in a row were lost while they processed message {facts.suspect_offset}; "
        "the next one takes one message at a time.",
        "look why they ended: out of memory, a crash of native code, a kill by the system.",
    )


# ---- rules: nobody works on it


def _no_member(facts: QueueFacts) -> Finding | None:
    if facts.connected or facts.model == BROADCASTING:
        return None
    urgency = Urgency.ACT if facts.lag else Urgency.WATCH
    advice = "start a consumer of this group."
    if facts.owner is not None:
        left = _span(facts.lease_left_s or 0.0)
        return Finding(
            Reason.NO_MEMBER,
            urgency,
            f"its owner {facts.owner} lost its connection and nobody else is in the group; its lock is free in {left}.",
            f"see why that process ended, and {advice}",
        )
    return Finding(Reason.NO_MEMBER, urgency, f"nobody is in the group {facts.group!r}.", advice)


def _not_subscribed(facts: QueueFacts) -> Finding | None:
    if facts.subscribed or facts.owner is not None:
        return None
    return Finding(
        Reason.NOT_SUBSCRIBED,
        Urgency.WATCH if facts.lag else Urgency.WELL,
        f"the group has progress here, but none of its members subscribes to {facts.topic!r} any more.",
        "if that was not meant, subscribe again; else there is nothing to do.",
    )


def _unowned(facts: QueueFacts) -> Finding | None:
    """Members are there, and none has it."""
    if facts.owner is not None:
        return None
    if facts.resting:
        return Finding(
            Reason.NOT_POLLED,
            Urgency.ACT if facts.lag else Urgency.WATCH,
            f"{facts.resting[0]} has not polled for longer than its consume_timeout_s, and gave its queues up.",
            "see what keeps that program from calling poll().",
        )
    if facts.model == "assigned":
        return Finding(
            Reason.NOT_ALLOCATED,
            Urgency.ACT if facts.lag else Urgency.WATCH,
            "members of this group are assigned their queues by the program, and none was given this one.",
            "assign it to a consumer.",
        )
    if facts.strategy in (None, "average", "circle") or (facts.strategy or "").startswith("consistent_hash"):
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            "nobody has its lock at this moment; a member takes it with its next rebalance, within 20 s.",
            "ask again; if it stays so, look at the log of the members for lock.refused.",
        )
    return Finding(
        Reason.NOT_ALLOCATED,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"the strategy {facts.strategy!r} gives it to none of the members that are there.",
        "start a member that gets it by this strategy, or change the strategy of all members.",
    )


def _in_grace(facts: QueueFacts) -> Finding | None:
    if not facts.in_grace:
        return None
    left = _span(facts.lease_left_s or 0.0)
    return Finding(
        Reason.WAITING_FOR_LOCK,
        Urgency.WATCH,
        f"its owner {facts.owner} lost its connection; if it is not back in {left}, "
        f"{_next_owner(facts)} gets the lock.",
        "wait; see why that process ended or cannot reach the broker.",
    )


def _silent(facts: QueueFacts) -> Finding | None:
    if facts.answers:
        return None
    freed = f" Its lock is free in {_span(facts.lease_left_s)} if it is not renewed." if facts.lease_left_s else ""
    return Finding(
        Reason.MEMBER_SILENT,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"{facts.owner} is connected but does not answer: it is stopped, or its event loop is blocked.{freed}",
        f"see where it is ({_dump(facts)}); a listener that blocks must be a plain def. Restart it if need be.",
    )


def _handing_over(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if told is None or facts.model == BROADCASTING:
        if facts.owner is not None and facts.told_of_all and facts.model != BROADCASTING:
            return Finding(
                Reason.WAITING_FOR_LOCK,
                Urgency.WATCH,
                f"{facts.owner} was given the lock and does not work on the queue yet.",
                "ask again in a moment.",
            )
        return None
    if told.dropped or told.epoch != facts.epoch:
        return _leaving(facts, told)
    if told.lost:
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} waits for the broker to confirm its lock, and starts nothing before.",
            "ask again in a moment; if it stays so, the network between them loses answers.",
        )
    return None


def _leaving(facts: QueueFacts, told: Told) -> Finding:
    why = "gives it up" if told.epoch == facts.epoch else "lost it by a reset of the offset"
    if told.called_for_s is None:
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} {why}; {_next_owner(facts)} gets it in a moment.",
            "ask again in a moment.",
        )
    return Finding(
        Reason.WAITING_FOR_LOCK,
        Urgency.ACT if _is_suspicious(told) else Urgency.WATCH,
        f"{facts.owner} {why} when its running call ends, which began {_span(told.called_for_s)} ago; "
        f"{_next_owner(facts)} waits for the lock.",
        "wait for the call; if it never ends, restart that process: what it holds is delivered again.",
    )


# ---- rules: its owner works on it


def _paused(facts: QueueFacts) -> Finding | None:
    if facts.told is None or not facts.told.paused:
        return None
    return Finding(
        Reason.PAUSED,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"the program {facts.owner} has paused it.",
        "have the program call resume(), or restart it.",
    )


def _nothing_new(facts: QueueFacts) -> Finding | None:
    if facts.lag:
        return None
    count, next_in_s, more = facts.delayed
    if not count:
        wanted = "" if facts.expression == "*" else f" (of those with the tags {facts.expression})"
        return Finding(Reason.NO_NEW_MESSAGES, Urgency.WELL, f"all messages are done{wanted}.")
    waits = f"{count}{'+' if more else ''} {'messages wait' if count > 1 or more else 'message waits'}"
    if facts.is_retries:
        error = f" The last error: {facts.told.last_error}." if facts.told and facts.told.last_error else ""
        return Finding(
            Reason.RETRYING,
            Urgency.WATCH,
            f"{waits} for another try after a failure, the next in {_span(next_in_s)}.{error}",
            f"look at them (`rmq-admin delay list --topic '{facts.topic}'`) and at the log of the members.",
        )
    return Finding(
        Reason.NO_NEW_MESSAGES,
        Urgency.WELL,
        f"all messages are done; {waits} for their delivery time, the next in {_span(next_in_s)}.",
    )


def _long_call(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if told is None or told.called_for_s is None or told.called_for_s <= LONG_CALL_S:
        return None
    who = "the listener" if told.polled_ago_s is None else "the program"
    limit = ""
    if told.called_for_s >= told.consume_timeout_s:
        limit = f", longer than consume_timeout_s ({_span(told.consume_timeout_s)})"
    again = f"; it is delivery {facts.attempt}" if facts.attempt > 1 else ""
    return Finding(
        Reason.LISTENER_RUNNING,
        Urgency.ACT if _is_suspicious(told) else Urgency.WATCH,
        f"{who} has had message {facts.head_offset} for {_span(told.called_for_s)}{limit}{again}.",
        f"see what it waits for ({_dump(facts)}) and {_look(facts)}; suspicious from {_span(_suspicious_s(told))} on.",
    )


def _retrying(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if facts.attempt <= 1 or facts.is_retries:
        return None
    error, when = "", "is being tried now"
    if told is not None:
        error = f" {told.last_error}." if told.last_error and told.failed_offset == facts.head_offset else ""
        if told.retry_in_s is not None:
            when = f"comes in {_span(told.retry_in_s)}"
    failed = facts.attempt - 1
    return Finding(
        Reason.RETRYING,
        Urgency.ACT if facts.attempt >= SUSPICIOUS_ATTEMPT else Urgency.WATCH,
        f"message {facts.head_offset} failed {_times(failed)}; delivery {facts.attempt} {when}.{error}",
        f"{_look(facts)} and mend the listener, or skip it: "
        f"`{_reset(facts, None if facts.head_offset is None else facts.head_offset + 1)}`; "
        "with max_attempts it would become a dead letter.",
    )


def _consuming(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if facts.moved:
        per_s = _per_s(facts) or 0.0
        return Finding(
            Reason.CONSUMING,
            Urgency.WELL,
            f"{_rate(per_s)} messages/s; at this rate it is through in {_span(facts.lag / per_s)}.",
        )
    if told is not None and told.called_for_s is not None:
        sentence = f"message {facts.head_offset} is with the listener for {_span(told.called_for_s)}."
        return Finding(Reason.CONSUMING, Urgency.WELL, sentence)
    return None


def _unpolled(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if told is None or told.polled_ago_s is None or told.polled_ago_s <= UNPOLLED_S:
        return None
    suspicious = told.polled_ago_s >= min(SUSPICIOUS_CALL_S, told.consume_timeout_s)
    return Finding(
        Reason.NOT_POLLED,
        Urgency.ACT if suspicious else Urgency.WATCH,
        f"the program {facts.owner} has not polled for {_span(told.polled_ago_s)}.",
        f"see what keeps it from calling poll(); after {_span(told.consume_timeout_s)} its queues go to others.",
    )


def _slots_busy(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if told is None or not told.slots_busy or not told.cached_messages:
        return None
    return Finding(
        Reason.SLOTS_BUSY,
        Urgency.WATCH,
        f"it waits for its turn: all slots of {facts.owner} are taken by calls for other queues.",
        "see which calls take long; give the consumer more slots, a turn_share_s, or start another member.",
    )


def _late_loop(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if told is None or told.loop_lag_s <= LATE_S:
        return None
    return Finding(
        Reason.LOOP_LATE,
        Urgency.ACT,
        f"the event loop of {facts.owner} is late by {_span(told.loop_lag_s)}: something in that process blocks it.",
        "a listener that blocks must be a plain def, which runs in a thread.",
    )


def _flow_control(facts: QueueFacts) -> Finding | None:
    told = facts.told
    if told is None or not told.flow_control:
        return None
    return Finding(
        Reason.FLOW_CONTROL,
        Urgency.WATCH,
        f"{facts.owner} fetches no more before it has worked some off: {told.flow_control}.",
        "the listener is the bottleneck: make it faster, add slots or members; the limits are cache_messages, "
        "cache_bytes and max_span.",
    )


def _standing_still(facts: QueueFacts) -> Finding:
    looked = f" within {_span(facts.watched_s)}" if facts.watched_s else ""
    return Finding(
        Reason.STANDING_STILL,
        Urgency.WATCH,
        f"messages wait and nothing moved{looked}, for no reason that can be seen from here.",
        f"ask again; if it stays so, `rmq-admin group members {facts.group} --verbose` and the log of {facts.owner}.",
    )


RULES: Final[tuple[Rule, ...]] = (
    _stopped,
    _careful,
    _no_member,
    _not_subscribed,
    _unowned,
    _in_grace,
    _silent,
    _handing_over,
    _paused,
    _nothing_new,
    _long_call,
    _retrying,
    _consuming,
    _unpolled,
    _slots_busy,
    _late_loop,
    _flow_control,
    _standing_still,
)


# ---- words


def _per_s(facts: QueueFacts) -> float | None:
    return None if facts.moved is None or not facts.watched_s else round(facts.moved / facts.watched_s, 1)


def _suspicious_s(told: Told) -> float:
    return min(SUSPICIOUS_CALL_S, told.consume_timeout_s)


def _is_suspicious(told: Told) -> bool:
    return told.called_for_s is not None and told.called_for_s >= _suspicious_s(told)


def _next_owner(facts: QueueFacts) -> str:
    return facts.waiting[0] if facts.waiting else "another member"


def _offsets(told: Told) -> str:
    first, last = told.stopped_from, told.stopped_to
    if first is None or last is None:
        return "messages"
    return f"message {first}" if first == last else f"messages {first} to {last}"


def _dump(facts: QueueFacts) -> str:
    """How to see where the owner is; its name tells the machine and the process."""
    found = _MEMBER.match(facts.owner or "")
    return "`py-spy dump --pid PID`" if found is None else f"on {found['host']}: `py-spy dump --pid {found['pid']}`"


def _look(facts: QueueFacts) -> str:
    if facts.head is None or facts.head.message_id is None:
        return "look at the message"
    return f"look at the message (`rmq-admin message get {facts.head.message_id}`)"


def _reset(facts: QueueFacts, offset: int | None) -> str:
    to = "OFFSET" if offset is None else offset
    return f"rmq-admin group reset-offset {facts.group} --topic {facts.topic} --queue {facts.queue_id} --to {to}"


def _behind(offset: int | None) -> str:
    return "--to an offset behind it" if offset is None else f"--to {offset + 1}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _span(value: float) -> str:
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
