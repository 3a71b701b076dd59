"""
``HandOvers``: how a queue is given up. One task for each, so that none waits for another.

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

from .assignment import Generation
from .progress import agree, lease_end

log = get_logger("rmq.consumer")

RELEASE_RETRY_S = 0.1
ANSWER_S = 3.0  # for a broker to say whether it has what was done
TELL_EVERY_S = 1.0  # a call that keeps its queue is counted and told of at most this often


class Workers(Protocol):
    """Whoever works on the generations the rebalancer makes."""

    def start_generation(self, generation: Generation) -> None: ...
    async def finish_generation(self, generation: Generation) -> None: ...


class HandOvers:
    """The queues that are being given up. ``ended(generation)`` is told when one is out of the table."""

    def __init__(
        self,
        generations: dict[MessageQueue, Generation],
        broker: GroupClient,
        *,
        workers: Workers,
        tasks: TaskSet,
        ended: Callable[[Generation], None],
    ) -> None:
        self._generations = generations
        self._broker = broker
        self._workers = workers
        self._tasks = tasks
        self._ended = ended
        self._running: dict[Generation, asyncio.Task[None]] = {}
        self._told_at: dict[Generation, float] = {}
        self._stopping = False

    def begin(self, generation: Generation) -> None:
        """Give a queue up, in the background."""
        generation.drop()
        task = self._tasks.start(self._end(generation), f"hand-over of {generation.queue}")
        self._running[generation] = task
        task.add_done_callback(lambda _: self._forget(generation))

    def _forget(self, generation: Generation) -> None:
        self._running.pop(generation, None)
        self._told_at.pop(generation, None)

    async def _end(self, generation: Generation) -> None:
        """Let the running call end, discard what was not started, then commit and unlock in one request."""
        await self._tasks.cancel(generation.puller)
        await self._workers.finish_generation(generation)
        generation.cache.discard()
        generation.ended.set()
        if await self._release(generation) and self._generations.get(generation.queue) is generation:
            del self._generations[generation.queue]
            self._ended(generation)
        if generation.lease.lost and not generation.topic_gone:
            await self._tell_ended(generation)

    async def _tell_ended(self, generation: Generation) -> None:
        """
        Say that nothing runs any more under a lease that we lost: after a reset of offsets the broker waits for that.

        A stop need not say it: leaving the group does.
        """
        while not self._stopping:
            try:
                await self._broker.release([LeaseEnd(*generation.queue, generation.epoch)])
                return
            except RmqError as error:
                log.debug("release.failed", queue=str(generation.queue), error=str(error))
                await asyncio.sleep(RELEASE_RETRY_S)

    async def _release(self, generation: Generation) -> bool:
        """Give the lease back; False if a stop came first, which gives everything back in one request."""
        while not generation.lease.lost:
            if self._stopping:
                return False
            try:
                await agree(generation, self._broker, timeout_s=ANSWER_S)
                await self._broker.release([lease_end(generation, self._broker.log_epoch)])
                log.info("queue.released", queue=str(generation.queue), epoch=generation.epoch)
                return True
            except RmqError as error:
                log.debug("release.failed", queue=str(generation.queue), error=str(error))
                await asyncio.sleep(RELEASE_RETRY_S)
        return True

    # What a pass waits for, and does not wait for

    async def idle_ended(self, generations: Iterable[Generation]) -> None:
        """Wait until those without a running call have ended: a few steps of the loop, then their unlock is sent."""
        for generation in generations:
            if not generation.guard.held:
                await generation.ended.wait()

    async def idle_gone(self, generations: Iterable[Generation], within_s: float) -> None:
        """Wait until those without a running call are unlocked, but no longer than this: they can be taken anew."""
        tasks = [self._running[g] for g in generations if not g.guard.held and g in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def count_tries(self) -> None:
        """Count, and tell of, the calls that keep a dropped queue from being unlocked."""
        now = self._broker.now()
        for generation in self._running:
            if generation.guard.held and now - self._told_at.get(generation, float("-inf")) >= TELL_EVERY_S:
                self._told_at[generation] = now
                generation.tries_to_unlock += 1
                since = generation.called_at
                log.warning(
                    "unlock.waiting",
                    queue=str(generation.queue),
                    epoch=generation.epoch,
                    tries=generation.tries_to_unlock,
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
