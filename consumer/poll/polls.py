"""
Gives the messages of the queues to the polling task, one batch of one queue at a time.

There is no task for a queue. A queue that has messages is in ``ReadyQueues``; a poll takes from the first, which goes
to the end if it has more. What was returned is *in hand* until the next poll, a commit, or a seek of its queue: its
guard is busy, as that of a queue whose listener is called, so that a hand-over waits for it. That wait ends after
``drain_s``: a user who never polls again must not keep a queue from the others. What is in hand then is given back
without it, its batch is marked ``lost``, and the next owner gets it again.

Messages are taken in one stretch with the return of the poll, so that a cancelled poll loses none.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.model import MessageQueue

from ..config import ConsumerConfig
from ..dispatch.turns import RELOCK_FIRST_S, SLICE_S, YIELD_S
from ..group.assignment import Assignment
from ..group.leases import Leases, is_proven, until_proven
from ..introspection import Statistics
from .commits import PullCommits
from .queue import PulledBatch, cache_of
from .watchdog import PollWatchdog

log = get_logger("rmq.consumer")
RebalanceHook = Callable[[list[MessageQueue]], Awaitable[None] | None]


class _InHand(NamedTuple):
    """What the user has: the list is theirs, so the number of messages is kept as well."""

    batch: PulledBatch
    assignment: Assignment
    messages: int
    since: float


class PullService:
    """Batches for one polling task; the queues come and go as they do for a listener."""

    def __init__(
        self,
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        tasks: TaskSet,
        leases: Leases,
        commits: PullCommits,
        watchdog: PollWatchdog,
        statistics: Statistics,
        stalled: Callable[[float], bool] = lambda _: False,
        on_assigned: RebalanceHook | None = None,
        on_revoked: RebalanceHook | None = None,
    ) -> None:
        """``on_assigned`` is called before the first message of a queue is returned, ``on_revoked`` after the last."""
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._leases = leases
        self.commits = commits
        self.watchdog = watchdog
        self._statistics = statistics
        self._stalled = stalled
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._ready = ReadyQueues[Assignment]()
        self._woken = asyncio.Event()
        self._open: set[Assignment] = set()  # whose messages may be returned
        self._announced: set[Assignment] = set()  # given to on_assigned, and not to on_revoked yet
        self._doubted: set[Assignment] = set()  # whose leases are being proven
        self._callers: set[asyncio.Task[None]] = set()  # that call the user's hooks
        self._in_hand: _InHand | None = None
        self._gave_way_at = float("-inf")  # when the loop last had its turn
        self._closed = False

    # For the consumer: see ConsumeService

    @property
    def turns(self) -> int:
        """0: progress is reported when it is marked, so no loop has to look for it."""
        return 0

    def owners(self) -> Sequence[asyncio.Task[None]]:
        """The tasks that call the user's hooks."""
        return list(self._callers)

    def start(self, assignment: Assignment) -> None:
        """Have messages of a queue returned, after the user's hook has run."""
        assignment.suspicion = None  # messages are given to the user as they are: no call could be guarded
        assignment.on_work = lambda: self._has_work(assignment)
        if self._on_assigned is None:
            self._announced.add(assignment)
            self._open.add(assignment)
        else:
            assignment.owner = self._tasks.start(self._assigned(assignment), f"on_assigned of {assignment.queue}")

    async def _assigned(self, assignment: Assignment) -> None:
        self._announced.add(assignment)
        await self._call(self._on_assigned, "on_assigned", assignment)
        self._open.add(assignment)
        self._has_work(assignment)

    async def finish(self, assignment: Assignment, *, within_s: float | None = None) -> None:
        """
        Return when the user has nothing of a dropped assignment in hand, at the latest after ``drain_s``.

        What is done by then is marked, unless only the user commits.
        """
        assert assignment.dropped, "a queue whose messages may still be returned cannot be waited for"
        self._open.discard(assignment)
        self._ready.discard(assignment)
        await self._tasks.cancel(assignment.owner)
        limit_s = self._config.drain_s if within_s is None else min(within_s, self._config.drain_s)
        try:
            async with asyncio.timeout(limit_s):
                await assignment.guard.free()
        except TimeoutError:
            self._give_back(assignment, limit_s)
        if assignment in self._announced:
            self._announced.discard(assignment)
            await self._revoked(assignment)
        cache = cache_of(assignment)
        if self._config.auto_commit_every_s and not assignment.lease.lost:
            cache.mark_done()
        if cache.unmarked or (assignment.lease.lost and cache.finished_offset > cache.durable):
            self.commits.note(assignment)

    def _give_back(self, assignment: Assignment, after_s: float) -> None:
        """Wait no longer for what is in hand: it was not done, and another member gets it."""
        if self._in_hand is None or self._in_hand.assignment is not assignment:
            return
        self._in_hand.batch.given_back = True
        messages = assignment.cache.in_flight
        log.warning(
            "poll.given_back",
            queue=str(assignment.queue),
            from_offset=messages[0].queue_offset,
            to_offset=messages[-1].queue_offset,
            after_s=after_s,
            advice="poll again or commit within drain_s: others get these messages again",
        )
        self.abandon()

    async def _revoked(self, assignment: Assignment) -> None:
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self._call(self._on_revoked, "on_revoked", assignment)
        except TimeoutError:
            log.warning("hook.cancelled", hook="on_revoked", queue=str(assignment.queue), after_s=self._config.drain_s)

    async def _call(self, hook: RebalanceHook | None, name: str, assignment: Assignment) -> None:
        if hook is None:
            return
        task = asyncio.current_task()
        assert task is not None
        self._callers.add(task)
        try:
            waits = hook([assignment.shown])
            if waits is not None:
                await waits
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise  # we were cancelled; else something that the hook awaited was
            log.error("hook.raised", hook=name, queue=str(assignment.queue), exc_info=error)
        finally:
            self._callers.discard(task)

    def _has_work(self, assignment: Assignment) -> None:
        """Something came, or a pause has ended, or a lease was proven."""
        if assignment in self._open and assignment not in self._doubted and not assignment.halted:
            self._ready.add(assignment)
            self._woken.set()

    # For the polling task

    def close(self) -> None:
        """Nothing is returned any more; a poll under way ends at once."""
        self._closed = True
        self._woken.set()

    @property
    def has_batch(self) -> bool:
        """Whether something is in hand."""
        return self._in_hand is not None

    async def poll(self, timeout_s: float | None) -> PulledBatch:
        """
        The next batch; what was in hand is done. Empty after ``timeout_s`` (None: never), or when it was closed.

        Cancelling is safe: nothing was taken then.
        """
        self.finished()
        self.watchdog.poll_began()
        try:
            return await self._poll(timeout_s)
        finally:
            self.watchdog.poll_ended()

    async def _poll(self, timeout_s: float | None) -> PulledBatch:
        now = self._broker.now()
        if now - self._gave_way_at <= SLICE_S and (batch := self._take(now)) is not None:
            return batch
        try:
            async with asyncio.timeout(timeout_s if timeout_s else None):
                return await self._next_batch(wait=timeout_s != 0)
        except TimeoutError:
            return self._take(self._broker.now()) or PulledBatch()  # what came at that very moment

    async def _next_batch(self, *, wait: bool) -> PulledBatch:
        while True:
            await asyncio.sleep(0)  # a user who never waits for anything else would stop every timer of the process
            now = self._gave_way_at = self._broker.now()
            if (batch := self._take(now)) is not None:
                return batch
            stalled = self._stalled(now)
            if self._closed or (not wait and (stalled or not self._ready)):
                return PulledBatch()
            if stalled:
                await asyncio.sleep(YIELD_S)
            elif not self._ready:
                self._woken.clear()
                await self._woken.wait()

    def _take(self, now: float) -> PulledBatch | None:
        """Messages of the first ready queue that has any; None if there is none, or a long run of unwanted ones."""
        if self._closed or self._stalled(now):
            return None
        while (assignment := self._ready.take()) is not None:
            if assignment.halted:
                continue  # it is added again when it is resumed
            if not is_proven(assignment, self._leases, now):
                self._doubt(assignment)
                continue
            messages = cache_of(assignment).take(self._config.batch)
            if assignment.cache.ready:
                self._ready.add(assignment)
            if messages:
                assignment.guard.since = now
                self._in_hand = _InHand(PulledBatch(messages, assignment), assignment, len(messages), now)
                return self._in_hand.batch
            if self._ready:
                return None
        return None

    def finished(self) -> None:
        """What is in hand is done."""
        if self._in_hand is None:
            return
        _, assignment, count, since = self._in_hand
        self._in_hand = None
        cache_of(assignment).commit()
        assignment.guard.release()
        self.watchdog.active()
        now = self._broker.now()
        timed_out = now - since >= self._config.consume_timeout_s
        self._statistics.of(assignment.shown.topic).succeeded(now, count, 1, now - since, timed_out)

    def abandon(self) -> None:
        """What is in hand is not done, and others get it: the next commit reports that."""
        if self._in_hand is not None:
            self.commits.note(self._in_hand.assignment)
            self.let_go()

    def let_go(self, assignment: Assignment | None = None) -> None:
        """What is in hand, of any queue or this one, is not done, and no hand-over waits for it."""
        if self._in_hand is not None and assignment in (None, self._in_hand.assignment):
            assignment, self._in_hand = self._in_hand.assignment, None
            assignment.guard.release()

    # Leases

    def _doubt(self, assignment: Assignment) -> None:
        """Have the lease proven before anything more of the queue is returned."""
        self._doubted.add(assignment)
        self._tasks.start(self._prove(assignment), f"proof of {assignment.queue}")

    async def _prove(self, assignment: Assignment) -> None:
        await until_proven(assignment, self._leases, first_s=RELOCK_FIRST_S, retry_s=self._config.lock_retry_s)
        self._doubted.discard(assignment)
        self._has_work(assignment)


T = TypeVar("T", bound=Hashable)


class ReadyQueues(Generic[T]):
    """
    A queue in which each item stands at most once; one that has more after its turn goes to the end.

    So each of ``n`` items has its turn within ``n`` turns.
    """

    __slots__ = ("_ready",)

    def __init__(self) -> None:
        self._ready: OrderedDict[T, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, item: T) -> None:
        """Add an item at the end; one that is there already keeps its place."""
        self._ready.setdefault(item)

    def discard(self, item: T) -> None:
        """Remove an item."""
        self._ready.pop(item, None)

    def take(self) -> T | None:
        """Remove and return the first item; None if none is left."""
        return self._ready.popitem(last=False)[0] if self._ready else None
