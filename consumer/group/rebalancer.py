"""
Computes which queues this member should have and moves toward that.

A pass first drops what is not ours any more or is not pulled for no known reason, then asks for what is missing, in
one request. Dropping does not wait: each queue has a hand-over task of its own. Passes run when connected, on notice
(gathered for 100 ms), when a lease becomes free, and every 20 s; a notice during a pass makes one more. A queue has one
assignment at a time: one that comes back while the last is still ending is asked for when that has ended. After a
change the group hears of us at once.

The queues of a topic that was deleted are lost at once, without a request. If it is created again under the same name,
its queues are others: nothing that was asked for, cached or done before is taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.errors import OK, BadName, BadRequest, GroupMismatch, LockHeld, NotAMember, Refused, RmqError, code_name
from rmq.wire.model import MessageQueue
from rmq.wire.names import unwrap
from rmq.wire.protocol.ops.core import MAX_ENTRIES, Grant, TopicInfo
from rmq.wire.stores import NOTHING_IN_COMMON

from ..config import LAST, ConsumerConfig
from ..fetch.process_queue import MakeCache, ProcessQueue
from . import leases
from .allocation import Share, Shares, Strategy, parse_strategy
from .assignment import Assignment, LeaseBelief, Suspicion, runs_of
from .handover import HandoverTasks, Workers
from .leases import LossLog
from .tag_filter import Subscribed, Subscription
from .topics import GONE, KnownTopics

log = get_logger("rmq.consumer")
JOIN_RETRY_S = 1.0
TOPIC_GONE = "the topic was deleted"
HOPELESS = (GroupMismatch, BadName, BadRequest)  # asking again would be refused again


class _Asked(NamedTuple):
    """When queues were asked for, of which start of the broker, and which topic generations they had."""

    at: float
    log_epoch: int
    topic_generations: dict[str, int | None]


class Rebalancer:
    """The only writer of ``assignments``: every queue we have a lease of, until it is given back."""

    def __init__(
        self,
        assignments: dict[MessageQueue, Assignment],
        subscriptions: dict[str, Subscription],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        workers: Workers,
        tasks: TaskSet,
        strategy: Strategy | None = None,
        make_cache: MakeCache = ProcessQueue,
    ) -> None:
        """``strategy`` is a user's own, in place of the configured one; ``make_cache`` is what the service wants."""
        self._assignments = assignments
        self._subscribed = Subscribed(subscriptions, broker.retry_topic)
        self._make_cache = make_cache
        self._config = config
        self._broker = broker
        self._workers = workers
        self._shares = Shares(
            strategy or parse_strategy(config.strategy), config.namespace, retry_topic=broker.retry_topic
        )
        self._handovers = HandoverTasks(assignments, broker, workers=workers, tasks=tasks, ended=self._handed_over)
        self._members: list[str] = []
        self._parted_from = NOTHING_IN_COMMON  # the last log epoch that this store has in common with the one before
        self._members_version = 0  # a list with a lower one is older than the one we have
        self._accepted: dict[str, Subscription] = {}  # what the broker knows that we consume
        self._topics = KnownTopics()
        self._unsure: set[MessageQueue] = set()  # may be ours at the broker, under an epoch that we do not know
        self._refused: dict[MessageQueue, str] = {}  # who was said to own it
        self._freed: set[MessageQueue] = set()  # reported free since locks were last asked for
        self._changed = False  # our queues are not those that the group last heard of
        self._losses = LossLog()
        self._stopping = False
        self._due = self._join_due = float("inf")
        self._noticed = asyncio.Event()
        self.joined = False

    # What makes a pass

    def connected(self) -> None:
        """There is a new connection: say again that we are there."""
        self._join_due = 0.0
        self.notice()

    def listed(self, queues: Iterable[MessageQueue]) -> None:
        """The broker keeps queues for us of which we do not know: only a grant that is known can be given back."""
        self._unsure.update(queues)

    def subscribed(self) -> None:
        """The subscriptions have changed."""
        self._join_due = 0.0
        self.notice()

    def rest(self, resting: bool) -> None:
        """Give everything back and leave the group, until this is taken back; the subscriptions are kept."""
        self._subscribed.resting = resting
        self.subscribed()

    def members_changed(self, members: list[str], version: int) -> None:
        """The broker sent the members of the group; a list without ourselves says nothing about us."""
        if self._learn_members(members, version):
            self.notice(self._config.rebalance_gather_s)

    def lease_free(self, queue: MessageQueue) -> None:
        """A queue lost its owner: if it was refused to us, ask for it at once."""
        self._freed.add(queue)
        if queue in self._refused:
            self.notice()

    def topic_changed(self, info: TopicInfo) -> None:
        """A topic was made or has grown."""
        if info.topic in self._subscribed:
            self._topics.changed(info)
            self._end_dead()
            self.notice()

    def topic_deleted(self, topic: str, topic_generation: int) -> None:
        """A topic is gone: so are its queues. If it is made again, they are others."""
        if self._topics.deleted(topic, topic_generation):
            log.warning("topic.deleted", topic=topic, generation=topic_generation)
            self._end_dead()
            self.notice()

    def topic_missing(self, topic: str, topic_generation: int | None) -> None:
        """A request for a queue was refused because the topic is not there, or not as we know it: ask what is."""
        if self._topics.missing(topic, topic_generation):
            log.warning("topic.missing", topic=topic, generation=topic_generation)
            self._end_dead()
            self._join_due = min(self._join_due, asyncio.get_running_loop().time() + JOIN_RETRY_S)
            self.notice()

    def another_store(self, log_epoch: int = NOTHING_IN_COMMON) -> None:
        """
        Forget all topics: the broker has others than before, some maybe of the same names.

        ``log_epoch`` is the last one that this store has in common with the one before.
        """
        # Several stores may follow each other before one is joined: the group was last in the first of them.
        self._parted_from = min(log_epoch, self._parted_from or log_epoch)
        self._topics = KnownTopics()
        self._members_version = 0
        self._accepted, self.joined = {}, False  # there the group has no progress: it begins as it did here
        self._unsure.clear()
        self._refused.clear()
        self._end_dead()

    def _end_dead(self) -> None:
        """Lose the queues of topics that are gone: nothing of them can be committed, or be given back."""
        for assignment in list(self._assignments.values()):
            if assignment.topic_generation != self._topics.generation(assignment.queue.topic):
                assignment.topic_gone = True
                assignment.lose(TOPIC_GONE)

    def notice(self, within_s: float = 0.0) -> None:
        """Have a pass made within this time."""
        self._due = min(self._due, asyncio.get_running_loop().time() + within_s)
        self._noticed.set()

    @property
    def refused(self) -> Mapping[MessageQueue, str]:
        """The queues that are ours and were refused, with who was said to own them."""
        return self._refused

    @property
    def topics(self) -> KnownTopics:
        """What is known of topics, to read."""
        return self._topics

    def is_new(self, queue: MessageQueue) -> bool:
        """Whether a queue came into being after this member subscribed."""
        return self._topics.is_new(queue)

    # The loop

    async def run(self) -> None:
        """Make passes until stopped; ends between two of them."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            await self._until_due()
            if self._stopping:
                return
            self._due = loop.time() + self._config.rebalance_every_s
            if loop.time() >= self._join_due:
                await self._join()
            if self.joined:
                await self._balance()
            if self.joined and not (self._subscribed or self._assignments or self._unsure):
                await self._leave()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._noticed.clear()
            wait_s = None
            # Without a connection or a subscription nothing can be done; getting one is a notice. A member whose last
            # subscription went has to give its queues back, and to report that it is alive until it has.
            if self._broker.connected and (self._subscribed or self.joined):
                wait_s = min(self._due, self._join_due) - loop.time()
                if wait_s <= 0:
                    return
            try:
                async with asyncio.timeout(wait_s):
                    await self._noticed.wait()
            except TimeoutError:
                pass

    async def _join(self) -> None:
        """Join, or report that we are alive; learn who else is there and which topics exist."""
        loop = asyncio.get_running_loop()
        self._join_due = loop.time() + leases.heartbeat_s(self._config, self._broker.limits)
        # A member that is about to leave consumes what it did: to others of the group, nothing is another subscription.
        asked = self._subscribed.all() or dict(self._accepted)
        self._topics.joining()
        # Where a group begins is decided once, when its first member names the topic. Its retries are all for it.
        new = [topic for topic in asked if topic not in self._accepted and topic != self._broker.retry_topic]
        first = new if self._config.start_from == LAST else []
        try:
            reply = await self._broker.join(
                _expressions(asked), strategy=self._shares.strategy.name, from_end=first, log_epoch=self._parted_from
            )
        except GroupMismatch as error:
            if not self.joined or _expressions(asked) == _expressions(self._accepted):
                raise
            return self._go_back(asked, error)
        except HOPELESS:
            raise
        except RmqError as error:
            log.warning("group.join_failed", group=self._broker.group, error=str(error))
            if self._broker.connected:
                self._join_due = loop.time() + JOIN_RETRY_S
            return
        self._parted_from = NOTHING_IN_COMMON
        self._learn_members(reply.members, reply.version)
        self._topics.joined(asked, reply.topics)
        self._end_dead()
        self._accept(asked)
        if not self.joined:
            self.joined = True
            log.info("group.joined", group=self._broker.group, member=self._broker.member)

    def _learn_members(self, members: list[str], version: int) -> bool:
        """
        Take a list if it is as new as ours, and we are in it; says whether that is so.

        Lists are not read in the order they were made: an answer is read when its task has its turn, after what was
        pushed after it; and what was pushed while we were stopped may be older than the answer that is read next.
        """
        if version < self._members_version or self._broker.member not in members:
            return False
        self._members, self._members_version = members, version
        return True

    def _accept(self, subscriptions: dict[str, Subscription]) -> None:
        """Select by these from here on; what is already decoded is still delivered."""
        self._accepted = subscriptions
        for queue, assignment in self._assignments.items():
            if queue.topic in subscriptions:
                assignment.cache.subscription = subscriptions[queue.topic]

    def _go_back(self, refused: dict[str, Subscription], error: GroupMismatch) -> None:
        """The group consumes something else: go on with what the broker accepted of us before."""
        self._join_due = 0.0
        if self._subscribed.all() == refused:  # else they have changed again, and the next request will tell
            log.error("group.subscription_refused", group=self._broker.group, error=str(error))
            self._subscribed.go_back(self._accepted)

    async def _leave(self) -> None:
        """Nothing is subscribed and no queue is ours: leave the group until something is."""
        try:
            await self._broker.leave([])
        except RmqError as error:
            log.warning("group.leave_failed", group=self._broker.group, error=str(error))
            self.notice(JOIN_RETRY_S)
            return
        self.joined = False
        self._members, self._accepted = [], {}
        log.info("group.left", group=self._broker.group, leases=0)

    # A pass

    def _computed(self) -> dict[str, Share]:
        # A queue taken before its subscription is accepted would be selected by nothing.
        topics = {topic: self._topics.places(topic) for topic in self._subscribed.all() if topic in self._accepted}
        owned = (queue for queue, assignment in self._assignments.items() if not assignment.dropped)
        return self._shares.of_topics(topics, self._members, self._broker.member, owned=owned)

    async def _balance(self) -> None:
        """Drop, then ask; a queue whose hand-over is not finished is asked for when it is."""
        shares = self._computed()
        self._shares.report(self._broker.group, shares)
        wanted = _all_of(shares)
        await self._drop(wanted)
        self._refused = {queue: reason for queue, reason in self._refused.items() if queue in wanted}
        missing = sorted(queue for queue in wanted | self._unsure if queue not in self._assignments)
        for at in range(0, len(missing), MAX_ENTRIES):
            if self._stopping or not await self._acquire(missing[at : at + MAX_ENTRIES]):
                break
        if self._changed and self._subscribed and not self._stopping:
            await self._announce_change(wanted)

    async def _drop(self, wanted: set[MessageQueue]) -> None:
        now = self._broker.now()
        assignments, pull_expiry_s = self._assignments.values(), self._config.pull_expiry_s
        leaving, expired = to_drop(assignments, wanted, now=now, pull_expiry_s=pull_expiry_s)
        for assignment in leaving:
            log.info("queue.dropped", queue=str(assignment.queue), epoch=assignment.epoch)
            self._handovers.begin(assignment)
        for assignment in expired:
            ago = round(now - assignment.pulled_at, 3)
            log.warning("queue.pull_expired", queue=str(assignment.queue), epoch=assignment.epoch, pulled_ago_s=ago)
            self._handovers.begin(assignment)
        await self._handovers.idle_ended(leaving)
        await self._handovers.idle_gone(expired, self._config.lock_timeout_s)
        self._handovers.count_tries()

    async def _announce_change(self, wanted: set[MessageQueue]) -> None:
        """Report that we are alive, now that we own others than before; the answer may bring news as well."""
        self._changed = False
        await self._join()
        if _all_of(self._computed()) != wanted:
            self.notice()

    async def _acquire(self, queues: list[MessageQueue]) -> bool:
        """Ask for queues, in one request; says whether there was an answer."""
        asked = _Asked(
            self._broker.now(),
            self._broker.log_epoch,
            {queue.topic: self._topics.generation(queue.topic) for queue in queues},
        )
        self._freed.clear()
        self._unsure.update(queues)
        try:
            grants = await self._broker.acquire(queues)
        except Refused as error:
            self._unsure.difference_update(queues)
            log.warning("lock.request_refused", error=str(error))
            if isinstance(error, NotAMember) or error.code in GONE:
                self._join_due = asyncio.get_running_loop().time() + JOIN_RETRY_S
            self.notice(JOIN_RETRY_S)
            return False
        except RmqError as error:
            # The broker may have granted them. They are asked for again, also if they fall to another member
            # meanwhile: only a grant that is known can be given back.
            log.warning("lock.request_failed", error=str(error))
            self.notice(self._config.lock_retry_s)
            return False
        self._unsure.difference_update(queues)
        wanted = _all_of(self._computed())
        for queue, grant in zip(queues, grants, strict=True):
            if grant.status == OK:
                self._begin(queue, grant, asked, queue in wanted)
            else:
                self._note_refused(queue, grant, asked)
        return True

    def _begin(self, queue: MessageQueue, grant: Grant, asked: _Asked, is_wanted: bool) -> None:
        self._refused.pop(queue, None)
        topic_generation = asked.topic_generations[queue.topic]
        cache = self._make_cache(
            grant.committed_offset,
            subscription=self._accepted.get(queue.topic),
            runs=runs_of(grant),
        )
        assignment = Assignment(
            LeaseBelief(queue, grant.epoch, asked.at),
            cache,
            on_lost=self._on_lost,
            topic_generation=topic_generation,
            agreed=asked.log_epoch,
            suspicion=Suspicion.of(grant),
        )
        assignment.reported = grant.committed_offset
        if self._config.namespace:
            assignment.shown = MessageQueue(unwrap(self._config.namespace, queue.topic), queue.queue_id)
        self._assignments[queue] = assignment
        # If the topic was deleted and made again meanwhile, it is not known which of the two this is about.
        is_current = topic_generation == self._topics.generation(queue.topic)
        if self._stopping or not is_current or not is_wanted:
            return self._handovers.begin(assignment)
        self._changed = True
        log.info("queue.acquired", queue=str(queue), epoch=grant.epoch, queue_offset=grant.committed_offset)
        self._workers.start_assignment(assignment)

    def _note_refused(self, queue: MessageQueue, grant: Grant, asked: _Asked) -> None:
        if grant.status in GONE:
            return self.topic_missing(queue.topic, asked.topic_generations[queue.topic])
        reason = grant.text or code_name(grant.status)
        if self._refused.get(queue) != reason:
            self._refused[queue] = reason
            report = log.info if grant.status == LockHeld.code else log.warning
            report("lock.refused", queue=str(queue), reason=reason)
        # It may have become free after the refusal was written and before it was read.
        self.notice(0.0 if queue in self._freed else self._config.lock_retry_s)

    # Hand-over

    def _on_lost(self, assignment: Assignment, reason: str) -> None:
        if reason != TOPIC_GONE:  # that was reported as such, once
            self._losses.add(assignment, reason)
        if not self._stopping and not assignment.dropped:
            self._handovers.begin(assignment)

    def _handed_over(self, assignment: Assignment) -> None:
        self._changed |= not assignment.lease.lost
        self.notice()

    # The end

    def halt(self) -> None:
        """No further pass; the loop ends after the one under way, whose grants are handed over at once."""
        self._stopping = True
        self._handovers.halt()
        self._noticed.set()

    async def handovers_ended(self) -> None:
        """Wait for the hand-overs that were under way; those that had not yet asked to unlock leave that to us."""
        await self._handovers.all_ended()
        self._losses.flush()


def _all_of(shares: dict[str, Share]) -> set[MessageQueue]:
    return {queue for share in shares.values() for queue in share.ours}


def _expressions(subscriptions: dict[str, Subscription]) -> dict[str, str]:
    return {topic: subscription.expression for topic, subscription in subscriptions.items()}


NEVER = float("-inf")


def to_drop(
    assignments: Iterable[Assignment], wanted: Collection[MessageQueue], *, now: float, pull_expiry_s: float
) -> tuple[list[Assignment], list[Assignment]]:
    """
    Return those that are not ours any more, and those that are ours but were not pulled for too long.

    The latter were not pulled for *longer* than ``pull_expiry_s``, for no known reason. What was dropped before is in
    neither list.
    """
    live = [assignment for assignment in assignments if not assignment.dropped]
    ours = [assignment for assignment in live if assignment.queue in wanted]
    leaving = [assignment for assignment in live if assignment.queue not in wanted]
    return leaving, [each for each in ours if is_pull_expired(each, now=now, pull_expiry_s=pull_expiry_s)]


def is_pull_expired(assignment: Assignment, *, now: float, pull_expiry_s: float) -> bool:
    """Whether a queue stands still for no known reason; one that was never pulled is still being begun."""
    waits = assignment.paused or assignment.stopped is not None or assignment.crash_loop is not None
    return not waits and assignment.pulled_at != NEVER and now - assignment.pulled_at > pull_expiry_s
