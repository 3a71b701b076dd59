"""
The facts about one queue of a group at one moment, merged from the reports of the broker and of its owner. Pure.

Members report for people to read: names change between versions, and a broken member may report anything. A value of
an unexpected type counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rmq.wire.batch.tags import ALL
from rmq.wire.errors import OK, MemberSilent
from rmq.wire.model import MessageQueue
from rmq.wire.names import retry_topic
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue, MemberReport

from ..admin.messages import Head

BROADCASTING: Final = "broadcasting"
CONSUME_TIMEOUT_S: Final = 900.0  # of a member that has not changed it
MAX_TEXT: Final = 160  # characters of what a member says


class DeferredMessages(NamedTuple):
    """The messages of a queue that are not due yet."""

    messages: int = 0
    next_in_s: float = 0.0
    more: bool = False  # there are others that were not counted


NOTHING_DEFERRED: Final = DeferredMessages()


class SilentMember(NamedTuple):
    """A member that the broker removed from the group for its silence, although it is still connected."""

    member: str
    silent_s: float
    answers: bool = False  # it was asked just now, and answered: it is about to come back


class OwnerReport(NamedTuple):
    """An owner's report of a queue and of itself; times are seconds from the moment of the question."""

    epoch: int
    head_offset: int | None = None
    commit_offset: int | None = None
    end_offset: int | None = None  # behind the last message that it has fetched
    attempt: int = 1
    retry_in_s: float | None = None
    called_for_s: float | None = None
    cached_messages: int = 0
    flow_control: str = ""
    paused: bool = False
    stopped_code: str = ""
    stopped_from: int | None = None
    stopped_to: int | None = None
    last_error: str = ""
    failed_offset: int | None = None
    selected: int = 0  # messages that came by the tag expression, and those that it left out
    left_out: int = 0
    abandoned: int = 0
    dropped: bool = False
    lost: bool = False
    loop_lag_s: float = 0.0
    slots_busy: bool = False
    polled_ago_s: float | None = None
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    max_attempts: int | None = None  # None: there is no limit, or the member's is the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """
    A queue of a group. ``owner`` holds its lock; in a broadcasting group it is the member whose progress this is.

    ``answers`` is False if the owner did not reply, ``report`` what it reported about this queue. ``moved`` messages
    were finished in ``watched_s``; it is None without a second look.
    """

    group: str
    topic: str
    queue_id: int
    lag: int = 0
    min_offset: int = 0
    max_offset: int = 0
    committed: int = -1
    retry_offset: int = -1
    attempts: int = 0
    suspect_offset: int = -1
    abandoned: int = 0
    # its lock
    owner: str | None = None
    epoch: int = 0
    lease_left_s: float | None = None
    in_grace: bool = False
    answers: bool = True
    report: OwnerReport | None = None
    reported_all: bool = True  # else the owner has more queues than it reports
    # the group
    ordered: bool = True
    model: str | None = None
    strategy: str | None = None
    connected: int = 0  # members that are there
    silenced: SilentMember | None = None  # the one that lost it by its silence; in a group without others, any
    subscribed: bool = True
    expression: str = ALL
    selected: int = 0  # messages of the whole topic that came by the expression, as far as members tell
    left_out: int = 0  # and those that it left out
    has_past: bool = False  # the group read messages of the topic before members began to count these
    newest_tag: str | None = None  # of the last message; None: it was not looked at
    waiting: tuple[str, ...] = ()  # members that were refused the lock
    # its first message that is not done, and those behind it
    head: Head | None = None
    head_age_s: float | None = None
    deferred: DeferredMessages = NOTHING_DEFERRED
    broker_up_s: float | None = None
    refuses_sends: str = ""  # why the broker takes no messages: none can be put aside, or become a dead letter
    moved: int | None = None
    watched_s: float = 0.0

    @property
    def is_retries(self) -> bool:
        """Whether it is the retry queue of the group."""
        return self.topic == retry_topic(self.group)

    @property
    def head_offset(self) -> int | None:
        """The first unfinished message, or None."""
        offset = self.max_offset - self.lag
        if self.report is not None and self.report.head_offset is not None:
            # The lag starts after what retention removed, and the owner may still have fetched messages before that.
            first = self.committed if self.report.cached_messages and self.committed >= 0 else offset
            offset = max(first, self.report.head_offset) if self.model != BROADCASTING else self.report.head_offset
        return None if offset >= self.max_offset else offset

    @property
    def attempt(self) -> int:
        """The number of the current or next delivery of the first unfinished message."""
        counted = self.attempts + 1 if self.attempts and self.retry_offset == self.head_offset else 1
        return max(counted, self.report.attempt if self.report is not None else 1)


class Members:
    """Indexes the reports of the members of a group by name and by queue."""

    def __init__(self, reports: Sequence[MemberReport]) -> None:
        self._reports = {report.member: report for report in reports}
        self._by_queue: dict[tuple[str, MessageQueue], OwnerReport] = {}
        self.waiting: dict[MessageQueue, list[str]] = {}
        for report in reports:
            if report.status == OK:
                self._read(report)

    def answers(self, member: str) -> bool:
        """Return whether a member can be reached: False only if it was asked and stayed silent."""
        report = self._reports.get(member)
        return report is None or report.status != MemberSilent.code

    def silent(self) -> list[str]:
        """Return the members that are connected and do not answer."""
        return [name for name, report in self._reports.items() if report.status == MemberSilent.code]

    def answered(self, member: str) -> bool:
        """Return whether a member was asked, and answered."""
        report = self._reports.get(member)
        return report is not None and report.status == OK

    def reports_all(self, member: str) -> bool:
        """Return whether a member reported all its queues."""
        return self.answered(member) and not number(self._reports[member].info, "more_queues")

    def report_of(self, member: str | None, queue: MessageQueue) -> OwnerReport | None:
        """Return what a member reported about a queue."""
        return None if member is None else self._by_queue.get((member, queue))

    def reports_by(self, member: str) -> dict[MessageQueue, OwnerReport]:
        """Return the reports of a member by queue."""
        return {queue: report for (name, queue), report in self._by_queue.items() if name == member}

    def selected(self, topic: str) -> int:
        """Count the messages of a topic that matched its tag expression since members got their queues."""
        return sum(report.selected for (_, queue), report in self._by_queue.items() if queue.topic == topic)

    def left_out(self, topic: str) -> int:
        """Count the messages of a topic that its tag expression left out since members got their queues."""
        return sum(report.left_out for (_, queue), report in self._by_queue.items() if queue.topic == topic)

    def errors(self) -> list[str]:
        """Return the last errors of listeners, for all queues."""
        return [report.last_error for report in self._by_queue.values() if report.last_error]

    def _read(self, report: MemberReport) -> None:
        info = report.info
        for queue in _maps(info.get("queues")):
            name, queue_id = text(queue, "topic"), number(queue, "queue_id")
            if name and queue_id is not None:
                self._by_queue[report.member, MessageQueue(name, int(queue_id))] = _owner_report(queue, info)
        for waits in _lists(info.get("waits_for")):
            if len(waits) > 1 and isinstance(waits[0], str) and isinstance(waits[1], int):
                self.waiting.setdefault(MessageQueue(waits[0], waits[1]), []).append(report.member)


def _owner_report(queue: Mapping[str, Any], info: Mapping[str, Any]) -> OwnerReport:
    turns, slots = number(info, "turns"), number(info, "slots")
    return OwnerReport(
        epoch=int(number(queue, "epoch") or 0),
        head_offset=_whole(queue, "head_offset"),
        commit_offset=_whole(queue, "commit_offset"),
        end_offset=_whole(queue, "end_offset"),
        attempt=_whole(queue, "attempt") or 1,
        retry_in_s=number(queue, "retry_in_s"),
        called_for_s=number(queue, "called_for_s"),
        cached_messages=_whole(queue, "cached_messages") or 0,
        flow_control=text(queue, "flow_control"),
        paused=queue.get("paused") is True,
        stopped_code=text(queue, "stopped_code") or _code_in(text(queue, "stopped")),
        stopped_from=_whole(queue, "stopped_from"),
        stopped_to=_whole(queue, "stopped_to"),
        last_error=text(queue, "last_error"),
        failed_offset=_whole(queue, "failed_offset"),
        selected=_whole(queue, "selected") or 0,
        left_out=_whole(queue, "left_out") or 0,
        abandoned=_whole(queue, "abandoned") or 0,
        dropped=queue.get("dropped") is True,
        lost=queue.get("lost") is True,
        loop_lag_s=number(info, "loop_lag_s") or 0.0,
        slots_busy=turns is not None and slots is not None and turns >= slots > 0,
        polled_ago_s=number(info, "polled_ago_s"),
        consume_timeout_s=_setting(info, "consume_timeout_s") or CONSUME_TIMEOUT_S,
        max_attempts=None if (most := _setting(info, "max_attempts")) is None or most < 1 else int(most),
    )


def of_group(
    described: GroupDescription,
    members: Members,
    *,
    deferred: Mapping[MessageQueue, DeferredMessages] = MappingProxyType({}),
    refuses_sends: str = "",
    broker_up_s: float | None = None,
) -> list[QueueFacts]:
    """Return the facts of all queues of a group that shares them among its members."""
    connected = sum(member.state == "connected" for member in described.members) + described.more_members
    silent = silent_members(described, members)
    selected = {topic: members.selected(topic) for topic in described.subscriptions}
    left_out = {topic: members.left_out(topic) for topic in described.subscriptions}
    with_past = {
        queue.topic for queue in described.queues if _has_past(queue, members.report_of(queue.owner, queue_of(queue)))
    }
    return [
        QueueFacts(
            group=described.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            lag=queue.lag,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            committed=queue.committed,
            retry_offset=queue.retry_offset,
            attempts=queue.attempts,
            suspect_offset=queue.suspect_offset,
            abandoned=queue.abandoned,
            owner=queue.owner,
            epoch=queue.epoch,
            lease_left_s=None if queue.owner is None else queue.lease_left_s,
            in_grace=(queue.state or "").startswith("grace"),
            answers=queue.owner is None or members.answers(queue.owner),
            report=members.report_of(queue.owner, name),
            reported_all=queue.owner is None or members.reports_all(queue.owner),
            ordered=described.ordered is not False,
            model=described.model,
            strategy=described.strategy,
            connected=connected,
            silenced=None if queue.owner is not None else _silenced(queue, silent, connected),
            subscribed=queue.topic in described.subscriptions,
            expression=described.subscriptions.get(queue.topic, ALL),
            selected=selected.get(queue.topic, 0),
            left_out=left_out.get(queue.topic, 0),
            has_past=queue.topic in with_past,
            waiting=tuple(members.waiting.get(name, ())),
            deferred=deferred.get(name, NOTHING_DEFERRED),
            refuses_sends=refuses_sends,
            broker_up_s=broker_up_s,
        )
        for queue in described.queues
        for name in [queue_of(queue)]
    ]


def _has_past(queue: GroupQueue, report: OwnerReport | None) -> bool:
    """Return whether the group read messages of a queue that its owner has not counted as selected or left out."""
    if report is None:
        return queue.committed > queue.min_offset
    return max(queue.committed, report.end_offset or 0) - queue.min_offset > report.selected + report.left_out


def silent_members(described: GroupDescription, members: Members) -> dict[str, SilentMember]:
    """Return the members that were removed for their silence, by name, the longest silent first."""
    silent = [
        SilentMember(member.member, member.heard_ago_s, members.answered(member.member))
        for member in described.members
        if member.state == "silent"
    ]
    return {each.member: each for each in sorted(silent, key=lambda each: -each.silent_s)}


def _silenced(queue: GroupQueue, silent: Mapping[str, SilentMember], connected: int) -> SilentMember | None:
    lost_it = None if queue.former is None else silent.get(queue.former)
    return lost_it or (None if connected else next(iter(silent.values()), None))


def of_broadcast(
    described: GroupDescription,
    members: Members,
    *,
    deferred: Mapping[MessageQueue, DeferredMessages] = MappingProxyType({}),
) -> list[QueueFacts]:
    """Return the facts of every queue for every member: each has its own progress, and no lock."""
    found = []
    selected = {topic: members.selected(topic) for topic in described.subscriptions}
    left_out = {topic: members.left_out(topic) for topic in described.subscriptions}
    with_past = {
        queue.topic
        for queue in described.queues
        for member in described.members
        if _has_past(queue, members.report_of(member.member, queue_of(queue)))
    }
    for member in described.members:
        reports_by = members.reports_by(member.member)
        for queue in described.queues:
            name = queue_of(queue)
            report = reports_by.get(name)
            done = queue.min_offset if members.reports_all(member.member) else queue.max_offset
            if report is not None and report.head_offset is not None:
                done = report.head_offset
            found.append(
                QueueFacts(
                    group=described.group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    lag=max(queue.max_offset - max(done, queue.min_offset), 0),
                    max_offset=queue.max_offset,
                    owner=member.member,
                    in_grace=member.state == "grace",
                    answers=members.answers(member.member),
                    report=report,
                    reported_all=members.reports_all(member.member),
                    model=BROADCASTING,
                    connected=len(described.members),
                    expression=described.subscriptions.get(queue.topic, ALL),
                    selected=selected.get(queue.topic, 0),
                    left_out=left_out.get(queue.topic, 0),
                    has_past=queue.topic in with_past,
                    deferred=deferred.get(name, NOTHING_DEFERRED),
                )
            )
    return found


def queue_of(queue: GroupQueue) -> MessageQueue:
    """Return the identity of a queue."""
    return MessageQueue(queue.topic, queue.queue_id)


def number(of: Mapping[str, Any], name: str) -> float | None:
    """Return a finite number that a member reported, or None."""
    value: Any = of.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def text(of: Mapping[str, Any], name: str) -> str:
    """Return a text that a member reported, or an empty one."""
    value = of.get(name)
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _whole(of: Mapping[str, Any], name: str) -> int | None:
    value = number(of, name)
    return None if value is None else int(value)


def _setting(info: Mapping[str, Any], name: str) -> float | None:
    """Return a setting of a member that differs from the default; others are not reported."""
    settings = info.get("settings")
    return number(settings, name) if isinstance(settings, dict) else None


def _code_in(stopped: str) -> str:
    """Return the code for a member whose version reports it in words only."""
    return stopped.partition(":")[0]


def _maps(value: Any) -> list[dict[str, Any]]:
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def _lists(value: Any) -> list[list[Any]]:
    return [element for element in value if isinstance(element, list)] if isinstance(value, list) else []
