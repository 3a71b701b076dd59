"""
Groups: membership, leases, what silence ends, and where a group begins.

A grant and a release are replied to when the change is in the log. A member that loses a queue without releasing it
leaves a mark if it had messages in hand: see :mod:`~rmq.broker.state.crash_suspects`. All groups work under leases but
broadcasting ones, which have none.

:class:`StartOffsets` decides where a group begins in a queue without progress, so that no message falls between. A
group that begins at the end of a topic does so once, when the first of its members names that topic: the ends of all
queues become its progress in one step. A queue that is made while a group subscribes to its topic has the group's
progress 0 from its first moment. So a queue without progress is younger than the group, and its owner reads it from
the beginning, however late that member came. The retry topic of a group is never begun at the end: what the group
failed at belongs to it from the first message on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rmq.runtime.logging import get_broker_logger, lines_of
from rmq.wire import names
from rmq.wire.errors import Fenced, GroupMismatch, LockHeld, NotAMember, Refused
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import (
    NO_OFFSET,
    Acquire,
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
)

from ..net.connection import DEFERRED, Connection
from ..state.groups import BROADCASTING, GroupMode, Membership
from ..state.leases import Lease, LeaseTable, shown
from ..state.offsets import Ledger
from ..state.sessions import Session, SessionTable
from ..state.topics import Topic, TopicTable
from ..store.changes import LeaseEnded
from ..store.committer import Committer
from .notify import Notices
from .progress import ProgressHandler, session_of
from .requests import check_entries

log = get_broker_logger(__name__)
LATE_S: Final = 1.0  # between two passes over what may expire; more than that is our own silence
LeaseChanged = Callable[[str, MessageQueue], None]
Resubscribed = Callable[[Connection, str], None]
Begins = Callable[[str, Sequence[str], bytes, int], None]


class GroupHandler:
    """Members and leases."""

    def __init__(
        self, *, topics: TopicTable, sessions: SessionTable, members: Membership, locks: LeaseTable,
        ledger: Ledger, progress: ProgressHandler, committer: Committer, now: Callable[[], float],
        topic_info: Callable[[str], TopicInfo], notices: Notices,
    ) -> None:  # fmt: skip
        self._topics = topics
        self._sessions = sessions
        self._members = members
        self._locks = locks
        self._ledger = ledger
        self._progress = progress
        self._committer = committer
        self._now = now
        self._topic_info = topic_info
        self._notices = notices
        self._looked_at = now()
        self.lease_changed: LeaseChanged = lambda group, queue: None  # set by the composition root
        self.resubscribed: Resubscribed = lambda connection, group: None  # set by it too
        self.begins: Begins = lambda group, from_end, session, log_epoch: None  # set by it too

    # ---- membership

    def join(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Become a member, or show that one is alive."""
        request = decode(Join, payload)
        session = session_of(connection)
        mode = GroupMode(request.ordered, request.model, request.strategy)
        before = self._members.subscriptions(request.group, session.id)
        if self._members.join(request.group, mode, request.subscriptions, session, now=self._now()):
            log.info("group.joined", group=request.group, member=session.member)
            self._notices.members_changed(request.group, but=session.id)
        if before != request.subscriptions:
            self.resubscribed(connection, request.group)
        if request.model != BROADCASTING:  # whose members begin where they like, each for itself
            from_end = [topic for topic in request.from_end if topic in request.subscriptions]
            self.begins(request.group, from_end, session.id, request.log_epoch)
        topics = [self._topic_info(topic) for topic in request.subscriptions if self._topics.get(topic) is not None]
        self._committer.when_durable(  # topics are reported when durable, with the members of that moment
            lambda: connection.reply(
                request_id, JoinReply(self._members.members(request.group), topics, self._members.version)
            )
        )
        return DEFERRED

    def leave(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Commit, give back and leave in one step; a lease whose grant the member never learned of goes too."""
        check_entries(payload, 1)
        request = decode(Leave, payload)
        names.check_group(request.group)
        session = session_of(connection)
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
        session = session_of(connection)
        now = self.expire()  # silent members leave their group, too, not only the queue that is asked for
        if not self._members.is_member(request.group, session.id):
            raise NotAMember(f"join the group {request.group!r} before asking for its queues")
        mode = self._members.mode(request.group)
        assert mode is not None  # it has a member
        if mode.model == BROADCASTING:
            raise GroupMismatch(f"group {request.group!r} is broadcasting: its members share all queues and lock none")
        grants: list[Grant] = []
        for queue in [MessageQueue(*ref) for ref in request.queues]:
            try:
                self._topics.require_queue(*queue)
                grants.append(self._grant(session, request.group, queue, now, ordered=mode.ordered))
            except Refused as error:
                grants.append(Grant(error.code, text=error.text))
        return self._later(connection, request_id, grants)

    def _grant(self, session: Session, group: str, queue: MessageQueue, now: float, *, ordered: bool) -> Grant:
        lease = self._locks.acquire(group, queue, session.id, session.member, now=now, ordered=ordered)
        if lease is None:
            holder = self._locks.holder(group, queue, now=now)
            owner = holder.member if holder else "another member"
            log.info("lock.refused", group=group, queue=str(queue), owner=owner, asked_by=session.member)
            raise LockHeld(f"held by {owner}")
        self._progress.settle(group, queue)  # what the new owner begins at must not be lost to a crash
        self._committer.record(lease.granted())
        self.lease_changed(group, queue)
        former = self._locks.take_former(group, queue)
        if former is not None and former != session.member:
            log.info(
                "lock.taken_over", group=group, queue=str(queue), former=former, owner=session.member,
                epoch=lease.epoch,
            )  # fmt: skip
        log.info("lock.granted", group=group, queue=str(queue), owner=session.member, epoch=lease.epoch)
        if not ordered:  # what those before it may have counted in order means nothing to it
            return Grant(0, lease.epoch, self._progress.committed(group, queue))
        mark, attempts = self._ledger.suspects.get(group, queue), self._ledger.attempts
        return Grant(
            0, lease.epoch, self._progress.committed(group, queue), *attempts.get(group, queue),
            runs=attempts.runs(group, queue), abandoned=mark.abandoned, suspect_offset=mark.suspect_offset,
            careful_until=mark.careful_until if mark.is_careful else NO_OFFSET,
        )  # fmt: skip

    def renew(self, connection: Connection, request_id: int, payload: Any) -> object:
        """
        Renew leases; one that the session does not have any more is refused.

        That a member is leaving is recorded, and replied to when durable: its end does not count as a crash then.
        """
        check_entries(payload, 1)
        request = decode(Renew, payload)
        names.check_group(request.group)
        session, now = session_of(connection), self._now()
        outcomes = []
        for topic, queue_id, epoch in request.leases:
            queue = MessageQueue(topic, queue_id)
            if self._locks.renew(request.group, queue, session.id, epoch, now=now):
                outcomes.append(Outcome())
            else:
                outcomes.append(
                    Outcome(Fenced.code, f"the lease of {shown(str(queue))} with epoch {epoch} is gone: FENCED")
                )
        if not request.leaving or not self._announce_leaving(session, request):
            return outcomes
        return self._later(connection, request_id, outcomes)

    def _announce_leaving(self, session: Session, request: Renew) -> int:
        """Record which leases the member is about to give back; return how many were not known to be."""
        now, announced = self._now(), 0
        for topic, queue_id, epoch in request.leases:
            queue = MessageQueue(topic, queue_id)
            change = self._locks.announce_leaving(request.group, queue, session.id, epoch, now=now)
            if change is not None:
                self._committer.record(change)
                announced += 1
        if announced:
            log.info("group.leaving", group=request.group, member=session.member, leases=announced)
        return announced

    def release(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Commit and release; a lease that the member does not have is ignored."""
        check_entries(payload, 1)
        request = decode(Release, payload)
        names.check_group(request.group)
        outcomes = self._end_leases(session_of(connection).id, request.group, request.leases)
        return self._later(connection, request_id, outcomes)

    def _end_leases(self, session_id: bytes, group: str, leases: list[LeaseEnd]) -> list[Outcome]:
        return [self._end_lease(session_id, group, lease) for lease in leases]

    def _end_lease(self, session_id: bytes, group: str, lease: LeaseEnd) -> Outcome:
        queue, now = MessageQueue(lease.topic, lease.queue_id), self._now()
        outcome = Outcome()
        if lease.queue_offset != NO_OFFSET:
            outcome = self._progress.commit_one(session_id, group, queue, lease.epoch, lease.queue_offset)
        freed = self._locks.release(group, queue, session_id, lease.epoch, now=now)
        if freed is not None:
            self._freed(group, queue, freed.epoch, "released")
        return outcome

    def _freed(self, group: str, queue: MessageQueue, epoch: int, why: str) -> None:
        self._committer.record(LeaseEnded(group, queue.topic, queue.queue_id, epoch))
        self.lease_changed(group, queue)
        log.info("lock.freed", group=group, queue=str(queue), epoch=epoch, why=why)
        self._notices.lease_free(group, queue)

    def lock_status(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Reply with the leases of one group or of all."""
        group = decode(LockStatus, payload).group
        if group is not None:
            names.check_group(group)
        return [self.lock_row(lease) for lease in self._locks.rows(group, now=self._now())]

    def lock_row(self, lease: Lease) -> LockRow:
        """Return a lease as operators see it."""
        now = self._now()
        session = self._sessions.get(lease.session)
        expires_in = lease.renewed_at + self._locks.lease_s - now
        renewed_ago = max(now - lease.renewed_at, 0.0)  # a restored one may count as renewed in a moment
        state = "held"
        if session is None or session.connection is None:
            state = "grace"
            answered_at = session.answered_at if session else now
            expires_in = min(expires_in, answered_at + self._sessions.grace_s - now)
        if lease.leaving:
            state += ", leaving"
        if lease.ordered:
            state += self._failing(lease)
        return LockRow(
            lease.group, lease.queue.topic, lease.queue.queue_id, lease.member, lease.session.hex()[:8], lease.epoch,
            round(now - lease.granted_at, 3), round(renewed_ago, 3), round(max(expires_in, 0.0), 3), state,
        )  # fmt: skip

    def _failing(self, lease: Lease) -> str:
        """Describe which message keeps the owner of a queue from continuing."""
        offset, attempts = self._ledger.attempts.get(lease.group, lease.queue)
        mark = self._ledger.suspects.get(lease.group, lease.queue)
        text = f", retrying offset {offset} (attempt {attempts + 1})" if attempts else ""
        if mark.abandoned:
            text += f", offset {mark.suspect_offset} abandoned {mark.abandoned} times"
        return text + (f", careful until {mark.careful_until}" if mark.is_careful else "")

    def revoke(self, group: str, queues: Sequence[MessageQueue], why: str) -> None:
        """Take queues from their owners, for a reason that is none of their fault."""
        revoked: list[str] = []
        for queue in queues:
            lease = self._locks.revoke(group, queue, now=self._now())
            if lease is not None:
                self._committer.record(lease.granted())
                self.lease_changed(group, queue)
                self._notices.lease_free(group, queue)  # an owner that does not pull learns it by this
                revoked.append(f"{queue}:{lease.member}")
        for owners in lines_of(revoked):
            log.info("lock.revoked", group=group, owners=owners, why=why)

    def forget_topic(self, topic: str) -> None:
        """A topic is gone, and its leases with it: the one change that says so takes them all."""
        for lease in self._locks.release_topic(topic):
            log.info("lock.freed", group=lease.group, queue=str(lease.queue), epoch=lease.epoch, why="topic deleted")

    # ---- time

    def expire(self) -> float:
        """
        Free what silence has ended: sessions after their grace, leases after theirs, members without heartbeat.

        Returns the moment that was judged by.
        """
        now = self._now()
        self._forgive(now)
        for session in self._sessions.expire(now=now):
            self._end_session(session)
        self._expire_leases(now)
        for group, session_id in self._members.expire(now=now):
            log.warning("group.member_expired", group=group, session=session_id.hex()[:8])
            self._notices.members_changed(group)
        return now

    def _forgive(self, now: float) -> None:
        """Extend all deadlines by the time the broker itself was suspended: clients may be waiting for it."""
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
            if lease.revoked:  # its owner could not renew it: the session need not be silent
                self._freed(lease.group, lease.queue, lease.epoch, "revoked")
                continue
            self._abandoned(lease, "expired")
            silent[lease.group, lease.session] = lease.member
        for (group, session_id), member in silent.items():
            # One that is alive and let a single lease go has others, or joins again with its next heartbeat.
            leases = self._locks.of_session(session_id, now=now)
            if not any(lease.group == group for lease in leases) and self._members.silence(group, session_id):
                log.warning("group.member_silent", group=group, member=member)
                self._notices.members_changed(group)

    def _end_session(self, session: Session) -> None:
        groups = self._members.remove_session(session.id)
        for lease in self._locks.release_session(session.id):
            self._abandoned(lease, "connection lost")
        for group in groups:
            log.info("group.member_lost", group=group, member=session.member)
            self._notices.members_changed(group)

    def _abandoned(self, lease: Lease, why: str) -> None:
        """A lease ended, and its owner did not say so."""
        self._progress.abandoned(lease)
        self._freed(lease.group, lease.queue, lease.epoch, why)

    def _later(self, connection: Connection, request_id: int, payload: object) -> object:
        self._committer.when_durable(lambda: connection.reply(request_id, payload))
        return DEFERRED


class StartOffsets:
    """Decides; ``leased_topics(group)`` returns the topics of its leases, ``end(queue, log_epoch)`` where it begins."""

    def __init__(
        self, topics: TopicTable, members: Membership, progress: ProgressHandler,
        *, leased_topics: Callable[[str], set[str]], end: Callable[[MessageQueue, int], int],
    ) -> None:  # fmt: skip
        self._topics = topics
        self._members = members
        self._progress = progress
        self._leased_topics = leased_topics
        self._end = end

    def joined(self, group: str, from_end: Iterable[str], session: bytes, log_epoch: int) -> None:
        """
        Record the end of topics that a member names for the first time, unless the group was there before.

        A member that belonged to the group under ``log_epoch``, of which this log knows nothing, was there before: it
        begins at what has been stored since the two logs parted.
        """
        # A request may name one as often as it likes.
        wanted = {name for name in from_end if not name.startswith(names.RETRIES)}
        leased = self._leased_topics(group) if wanted else set()
        for name in sorted(wanted - leased):
            topic = self._topics.get(name)
            if topic is None or self._members.subscribes(group, name, but=session):
                continue
            queues = [MessageQueue(name, queue_id) for queue_id in range(topic.queues)]
            if all(self._progress.committed(group, queue) < 0 for queue in queues):
                for queue in queues:
                    self._progress.begin_at(group, queue, self._end(queue, log_epoch))
                log.info("group.begins_at_end", group=group, topic=name, queues=len(queues))

    def made(self, topic: Topic, first: int) -> None:
        """Record progress 0 of all subscribing groups in the new queues of a topic, from ``first`` on."""
        groups = set(self._members.subscribing(topic.name))
        if topic.name.startswith(names.RETRIES):
            groups.add(topic.name.removeprefix(names.RETRIES))  # even without a member at the moment
        for group in sorted(groups):
            for queue_id in range(first, topic.queues):
                self._progress.begin_at(group, MessageQueue(topic.name, queue_id), 0)
