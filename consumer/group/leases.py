"""
``LeaseKeeper``: renews all leases at a fixed rate, and tells a running listener when one can no longer be proven.

How often a lease and a membership are renewed: what is configured, but often enough for this broker. Pure.

``LossLog``: leases that are lost together are told in one line.

A process that was stopped beyond its leases, or a broker that did not resume them, loses all its queues at once: the
operator should read one sentence, not one for each queue.

``Unleased``: in place of leases, for a consumer whose queues are nobody's: what nobody gave does not run out.
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
from .assignment import Generation

log = get_logger("rmq.consumer")


class Leases(Protocol):
    """What whoever calls the listener asks about a lease; see :class:`LeaseKeeper`."""

    def believed_until(self, generation: Generation) -> float: ...
    def believed(self, generation: Generation) -> bool: ...
    def proven(self, generation: Generation) -> None: ...
    async def renew_one(self, generation: Generation) -> None: ...


async def until_proven(generation: Generation, leases: Leases, *, first_s: float, retry_s: float) -> None:
    """Come back when a lease is proven, or dropped: ask after ``first_s``, then every ``retry_s``."""
    await generation.pause(first_s)
    while not generation.dropped:
        await leases.renew_one(generation)
        if leases.believed(generation):
            return
        await generation.wait_resumed(retry_s)


class LeaseKeeper:
    """The leases of a consumer: renewed, believed in for a while, or lost."""

    def __init__(
        self, generations: Mapping[MessageQueue, Generation], config: ConsumerConfig, broker: GroupClient
    ) -> None:
        self._generations = generations
        self._config = config
        self._broker = broker
        self._changed = asyncio.Event()  # a lease was added: the watch has something to watch
        self._greeted = asyncio.Event()  # the broker has told its limits
        self._leaving = False

    # Renewal

    async def run(self) -> None:
        """
        Renew 1 s after the start, then every 20 s, until cancelled.

        The rate is fixed by deadlines: a slow answer does not shift the renewals behind it. A broker whose leases are
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
        """The broker has told its limits."""
        self._greeted.set()

    async def renew_all(self) -> None:
        """Renew every lease in one request."""
        await self._renew([generation for generation in self._generations.values() if not generation.lease.lost])

    def leave(self) -> None:
        """Announce with every renewal from here on, also with those after a reconnect, that this member is leaving."""
        self._leaving = True

    async def renew_one(self, generation: Generation) -> None:
        """Renew one lease, because somebody cannot go on without."""
        await self._renew([generation])

    async def renew_these(self, generations: Sequence[Generation]) -> None:
        """Renew leases that somebody doubts, in one request; those that are not ours any more are lost by that."""
        await self._renew([generation for generation in generations if not generation.lease.lost])

    async def _renew(self, generations: Sequence[Generation]) -> None:
        if not generations or not self._broker.connected:
            return
        sent_at = self._broker.now()
        leases = [LeaseRef(*generation.queue, generation.epoch) for generation in generations]
        try:
            outcomes = await self._broker.renew(leases, leaving=self._leaving)
        except RmqError as error:
            # Nothing is known: the beliefs age until they are proven or have run out.
            log.warning("lease.renewal_failed", leases=len(leases), error=str(error))
            return
        for generation, outcome in zip(generations, outcomes, strict=True):
            if outcome.status == OK:
                generation.lease.renewed(sent_at)
                self.proven(generation)
            elif self._generations.get(generation.queue) is generation:
                # One that is not in the table any more was given back while the request was under way.
                generation.lose(outcome.text or "the renewal was refused")

    # Belief

    def added(self, generation: Generation) -> None:
        """A lease was granted."""
        generation.watched(lambda: not self.believed(generation))
        self._changed.set()

    def proven(self, generation: Generation) -> None:
        """The broker showed that the lease is ours: whoever doubted it may go on."""
        generation.resumed()
        self._changed.set()

    def believed_until(self, generation: Generation) -> float:
        """The last moment at which a batch of the generation may start, as far as is known now."""
        return generation.lease.believed_until(
            answered_sent_at=self._broker.answered_sent_at,
            lock_ttl_s=lock_ttl_s(self._config, self._broker.limits),
            grace_s=self._broker.grace_s,
        )

    def believed(self, generation: Generation) -> bool:
        """Whether the lease is proven at this moment."""
        return self._broker.now() <= self.believed_until(generation)

    async def watch(self) -> None:
        """
        Set ``context.lost`` when a belief runs out, until cancelled.

        Turns do not need it, they read the clock. It is for the listener that waits for it meanwhile: it is told before
        the broker may give its queue to somebody else. Beliefs move on with every answer, so this wakes up, finds
        nothing, and sleeps until the new limit.
        """
        while True:
            self._changed.clear()
            next_limit = self._check_all()
            try:
                # A moment behind the limit: at exactly the limit a lease is still believed in.
                wait_s = None if next_limit is None else next_limit - self._broker.now() + 0.001
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _check_all(self) -> float | None:
        """Tell the listeners whose leases cannot be proven any more, in one line; the next limit of the others."""
        now, next_limit, unproven = self._broker.now(), None, []
        for generation in self._generations.values():
            if generation.lost.told or generation.lease.lost:
                continue
            limit = self.believed_until(generation)
            if now > limit:
                generation.lost.set()
                unproven.append(generation)
            else:
                next_limit = limit if next_limit is None else min(limit, next_limit)
        if unproven:
            log.warning("lease.unproven", queues=listed(g.queue for g in unproven), count=len(unproven))
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
        self._lost: list[tuple[Generation, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, generation: Generation, reason: str) -> None:
        """A lease is lost; it is told soon."""
        self._lost.append((generation, reason))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.tell)

    def tell(self) -> None:
        """Tell now what was gathered; the reason is that of the first queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lost, self._lost = self._lost, []
        if lost:
            log.warning(
                "lease.lost",
                queues=listed(generation.queue for generation, _ in lost),
                epochs=listed(generation.epoch for generation, _ in lost),
                count=len(lost),
                reason=lost[0][1],
            )


def listed(things: Iterable[object]) -> str:
    """The first of them for a line of the log, and a sign if there are more."""
    rest = iter(things)
    named = ",".join(map(str, islice(rest, MOST_NAMED)))
    return named if next(rest, None) is None else f"{named},..."


NEVER = float("-inf")


class Unleased:
    """
    What :class:`~rmq.consumer.group.leases.LeaseKeeper` is to others: a queue is ours until something ends its stay.

    That is a topic that was deleted, a log that lost what the listener has, or another store. ``begun`` is told of each
    queue that is taken.
    """

    def __init__(self, begun: Callable[[Generation], None]) -> None:
        self._begun = begun

    def added(self, generation: Generation) -> None:
        """A queue was taken."""
        generation.lease.lock_sent_at = NEVER  # nobody locked it
        generation.watched(lambda: generation.lease.lost)
        self._begun(generation)

    def believed_until(self, generation: Generation) -> float:
        """The last moment at which a batch of the generation may start."""
        return NEVER if generation.lease.lost else float("inf")

    def believed(self, generation: Generation) -> bool:
        """Whether a batch may start."""
        return not generation.lease.lost

    def proven(self, generation: Generation) -> None:
        """Whoever doubted may go on."""
        generation.resumed()

    def connected(self) -> None:
        """Nothing follows from that."""

    async def renew_one(self, generation: Generation) -> None:
        """Nothing has to be renewed."""

    async def renew_these(self, generations: Sequence[Generation]) -> None:
        """Nothing has to be renewed."""
