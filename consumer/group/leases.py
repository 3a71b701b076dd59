"""
Renewal of leases, and how long one is believed without an answer.

``LeaseKeeper`` renews all leases at a fixed rate, often enough for this broker, and warns a running listener whose
lease can no longer be proven. ``LossLog`` logs leases that are lost together in one line: a process that was stopped
beyond its leases, or a broker that did not resume them, loses all its queues at once. ``NoLeases`` takes the keeper's
place in a broadcasting consumer, whose queues are leased from no broker and do not expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import OK, RmqError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import Limits
from rmq.wire.protocol.ops.core import LeaseRef

from ..config import ConsumerConfig
from .assignment import Assignment

log = get_logger("rmq.consumer")


class Leases(Protocol):
    """What a dispatch asks about a lease; see :class:`LeaseKeeper`."""

    def believed_until(self, assignment: Assignment) -> float: ...
    def believed(self, assignment: Assignment) -> bool: ...
    def proven(self, assignment: Assignment) -> None: ...
    async def renew_one(self, assignment: Assignment) -> None: ...


async def until_proven(assignment: Assignment, leases: Leases, *, first_s: float, retry_s: float) -> None:
    """Come back when a lease is proven, or dropped: ask after ``first_s``, then every ``retry_s``."""
    await assignment.pause(first_s)
    while not assignment.dropped:
        await leases.renew_one(assignment)
        if leases.believed(assignment):
            return
        await assignment.wait_resumed(retry_s)


def is_proven(assignment: Assignment, leases: Leases, now: float) -> bool:
    """Return whether a call may start under the lease; one that was doubted before counts as proven again."""
    if now > assignment.believed_until:
        assignment.believed_until = leases.believed_until(assignment)
        if now > assignment.believed_until:
            return False
    if assignment.lost.was_set:
        leases.proven(assignment)
    return True


class LeaseKeeper:
    """The leases of a consumer: renewed, believed in for a while, or lost."""

    def __init__(
        self, assignments: Mapping[MessageQueue, Assignment], config: ConsumerConfig, broker: GroupClient
    ) -> None:
        self._assignments = assignments
        self._config = config
        self._broker = broker
        self._changed = asyncio.Event()  # a lease was added: the watch has something to watch
        self._greeted = asyncio.Event()  # the broker has sent its limits
        self._leaving = False

    # Renewal

    async def run(self) -> None:
        """
        Renew 1 s after the start, then every 20 s, until cancelled.

        The rate is fixed by deadlines: a slow answer does not shift the renewals after it. A broker whose leases are
        shorter than 60 s has them renewed more often.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + self._config.relock_first_s
        while True:
            due = await self._until(due)
            await self.renew_all()
            every_s = relock_every_s(self._config, self._broker.limits)
            due += every_s
            while due < loop.time():  # beats that were missed are not made up for
                due += every_s

    async def _until(self, due: float) -> float:
        """Wait for a beat; a broker that wants more of them than the last brings it forward. Returns when it was."""
        loop = asyncio.get_running_loop()
        while True:
            self._greeted.clear()
            due = min(due, loop.time() + relock_every_s(self._config, self._broker.limits))
            try:
                async with asyncio.timeout_at(due):
                    await self._greeted.wait()
            except TimeoutError:
                return due

    def connected(self) -> None:
        """The broker has sent its limits."""
        self._greeted.set()

    async def renew_all(self) -> None:
        """Renew every lease in one request."""
        await self._renew([assignment for assignment in self._assignments.values() if not assignment.lease.lost])

    def leave(self) -> None:
        """Announce with every renewal from here on, also with those after a reconnect, that this member is leaving."""
        self._leaving = True

    async def renew_one(self, assignment: Assignment) -> None:
        """Renew one lease, because a dispatch cannot go on without."""
        await self._renew([assignment])

    async def renew_these(self, assignments: Sequence[Assignment]) -> None:
        """Renew leases that are in doubt, in one request; those that are not ours any more are lost by that."""
        await self._renew([assignment for assignment in assignments if not assignment.lease.lost])

    async def _renew(self, assignments: Sequence[Assignment]) -> None:
        if not assignments or not self._broker.connected:
            return
        sent_at = self._broker.now()
        leases = [LeaseRef(*assignment.queue, assignment.epoch) for assignment in assignments]
        try:
            outcomes = await self._broker.renew(leases, leaving=self._leaving)
        except RmqError as error:
            # Nothing is known: the beliefs age until they are proven or have run out.
            log.warning("lease.renewal_failed", leases=len(leases), error=str(error))
            return
        for assignment, outcome in zip(assignments, outcomes, strict=True):
            if outcome.status == OK:
                assignment.lease.renewed(sent_at)
                self.proven(assignment)
            elif self._assignments.get(assignment.queue) is assignment:
                # One that is not in the table any more was given back while the request was under way.
                assignment.lose(outcome.text or "the renewal was refused")

    # Belief

    def added(self, assignment: Assignment) -> None:
        """A lease was granted."""
        assignment.watched(lambda: not self.believed(assignment))
        self._changed.set()

    def proven(self, assignment: Assignment) -> None:
        """The broker showed that the lease is ours: what waited for that may go on."""
        assignment.resumed()
        self._changed.set()

    def believed_until(self, assignment: Assignment) -> float:
        """The last moment at which a batch of the assignment may start, as far as is known now."""
        return assignment.lease.believed_until(
            answered_sent_at=self._broker.answered_sent_at,
            lock_ttl_s=lock_ttl_s(self._config, self._broker.limits),
            grace_s=self._broker.grace_s,
        )

    def believed(self, assignment: Assignment) -> bool:
        """Whether the lease is proven at this moment."""
        return self._broker.now() <= self.believed_until(assignment)

    async def watch(self) -> None:
        """
        Set ``context.lost`` when a belief runs out, until cancelled.

        Turns do not need it, they read the clock. It is for the listener that waits for it meanwhile: it learns before
        the broker may give its queue to another member. Beliefs move on with every answer, so this wakes up, finds
        nothing, and sleeps until the new limit.
        """
        while True:
            self._changed.clear()
            next_limit = self._check_all()
            try:
                # A moment after the limit: at exactly the limit a lease is still believed in.
                wait_s = None if next_limit is None else next_limit - self._broker.now() + 0.001
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _check_all(self) -> float | None:
        """Warn the listeners whose leases cannot be proven any more; returns the next limit of the others."""
        now, next_limit, unproven = self._broker.now(), None, []
        for assignment in self._assignments.values():
            if assignment.lost.was_set or assignment.lease.lost:
                continue
            limit = self.believed_until(assignment)
            if now > limit:
                assignment.lost.set()
                unproven.append(assignment)
            else:
                next_limit = limit if next_limit is None else min(limit, next_limit)
        if unproven:
            log.warning("lease.unproven", queues=listed(each.queue for each in unproven), count=len(unproven))
        return next_limit


