"""
``OrderlyScheduler``: one owner task per queue generation, which gives the listener one batch after the other.

The life of an owner::

    wait for messages -> slot -> gate -> batches ... -> leave gate and slot -> pause, or wait for messages
                                  |
                                  dropped: end.  lease not proven: ask for a renewal, come back.
                                  window over: come back in 10 ms.  batch failed: have the attempt recorded, pause.

The slot comes before the gate: a turn that queues for a slot must not keep another out of the gate. The lease is
looked at by the clock before each batch. A result is recorded locally at once; it leaves this process only with a
request that carries the epoch, sent while the lease is believed in (``offsets``, ``puller``), so a call that
outlived its lease commits nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rmq.client.log import get_logger
from rmq.wire.errors import Fenced, Refused, RmqError
from rmq.wire.model import ConsumeStatus, StoredMessage

from .config import ConsumerConfig
from .context import ConsumeContext
from .generation import Generation
from .group_client import GroupClient
from .listeners import AsyncListener
from .queue_gates import QueueGates
from .tasks import TaskSet
from .turns import RELOCK_FIRST_S, SLICE_S, YIELD_S, Step, next_step, retry_pause

log = get_logger("rmq.consumer")

SUCCESS, SUSPEND = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND
COMMIT, ROLLBACK = ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK


class Leases(Protocol):
    """What a turn asks about its lease; see :class:`~rmq.consumer.lease_keeper.LeaseKeeper`."""

    def believed_until(self, generation: Generation) -> float: ...
    def believed(self, generation: Generation) -> bool: ...
    def proven(self, generation: Generation) -> None: ...
    async def renew_one(self, generation: Generation) -> None: ...


class Failed(NamedTuple):
    """A batch that has to be given again: its first message, the delivery that failed, and the pause."""

    queue_offset: int
    attempt: int
    pause_s: float


class OrderlyScheduler:
    """Turns over queues: as many at a time as there are slots, one at a time for each queue, none without a lease."""

    def __init__(
        self,
        listener: AsyncListener,
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        tasks: TaskSet,
        leases: Leases,
        on_turn: Callable[[], None],
        gates: QueueGates | None = None,
    ) -> None:
        self._listener = listener
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._leases = leases
        self._on_turn = on_turn
        self._slots = asyncio.Semaphore(config.slots)
        self._queueing = 0  # owners that wait for a slot
        self._warned: set[str] = set()
        self.turns = 0  # turns that are running
        self.gates = gates or QueueGates()

    def start(self, generation: Generation) -> None:
        """Give a generation its owner."""
        generation.owner = self._tasks.start(self._own(generation), f"owner of {generation.queue}")

    async def finish(self, generation: Generation, *, within_s: float | None = None) -> None:
        """
        Return when the owner of a dropped generation has ended; a running call ends first and is recorded.

        After ``within_s`` seconds (None: never) the call is cancelled; one in a thread is waited for all the same.
        """
        assert generation.dropped, "an owner that may start another batch cannot be waited for"
        try:
            async with asyncio.timeout(within_s):
                await generation.guard.free()
        except TimeoutError:
            log.warning("listener.cancelled", queue=str(generation.queue), after_s=within_s)
        # No call is running and none will start: what is cancelled is a wait for messages, a slot, a gate or a pause.
        await self._tasks.cancel(generation.owner)

    # The owner

    async def _own(self, generation: Generation) -> None:
        while True:
            try:
                return await self._take_turns(generation)
            except asyncio.CancelledError:
                if generation.dropped:
                    return  # whoever cancelled us, there is nothing left to do
                # A listener that cancels its task and returns leaves us the exception, wherever we wait next.
                if not self._undo_cancel(generation):
                    raise

    async def _take_turns(self, generation: Generation) -> None:
        while await generation.work():
            end = await self._turn(generation)
            if isinstance(end, Failed):
                await self._record(generation, end)
                await generation.pause(end.pause_s)
            elif end is Step.YIELD:
                await generation.pause(YIELD_S)
            elif end is Step.RELOCK:
                await self._relock(generation)
            elif generation.cache.ready:
                await asyncio.sleep(0)  # a long run of unwanted messages: others may have the loop

    async def _turn(self, generation: Generation) -> Step | Failed:
        """One stay inside the gate; says why it ended, RUN if there was nothing left to take."""
        self._queueing += 1
        try:
            await self._slots.acquire()
        finally:
            self._queueing -= 1
        try:
            async with self.gates[generation.queue]:
                self.turns += 1
                self._on_turn()
                try:
                    return await self._run(generation)
                finally:
                    self.turns -= 1
                    self._on_turn()
        finally:
            self._slots.release()

    async def _run(self, generation: Generation) -> Step | Failed:
        """
        The hot path: batch after batch, without a task, a future or a lock for each.

        One reading of the clock after a call serves its own end and the start of the next batch: nothing else can
        run in between. ``look_at`` is the first moment at which any limit has to be looked at; until then one
        comparison is enough, since all limits only move on, except by ``dropped``, which is read every time.
        """
        clock, listener, size = self._broker.now, self._listener, self._config.batch
        cache, guard = generation.cache, generation.guard
        context = ConsumeContext(generation)
        began = clock()
        now, look_at = began, float("-inf")
        try:
            while True:
                if now > look_at or generation.dropped or generation.paused:
                    step, look_at = await self._look(generation, began)
                    if step is not Step.RUN:
                        return step
                messages = cache.take(size)
                if not messages:
                    return Step.RUN
                count = len(messages)  # the list is the listener's from here on: it may change it
                context.auto_commit, context.suspend_s = True, None
                guard.held = True
                try:
                    status = await listener(messages, context)
                except BaseException as error:
                    status = self._caught(generation, count, error)
                now = clock()
                if status is SUCCESS and context.auto_commit:
                    cache.commit()
                elif (failed := self._settle(generation, count, status, context)) is not None:
                    return failed  # the guard stays held until the attempt is recorded
                guard.held = False
                if guard.waiters:
                    guard.release()
        except BaseException:
            guard.release()
            raise

    async def _look(self, generation: Generation, began: float) -> tuple[Step, float]:
        """What to do before the next batch, and when to look again; gives the loop back first."""
        config = self._config
        if self._broker.now() > began:
            # A listener that never suspends would stop every timer of the process.
            await asyncio.sleep(0)
        now = self._broker.now()
        if now > generation.believed_until:
            generation.believed_until = self._leases.believed_until(generation)
        step = next_step(
            dropped=generation.dropped,
            now=now,
            believed_until=generation.believed_until,
            began=began,
            max_continuous_s=config.max_continuous_s,
            turn_share_s=config.turn_share_s,
            others_wait=self._queueing > 0,
            paused=generation.paused,
        )
        if step is Step.RUN and generation.lost.told:
            self._leases.proven(generation)
        return step, min(generation.believed_until, began + config.max_continuous_s, now + SLICE_S)

    # Results

    def _settle(self, generation: Generation, count: int, status: object, context: ConsumeContext) -> Failed | None:
        """Record any result but a plain success; what has to be given again is returned."""
        status = self._read_status(status, context.auto_commit)
        cache = generation.cache
        if status is COMMIT:
            cache.commit()
        elif status is SUSPEND:
            return self._failed(generation, cache.again(count), context)
        elif status is ROLLBACK:
            return self._failed(generation, cache.rollback(), context)
        return None

    def _read_status(self, status: object, auto_commit: bool) -> ConsumeStatus:
        """COMMIT, SUSPEND, ROLLBACK, or SUCCESS for a success that is not to be committed yet."""
        if status is None:
            self._warn_once("listener.returned_nothing", "return ConsumeStatus.SUCCESS when the messages are done")
            return SUSPEND
        if not isinstance(status, ConsumeStatus):
            self._warn_once("listener.returned_no_status", f"{status!r} is no ConsumeStatus; taken as SUSPEND")
            return SUSPEND
        if not auto_commit or status is SUSPEND:
            return status
        if status is ROLLBACK:
            # RocketMQ takes it for a success. Whoever asks for the messages again does not want them committed.
            self._warn_once("listener.rolls_back_itself", "ROLLBACK needs auto_commit = False; taken as SUSPEND")
            return SUSPEND
        if status is COMMIT:
            self._warn_once("listener.commits_itself", "COMMIT means something only with context.auto_commit = False")
        return COMMIT

    def _asked_pause(self, context: ConsumeContext) -> float | None:
        asked: object = context.suspend_s
        if asked is None or (isinstance(asked, int | float) and not isinstance(asked, bool)):
            return asked
        self._warn_once("listener.bad_pause", f"context.suspend_s = {asked!r} is no number of seconds; left out")
        return None

    def _failed(self, generation: Generation, messages: list[StoredMessage], context: ConsumeContext) -> Failed:
        head = messages[0]
        failed = Failed(
            head.queue_offset,
            head.attempt,
            retry_pause(head.attempt, self._asked_pause(context), self._config.suspend_s),
        )
        # Not each time: a queue that is retried every 10 ms would fill the log.
        if head.attempt & (head.attempt - 1) == 0:
            log.warning(
                "message.retrying",
                queue=str(generation.queue),
                queue_offset=failed.queue_offset,
                attempt=failed.attempt,
                pause_s=failed.pause_s,
            )
        for message in messages:
            message.attempt += 1
        return failed

    async def _record(self, generation: Generation, failed: Failed) -> None:
        """Have the broker acknowledge a failed attempt, so that the count survives a take-over; then free the guard."""
        try:
            while not generation.lease.lost:
                try:
                    await self._broker.attempt(generation.queue, generation.epoch, failed.queue_offset, failed.attempt)
                    return
                except Fenced as error:
                    generation.lose(error.text)
                except Refused as error:
                    log.error("attempt.refused", queue=str(generation.queue), error=str(error))
                    return
                except RmqError:
                    if generation.dropped:
                        return
                    await generation.pause(self._config.lock_retry_s if self._broker.connected else 0.05)
        finally:
            generation.guard.release()

    async def _relock(self, generation: Generation) -> None:
        """Come back when the lease is proven: ask after 10 ms, then every ``lock_retry_s``."""
        await generation.pause(RELOCK_FIRST_S)
        while not generation.dropped:
            await self._leases.renew_one(generation)
            if self._leases.believed(generation):
                return
            await generation.wait_resumed(self._config.lock_retry_s)

    def _caught(self, generation: Generation, count: int, error: BaseException) -> ConsumeStatus:
        """What a listener's exception means; raises it again if it is not the listener's."""
        if isinstance(error, asyncio.CancelledError):
            # A listener that awaited something which somebody else cancelled has failed; we were not cancelled.
            if _is_cancelled() and not self._undo_cancel(generation):
                raise error
        elif not isinstance(error, Exception):
            raise error
        head = generation.cache.in_flight[-count]
        if head.attempt & (head.attempt - 1) == 0:
            log.error(
                "listener.raised",
                queue=str(generation.queue),
                queue_offset=head.queue_offset,
                attempt=head.attempt,
                exc_info=error,
            )
        return SUSPEND

    def _undo_cancel(self, generation: Generation) -> bool:
        """Take a cancellation back that came from the listener; False if it is ours, or the loop ends."""
        task = asyncio.current_task()
        if task is None or generation.dropped or self._tasks.ending():
            return False
        while task.cancelling():
            task.uncancel()
        self._warn_once("listener.cancelled_its_task", "a listener must not cancel the task that calls it")
        return True

    def _warn_once(self, event: str, advice: str) -> None:
        if event not in self._warned:
            self._warned.add(event)
            log.warning(event, advice=advice)


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, rather than something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
