"""
Questions of operators: groups (LIST_GROUPS, DESCRIBE_GROUP), members (MEMBER_INFO, RUNNING_INFO) and STATS.

Replies about groups fit a frame and are made in a moment. A member is asked over its own connection while the operator
waits: the question stands in a table meanwhile, and the broker's tick ends what takes too long.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from rmq.wire import names
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import OK, BadRequest, GroupNotFound, MemberNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import LockRow, Outcome, Push, Stats
from rmq.wire.protocol.ops.groups import (
    ANSWER_S,
    ASKED_AT_ONCE,
    MAX_INFO,
    MAX_LEVELS,
    DescribeGroup,
    GroupDescription,
    GroupQueue,
    GroupRow,
    ListGroups,
    MemberInfo,
    MemberState,
    RunningInfo,
)

from ..net.connection import DEFERRED, Connection
from ..state.groups import Member, Membership
from ..state.inquiries import Answer, AskedMember, Inquiry, InquiryTable
from ..state.leases import Lease, LeaseTable, shown
from ..state.offsets import Ledger
from ..state.sessions import Session
from ..state.topics import TopicTable
from ..store.committer import Committer
from ..store.message_store import MessageStore, Traffic
from .groups import GroupHandler
from .progress import ProgressHandler


class Most(NamedTuple):
    """How much one answer looks at: the loop stands still meanwhile."""

    groups: int = 256
    queues: int = 4096  # of all groups of a page
    described: int = 1024  # queues of one group: as many as a topic can have
    members: int = 1024


MOST: Final = Most()


class GroupAdminHandler:
    """What is known of groups: of their members, their leases and their progress, put together."""

    def __init__(
        self, groups: GroupHandler, *, topics: TopicTable, store: MessageStore, members: Membership, locks: LeaseTable,
        ledger: Ledger, progress: ProgressHandler, committer: Committer, now: Callable[[], float],
        most: Most = MOST,
    ) -> None:  # fmt: skip
        self._groups = groups
        self._topics = topics
        self._store = store
        self._members = members
        self._locks = locks
        self._offsets = ledger.offsets
        self._ledger = ledger
        self._progress = progress
        self._committer = committer
        self._now = now
        self._most = most

    def list_groups(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Reply with the groups after a name, as many as fit one reply without delaying other connections."""
        after = decode(ListGroups, payload).after
        self._progress.flush_riding()  # what rides on pulls is progress, and a group may have no other
        leases = self._locks.by_group(now=self._now())
        page: list[GroupRow] = []
        queues = 0
        for group in self._names_after(after, {*self._members.groups(), *leases}):
            row, looked_at = self._row(group, leases.get(group, []))
            page.append(row)
            queues += looked_at
            if queues >= self._most.queues or len(page) >= self._most.groups:
                break
        return self._later(connection, request_id, page)

    def _names_after(self, after: str, alive: set[str]) -> Iterator[str]:
        """Return the groups after a name, in order: those that have progress, and others."""
        known = self._offsets.names()
        first = bisect_right(known, after)
        others = sorted(group for group in alive if group > after)
        merged = heapq.merge((known[i] for i in range(first, len(known))), others)
        return (group for group, _ in itertools.groupby(merged))

    def _row(self, group: str, leases: list[Lease]) -> tuple[GroupRow, int]:
        """A group in one line, and how many queues that took."""
        topics = self._topics_of(group, leases)
        queues, more = self._queues(topics, self._most.queues)
        lag = sum(self._lag(group, queue) for queue in queues)
        members = len(self._members.sessions(group))
        return GroupRow(group, *self._mode(group), members, len(leases), len(topics), lag, more), len(queues)

    def describe(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Members, leases and progress of one group."""
        group, topic = decode(DescribeGroup, payload)
        names.check_group(group)
        if topic is not None:
            self._topics.require(topic)
        self._progress.flush_riding()
        leases = self._locks.rows(group, now=self._now())
        self.require(group, leases)
        topics = self._topics_of(group, leases)
        queues, more_queues = self._queues(topics if topic is None else topics & {topic}, self._most.described)
        described = set(queues)
        rows = {lease.queue: self._groups.lock_row(lease) for lease in leases if lease.queue in described}
        silent = set(self._members.silent(group))
        members = sorted(self._members.of_group(group), key=_name) + sorted(silent, key=_name)
        listed = members[: self._most.members]
        leases_of = Counter(lease.session for lease in leases)
        answer = GroupDescription(
            group, *self._mode(group), len(members) - len(listed), more_queues, self._subscribed(group),
            [self._member(member, leases_of[member.session.id], is_silent=member in silent) for member in listed],
            [self._queue(group, queue, rows.get(queue)) for queue in queues],
        )  # fmt: skip
        return self._later(connection, request_id, answer)

    def require(self, group: str, leases: Iterable[Lease] = ()) -> None:
        """Refuse a group that has neither members nor progress."""
        if not (self._members.sessions(group) or self._members.silent(group) or self._offsets.topics(group) or leases):
            raise GroupNotFound(f"there is no group {group!r}: `rmq-admin group list` shows those that exist")

    def _topics_of(self, group: str, leases: Iterable[Lease]) -> set[str]:
        """What it subscribes to, and what it got somewhere in before; its retries only if it has had any."""
        topics = {lease.queue.topic for lease in leases}.union(self._subscribed(group), self._offsets.topics(group))
        retries = names.retry_topic(group)
        return topics if self._topics.get(retries) is not None else topics - {retries}

    def _queues(self, topics: Iterable[str], most: int) -> tuple[list[MessageQueue], int]:
        """The queues of those topics that exist, and how many of them are too many."""
        found: list[MessageQueue] = []
        more = 0
        for name in sorted(topics):
            if (topic := self._topics.get(name)) is not None:
                looked_at = min(topic.queues, most - len(found))
                found += [MessageQueue(name, queue_id) for queue_id in range(looked_at)]
                more += topic.queues - looked_at
        return found, more

    def _mode(self, group: str) -> tuple[bool | None, str | None, str | None]:
        mode = self._members.mode(group)
        silent = self._members.silent(group) if mode is None else []
        return mode or next((member.mode for member in silent), None) or (None, None, None)

    def _subscribed(self, group: str) -> dict[str, str]:
        """What its members subscribe to; if it has none, what one of the silent ones did."""
        silent = [] if self._members.sessions(group) else self._members.silent(group)
        return silent[0].subscriptions if silent else self._members.subscribed(group)

    def _queue(self, group: str, queue: MessageQueue, row: LockRow | None = None) -> GroupQueue:
        index, committed = self._store.queue(queue), self._offsets.get(group, queue)
        state = GroupQueue(*queue, index.min_offset, index.readable, committed, self._lag(group, queue))
        if row is not None:
            state = state._replace(owner=row.owner, epoch=row.epoch, lease_left_s=row.expires_in_s, state=row.state)
        retry_offset, attempts = self._ledger.attempts.get(group, queue)
        mark = self._ledger.suspects.get(group, queue)
        return state._replace(
            retry_offset=retry_offset,
            attempts=attempts,
            suspect_offset=mark.suspect_offset,
            abandoned=mark.abandoned,
            former=None if row is not None else self._locks.former(group, queue),
        )

    def _lag(self, group: str, queue: MessageQueue) -> int:
        index = self._store.queue(queue)
        return index.readable - max(self._offsets.get(group, queue), index.min_offset)

    def _member(self, member: Member, leases: int, *, is_silent: bool) -> MemberState:
        session = member.session
        connection = session.connection if isinstance(session.connection, Connection) else None
        heard_at = session.answered_at if connection is None else connection.heard_at
        state = "silent" if is_silent else "connected"
        return MemberState(
            session.member, session.id.hex()[:8], None if connection is None else connection.peer,
            "grace" if connection is None else state, round(max(self._now() - heard_at, 0.0), 3),
            leases,
        )  # fmt: skip

    def _later(self, connection: Connection, request_id: int, answer: object) -> object:
        # Topics and progress are reported when they are durable, as everywhere.
        self._committer.when_durable(lambda: connection.reply(request_id, answer))
        return DEFERRED


def _name(member: Member) -> str:
    return member.session.member


NOTHING: Final[bytes] = msgpack.packb({})


class RunningInfoHandler:
    """Carries questions to members and their answers back."""

    def __init__(self, groups: GroupAdminHandler, members: Membership, *, now: Callable[[], float]) -> None:
        self._groups = groups
        self._members = members
        self._now = now
        self._inquiries = InquiryTable(ANSWER_S)

    def ask(self, connection: Connection, request_id: int, payload: Any) -> object:
        """MEMBER_INFO: ask a member, or a page of all; the answer follows when they have answered, or should have."""
        group, member, after = decode(MemberInfo, payload)
        names.check_group(group)
        self._groups.require(group)
        members = self._asked(group, member, after)
        inquiry = self._inquiries.begin(connection, request_id, members, now=self._now(), is_one=bool(member))
        reachable = [asked.connection for asked in members if isinstance(asked.connection, Connection)]
        for token, asked in zip(inquiry.tokens, reachable, strict=True):
            # One that does not read its pushes is asked the newest question only.
            frame = frames.pack(frames.PUSH, 0, Push.RUNNING_INFO, (token, group))
            asked.push_frame(frame, ("running info", group))
        if inquiry.is_over:
            self._reply(inquiry)
        else:
            connection.set_aside()  # as many as may wait are bounded by the table
        return DEFERRED

    def _asked(self, group: str, member: str, after: str) -> list[AskedMember]:
        known = [*self._members.of_group(group), *self._members.silent(group)]  # a silent one may have woken up
        sessions = sorted((member.session for member in known), key=_session_name)
        if member:
            sessions = [session for session in sessions if session.member == member][:1]
            if not sessions:
                raise MemberNotFound(f"group {group!r} has no member {shown(member)!r}")
        else:
            sessions = [session for session in sessions if session.member > after][:ASKED_AT_ONCE]
        return [AskedMember(session.member, session.id, session.connection) for session in sessions]

    def answer(self, connection: Connection, request_id: int, payload: Any) -> object:
        """RUNNING_INFO: what a member says of itself."""
        token, info = decode(RunningInfo, payload)
        session = connection.session
        assert session is not None  # the connection serves nothing before the hello
        now = self._now()
        if not self._inquiries.expects(token, session.id, now=now):  # before time is spent on looking at it
            raise BadRequest("no request waits for this answer: it comes too late, or this session was not asked")
        inquiry = self._inquiries.answer(token, session.id, _packed(info), now=now)
        assert inquiry is not None  # it is expected
        self._reply_if_over(inquiry)
        return Outcome()

    def expire(self) -> None:
        """Answer for those who did not. Called by the broker's tick."""
        for inquiry in self._inquiries.expire(now=self._now()):
            self._reply_if_over(inquiry)

    def closed(self, connection: Connection) -> None:
        """A connection ended: it neither waits nor answers any more."""
        for inquiry in self._inquiries.closed(connection):
            self._reply_if_over(inquiry)

    def _reply_if_over(self, inquiry: Inquiry) -> None:
        """Answer a request that was set aside, once nothing is waited for any more."""
        if inquiry.is_over:
            assert isinstance(inquiry.asker, Connection)
            inquiry.asker.take_back()
            self._reply(inquiry)

    def _reply(self, inquiry: Inquiry) -> None:
        asker, answers = inquiry.asker, inquiry.result()
        assert isinstance(asker, Connection)
        if inquiry.is_one and answers[0].error is not None:
            asker.refuse(inquiry.request_id, answers[0].error)
            return
        parts: list[Buffer] = [frames.array_header(len(answers))]
        for answer in answers:
            parts += _report(answer)
        asker.reply_parts(inquiry.request_id, parts)


def _report(answer: Answer) -> list[Buffer]:
    """A MemberReport; what the member said is not unpacked again."""
    status, text = (OK, None) if answer.error is None else (answer.error.code, answer.error.text)
    head: bytes = msgpack.packb((status, answer.member, text, None))[:-1]
    return [head, NOTHING if answer.info is None else answer.info]


def _packed(info: dict[str, Any]) -> bytes:
    if _is_deeper(info, MAX_LEVELS):
        raise BadRequest(f"RunningInfo: info has more than {MAX_LEVELS} levels of maps and arrays")
    packed: bytes = msgpack.packb(info)
    if len(packed) > MAX_INFO:
        raise BadRequest(f"RunningInfo: info has {len(packed)} bytes, at most {MAX_INFO} are allowed")
    return packed


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    elements = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(element, levels - 1) for element in elements)


def _session_name(session: Session) -> str:
    return session.member


Source = Callable[[], Mapping[str, Any]]


class StatsHandler:
    """Collects the numbers of each part of the broker; ``sources`` names the parts, ``traffic`` counts by topic."""

    def __init__(self, sources: Mapping[str, Source], traffic: Traffic) -> None:
        self._sources: dict[str, Source] = {**sources, "traffic": lambda: traffic.total()._asdict()}
        self._traffic = traffic

    def add(self, part: str, source: Source) -> None:
        """Ask another part of the broker, too."""
        self._sources[part] = source

    def stats(self, connection: Connection, request_id: int, payload: Any) -> object:
        """All numbers, by part and name; as part ``topics``, those of the busiest topics if they are asked for."""
        topics = decode(Stats, payload).topics
        numbers: dict[str, dict[str, Any]] = {part: dict(source()) for part, source in self._sources.items()}
        if topics > 0:
            numbers["topics"] = {topic: flow._asdict() for topic, flow in self._traffic.busiest(topics).items()}
        return numbers
