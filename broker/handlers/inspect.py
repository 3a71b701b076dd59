"""LIST_GROUPS and DESCRIBE_GROUP: groups as people look at them, in answers that fit a frame and a moment."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from rmq.wire import names
from rmq.wire.errors import GroupNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import LockRow
from rmq.wire.protocol.ops.groups import DescribeGroup, GroupDescription, GroupQueue, GroupRow, ListGroups, MemberState

from ..net.connection import DEFERRED, Connection
from ..state.groups import Member, Membership
from ..state.leases import Lease, LockTable
from ..state.ledger import Ledger
from ..state.topics import TopicTable
from ..store.committer import Committer
from ..store.message_store import MessageStore
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
        self, groups: GroupHandler, *, topics: TopicTable, store: MessageStore, members: Membership, locks: LockTable,
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
        """The groups behind a name, as many as go into one answer without keeping the others waiting."""
        after = decode(ListGroups, payload).after
        self._progress.flush_riding()  # what rides on pulls is progress, and a group may have no other
        leases = self._locks.by_group(now=self._now())
        page: list[GroupRow] = []
        queues = 0
        for group in self._behind(after, {*self._members.groups(), *leases}):
            row, looked_at = self._row(group, leases.get(group, []))
            page.append(row)
            queues += looked_at
            if queues >= self._most.queues or len(page) >= self._most.groups:
                break
        return self._later(connection, request_id, page)

    def _behind(self, after: str, alive: set[str]) -> Iterator[str]:
        """The groups behind a name, in order: those that have progress, and others."""
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
        told_of = set(queues)
        rows = {lease.queue: self._groups.lock_row(lease) for lease in leases if lease.queue in told_of}
        silent = set(self._members.silent(group))
        members = sorted(self._members.of_group(group), key=_name) + sorted(silent, key=_name)
        told = members[: self._most.members]
        held = Counter(lease.session for lease in leases)
        answer = GroupDescription(
            group, *self._mode(group), len(members) - len(told), more_queues, self._subscribed(group),
            [self._member(member, held[member.session.id], is_silent=member in silent) for member in told],
            [self._queue(group, queue, rows.get(queue)) for queue in queues],
        )  # fmt: skip
        return self._later(connection, request_id, answer)

    def require(self, group: str, leases: Iterable[Lease] = ()) -> None:
        """Refuse a group that nobody is in, and that never got anywhere."""
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
        told = GroupQueue(*queue, index.min_offset, index.readable, committed, self._lag(group, queue))
        if row is not None:
            told = told._replace(owner=row.owner, epoch=row.epoch, lease_left_s=row.expires_in_s, state=row.state)
        retry_offset, attempts = self._ledger.attempts.get(group, queue)
        mark = self._ledger.suspects.get(group, queue)
        return told._replace(
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
        # Topics and progress are told when they are durable, as everywhere.
        self._committer.when_durable(lambda: connection.reply(request_id, answer))
        return DEFERRED


def _name(member: Member) -> str:
    return member.session.member