# The parts of the broker's time that the defaults are of its default: 30 of 60 s, 20 of 60 s, 30 of 120 s.
TTL_PART = 2
RELOCK_PART = 3
HEARTBEAT_PART = 4


def lock_ttl_s(config: ConsumerConfig, limits: Limits | None) -> float:
    """A lock whose renewal was asked for longer ago than this is not believed in."""
    return config.lock_ttl_s if limits is None else min(config.lock_ttl_s, limits.lock_lease_s / TTL_PART)


def relock_every_s(config: ConsumerConfig, limits: Limits | None) -> float:
    """The time between renewals of the queue locks."""
    return config.relock_every_s if limits is None else min(config.relock_every_s, limits.lock_lease_s / RELOCK_PART)


def heartbeat_s(config: ConsumerConfig, limits: Limits | None) -> float:
    """The time between reports that this member is alive."""
    return config.heartbeat_s if limits is None else min(config.heartbeat_s, limits.member_expiry_s / HEARTBEAT_PART)


MOST_NAMED: Final = 100  # a member may have thousands of queues, and a line of the log has an end
GATHER_S = 0.1  # answers to requests of all queues, read after a stop of the process, come within this


class LossLog:
    """Gathers what is lost within :data:`GATHER_S` of the first, and logs it as one ``lease.lost``."""

    def __init__(self) -> None:
        self._lost: list[tuple[Assignment, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, assignment: Assignment, reason: str) -> None:
        """A lease is lost; it is logged soon."""
        self._lost.append((assignment, reason))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        """Log now what was gathered; the reason is that of the first queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lost, self._lost = self._lost, []
        if lost:
            log.warning(
                "lease.lost",
                queues=listed(assignment.queue for assignment, _ in lost),
                epochs=listed(assignment.epoch for assignment, _ in lost),
                count=len(lost),
                reason=lost[0][1],
            )


def listed(things: Iterable[object]) -> str:
    """The first of them for a line of the log, and a sign if there are more."""
    rest = iter(things)
    named = ",".join(map(str, islice(rest, MOST_NAMED)))
    return named if next(rest, None) is None else f"{named},..."


NEVER = float("-inf")


class NoLeases:
    """
    Stands in for :class:`LeaseKeeper`: a queue is ours until something ends its assignment.

    That is a deleted topic, a log that lost what the listener has, or another store. ``begun`` is called for each
    queue that is taken.
    """

    def __init__(self, begun: Callable[[Assignment], None]) -> None:
        self._begun = begun

    def added(self, assignment: Assignment) -> None:
        """A queue was taken."""
        assignment.lease.lock_sent_at = NEVER  # it is not locked
        assignment.watched(lambda: assignment.lease.lost)
        self._begun(assignment)

    def believed_until(self, assignment: Assignment) -> float:
        """The last moment at which a batch of the assignment may start."""
        return NEVER if assignment.lease.lost else float("inf")

    def believed(self, assignment: Assignment) -> bool:
        """Whether a batch may start."""
        return not assignment.lease.lost

    def proven(self, assignment: Assignment) -> None:
        """What waited for a proof may go on."""
        assignment.resumed()

    def connected(self) -> None:
        """Nothing follows from that."""

    async def renew_one(self, assignment: Assignment) -> None:
        """Nothing has to be renewed."""

    async def renew_these(self, assignments: Sequence[Assignment]) -> None:
        """Nothing has to be renewed."""
