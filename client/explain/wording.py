"""
The vocabulary of explanations: reasons, urgencies, thresholds, and the phrases that the rules share. Pure.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from .facts import BROADCASTING, OwnerReport, QueueFacts

_MEMBER: Final = re.compile(r"(?P<host>[^@\s]+)@(?P<pid>\d+)#")


def per_s(facts: QueueFacts) -> float | None:
    """Return how many messages were finished per second, or None without a second look."""
    return None if facts.moved is None or not facts.watched_s else facts.moved / facts.watched_s


def suspicious_s(report: OwnerReport) -> float:
    """Return how long a call may run before it requires action."""
    return min(SUSPICIOUS_CALL_S, report.consume_timeout_s)


def is_suspicious(report: OwnerReport) -> bool:
    """Return whether a call has run at least that long."""
    return report.called_for_s is not None and report.called_for_s >= suspicious_s(report)


def next_owner(facts: QueueFacts) -> str:
    """Return the member that gets the lock next, as far as members report it."""
    return facts.waiting[0] if facts.waiting else "another member"


def offsets(report: OwnerReport) -> str:
    """Return the messages at which an owner stopped."""
    first, last = report.stopped_from, report.stopped_to
    if first is None or last is None:
        return "messages"
    return f"message {first}" if first == last else f"messages {first} to {last}"


def gone(facts: QueueFacts) -> str:
    """Return a sentence if retention was faster than the group."""
    removed = overtaken(facts)
    return "" if removed is None else f" Retention has removed {removed} meanwhile."


def overtaken(facts: QueueFacts) -> str | None:
    """Return the messages that retention removed before the group fetched them, if any."""
    fetched = facts.committed if facts.report is None or facts.report.end_offset is None else facts.report.end_offset
    if facts.model == BROADCASTING or not 0 <= fetched < facts.min_offset:
        return None
    last = facts.min_offset - 1
    return f"message {fetched}" if fetched == last else f"messages {fetched} to {last}"


def fetch_paused(report: OwnerReport) -> str:
    """Return a sentence if flow control stopped fetching."""
    return f" Nothing more is fetched meanwhile: {report.flow_control}." if report.flow_control else ""


def newest(facts: QueueFacts) -> str:
    """Return a sentence about the tag of the last message, if that was read."""
    if facts.newest_tag is None:
        return ""
    return f" The newest has the tag {facts.newest_tag!r}." if facts.newest_tag else " The newest has no tag."


def error(report: OwnerReport) -> str:
    """Return a sentence with the listener's error, if it is known."""
    return f" The error: {report.last_error.rstrip('.')}." if report.last_error else ""


def dump(member: str | None) -> str:
    """Return the command that shows a member's stacks; its name holds the machine and the process."""
    found = _MEMBER.match(member or "")
    return "`py-spy dump --pid PID`" if found is None else f"on {found['host']}: `py-spy dump --pid {found['pid']}`"


def unblock(member: str | None, see: str = "see") -> str:
    """Return what to do about a member that does not answer; ``see`` is the first word."""
    return (
        f"{see} where it is ({dump(member)}, or loop.blocked in its log); a listener that blocks must be a plain def. "
        "Restart it if need be."
    )


def look(facts: QueueFacts, offset: int | None) -> str:
    """Return how to see the message at an offset; only the id of the first one is known."""
    if facts.head is None or facts.head.message_id is None or offset != facts.head_offset:
        return "look at the message"
    return f"look at the message (`rmq-admin message get {facts.head.message_id}`)"


def reset(facts: QueueFacts, offset: int | None) -> str:
    """Return the command that makes the group continue at an offset."""
    to = "OFFSET" if offset is None else offset
    return f"rmq-admin group reset-offset {facts.group} --topic {facts.topic} --queue {facts.queue_id} --to {to}"


def past(offset: int | None) -> str:
    """Return the end of that command that skips a message."""
    return "--to an offset past it" if offset is None else f"--to {offset + 1}"


def times(count: int) -> str:
    """Return a count as an adverb."""
    return "once" if count == 1 else f"{count} times"


def rate(per_s: float) -> str:
    """Return a number of messages per second as text."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def span(value: float) -> str:
    """Return a duration as text."""
    if value < 100:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


LONG_CALL_S: Final = 5.0  # a call that runs longer is reported
SUSPICIOUS_CALL_S: Final = 60.0  # and one that runs this long requires action
SUSPICIOUS_ATTEMPT: Final = 4  # a message whose delivery has this number requires action
SUSPECT_OWNERS: Final = 2  # lost at the same message, they are a pattern
UNPOLLED_S: Final = 5.0  # a program that has not polled for longer is reported
MANY_LEFT_OUT: Final = 100  # messages without a match, for a group whose tag filter may have matched earlier ones
RETURN_S: Final = 10.0  # so long after the start of the broker, members may be on their way back to it
COPY_SHOWN_S: Final = 86_400.0  # so long a copy of the store is mentioned
LATE_S: Final = 1.0  # an event loop that is later than this is reported


class Reason(Enum):
    """The reason why a queue moves or does not. Scripts see the value, so it never changes."""

    DAMAGED = "DAMAGED"
    MESSAGES_LOST = "MESSAGES_LOST"
    OTHER_HISTORY = "OTHER_HISTORY"
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
    LOOP_LATE = "LOOP_LATE"
    FLOW_CONTROL = "FLOW_CONTROL"
    SLOTS_BUSY = "SLOTS_BUSY"
    FILTER_MATCHES_NOTHING = "FILTER_MATCHES_NOTHING"
    STANDING_STILL = "STANDING_STILL"
    CONSUMING = "CONSUMING"
    NO_NEW_MESSAGES = "NO_NEW_MESSAGES"


class Urgency(IntEnum):
    """How urgent a queue is: fine, worth watching if it stays so, or stuck until an operator acts."""

    OK = 0
    WATCH = 1
    ACTION_REQUIRED = 2


class Diagnosis(NamedTuple):
    """The conclusion of a rule about a queue."""

    reason: Reason
    urgency: Urgency
    sentence: str
    advice: str = ""
