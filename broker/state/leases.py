"""
Queue leases: which session of a group may process a queue.

Pure: the table owns no clock and no task; callers pass ``now`` in monotonic seconds. A lease renewed exactly
``lease_s`` ago is still valid; it expires when older. An expired lease can be acquired by any session but never
renewed, so an owner that lost its lease always learns it from the new epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from rmq.wire.errors import Fenced
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..store.changes import LeaseEnded, LeaseGranted

Key = tuple[str, MessageQueue]

MAX_SHOWN: Final = 64  # characters of a client's text in a sentence
MAX_FORMER: Final = 10_000  # queues whose last owner is remembered until the next one comes


@dataclass(slots=True, eq=False)
class Lease:
    """
    A queue in the hands of a session. ``renewed_at`` is written by the table only.

    ``fetched`` is the offset after the last message that was handed out under it, as far as this process knows: a
    lease from the log has it again with its owner's next pull. ``revoked`` is the epoch that the owner still knows
    after a revocation; 0 without one. ``ordered``: its owner goes through the queue in order, and says
    which messages fail; an owner that does not is never suspected of one. ``leaving``: its owner has announced that
    it is going, so that its end does not count as a crash.
    """

    group: str
    queue: MessageQueue
    session: bytes
    member: str
    epoch: int
    granted_at: float
    renewed_at: float
    fetched: int = NO_OFFSET
    revoked: int = 0
    ordered: bool = True
    leaving: bool = False

    def granted(self) -> LeaseGranted:
        """The change that brings this lease back from the log."""
        return LeaseGranted(self.group, *self.queue, self.session, self.member, self.epoch, self.ordered, self.leaving)

    def ended(self) -> LeaseEnded:
        """The change that ends this lease in the log."""
        return LeaseEnded(self.group, *self.queue, self.epoch)


class LeaseTable:
    """
    Who holds which queue for which group.

    An epoch is ``log_epoch << 32 | counter``. Every grant gets a new one, also one to the session that already holds
    the queue, and an epoch is above all that were granted or restored before it.
    """

    def __init__(self, lease_s: float = 60.0) -> None:
        self.lease_s = lease_s
        self.log_epoch = 0
        self._last_epoch = 0
        self._leases: OrderedDict[Key, Lease] = OrderedDict()  # the one renewed longest ago comes first
        self._of_session: dict[bytes, dict[Key, Lease]] = {}
        self._former: OrderedDict[Key, str] = OrderedDict()  # members that lost a queue which was not acquired since

    def start(self, log_epoch: int) -> None:
        """Grant under this log epoch from now on; it must have been raised since the last start."""
        if log_epoch <= self.log_epoch:
            raise ValueError(f"log epoch {log_epoch} was not raised above {self.log_epoch}")
        self.log_epoch = log_epoch
        self._last_epoch = max(self._last_epoch, log_epoch << 32)

    def ready(self, *, now: float) -> None:
        """The port opens: the owners of restored leases, who could not reach us before, have the full time from now."""
        for lease in self._leases.values():
            lease.renewed_at = now

    def forgive(self, gap_s: float, *, now: float) -> None:
        """Extend all leases by a time in which they could not be renewed; none becomes shorter."""
        for lease in self._leases.values():
            lease.renewed_at = max(lease.renewed_at, min(lease.renewed_at + gap_s, now))

    def acquire(
        self, group: str, queue: MessageQueue, session: bytes, member: str, *, now: float, ordered: bool = True
    ) -> Lease | None:
        """Grant the queue to a session under a new epoch, or return None if another session has it."""
        holder = self.holder(group, queue, now=now)
        if holder is not None and holder.session != session:
            return None
        self._last_epoch += 1
        lease = Lease(group, queue, session, member, self._last_epoch, granted_at=now, renewed_at=now, ordered=ordered)
        self._put(lease)
        return lease

    def holder(self, group: str, queue: MessageQueue, *, now: float) -> Lease | None:
        """The live lease of a queue, if there is one."""
        lease = self._leases.get((group, queue))
        return None if lease is None or self._expired(lease, now) else lease

    def renew(self, group: str, queue: MessageQueue, session: bytes, epoch: int, *, now: float) -> bool:
        """Keep a live lease; says whether it was there to keep. Never acquires."""
        lease = self._own(group, queue, session, epoch, now)
        if lease is None:
            return False
        lease.renewed_at = now
        self._leases.move_to_end((group, queue))
        return True

    def announce_leaving(
        self, group: str, queue: MessageQueue, session: bytes, epoch: int, *, now: float
    ) -> LeaseGranted | None:
        """Note that the owner of a live lease is going; return the change if that is new."""
        lease = self._own(group, queue, session, epoch, now)
        if lease is None or lease.leaving:
            return None
        lease.leaving = True
        return lease.granted()

    def check(self, group: str, queue: MessageQueue, session: bytes, epoch: int | None, *, now: float) -> Lease:
        """
        Let the live holder pass; returns its lease.

        Raises:
            Fenced: the epoch is missing, or is not that of a live lease of this session.
        """
        lease = self._leases.get((group, queue))
        if lease is None or lease.epoch != epoch or lease.session != session or self._expired(lease, now):
            raise Fenced(self._why_fenced(group, queue, epoch, now))
        return lease

    def release(self, group: str, queue: MessageQueue, session: bytes, epoch: int, *, now: float) -> Lease | None:
        """Give back a live lease, also one that was revoked; the one that ended. What is not held does nothing."""
        lease = self.holder(group, queue, now=now)
        if lease is None or lease.session != session or epoch not in (lease.epoch, lease.revoked or lease.epoch):
            return None
        self._remove(lease)
        return lease

    def revoke(self, group: str, queue: MessageQueue, *, now: float) -> Lease | None:
        """
        Move a lease to an epoch its owner does not know; return the new lease, None if there was none.

        The owner is fenced and must acquire the queue again. Other sessions cannot take it until the owner releases it
        or expires: until the owner learns of the revocation it may still start a call.
        """
        lease = self.holder(group, queue, now=now)
        if lease is None:
            return None
        self._last_epoch += 1
        known = lease.revoked or lease.epoch
        new = replace(lease, epoch=self._last_epoch, fetched=NO_OFFSET, revoked=known)
        self._replace(lease, new)
        return new

    def release_session(self, session: bytes) -> list[Lease]:
        """Free all leases of a session that is gone."""
        leases = list(self._of_session.get(session, {}).values())
        for lease in leases:
            self._remove(lease)
            self._note_former(lease)
        return leases

    def release_all(self) -> list[Lease]:
        """Free all leases, by group and queue; none counts as lost by its member."""
        leases = sorted(self._leases.values(), key=_key)
        self._leases.clear()
        self._of_session.clear()
        return leases

    def take_former(self, group: str, queue: MessageQueue) -> str | None:
        """Return, once, the member that lost this queue without releasing it."""
        return self._former.pop((group, queue), None)

    def former(self, group: str, queue: MessageQueue) -> str | None:
        """Return the member that lost a queue without releasing it, if it was not acquired since."""
        return self._former.get((group, queue))

    def release_topic(self, topic: str) -> list[Lease]:
        """Free all leases of a topic that is gone."""
        leases = [lease for lease in self._leases.values() if lease.queue.topic == topic]
        for lease in leases:
            self._remove(lease)
        return leases

    def of_session(self, session: bytes, *, now: float) -> list[Lease]:
        """The live leases of a session, by group and queue."""
        leases = self._of_session.get(session, {}).values()
        return sorted((lease for lease in leases if not self._expired(lease, now)), key=_key)

    def expire(self, *, now: float) -> list[Lease]:
        """Free all leases that were not renewed in time, the oldest first."""
        freed = []
        while self._leases:
            lease = next(iter(self._leases.values()))
            if not self._expired(lease, now):
                break
            self._remove(lease)
            self._note_former(lease)
            freed.append(lease)
        return freed

    def restore(self, change: LeaseGranted, *, now: float) -> None:
        """Repeat a grant from the log. How old it was is not known: it counts as renewed now."""
        queue = MessageQueue(change.topic, change.queue_id)
        self._last_epoch = max(self._last_epoch, change.epoch)
        lease = Lease(
            change.group, queue, change.session, change.member, change.epoch, now, now, ordered=change.ordered,
            leaving=change.leaving,
        )  # fmt: skip
        self._put(lease)

    def restore_end(self, change: LeaseEnded) -> None:
        """Repeat an end from the log; that of a lease which a later grant replaced does nothing."""
        self._last_epoch = max(self._last_epoch, change.epoch)
        lease = self._leases.get((change.group, MessageQueue(change.topic, change.queue_id)))
        if lease is not None and lease.epoch == change.epoch:
            self._remove(lease)

    def topics(self, group: str) -> set[str]:
        """Return the topics of a group's leases, live or just expired."""
        return {lease.queue.topic for lease in self._leases.values() if lease.group == group}

    def rows(self, group: str | None = None, *, now: float) -> list[Lease]:
        """The live leases of one group or of all, by group and queue."""
        leases = [lease for lease in self._leases.values() if group is None or lease.group == group]
        return sorted((lease for lease in leases if not self._expired(lease, now)), key=_key)

    def by_group(self, *, now: float) -> dict[str, list[Lease]]:
        """The live leases of all groups that have any, in no order."""
        groups: dict[str, list[Lease]] = {}
        for lease in self._leases.values():
            if not self._expired(lease, now):
                groups.setdefault(lease.group, []).append(lease)
        return groups

    def __len__(self) -> int:
        return len(self._leases)

    def _expired(self, lease: Lease, now: float) -> bool:
        return now - lease.renewed_at > self.lease_s

    def _own(self, group: str, queue: MessageQueue, session: bytes, epoch: int, now: float) -> Lease | None:
        lease = self.holder(group, queue, now=now)
        return lease if lease is not None and lease.session == session and lease.epoch == epoch else None

    def _put(self, lease: Lease) -> None:
        key = _key(lease)
        former = self._leases.get(key)
        if former is not None:
            self._remove(former)
        self._leases[key] = lease
        self._of_session.setdefault(lease.session, {})[key] = lease

    def _replace(self, lease: Lease, new: Lease) -> None:
        """Put another in the place of a lease; it stays in line by its age."""
        self._leases[_key(lease)] = self._of_session[lease.session][_key(lease)] = new

    def _remove(self, lease: Lease) -> None:
        key = _key(lease)
        del self._leases[key]
        own = self._of_session[lease.session]
        del own[key]
        if not own:
            del self._of_session[lease.session]

    def _note_former(self, lease: Lease) -> None:
        self._former[_key(lease)] = lease.member
        self._former.move_to_end(_key(lease))
        if len(self._former) > MAX_FORMER:
            self._former.popitem(last=False)

    def _why_fenced(self, group: str, queue: MessageQueue, epoch: int | None, now: float) -> str:
        holder = self.holder(group, queue, now=now)
        where = f"{shown(str(queue))} of group {shown(group)!r}"
        live = "none" if holder is None else f"{holder.epoch}, held by {shown(holder.member)}"
        if epoch is None:
            return f"an epoch is missing for {where} (the live one: {live}): acquire the queue first"
        if holder is not None and holder.epoch == epoch:
            return f"epoch {epoch} of {where} is held by {shown(holder.member)}, not by this session"
        return f"epoch {epoch} is not the live one ({live}) for {where}: FENCED, drop it and acquire again"


def shown(text: str) -> str:
    """As much of a client's text as a sentence repeats; a request may name thousands of things."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _key(lease: Lease) -> Key:
    return lease.group, lease.queue
