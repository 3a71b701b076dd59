"""
Groups: membership, leases, progress and attempts, fenced by epochs.

A grant, an unlock, an acknowledged commit or attempt is answered when its change is in the log. Progress that
rides on pulls is gathered and reaches the log within ``offset_flush_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rmq.wire import names
from rmq.wire.codec import decode
from rmq.wire.errors import BadRequest, Fenced, LockHeld, NotAMember, Refused
from rmq.wire.model import MessageQueue
from rmq.wire.ops import (
    NO_OFFSET,
    Acquire,
    Attempt,
    Commit,
    Grant,
    Join,
    JoinReply,
    LeaseEnd,
    Leave,
    LockRow,
    LockStatus,
    Outcome,
    Release,
    Renew,
    TopicInfo,
)  # fmt: skip
from rmq.wire.tags import Wanted
from rmq.wire.topic_ops import GroupState

from ..committer import Committer
from ..connection import DEFERRED, Connection
from ..log import get_logger
from ..services.attempt_table import AttemptTable
from ..services.lock_table import Lease, LockTable, shown
from ..services.membership import GroupMode, Membership
from ..services.offset_table import OffsetTable
from ..services.sessions import Session, SessionTable
from ..services.state import Attempted, Committed, LeaseEnded
from ..services.topics import TopicTable
from .limits import check_entries
from .notices import Notices

log = get_logger(__name__)

LATE_S: Final = 1.0  # between two passes over what may expire; more than that is our own silence

LeaseChanged = Callable[[str, MessageQueue], None]
Resubscribed = Callable[[Connection, str], None]


class GroupHandler:
    """Everything a group's members do but sending and pulling."""

    def __init__(
        self, *, topics: TopicTable, sessions: SessionTable, members: Membership, locks: LockTable,
        offsets: OffsetTable, attempts: AttemptTable, committer: Committer, now: Callable[[], float],
        readable_end: Callable[[MessageQueue], int], topic_info: Callable[[str], TopicInfo], notices: Notices,
    ) -> None:  # fmt: skip
        self._topics = topics
        self._sessions = sessions
        self._members = members
        self._locks = locks
        self._offsets = offsets
        self._attempts = attempts
        self._committer = committer
        self._now = now
        self._readable_end = readable_end
        self._topic_info = topic_info
        self._notices = notices
        self._looked_at = now()
        self._riding: dict[tuple[str, MessageQueue], int] = {}
        self.lease_changed: LeaseChanged = lambda group, queue: None  # set by the composition root
        self.resubscribed: Resubscribed = lambda connection, group: None  # set by it too

    # ---- membership

    def join(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Become a member, or show that one is alive."""
        request = decode(Join, payload)
        session = _session(connection)
        mode = GroupMode(request.ordered, request.model, request.strategy)
        before = self._members.subscriptions(request.group, session.id)
        if self._members.join(request.group, mode, request.subscriptions, session, now=self._now()):
            log.info("group.joined", group=request.group, member=session.member)
            self._notices.members_changed(request.group, but=session.id)
        if before != request.subscriptions:
            self.resubscribed(connection, request.group)
        topics = [self._topic_info(topic) for topic in request.subscriptions if self._topics.get(topic) is not None]
        self._committer.when_durable(  # a topic is told only when it is durable; who is in, as it is then
            lambda: connection.reply(request_id, JoinReply(self._members.members(request.group), topics))
        )
        return DEFERRED

    def leave(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Commit, give back and leave in one step; a lease whose grant the member never learned of goes too."""
        check_entries(payload, 1)
        request = decode(Leave, payload)
        names.check_group(request.group)
        session = _session(connection)
        outcomes = self._end_leases(session.id, request.group, request.leases)
        for lease in self._locks.of_session(session.id, now=self._now()):
            if lease.group == request.group:
                self._end_lease(session.id, lease.group, LeaseEnd(*lease.queue, lease.epoch))
        if self._members.leave(request.group, session.id):
            log.info("group.left", group=request.group, member=session.member)
            self._notices.members_changed(request.group)
        return self._later(connection, request_id, outcomes)

    # ---- leases

    def acquire(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Grant the leases that are free."""
        check_entries(payload, 1)
        request = decode(Acquire, payload)
        names.check_group(request.group)
        session = _session(connection)
        self.expire()  # whoever is found to be silent leaves its group too, not only the queue that is asked for
        if not self._members.is_member(request.group, session.id):
            raise NotAMember(f"join the group {request.group!r} before asking for its queues")
        grants: list[Grant] = []
        for queue in [MessageQueue(*ref) for ref in request.queues]:
            try:
                self._topics.require_queue(*queue)
                grants.append(self._grant(session, request.group, queue))
            except Refused as error:
                grants.append(Grant(error.code, text=error.text))
        return self._later(connection, request_id, grants)

    def _grant(self, session: Session, group: str, queue: MessageQueue) -> Grant:
        now = self._now()
        lease = self._locks.acquire(group, queue, session.id, session.member, now=now)
        if lease is None:
            holder = self._locks.holder(group, queue, now=now)
            raise LockHeld(f"held by {holder.member if holder else 'another member'}")
        if (riding := self._riding.pop((group, queue), None)) is not None:
            self._advance(group, queue, riding)  # what the new owner begins at must not be lost to a crash
        self._committer.record(lease.granted())
        self.lease_changed(group, queue)
        log.info("lock.granted", group=group, queue=str(queue), owner=session.member, epoch=lease.epoch)
        return Grant(0, lease.epoch, self._committed(group, queue), *self._attempts.get(group, queue))

    def renew(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Keep leases; one that is not held any more is refused."""
        check_entries(payload, 1)
        request = decode(Renew, payload)
        names.check_group(request.group)
        session, now = _session(connection), self._now()
        outcomes = []
        for topic, queue_id, epoch in request.leases:
            queue = MessageQueue(topic, queue_id)
            if self._locks.renew(request.group, queue, session.id, epoch, now=now):
                outcomes.append(Outcome())
            else:
                outcomes.append(Outcome(Fenced.code, f"the lease of {shown(str(queue))} with epoch {epoch} is gone"))
        return outcomes

    def release(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Commit and give back; giving back what is not held is no error."""
        check_entries(payload, 1)
        request = decode(Release, payload)
        names.check_group(request.group)
        outcomes = self._end_leases(_session(connection).id, request.group, request.leases)
        return self._later(connection, request_id, outcomes)

    def _end_leases(self, session_id: bytes, group: str, leases: list[LeaseEnd]) -> list[Outcome]:
        return [self._end_lease(session_id, group, lease) for lease in leases]

    def _end_lease(self, session_id: bytes, group: str, lease: LeaseEnd) -> Outcome:
        queue, now = MessageQueue(lease.topic, lease.queue_id), self._now()
        outcome = Outcome()
        if lease.queue_offset != NO_OFFSET:
            outcome = self._commit_one(session_id, group, queue, lease.epoch, lease.queue_offset)
        if self._locks.release(group, queue, session_id, lease.epoch, now=now):
            self._freed(group, queue, lease.epoch, "released")
        return outcome

    def _freed(self, group: str, queue: MessageQueue, epoch: int, why: str) -> None:
        self._committer.record(LeaseEnded(group, queue.topic, queue.queue_id, epoch))
        self.lease_changed(group, queue)
        log.info("lock.freed", group=group, queue=str(queue), epoch=epoch, why=why)
        self._notices.lease_free(group, queue)

    def lock_status(self, connection: Connection, request_id: int, payload: Any) -> object:
        """The leases as people see them."""
        group = decode(LockStatus, payload).group
        if group is not None:
            names.check_group(group)
        return self.lock_rows(group)

    def lock_rows(self, group: str | None) -> list[LockRow]:
        """The leases of one group or of all, by group and queue."""
        now = self._now()
        return [self._row(lease, now) for lease in self._locks.rows(group, now=now)]

    def _row(self, lease: Lease, now: float) -> LockRow:
        session = self._sessions.get(lease.session)
        expires_in = lease.renewed_at + self._locks.lease_s - now
        renewed_ago = max(now - lease.renewed_at, 0.0)  # a restored one may count as renewed in a moment
        state = "held"
        if session is None or session.connection is None:
            state = "grace"
            answered_at = session.answered_at if session else now
            expires_in = min(expires_in, answered_at + self._sessions.grace_s - now)
        offset, attempts = self._attempts.get(lease.group, lease.queue)
        if attempts:
            state += f", retrying offset {offset} (attempt {attempts + 1})"
        return LockRow(
            lease.group, lease.queue.topic, lease.queue.queue_id, lease.member, lease.session.hex()[:8], lease.epoch,
            round(now - lease.granted_at, 3), round(renewed_ago, 3), round(max(expires_in, 0.0), 3), state,
        )  # fmt: skip

    # ---- progress

    def commit(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Store progress; the answer follows when it is durable."""
        check_entries(payload, 1)
        request = decode(Commit, payload)
        names.check_group(request.group)
        session_id = _session(connection).id
        outcomes = [
            self._commit_one(session_id, request.group, MessageQueue(topic, queue_id), epoch, offset)
            for topic, queue_id, epoch, offset in request.entries
        ]
        return self._later(connection, request_id, outcomes)

    def attempt(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Note a failed delivery; the answer follows when it is durable."""
        request = decode(Attempt, payload)
        names.check_group(request.group)
        queue = MessageQueue(request.topic, request.queue_id)
        if not 1 <= request.attempts < 1 << 31:
            raise BadRequest(f"attempts must be 1 or more, not {request.attempts}")
        self._topics.require_queue(*queue)
        self._locks.check(request.group, queue, _session(connection).id, request.epoch, now=self._now())
        if not 0 <= request.queue_offset < self._readable_end(queue):
            raise BadRequest(f"offset {request.queue_offset} was never delivered: {queue} ends before it")
        if self._attempts.record(request.group, queue, request.queue_offset, request.attempts):
            self._committer.record(Attempted(request.group, *queue, request.queue_offset, request.attempts))
        return self._later(connection, request_id, Outcome())

    def _commit_one(
        self, session_id: bytes, group: str, queue: MessageQueue, epoch: int | None, offset: int
    ) -> Outcome:
        try:
            self._topics.require_queue(*queue)
            self.check_pull(session_id, group, queue, epoch)
            self._check_offset(queue, offset)
        except Refused as error:
            return Outcome(error.code, error.text)
        self._advance(group, queue, offset)  # what rides with a higher offset stays: it is progress all the same
        return Outcome()

    def _check_offset(self, queue: MessageQueue, offset: int) -> None:
        end = self._readable_end(queue)
        if not 0 <= offset <= end:
            raise BadRequest(f"offset {offset} cannot be committed: {queue} ends at {end}")

    def _advance(self, group: str, queue: MessageQueue, offset: int) -> None:
        if self._offsets.commit(group, queue, offset):
            self._attempts.forget_below(group, queue, offset)
            self._committer.record(Committed(group, queue.topic, queue.queue_id, offset))

    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        """Refuse who does not hold the lease; a group without members is ordered (it has just restarted)."""
        if epoch is not None or (mode := self._members.mode(group)) is None or mode.ordered:
            self._locks.check(group, queue, session, epoch, now=self._now())

    def wanted(self, session: bytes, group: str, topic: str) -> Wanted | None:
        """The tags that a member wants of a topic; None if all of them, or if it has not said."""
        return self._members.wanted(group, session, topic)

    def ride(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Note progress that came with a pull; it reaches the log within a moment, or with the next grant."""
        if 0 <= queue_offset <= self._readable_end(queue) and queue_offset > self._committed(group, queue):
            self._riding[group, queue] = queue_offset

    def flush_riding(self) -> None:
        """Bring gathered progress into the log."""
        riding, self._riding = self._riding, {}
        for (group, queue), offset in riding.items():
            self._advance(group, queue, offset)

    def _committed(self, group: str, queue: MessageQueue) -> int:
        return max(self._riding.get((group, queue), NO_OFFSET), self._offsets.get(group, queue))

    def committed(self, group: str, queue: MessageQueue) -> int:
        """The offset a new owner begins at, -1 if none was committed."""
        return self._committed(group, queue)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have progress in a topic, sorted; what rides on pulls is brought into the log before."""
        self.flush_riding()
        return self._offsets.groups(topic)

    def state_of(self, group: str, queues: Sequence[MessageQueue]) -> GroupState:
        """How far a group is in these queues, by what it has committed."""
        return GroupState(group, len(self._members.sessions(group)), self._offsets.of_queues(group, queues))

    def forget_topic(self, topic: str) -> None:
        """A topic is gone, and with it leases, offsets and attempts: the one change that says so takes them all."""
        self._riding = {key: offset for key, offset in self._riding.items() if key[1].topic != topic}
        self._offsets.forget_topic(topic)
        self._attempts.forget_topic(topic)
        for lease in self._locks.release_topic(topic):
            log.info("lock.freed", group=lease.group, queue=str(lease.queue), epoch=lease.epoch, why="topic deleted")

    # ---- time

    def expire(self) -> None:
        """Free what silence has ended: sessions after their grace, leases after theirs, members without heartbeat."""
        now = self._now()
        self._forgive(now)
        for session in self._sessions.expire(now=now):
            self._end_session(session)
        self._expire_leases(now)
        for group, session_id in self._members.expire(now=now):
            log.warning("group.member_expired", group=group, session=session_id.hex()[:8])
            self._notices.members_changed(group)

    def _forgive(self, now: float) -> None:
        """If the broker itself was stopped or suspended, that time is taken from nobody: all may be waiting for it."""
        gap_s, self._looked_at = now - self._looked_at, now
        if gap_s > LATE_S:
            log.warning("broker.was_silent", seconds=round(gap_s, 1))
            self._sessions.forgive(now=now)
            self._locks.forgive(gap_s, now=now)
            self._members.forgive(gap_s, now=now)

    def _expire_leases(self, now: float) -> None:
        """Free leases; who let the last one of a group expire is silent: the others share its queues at once."""
        silent: dict[tuple[str, bytes], str] = {}
        for lease in self._locks.expire(now=now):
            self._freed(lease.group, lease.queue, lease.epoch, "expired")
            silent[lease.group, lease.session] = lease.member
        for (group, session_id), member in silent.items():
            # One that is alive and let a single lease go has others, or joins again with its next heartbeat.
            held = self._locks.of_session(session_id, now=now)
            if not any(lease.group == group for lease in held) and self._members.leave(group, session_id):
                log.warning("group.member_silent", group=group, member=member)
                self._notices.members_changed(group)

    def _end_session(self, session: Session) -> None:
        groups = self._members.remove_session(session.id)
        for lease in self._locks.release_session(session.id):
            self._freed(lease.group, lease.queue, lease.epoch, "connection lost")
        for group in groups:
            log.info("group.member_lost", group=group, member=session.member)
            self._notices.members_changed(group)

    def _later(self, connection: Connection, request_id: int, payload: object) -> object:
        self._committer.when_durable(lambda: connection.reply(request_id, payload))
        return DEFERRED


def _session(connection: Connection) -> Session:
    assert connection.session is not None  # the connection serves nothing before the hello
    return connection.session
