"""
How a queue is given up: one task for each, so that none waits for another.

Mark it dropped, let the running call end and be recorded, discard what was not started, then commit and unlock in one
request. Nothing else ends a lease of ours before its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.errors import RmqError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import LeaseEnd

from .assignment import Assignment
from .progress import agree, lease_end

log = get_logger("rmq.consumer")

RELEASE_RETRY_S = 0.1
ANSWER_S = 3.0  # for a broker to say whether it has what was done
LOG_EVERY_S = 1.0  # a call that keeps its queue is counted and logged at most this often


class Workers(Protocol):
    """Works on the assignments that the rebalancer makes; the broken builds of the tests replace it."""

    def start_assignment(self, assignment: Assignment) -> None: ...
    async def finish_assignment(self, assignment: Assignment) -> None: ...


class HandoverTasks:
    """Hands queues over, one task for each. ``ended(assignment)`` is called when one is out of the table."""

    def __init__(
        self,
        assignments: dict[MessageQueue, Assignment],
        broker: GroupClient,
        *,
        workers: Workers,
        tasks: TaskSet,
        ended: Callable[[Assignment], None],
    ) -> None:
        self._assignments = assignments
        self._broker = broker
        self._workers = workers
        self._tasks = tasks
        self._ended = ended
        self._running: dict[Assignment, asyncio.Task[None]] = {}
        self._logged_at: dict[Assignment, float] = {}
        self._stopping = False

    def begin(self, assignment: Assignment) -> None:
        """Give a queue up, in the background."""
        assignment.drop()
        task = self._tasks.start(self._end(assignment), f"hand-over of {assignment.queue}")
        self._running[assignment] = task
        task.add_done_callback(lambda _: self._forget(assignment))

    def _forget(self, assignment: Assignment) -> None:
        self._running.pop(assignment, None)
        self._logged_at.pop(assignment, None)

    async def _end(self, assignment: Assignment) -> None:
        """Let the running call end, discard what was not started, then commit and unlock in one request."""
        await self._tasks.cancel(assignment.puller)
        await self._workers.finish_assignment(assignment)
        assignment.cache.discard()
        assignment.ended.set()
        if await self._release(assignment) and self._assignments.get(assignment.queue) is assignment:
            del self._assignments[assignment.queue]
            self._ended(assignment)
        if assignment.lease.lost and not assignment.topic_gone:
            await self._report_ended(assignment)

    async def _report_ended(self, assignment: Assignment) -> None:
        """
        Report that nothing runs any more under a lost lease: after a reset of offsets the broker waits for that.

        A stop need not say it: leaving the group does.
        """
        while not self._stopping:
            try:
                await self._broker.release([LeaseEnd(*assignment.queue, assignment.epoch)])
                return
            except RmqError as error:
                log.debug("release.failed", queue=str(assignment.queue), error=str(error))
                await asyncio.sleep(RELEASE_RETRY_S)

    async def _release(self, assignment: Assignment) -> bool:
        """Give the lease back; False if a stop came first, which gives everything back in one request."""
        while not assignment.lease.lost:
            if self._stopping:
                return False
            try:
                await agree(assignment, self._broker, timeout_s=ANSWER_S)
                await self._broker.release([lease_end(assignment, self._broker.log_epoch)])
                log.info("queue.released", queue=str(assignment.queue), epoch=assignment.epoch)
                return True
            except RmqError as error:
                log.debug("release.failed", queue=str(assignment.queue), error=str(error))
                await asyncio.sleep(RELEASE_RETRY_S)
        return True

    # What a pass waits for, and does not wait for

    async def idle_ended(self, assignments: Iterable[Assignment]) -> None:
        """Wait until those without a running call have ended: a few steps of the loop, then their unlock is sent."""
        for assignment in assignments:
            if not assignment.guard.busy:
                await assignment.ended.wait()

    async def idle_gone(self, assignments: Iterable[Assignment], within_s: float) -> None:
        """Wait until those without a running call are unlocked, but no longer than this: they can be taken again."""
        tasks = [self._running[each] for each in assignments if not each.guard.busy and each in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def count_tries(self) -> None:
        """Count, and log, the calls that keep a dropped queue from being unlocked."""
        now = self._broker.now()
        for assignment in self._running:
            if assignment.guard.busy and now - self._logged_at.get(assignment, float("-inf")) >= LOG_EVERY_S:
                self._logged_at[assignment] = now
                assignment.tries_to_unlock += 1
                since = assignment.called_at
                log.warning(
                    "unlock.waiting",
                    queue=str(assignment.queue),
                    epoch=assignment.epoch,
                    tries=assignment.tries_to_unlock,
                    call_runs_s=None if since is None else round(now - since, 3),
                )

    # The end

    def halt(self) -> None:
        """From here on nothing is unlocked one by one."""
        self._stopping = True

    async def all_ended(self) -> None:
        """Wait for the hand-overs under way; those that had not yet asked to unlock leave that to the stop."""
        if self._running:
            await asyncio.wait(set(self._running.values()))
